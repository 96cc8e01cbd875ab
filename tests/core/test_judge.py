import msgspec
import numpy as np
import pytest

from loadgen.core.history import Ending, MetricSamples, RunData, RunInfo, Series
from loadgen.core.judge import judge_run, measured_phases, unaccounted
from loadgen.core.model import Scenario
from loadgen.core.samples import SAMPLE_DTYPE, Mark, Outcome, Tally
from loadgen.core.units import NS_PER_S
from loadgen.core.verdict import Verdict
from loadgen.scenarios import loader

SCENARIO = loader.parse(
    """
name: x
hypothesis: h
variants: {before: {baseline: true}, after: {}}
loads: {lookups: {driver: dns}}
phases:
  - {name: warm, duration: 10s, loads: [lookups]}
  - {name: main, duration: 10s, loads: [lookups], measured: true}
thresholds: [dns.lookup max < 2.5s, ct.tcp.entries max < 100]
""",
    "x",
)


def run(warm_s: float, main_s: float, *, created: int = 4, ending: Ending | None = Ending.COMPLETE) -> RunData:
    """Four lookups in each phase, all of the same latency within the phase."""
    rows = np.zeros(8, dtype=SAMPLE_DTYPE)
    rows["seq"] = [0, 1, 2, 3] * 2
    rows["due_ns"] = rows["sent_ns"] = np.arange(8) * NS_PER_S
    rows["done_ns"] = rows["due_ns"] + [round(s * NS_PER_S) for s in [warm_s] * 4 + [main_s] * 4]
    rows["outcome"] = Outcome.OK
    samples = MetricSamples(
        rows, ("",), np.repeat([0, 1], 4), ("warm", "main"), np.zeros(8, dtype=np.int32), ("lookups@pod-0",), ()
    )
    marks = [
        Mark(0, "phase", "warm"),
        Mark(4 * NS_PER_S, "phase-end", "warm"),
        Mark(4 * NS_PER_S + 1, "phase", "main"),
        Mark(8 * NS_PER_S, "phase-end", "main"),
    ]
    if ending:
        marks.append(Mark(9 * NS_PER_S, "end", ending.value))
    info = RunInfo(1, {}, "before", True, False, 0, 1, "fake", {}, (), (), "", 0)
    readings = {"ct.tcp.entries": Series(np.array([NS_PER_S, 6 * NS_PER_S]), np.array([500.0, 50.0]))}
    tallies = (
        Tally("warm", "lookups@pod-0", {"dns.lookup": 4}, 0.1, 1.0),
        Tally("main", "lookups@pod-0", {"dns.lookup": created}, 0.1, 1.0),
    )
    return RunData(info, {"dns.lookup": samples}, readings, (), tuple(marks), tallies)


def statuses(data: RunData, scenario: Scenario = SCENARIO) -> list[Verdict]:
    return [finding.status for finding in judge_run("01", scenario, data).findings]


def test_only_measured_phases_count() -> None:
    assert statuses(run(warm_s=9.0, main_s=0.1)) == [Verdict.PASS, Verdict.PASS]
    assert statuses(run(warm_s=0.1, main_s=9.0)) == [Verdict.FAIL, Verdict.PASS]
    assert judge_run("01", SCENARIO, run(9.0, 0.1)).metrics["dns.lookup"].n == 4


def test_a_scenario_that_marks_no_phase_measures_all() -> None:
    phases = tuple(msgspec.structs.replace(p, measured=False) for p in SCENARIO.phases)
    everything = msgspec.structs.replace(SCENARIO, phases=phases)
    assert measured_phases(everything) == {"warm", "main"}
    assert statuses(run(9.0, 0.1), everything) == [Verdict.FAIL, Verdict.FAIL]


@pytest.mark.parametrize("ending", [Ending.INTERRUPTED, Ending.FAILED, None])
def test_a_run_that_was_cut_short_cannot_pass_but_can_fail(ending: Ending | None) -> None:
    summary = judge_run("01", SCENARIO, run(0.1, 0.1, ending=ending))
    assert [f.status for f in summary.findings] == [Verdict.INCONCLUSIVE] * 2
    assert "cut short" in summary.findings[0].why
    assert statuses(run(0.1, 9.0, ending=ending))[0] is Verdict.FAIL


def test_created_must_be_measured_plus_censored() -> None:
    assert unaccounted(run(0.1, 0.1)) == []
    found = unaccounted(run(0.1, 0.1, created=5))
    assert found == ["dns.lookup of lookups@pod-0 in phase main: 5 operations created, 4 samples"]
    assert statuses(run(0.1, 0.1, created=5)) == [Verdict.INCONCLUSIVE] * 2


def test_samples_that_nobody_created_are_found_too() -> None:
    data = run(0.1, 0.1)._replace(tallies=())
    assert len(unaccounted(data)) == 2


def test_what_is_no_gauge_is_left_out_of_the_gauges() -> None:
    data = run(0.1, 0.1)
    bucket = {"kubelet.run_podsandbox|le=0.195": data.readings["ct.tcp.entries"]}
    summary = judge_run("01", SCENARIO, data._replace(readings={**data.readings, **bucket}))
    assert summary.gauges.keys() == {"ct.tcp.entries"}


def test_no_data_is_inconclusive() -> None:
    data = run(0.1, 0.1)._replace(samples={}, readings={}, tallies=())
    assert statuses(data) == [Verdict.INCONCLUSIVE] * 2
