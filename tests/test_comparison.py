"""Two settings from their run directories to an answer and its exit code; the runs are made by a testbed of fakes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadgen import cli, comparison, experiment, store
from loadgen.core.errors import ConfigError
from loadgen.core.verdict import Exit
from loadgen.core.versus import Outcome
from loadgen.scenarios import loader
from tests.fakes import FakeDeployment, FakeTestbed, JumpingClock

RAW = {
    "name": "lookups",
    "hypothesis": "h",
    "variants": {"before": {"baseline": True}, "after": {}},
    "loads": {"lookups": {"driver": "dns"}},
    "phases": [{"name": "main", "duration": "30s", "loads": ["lookups"], "measured": True}],
    "thresholds": ["dns.lookup max < 2.5s"],
}
SILENT = experiment.Observer(*[lambda *_: None] * 3)


def runs(out: Path, before_s: float, after_s: float = 0.1, *, repeat: int = 4, raw: dict[str, Any] = RAW) -> Path:
    """An experiment of so many repeats, with latencies as given."""
    scenario = loader.from_raw(raw, "test")
    clock = JumpingClock()
    latencies = {"before": before_s, "after": after_s}
    made = {n: FakeDeployment(clock, {"lookups": "dns.lookup"}, {"lookups": 60}, s) for n, s in latencies.items()}
    plan = experiment.Plan(scenario, loader.to_raw(scenario), list(made), repeat, 7, ("loadgen",))

    async def main() -> None:
        jumping = asyncio.create_task(clock.jump())
        try:
            await experiment.run(plan, FakeTestbed(made), out, clock, SILENT)
        finally:
            jumping.cancel()

    asyncio.run(main())
    return out


def said(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    code = cli.guarded(lambda: cli.app(["compare", *map(str, args)], standalone_mode=False))
    return code, *capsys.readouterr()


def test_two_days_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monday, tuesday = runs(tmp_path / "monday", 5.0, 0.10), runs(tmp_path / "tuesday", 5.0, 0.25)
    code, out, _ = said(capsys, monday, tuesday, "--variant", "after", "--json")
    found = json.loads(out)
    assert (code, found["format"], found["outcome"]) == (Exit.FAIL, 1, "worse")
    assert found["current"] == f"{monday} (after)"
    assert [(r["metric"], r["aggregate"], r["outcome"]) for r in found["rows"]] == [
        ("dns.lookup", "p50", "worse"),
        ("dns.lookup", "p99", "worse"),
        ("dns.lookup", "failed", "no difference"),
    ]
    assert found["rows"][0]["ratio"] == pytest.approx(2.5, rel=0.01)
    assert said(capsys, tuesday, monday, "--variant", "after")[0] == Exit.PASS
    code, out, _ = said(capsys, monday, "--baseline", monday, "--variant", "after")
    assert code == Exit.PASS
    assert "NO DIFFERENCE  nothing differs by more than 10%" in out


def test_two_variants_of_one_experiment_are_compared_in_pairs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = runs(tmp_path / "out", 5.0)
    code, text, _ = said(capsys, out, out, "--variant", "before", "--variant", "after")
    assert code == Exit.PASS
    assert text.splitlines()[-1].startswith("BETTER  dns.lookup p50: 0.02 to 0.02 times")


def test_single_runs_prove_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = runs(tmp_path / "out", 5.0, repeat=1)
    code, text, _ = said(capsys, out / "runs/01-before", out / "runs/02-after")
    assert code == Exit.INCONCLUSIVE
    assert "1 run a side; the noise between runs needs 3" in " ".join(text.split())


def changed(path: Path, **values: Any) -> None:
    """As if each run had been made elsewhere."""
    for place in path.glob("runs/*/run.json"):
        info = json.loads(place.read_text())
        info["environment"] = {**info["environment"], **values}
        place.write_bytes(msgspec.json.encode(info))


def test_what_was_not_measured_alike_is_refused_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = runs(tmp_path / "here", 5.0), runs(tmp_path / "there", 5.0)
    changed(there, kernel="6.99")
    code, _, error = said(capsys, here, there, "--variant", "after")
    assert code == Exit.USAGE
    assert "kernel is none and 6.99; --allow-difference KEY permits one" in error
    assert said(capsys, here, there, "--variant", "after", "--allow-difference", "kernel")[0] == Exit.PASS
    longer = {**RAW, "phases": [{**RAW["phases"][0], "duration": "60s"}]}
    code, _, error = said(capsys, here, runs(tmp_path / "longer", 5.0, raw=longer), "--variant", "after")
    assert (code, "the scenarios have other phases" in error) == (Exit.USAGE, True)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "two run directories (or --baseline and one), 0 given"),
        (("OUT",), "1 given"),
        (("nowhere", "OUT"), "nowhere: no run here"),
        (("OUT", "OUT"), "has several variants; choose by --variant: before, after"),
        (("OUT", "OUT", "--variant", "x"), "has no variant x: before, after"),
        (("OUT", "OUT", "--variant", "a", "--variant", "b", "--variant", "c"), "--variant is given 3 times"),
        (("--candidate", "OUT/run.json"), "two run directories, or --current and --candidate"),
        (("--candidate", "no.yaml", "--current", "no.yaml"), "no.yaml: not readable"),
        (("--candidate", "BAD", "--current", "BAD"), "cilium.conntrackGCIntervall: unknown key"),
        (("--candidate", "BAD", "--current", "BAD", "--testbed", "moon"), "--testbed moon: unknown"),
        (("--candidate", "LIST", "--current", "LIST"), "settings are a mapping with cilium"),
        (("--candidate", "TORN", "--current", "TORN"), "not YAML"),
    ],
)
def test_misuse_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], says: str
) -> None:
    out = runs(tmp_path / "OUT", 5.0, repeat=1)
    (tmp_path / "BAD").write_text("cilium: {conntrackGCIntervall: 60s}")
    (tmp_path / "LIST").write_text("[1]")
    (tmp_path / "TORN").write_text("a: [")
    places = {name: str(tmp_path / name) for name in ("BAD", "LIST", "TORN")} | {"OUT": str(out)}
    code, _, error = said(capsys, *(places.get(arg, arg) for arg in args))
    assert (code, error.count("\n")) == (Exit.USAGE, 1)
    assert says in error


def test_a_run_that_was_cut_short_is_not_compared(tmp_path: Path) -> None:
    out = runs(tmp_path / "out", 5.0)
    marks = out / "runs/03-before/marks.jsonl"
    marks.write_text("".join(line for line in marks.open() if '"kind":"end"' not in line))
    with pytest.raises(ConfigError, match="03-before proves nothing: the run was cut short"):
        comparison.open_side(out, "before", loader.from_raw)
    assert len(comparison.open_side(out, "after", loader.from_raw).runs) == 4


def test_settings_become_the_two_variants_of_a_scenario() -> None:
    raw = loader.to_raw(loader.load("ct-gc-spiral"))
    both = loader.from_raw(
        comparison.versus_scenario(raw, {"cilium": {"gcIntervalNow": "12h"}}, {"cilium": {"profile": "1.18"}}), "test"
    )
    current, candidate = both.variants.values()
    assert (current.name, current.baseline, candidate.name, candidate.baseline) == (
        "current",
        True,
        "candidate",
        False,
    )
    assert str(current.settings.cilium.gc_interval_now) == "12h"
    assert candidate.settings.cilium.profile == "1.18"
    assert current.settings.cilium.bpf.ct_tcp_max == candidate.settings.cilium.bpf.ct_tcp_max == 4_194_304
    assert both.reproduces == ()


def test_the_answer_is_written_for_scripts(tmp_path: Path) -> None:
    out = runs(tmp_path / "out", 5.0)
    sides = [comparison.open_side(out, name, loader.from_raw) for name in ("before", "after")]
    found = comparison.compare(*sides, margin=0.1, seed=1)
    store.write_json(out / "compare.json", found)
    assert json.loads((out / "compare.json").read_text())["outcome"] == found.outcome.value == Outcome.BETTER.value
