import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from loadgen import analysis, experiment, store
from loadgen.core.errors import ConfigError, HarnessError
from loadgen.core.history import Ending
from loadgen.core.verdict import Verdict
from loadgen.scenarios import loader
from tests.fakes import FakeDeployment, FakeTestbed, JumpingClock

SCENARIO = loader.parse(
    """
name: lookups
hypothesis: h
variants: {before: {baseline: true}, after: {}, half: {partial: true}}
loads: {lookups: {driver: dns}}
phases: [{name: main, duration: 30s, loads: [lookups], measured: true}]
thresholds: [dns.lookup max < 2.5s]
""",
    "lookups",
)
SILENT = experiment.Observer(*[lambda *_: None] * 3)


def plan(*variants: str, repeat: int = 1) -> experiment.Plan:
    return experiment.Plan(SCENARIO, loader.to_raw(SCENARIO), variants, repeat, 7, ("loadgen",))


def run(
    tmp_path: Path,
    latencies: dict[str, float],
    repeat: int = 1,
    error: Exception | None = None,
    enough: Callable[[int], bool] | None = None,
) -> Ending:
    clock = JumpingClock()
    made = {
        name: FakeDeployment(clock, {"lookups": "dns.lookup"}, {"lookups": 5}, seconds)
        for name, seconds in latencies.items()
    }
    for deployment in made.values():
        deployment.watch_error = error

    async def main() -> Ending:
        jumping = asyncio.create_task(clock.jump())
        try:
            return await experiment.run(
                plan(*made, repeat=repeat)._replace(enough=enough),
                FakeTestbed(made),
                tmp_path / "out",
                clock,
                SILENT,
            )
        finally:
            jumping.cancel()

    return asyncio.run(main())


def analysed(tmp_path: Path) -> Verdict:
    results = analysis.analyse_directory(tmp_path / "out", loader.from_raw)
    analysis.write_reports(tmp_path / "out", results)
    return results.verdict.verdict


@pytest.mark.parametrize(
    ("before_s", "after_s", "verdict"),
    [(5.0, 0.1, Verdict.PASS), (0.1, 0.1, Verdict.INCONCLUSIVE), (5.0, 5.0, Verdict.FAIL)],
)
def test_an_experiment_from_the_first_phase_to_the_verdict(
    tmp_path: Path, before_s: float, after_s: float, verdict: Verdict
) -> None:
    assert run(tmp_path, {"before": before_s, "after": after_s}) is Ending.COMPLETE
    assert analysed(tmp_path) is verdict
    out = tmp_path / "out"
    assert {p.name for p in out.iterdir()} == {
        "run.json",
        "runs",
        "summary.json",
        "verdict.json",
        "report.html",
        "junit.xml",
    }
    first = (out / "verdict.json").read_text()
    assert analysed(tmp_path) is verdict
    assert (out / "verdict.json").read_text() == first


def test_repeats_are_interleaved(tmp_path: Path) -> None:
    run(tmp_path, {"before": 5.0, "after": 0.1}, repeat=2)
    names = [p.name for p in sorted((tmp_path / "out" / "runs").iterdir())]
    assert names == ["01-before", "02-after", "03-before", "04-after"]
    assert analysed(tmp_path) is Verdict.PASS
    runs = [store.read_run(tmp_path / "out" / "runs" / name).info for name in names]
    assert [(i.repeat, i.seed) for i in runs] == [(0, 7), (0, 7), (1, 8), (1, 8)]


def test_the_order_within_a_repeat_can_be_drawn_from_the_seed() -> None:
    drawn = plan("before", "after", repeat=20)._replace(shuffled=True)
    names = experiment.run_names(drawn)
    assert names == experiment.run_names(drawn) != experiment.run_names(drawn._replace(seed=8))
    pairs = [(names[i][1], names[i + 1][1]) for i in range(0, 40, 2)]
    assert set(pairs) == {("before", "after"), ("after", "before")}
    assert [repeat for _, _, repeat in names] == [i // 2 for i in range(40)]


def test_repeats_end_when_they_are_enough(tmp_path: Path) -> None:
    asked: list[int] = []

    def enough(repeats: int) -> bool:
        asked.append(repeats)
        return repeats == 2

    run(tmp_path, {"before": 5.0, "after": 0.1}, repeat=9, enough=enough)
    assert asked == [1, 2]
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 4
    assert analysed(tmp_path) is Verdict.PASS


def test_one_run_directory_can_be_analysed_by_itself(tmp_path: Path) -> None:
    run(tmp_path, {"before": 5.0, "after": 0.1})
    results = analysis.analyse_directory(tmp_path / "out" / "runs" / "01-before", loader.from_raw)
    assert results.verdict.verdict is Verdict.FAIL
    assert [v.name for v in results.verdict.variants] == ["before"]


def test_a_broken_harness_keeps_what_was_measured_and_can_never_pass(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="agent died"):
        run(tmp_path, {"before": 5.0, "after": 0.1}, error=HarnessError("agent died"))
    data = store.read_run(tmp_path / "out" / "runs" / "01-before")
    assert data.ending() is Ending.FAILED
    assert analysed(tmp_path) is not Verdict.PASS


def test_the_variants_that_run() -> None:
    assert experiment.choose_variants(SCENARIO, (), factorial=False) == ["before", "after"]
    assert experiment.choose_variants(SCENARIO, (), factorial=True) == ["before", "after", "half"]
    assert experiment.choose_variants(SCENARIO, ["half"], factorial=False) == ["half"]
    assert experiment.choose_variants(SCENARIO, ["after", "before"], factorial=False) == ["before", "after"]
    with pytest.raises(ConfigError, match="it has before, after, half"):
        experiment.choose_variants(SCENARIO, ["x"], factorial=False)


def test_a_directory_without_a_run_that_began_is_refused(tmp_path: Path) -> None:
    run(tmp_path, {"before": 5.0})
    for path in (tmp_path / "out" / "runs").iterdir():
        (path / "run.json").unlink()
    with pytest.raises(ConfigError, match="no run in it began"):
        analysed(tmp_path)
