"""The churn driver against a runtime whose every answer is known: it counts what happened, exactly."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from loadgen.core.model import Burst, Churn, Constant
from loadgen.core.ports import Attempt, NotUp
from loadgen.core.samples import Message, Outcome, Reading, SampleBatch
from loadgen.core.units import NS_PER_S, Duration
from loadgen.drivers.churn import ATTEMPT, DELETE, SETUP, ChurnDriver

MS = NS_PER_S // 1000
NEVER = -1


class Window:
    def __init__(self, length_s: float) -> None:
        self.phase, self.seed = "burst", 1
        self.start_ns = time.monotonic_ns()
        self.end_ns = self.start_ns + round(length_s * NS_PER_S)
        self._stop = threading.Event()

    def stopped(self) -> bool:
        return self._stop.is_set()

    def stop(self) -> None:
        self._stop.set()


class Runtime:
    """Pod i fails `failures(i)` times and is then up; NEVER: it hangs until it is given up."""

    def __init__(self, failures: Callable[[int], int], on_hang: Callable[[], None] = lambda: None) -> None:
        self._failures, self._on_hang = failures, on_hang
        self.removed: list[int] = []
        self.closed = False

    async def admit(self, index: int, deadline_ns: int) -> None:
        return None

    async def start_pod(self, index: int, deadline_ns: int, on_attempt: Callable[[Attempt], None]) -> bool:
        for number in range(self._failures(index)):
            ref, now = f"{index}-{number}", time.monotonic_ns()
            on_attempt(Attempt(ref, now, now + 5, Outcome.FAIL, "429 TooManyRequests"))
            on_attempt(Attempt(ref, now, now + 6, Outcome.OK, "failed ADD", "DEL"))
        began = time.monotonic_ns()
        if self._failures(index) == NEVER:
            self._on_hang()
            try:
                await asyncio.wait_for(asyncio.Event().wait(), (deadline_ns - began) / NS_PER_S)
            except TimeoutError:
                return False
            finally:
                on_attempt(Attempt(f"{index}-x", began, time.monotonic_ns(), Outcome.UNKNOWN, "still under way"))
        on_attempt(Attempt(f"{index}-up", began, time.monotonic_ns(), Outcome.OK))
        return True

    async def remove_pod(self, index: int, on_attempt: Callable[[Attempt], None]) -> bool:
        self.removed.append(index)
        now = time.monotonic_ns()
        on_attempt(Attempt(f"{index}-up", now, now + 7, Outcome.OK, "pod removal", "DEL"))
        return True

    async def close(self) -> None:
        self.closed = True


def run(load: Churn, runtime: Runtime, window: Window, **options: int) -> tuple[dict[str, int], list[Message]]:
    said: list[Message] = []
    created = ChurnDriver(load, lambda: runtime, "churn@node", **options).run(window, said.append)
    assert runtime.closed
    return created, said


def rows(said: list[Message], metric: str) -> np.ndarray:
    batches = [m for m in said if isinstance(m, SampleBatch) and m.metric == metric]
    assert all((b.phase, b.source) == ("burst", "churn@node") for b in batches)
    return np.concatenate([b.array() for b in batches]) if batches else np.zeros(0, dtype=[("seq", int)])


def named(said: list[Message], metric: str, field: str) -> list[str]:
    """Refs, or details, of all samples in order."""
    found: list[str] = []
    for batch in said:
        if isinstance(batch, SampleBatch) and batch.metric == metric:
            found += batch.refs if field == "ref" else [batch.details[i] for i in batch.array()["detail"]]
    return found


def test_twenty_three_pods_some_of_which_need_several_attempts():
    runtime, window = Runtime(lambda index: index % 3), Window(5)
    created, said = run(Churn(pace=Burst(size=23)), runtime, window)
    attempts = 23 + sum(i % 3 for i in range(23))
    assert created == {SETUP: 23, ATTEMPT: attempts, DELETE: attempts - 23}
    for metric, count in created.items():
        assert rows(said, metric)["seq"].tolist() == list(range(count))
    setup = rows(said, SETUP)
    assert Counter(setup["tries"].tolist()) == {1: 8, 2: 8, 3: 7}
    assert set(setup["outcome"]) == {Outcome.OK}
    assert set(setup["due_ns"]) == {window.start_ns}
    assert (setup["done_ns"] >= setup["sent_ns"]).all()
    assert (setup["sent_ns"] >= setup["due_ns"]).all()
    assert Counter(rows(said, ATTEMPT)["outcome"].tolist()) == {Outcome.OK: 23, Outcome.FAIL: attempts - 23}
    assert Counter(named(said, ATTEMPT, "detail")) == {"": 23, "429 TooManyRequests": attempts - 23}
    assert set(named(said, DELETE, "detail")) == {"failed ADD"}
    assert "5-0 5-1 5-up" in named(said, SETUP, "ref")


def test_pods_that_never_come_up_are_censored_at_their_limit():
    created, said = run(
        Churn(pace=Burst(size=5), timeout=Duration(80 * MS)), Runtime(lambda i: NEVER if i < 2 else 0), Window(5)
    )
    assert created == {SETUP: 5, ATTEMPT: 5, DELETE: 0}
    setup = rows(said, SETUP)
    lost = setup[setup["outcome"] == Outcome.UNKNOWN]
    assert len(lost) == 2
    assert (lost["done_ns"] - lost["due_ns"] >= 80 * MS).all()
    assert sorted(named(said, SETUP, "detail")) == ["", "", "", "not up in time", "not up in time"]
    assert sum(rows(said, ATTEMPT)["outcome"] == Outcome.UNKNOWN) == 2


def test_arrivals_follow_the_pacer_until_the_window_ends():
    created, said = run(Churn(pace=Constant(rate=100.0)), Runtime(lambda _: 0), window := Window(0.2))
    assert created[SETUP] == 20
    assert (rows(said, SETUP)["due_ns"] - window.start_ns).tolist() == [i * 10 * MS for i in range(20)]


def test_stop_lets_nothing_more_become_due_and_cuts_nothing_short():
    window = Window(60)
    runtime = Runtime(lambda _: NEVER, on_hang=window.stop)
    created, said = run(
        Churn(pace=Burst(size=3, every=Duration(NS_PER_S), count=9), timeout=Duration(50 * MS)), runtime, window
    )
    assert created == {SETUP: 3, ATTEMPT: 3, DELETE: 0}
    setup = rows(said, SETUP)
    assert (setup["done_ns"] - setup["due_ns"] >= 50 * MS).all()


def test_grace_gives_up_what_a_stop_left_behind():
    window = Window(60)
    runtime = Runtime(lambda i: NEVER if i else 0, on_hang=window.stop)
    created, said = run(Churn(pace=Burst(size=4)), runtime, window, grace_ns=20 * MS)
    assert created == {SETUP: 4, ATTEMPT: 4, DELETE: 0}
    assert sorted(named(said, SETUP, "detail")) == ["", "stopped", "stopped", "stopped"]
    assert sorted(named(said, ATTEMPT, "detail")) == ["", *["still under way"] * 3]
    assert "1-x" in named(said, SETUP, "ref")


def test_pods_are_removed_when_their_time_comes_within_the_window():
    runtime = Runtime(lambda _: 0)
    created, said = run(Churn(pace=Burst(size=4), delete_after=Duration(30 * MS)), runtime, Window(30))
    assert sorted(runtime.removed) == [0, 1, 2, 3]
    assert created == {SETUP: 4, ATTEMPT: 4, DELETE: 4}
    assert named(said, DELETE, "detail") == ["pod removal"] * 4

    late = Runtime(lambda _: 0)
    run(Churn(pace=Burst(size=4), delete_after=Duration(40 * NS_PER_S)), late, Window(30))
    assert late.removed == []


def test_a_broken_harness_is_an_exception():
    class Broken(Runtime):
        async def start_pod(self, *_):
            raise OSError("no namespaces left")

    runtime = Broken(lambda _: 0)
    with pytest.raises(OSError, match="no namespaces left"):
        run(Churn(pace=Burst(size=2)), runtime, Window(5))
    assert runtime.closed


def test_sandboxes_under_way_are_read_out():
    load = Churn(pace=Burst(size=3), timeout=Duration(1200 * MS))
    _, said = run(load, Runtime(lambda _: NEVER), Window(5))
    readings = [m.value for m in said if isinstance(m, Reading) and m.series == "sandbox.waiting"]
    assert max(readings) == 3
    assert readings[-1] == 0


def test_a_runtime_that_knows_why_is_quoted():
    class Refusing(Runtime):
        async def start_pod(self, index, deadline_ns, on_attempt):
            if index == 1:
                raise NotUp(Outcome.FAIL, "refused: OutOfpods")
            return await super().start_pod(index, deadline_ns, on_attempt)

    created, said = run(Churn(pace=Burst(size=3)), Refusing(lambda _: 0), Window(5))
    assert created == {SETUP: 3, ATTEMPT: 2, DELETE: 0}
    assert sorted(named(said, SETUP, "detail")) == ["", "", "refused: OutOfpods"]
    assert sorted(rows(said, SETUP)["outcome"].tolist()) == [Outcome.OK, Outcome.OK, Outcome.FAIL]


def test_waiting_for_leave_is_the_generators_own_delay():
    class Limited(Runtime):
        async def admit(self, index, deadline_ns):
            if index == 2:
                raise NotUp(Outcome.UNKNOWN, "held back")
            await asyncio.wait([asyncio.create_task(asyncio.sleep(0.05 * index))])

    created, said = run(Churn(pace=Burst(size=3)), Limited(lambda _: 0), Window(5))
    setup = rows(said, SETUP)
    lag = sorted(((setup["sent_ns"] - setup["due_ns"]) / NS_PER_S).tolist())
    assert created == {SETUP: 3, ATTEMPT: 2, DELETE: 0}
    assert lag[0] < lag[1] < 0.05 <= lag[2]
    assert sorted(named(said, SETUP, "detail")) == ["", "", "held back"]


def test_attempts_without_names_of_their_own_have_the_pods():
    class Nameless(Runtime):
        async def start_pod(self, index, deadline_ns, on_attempt):
            for outcome in (Outcome.FAIL, Outcome.FAIL, Outcome.OK):
                on_attempt(Attempt(f"x/pod-{index}", 1, 2, outcome))
            return True

    created, said = run(Churn(pace=Burst(size=2)), Nameless(lambda _: 0), Window(5))
    assert created == {SETUP: 2, ATTEMPT: 6, DELETE: 0}
    assert sorted(named(said, SETUP, "ref")) == ["x/pod-0", "x/pod-1"]
    assert rows(said, SETUP)["tries"].tolist() == [3, 3]


def test_a_runtime_that_breaks_ends_the_arrivals_at_once():
    class Breaking(Runtime):
        async def start_pod(self, index, deadline_ns, on_attempt):
            if index == 3:
                raise OSError("the watch is broken")
            return await super().start_pod(index, deadline_ns, on_attempt)

    runtime, window = Breaking(lambda _: 0), Window(60)
    with pytest.raises(OSError, match="the watch is broken"):
        run(Churn(pace=Constant(rate=100.0)), runtime, window)
    assert runtime.closed
    assert time.monotonic_ns() < window.start_ns + 5 * NS_PER_S
