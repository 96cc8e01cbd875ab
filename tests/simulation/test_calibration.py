"""Costs from a run directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen import store
from loadgen.core.errors import ConfigError
from loadgen.core.history import Ending
from loadgen.core.simulate.costs import Costs, calibrate
from loadgen.simulation import calibration, fleetfile
from tests import factories
from tests.core.simulate.test_costs import CAPACITIES, spans
from tests.simulation.simulations import TEXT


def run_directory(folder: Path, entry_ns: float, variant: str = "before") -> None:
    plan = factories.scenario()
    writer = store.RunWriter(folder / "runs" / f"01-{variant}", factories.info(plan, variant))
    for span in spans(entry_ns, 2.0, 0.0):
        writer.add(span)
    writer.close(Ending.COMPLETE, 0)


def test_costs_of_a_run_become_those_of_every_node(tmp_path: Path) -> None:
    run_directory(tmp_path, 3000.0)
    found = calibration.from_run(tmp_path)
    assert [variant for variant, _ in found] == ["before"]
    fleet = calibration.applied(fleetfile.parse(TEXT, "tiny"), found)
    for of in fleet.nodes.values():
        assert of.costs.per_entry == pytest.approx(3000, rel=0.02)
        assert of.costs.per_entry_batch == pytest.approx(3000 * 0.49 / 2.05, rel=0.02)
        assert of.costs.per_delete == Costs().per_delete


def test_of_two_kinds_of_walks_each_comes_from_its_own_run() -> None:
    found = [
        (name, calibrate(spans(entry_ns, 1.0, 0.0), CAPACITIES, [], batch=batch))
        for name, entry_ns, batch in (("old", 3000.0, False), ("new", 500.0, True))
    ]
    for both_kinds in (found, found[::-1]):
        costs = calibration.applied(fleetfile.parse(TEXT, "tiny"), both_kinds).nodes["one"].costs
        assert costs.per_entry == pytest.approx(3000, rel=0.02)
        assert costs.per_entry_batch == pytest.approx(500, rel=0.02)


def test_nothing_to_calibrate_by(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a run directory"):
        calibration.from_run(tmp_path)
    (tmp_path / "runs").mkdir()
    with pytest.raises(ConfigError, match="it has no runs"):
        calibration.from_run(tmp_path)
    writer = store.RunWriter(tmp_path / "runs" / "01-before", factories.info(factories.scenario(), "before"))
    writer.close(Ending.COMPLETE, 0)
    with pytest.raises(ConfigError, match="only 0 walks of at least 10,000 entries"):
        calibration.from_run(tmp_path)
