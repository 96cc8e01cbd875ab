"""A testbed of values and a clock that jumps: the engine's other side in its tests."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import numpy as np

from loadgen.core.model import Load, Scenario, Variant
from loadgen.core.ports import ActiveFault, Emit, Running
from loadgen.core.samples import SAMPLE_DTYPE, Log, Message, Outcome, SampleBatch, Tally
from loadgen.core.units import NS_PER_S

_SETTLE_TURNS = 50


class JumpingClock:
    """Time stands still while anything can run, then jumps to the next sleeper's moment."""

    def __init__(self) -> None:
        self._now = NS_PER_S
        self._sleepers: list[tuple[int, int, asyncio.Event]] = []
        self._number = 0

    def now_ns(self) -> int:
        return self._now

    async def sleep_until(self, t_ns: int) -> None:
        if t_ns <= self._now:
            return
        event = asyncio.Event()
        self._number += 1
        heapq.heappush(self._sleepers, (t_ns, self._number, event))
        await event.wait()

    async def jump(self) -> None:
        """Run for ever: whenever nothing else happens, the earliest sleeper wakes."""
        while True:
            for _ in range(_SETTLE_TURNS):
                await asyncio.sleep(0)
            if self._sleepers:
                t_ns, _, event = heapq.heappop(self._sleepers)
                self._now = max(self._now, t_ns)
                event.set()


class FakeRunning:
    """`count` operations, spread over the window, all of `latency_s`; its end is `hold_s` after the last is due."""

    def __init__(
        self, clock: JumpingClock, metric: str, phase: str, emit: Emit, count: int, latency_s: float
    ) -> None:
        self.log: list[str] = []
        self._clock, self._metric, self._phase, self._emit = clock, metric, phase, emit
        self._count, self._latency_s = count, latency_s
        self._window = (0, 0)
        self.crash: str | None = None
        self.missing = 0

    def go(self, start_ns: int, end_ns: int) -> None:
        self._window = (start_ns, end_ns)
        self.log.append("go")

    def stop(self) -> None:
        self.log.append("stop")

    async def wait(self) -> None:
        start, _ = self._window
        last = start + (self._count - 1) * NS_PER_S
        await self._clock.sleep_until(last + round(self._latency_s * NS_PER_S))
        if self.crash:
            self._emit(Log(self.crash))
        rows = np.zeros(self._count - self.missing, dtype=SAMPLE_DTYPE)
        rows["seq"] = np.arange(len(rows))
        rows["due_ns"] = rows["sent_ns"] = start + rows["seq"] * NS_PER_S
        rows["done_ns"] = rows["due_ns"] + round(self._latency_s * NS_PER_S)
        rows["outcome"] = Outcome.OK
        self._emit(SampleBatch(self._metric, self._phase, "fake", rows.tobytes()))
        self._emit(Tally(self._phase, "fake", {self._metric: self._count}, 0.1, 1.0))
        self.log.append("done")

    async def close(self) -> None:
        self.log.append("close")


class FakeFault:
    emulated = "a fake fault"

    def __init__(self, name: str, log: list[str]) -> None:
        self._name, self._log = name, log

    async def inject(self) -> str:
        self._log.append(f"inject {self._name}")
        return "injected"

    async def heal(self) -> None:
        self._log.append(f"heal {self._name}")


class FakeDeployment:
    emulated = ("everything",)
    environment = {"kernel": "none"}  # noqa: RUF012 - a fake's value, never changed
    disposable = False
    lead_ns = NS_PER_S // 20

    def __init__(
        self, clock: JumpingClock, metrics: dict[str, str], counts: dict[str, int], latency_s: float
    ) -> None:
        self.log: list[str] = []
        self.running: list[FakeRunning] = []
        self._clock, self._metrics, self._counts, self._latency_s = clock, metrics, counts, latency_s
        self.watch_error: Exception | None = None
        self.customise: Callable[[FakeRunning], None] = lambda running: None

    async def prepare(self, name: str, load: Load, phase: str, seed: int, emit: Emit) -> Running:
        self.log.append(f"prepare {name} in {phase}")
        running = FakeRunning(self._clock, self._metrics[name], phase, emit, self._counts[name], self._latency_s)
        self.customise(running)
        self.running.append(running)
        return running

    def fault(self, name: str) -> ActiveFault:
        return FakeFault(name, self.log)

    async def watch(self, emit: Emit) -> None:
        await self._clock.sleep_until(self._clock.now_ns() + 3 * NS_PER_S)
        if self.watch_error:
            raise self.watch_error
        await asyncio.Event().wait()


class FakeTestbed:
    name = "fake"

    def __init__(self, deployments: dict[str, FakeDeployment]) -> None:
        self._deployments = deployments
        self.sessions: list[str] = []

    def check(self, scenario: Scenario) -> None:
        pass

    @asynccontextmanager
    async def session(self, scenario: Scenario, variants: Sequence[Variant]) -> AsyncIterator[None]:
        self.sessions.append("begun")
        try:
            yield
        finally:
            self.sessions.append("ended")

    @asynccontextmanager
    async def deploy(self, scenario: Scenario, variant: Variant, log_dir: str) -> AsyncIterator[FakeDeployment]:
        yield self._deployments[variant.name]


class ListHistory:
    """ports.History that keeps everything in a list."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.flushes = 0

    def add(self, message: Message) -> None:
        self.messages.append(message)

    def flush(self) -> None:
        self.flushes += 1
