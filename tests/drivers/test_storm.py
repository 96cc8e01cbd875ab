"""StormDriver against a real sink: what is due is created, what is created is emitted, once, in time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from ipaddress import IPv4Address

import numpy as np
import pytest

from loadgen.core.model import Burst, Constant, Pace, Poisson, Storm
from loadgen.core.pacing import pacer
from loadgen.core.samples import SAMPLE_DTYPE, Message, Outcome, SampleBatch
from loadgen.core.units import Duration
from loadgen.drivers import storm
from loadgen.drivers.storm import StormDriver, Target
from loadgen.native import Sink
from tests.storms import MS, S, closed_port, mute_server, outcomes, served


def loopback(port: int) -> list[Target]:
    """The one target that most storms here have."""
    return [(IPv4Address("127.0.0.1"), port)]


class Phase:
    """A ports.Window around now."""

    phase = "load"

    def __init__(
        self, ns: int, start_in_ns: int = 0, seed: int = 7, stopped: Callable[[], bool] | None = None
    ) -> None:
        self.start_ns = time.monotonic_ns() + start_in_ns
        self.end_ns = self.start_ns + ns
        self.seed = seed
        self.stopped = stopped or (lambda: False)


class Recorder:
    def __init__(self) -> None:
        self.batches: list[SampleBatch] = []

    def __call__(self, message: Message) -> None:
        assert isinstance(message, SampleBatch)
        self.batches.append(message)

    def samples(self) -> np.ndarray:
        arrays = [batch.array() for batch in self.batches]
        return np.sort(np.concatenate(arrays or [np.empty(0, SAMPLE_DTYPE)]), order="seq")


@pytest.fixture
def sink() -> Iterator[Sink]:
    with closing(Sink(0, 100, 100)) as made, served(made):
        yield made


def load(pace: Pace, timeout_ns: int = 5 * S) -> Storm:
    return Storm(pace=pace, timeout=Duration(timeout_ns))


@pytest.mark.parametrize(
    "pace", [Constant(rate=300.0), Poisson(rate=300.0), Burst(size=50, every=Duration(200 * MS), count=3)]
)
def test_all_that_is_due_in_the_window_is_created_and_emitted_once(sink: Sink, pace: Pace) -> None:
    window, emitted = Phase(600 * MS), Recorder()
    created = StormDriver(load(pace), "pod-0", loopback(sink.port)).run(window, emitted)
    samples = emitted.samples()
    assert outcomes(samples) == {(Outcome.OK, ""): len(samples)}
    assert created == {"storm.connect": len(samples)}
    assert samples["seq"].tolist() == list(range(len(samples)))
    plan, due = pacer(pace, window.seed), []
    while (at := plan.next(0, len(due))) is not None and at < 600 * MS:
        due.append(window.start_ns + at)
    assert samples["due_ns"].tolist() == due
    assert (samples["sent_ns"] >= samples["due_ns"]).all()


def test_batches_say_where_they_come_from_and_come_while_the_load_lasts(sink: Sink) -> None:
    emitted, arrivals = Recorder(), []

    def emit(message: Message) -> None:
        arrivals.append(time.monotonic_ns())
        emitted(message)

    window = Phase(1200 * MS)
    StormDriver(load(Constant(rate=100.0)), "pod-1", loopback(sink.port)).run(window, emit)
    assert {(b.metric, b.phase, b.source) for b in emitted.batches} == {("storm.connect", "load", "pod-1")}
    assert all(b.rows and b.details[0] == "" for b in emitted.batches)
    assert 2 <= len(arrivals) <= 7  # a quarter of a second apart, the last one at the end
    assert arrivals[0] < window.end_ns


def test_a_failure_is_a_sample_with_its_reason() -> None:
    emitted = Recorder()
    with closed_port() as port:
        created = StormDriver(load(Burst(size=23)), "pod-0", loopback(port)).run(Phase(S), emitted)
    assert outcomes(emitted.samples()) == {(Outcome.FAIL, "refused"): 23}
    assert created == {"storm.connect": 23}


def test_a_burst_that_is_over_does_not_wait_for_the_end_of_the_window(sink: Sink) -> None:
    window, emitted = Phase(600 * S), Recorder()
    StormDriver(load(Burst(size=5)), "pod-0", loopback(sink.port)).run(window, emitted)
    assert time.monotonic_ns() < window.end_ns
    assert len(emitted.samples()) == 5


def test_an_operation_of_the_last_moment_gets_its_whole_timeout() -> None:
    with mute_server() as port:
        window, emitted = Phase(300 * MS), Recorder()
        StormDriver(load(Constant(rate=20.0), timeout_ns=400 * MS), "pod-0", loopback(port)).run(window, emitted)
    samples = emitted.samples()
    assert outcomes(samples) == {(Outcome.UNKNOWN, "timeout"): 6}
    assert (samples["done_ns"] - samples["sent_ns"] >= 400 * MS).all()


def test_stopping_lets_nothing_more_become_due_and_loses_nothing(sink: Sink) -> None:
    begun = time.monotonic_ns()
    window = Phase(600 * S, stopped=lambda: time.monotonic_ns() > begun + 300 * MS)
    emitted = Recorder()
    created = StormDriver(load(Constant(rate=200.0)), "pod-0", loopback(sink.port)).run(window, emitted)
    samples = emitted.samples()
    assert created == {"storm.connect": len(samples)}
    assert outcomes(samples) == {(Outcome.OK, ""): len(samples)}
    # Seen at the end of a slice, so what was queued by then is at most a slice past the stop.
    assert 0 < len(samples) <= (300 * MS + 2 * storm.SLICE_NS) * 200 // S + 1


def test_stopped_from_the_start_it_does_nothing(sink: Sink) -> None:
    emitted = Recorder()
    driver = StormDriver(load(Constant(rate=200.0)), "pod-0", loopback(sink.port))
    assert driver.run(Phase(600 * S, stopped=lambda: True), emitted) == {"storm.connect": 0}
    assert emitted.batches == []


def test_a_window_that_began_earlier_is_caught_up_and_shows_the_lag(sink: Sink) -> None:
    window, emitted = Phase(S, start_in_ns=-2 * S), Recorder()
    created = StormDriver(load(Constant(rate=100.0)), "pod-0", loopback(sink.port)).run(window, emitted)
    samples = emitted.samples()
    assert created == {"storm.connect": 100}
    assert outcomes(samples) == {(Outcome.OK, ""): 100}
    assert (samples["sent_ns"] - samples["due_ns"] >= S).all()


def test_what_finds_no_room_is_given_up_in_the_end_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storm, "raise_open_files", lambda: 4)
    with mute_server() as port:
        emitted = Recorder()
        driver = StormDriver(load(Burst(size=40), timeout_ns=100 * MS), "pod-0", loopback(port))
        assert driver.run(Phase(S), emitted) == {"storm.connect": 40}
    counts = outcomes(emitted.samples())
    assert counts.total() == 40
    assert set(counts) == {(Outcome.UNKNOWN, word) for word in ("timeout", "abandoned", "too many open")}


def test_the_seed_decides_the_order_of_the_targets() -> None:
    """Of four loopback addresses one has a server that stays silent, so a timeout tells which operation met it."""

    def silent_numbers(seed: int) -> list[int]:
        with mute_server() as port:
            targets = [(IPv4Address(f"127.0.0.{n}"), port) for n in (1, 2, 3, 4)]
            emitted = Recorder()
            StormDriver(load(Burst(size=8), timeout_ns=50 * MS), "pod-0", targets).run(Phase(S, seed=seed), emitted)
        samples = emitted.samples()
        return samples["seq"][samples["outcome"] == Outcome.UNKNOWN].tolist()

    orders = {seed: silent_numbers(seed) for seed in range(6)}
    assert all(len(numbers) == 2 and numbers[1] == numbers[0] + 4 for numbers in orders.values())
    assert silent_numbers(3) == orders[3]
    assert len({tuple(numbers) for numbers in orders.values()}) > 1
