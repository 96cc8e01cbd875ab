import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from loadgen import engine
from loadgen.core.errors import HarnessError
from loadgen.core.history import Ending
from loadgen.core.samples import Mark, SampleBatch
from loadgen.core.units import NS_PER_S
from loadgen.scenarios import loader
from tests.fakes import FakeDeployment, JumpingClock, ListHistory

T = TypeVar("T")

SCENARIO = loader.parse(
    """
name: two
hypothesis: h
variants: {only: {}}
loads:
  lookups: {driver: dns}
  pods: {driver: churn}
faults:
  fill: {kind: ct-fill}
  race: {kind: dns-race-drop}
phases:
  - {name: first, duration: 10s, loads: [lookups], faults: [fill]}
  - {name: second, duration: 100s, loads: [lookups, pods], faults: [fill, race], until: pods, measured: true}
thresholds: [dns.lookup max < 2.5s]
""",
    "two",
)
METRICS = {"lookups": "dns.lookup", "pods": "sandbox.setup"}


def with_jumps(clock: JumpingClock, work: Coroutine[Any, Any, T]) -> T:
    async def main() -> T:
        jumping = asyncio.create_task(clock.jump())
        try:
            return await work
        finally:
            jumping.cancel()

    return asyncio.run(main())


def deployment(clock: JumpingClock, latency_s: float = 0.5) -> FakeDeployment:
    return FakeDeployment(clock, METRICS, {"lookups": 3, "pods": 5}, latency_s)


def run(clock: JumpingClock, made: FakeDeployment, history: ListHistory) -> Ending:
    return with_jumps(clock, engine.run(SCENARIO, made, history, clock, 7, lambda message: None))


def marks(history: ListHistory) -> list[tuple[str, str]]:
    return [(m.kind, m.name) for m in history.messages if isinstance(m, Mark)]


def test_phases_faults_and_loads_follow_the_scenario() -> None:
    clock, history = JumpingClock(), ListHistory()
    made = deployment(clock)
    assert run(clock, made, history) is Ending.COMPLETE
    assert made.log == [
        "heal fill",
        "heal race",
        "inject fill",
        "prepare lookups in first",
        "inject race",
        "prepare lookups in second",
        "prepare pods in second",
        "heal fill",
        "heal race",
    ]
    assert marks(history) == [
        ("fault", "fill"),
        ("phase", "first"),
        ("phase-end", "first"),
        ("fault", "race"),
        ("phase", "second"),
        ("phase-end", "second"),
        ("heal", "fill"),
        ("heal", "race"),
    ]
    for running in made.running:
        assert running.log[0] == "go"
        assert running.log[-1] == "close"
        assert sorted(running.log) == ["close", "done", "go", "stop"]


def test_a_phase_with_until_ends_when_that_load_does() -> None:
    clock, history = JumpingClock(), ListHistory()
    run(clock, deployment(clock), history)
    ends = {m.name: m.t_ns for m in history.messages if isinstance(m, Mark) and m.kind == "phase-end"}
    starts = {m.name: m.t_ns for m in history.messages if isinstance(m, Mark) and m.kind == "phase"}
    assert ends["first"] - starts["first"] == pytest.approx(10 * NS_PER_S, abs=NS_PER_S)
    # five pods, a second apart, half a second each
    assert ends["second"] - starts["second"] == pytest.approx(4.5 * NS_PER_S, abs=NS_PER_S)


def test_operations_that_outlast_their_phase_are_waited_for() -> None:
    clock, history = JumpingClock(), ListHistory()
    assert run(clock, deployment(clock, latency_s=60), history) is Ending.COMPLETE
    assert sum(len(m.array()) for m in history.messages if isinstance(m, SampleBatch)) == 3 + 3 + 5


def test_a_worker_that_never_ends_is_a_harness_failure() -> None:
    clock, history = JumpingClock(), ListHistory()
    with pytest.raises(HarnessError, match="did not end"):
        run(clock, deployment(clock, latency_s=10_000), history)


def test_a_workers_last_words_end_the_run() -> None:
    clock, history = JumpingClock(), ListHistory()
    made = deployment(clock)
    made.customise = lambda running: setattr(running, "crash", "ValueError: broken")
    with pytest.raises(HarnessError, match="broken"):
        run(clock, made, history)
    assert "close" in made.running[0].log
    assert made.log[-1] == "heal fill"


def test_a_dead_part_of_the_testbed_ends_the_run() -> None:
    clock, history = JumpingClock(), ListHistory()
    made = deployment(clock)
    made.watch_error = HarnessError("agent ended with exit code 1")
    with pytest.raises(HarnessError, match="agent ended"):
        run(clock, made, history)
    assert made.log[-1] == "heal fill"


def test_cancelling_ends_workers_and_heals_faults() -> None:
    clock, history = JumpingClock(), ListHistory()
    made = deployment(clock)

    async def cancelled() -> Ending:
        task = asyncio.create_task(engine.run(SCENARIO, made, history, clock, 7, lambda message: None))
        await clock.sleep_until(5 * NS_PER_S)
        task.cancel()
        return await task

    assert with_jumps(clock, cancelled()) is Ending.INTERRUPTED
    assert made.running[0].log[-1] == "close"
    assert made.log[-1] == "heal fill"


def test_a_disposable_testbed_takes_its_faults_with_it() -> None:
    clock, history = JumpingClock(), ListHistory()
    made = deployment(clock)
    made.disposable = True
    run(clock, made, history)
    assert made.log[-1] == "prepare pods in second"


def test_the_history_is_flushed_as_time_goes_by() -> None:
    clock, history = JumpingClock(), ListHistory()
    run(clock, deployment(clock), history)
    assert history.flushes >= 2
