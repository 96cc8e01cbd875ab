"""From the programs to what is told of them, and again from the disk."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from loadgen import cli, costs
from loadgen.core import cost
from loadgen.core.cost import Cell, Measured, Workload
from loadgen.core.errors import ConfigError
from loadgen.core.verdict import Exit


def said(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    code = cli.guarded(lambda: cli.app(["ct-cost", *map(str, args)], standalone_mode=False))
    return code, *capsys.readouterr()


@pytest.mark.kernel
def test_all_cells_are_measured_kept_and_told_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, small = tmp_path / "out", ("--flows", 2_000, "--many", 3_000, "--packets", 5_003, "--repeat", 3)
    code, text, progress = said(capsys, "--out", out, *small, "--seed", 7)
    assert code == Exit.PASS
    assert {path.name for path in out.iterdir()} == {"run.json", "samples.parquet", "costs.json"}
    rows = costs.read(out)
    cells = cost.plan(2_000, 3_000, len(os.sched_getaffinity(0)))
    assert len(rows) == 3 * len(cells) == pq.read_table(out / "samples.parquet").num_rows
    assert progress.splitlines()[-1].startswith(f"{len(rows)}/{len(rows)}: ")
    assert all(row.packets == 5_003 and row.failed == 0 for row in rows)
    assert "a per-CPU array still costs" in " ".join(text.split())
    first = (out / "costs.json").read_text()
    (out / "costs.json").unlink()
    code, again, _ = said(capsys, "--analyze", out, "--json")
    assert (code, again, (out / "costs.json").read_text()) == (Exit.PASS, first, first)
    assert json.loads(first)["format"] == 1
    assert said(capsys, "--out", out)[0] == Exit.USAGE


@pytest.mark.kernel
def test_a_table_that_does_not_fit_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs.support, "available_memory", lambda: 64 << 20)
    many, notes = costs.fitting(5_000_000, 2)
    assert many < 200_000
    assert "memory-bound:" in notes[0]
    row = costs.measure_cell(Cell("lru", Workload("network", 1_000)), 0, [0], 1_009)
    assert (row.inserted, row.evicted) == (1_000, 0)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--analyze", "nowhere"), "nowhere: no run here"),
        (("--analyze", "OTHER"), "OTHER: a run of kind experiment, not ct-cost"),
        (("--analyze", "EMPTY"), "EMPTY: nothing was measured"),
        (("--flows", "5"), "Invalid value for '--flows'"),
        (("--repeat", "0"), "Invalid value for '--repeat'"),
    ],
)
def test_misuse_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], says: str
) -> None:
    info = {
        "format": 1, "kind": "experiment", "flows": 1, "many": 1, "repeats": 1, "packets": 1, "seed": 1, "notes": [],
        "environment": {}, "argv": [], "started": "",
    }  # fmt: skip
    for name, kind in (("OTHER", "experiment"), ("EMPTY", "ct-cost")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps({**info, "kind": kind}))
    code, _, error = said(capsys, *(str(tmp_path / a) if a.isupper() else a for a in args))
    assert (code, error.count("\n")) == (Exit.USAGE, 1)
    assert says in error


def test_a_run_that_was_cut_short_is_told_as_far_as_it_went(tmp_path: Path) -> None:
    row = Measured("lru", "network", 1, 0, 1, 1, 1, 1, ns=2.0, fill_ns=None, inserted=1, evicted=0, failed=0)
    lines = tmp_path / "samples.jsonl"
    lines.write_bytes(msgspec.json.encode(row) + b"\n")
    assert costs.read(tmp_path) == [row]
    lines.write_text('{"plane": "lru"')
    with pytest.raises(ConfigError, match="a line is torn"):
        costs.read(tmp_path)
