from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.core.metrics import METRICS

DOCS = (Path(__file__).parents[2] / "docs" / "scenarios.md").read_text()


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_is_documented_for_those_who_write_thresholds(name: str) -> None:
    assert f"`{name}`" in DOCS
