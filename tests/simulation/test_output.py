"""What is on disk after a simulation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from loadgen.core.errors import ConfigError
from loadgen.simulation import fleetfile, output
from tests.simulation.simulations import fleet, simulation


@pytest.fixture
def written(tmp_path: Path) -> Path:
    output.write(tmp_path, simulation(), fleet(), output.Asked(fleet="tiny", argv=("simulate", "tiny")), "<html>")
    return tmp_path


def test_document_has_the_policies_best_first(written: Path) -> None:
    found = json.loads((written / "simulation.json").read_text())
    assert [p["policy"] for p in found["policies"]] == ["fixed", "current"]
    assert found["by_type"]["current"]["one"]["pods"] == 40
    assert (found["seed"], found["hours"], found["goal_s"]) == (5, 2.0, 10.0)


def test_pods_are_those_of_the_summaries(written: Path) -> None:
    pods = pq.read_table(written / "pods.parquet")
    assert pods.num_rows == 80
    current = pods.filter(np.array(pods["policy"].to_pylist()) == "current")
    took = np.array(current["took_s"])
    assert simulation().policies[0].summary.late == (took > 10).sum()
    assert set(current["workload"].to_pylist()) == {"pods"}
    assert set(current["type"].to_pylist()) == {"one"}
    assert set(current["state"].to_pylist()) <= {"up", "given up", "waiting"}


def test_other_tables(written: Path) -> None:
    nodes = pq.read_table(written / "nodes.parquet")
    assert nodes.num_rows == 2 * 3
    timeline = pq.read_table(written / "timeline.parquet")
    assert timeline.num_rows == 2 * 2 * 9
    assert (np.array(timeline["entries_min"]) <= np.array(timeline["entries_max"])).all()
    close = pq.read_table(written / "close.parquet")
    assert (np.array(close["expired"]) <= np.array(close["entries"])).all()
    assert (np.diff(np.array(close["t_s"])) < 0).sum() == 3  # four courses, one after the other


def test_fleet_json_can_be_simulated_again(written: Path) -> None:
    again = fleetfile.load(str(written / "fleet.json"))
    assert fleetfile.to_raw(again) == fleetfile.to_raw(fleet())


def test_directory_must_be_empty(written: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the directory is not empty"):
        output.claim(written)
    output.claim(tmp_path / "new" / "one")
    assert (tmp_path / "new" / "one").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="not writable"):
        output.claim(tmp_path / "file")
