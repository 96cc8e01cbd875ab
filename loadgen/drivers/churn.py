"""Pods that come, and perhaps go: one sandbox for every arrival, brought up by whatever PodRuntime there is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec
import numpy as np

from loadgen.core.model import Churn
from loadgen.core.pacing import pacer
from loadgen.core.ports import Attempt, Emit, NotUp, PodRuntime, Window
from loadgen.core.samples import SAMPLE_DTYPE, Outcome, Reading, SampleBatch
from loadgen.core.units import NS_PER_S

SETUP, ATTEMPT, DELETE = "sandbox.setup", "sandbox.attempt", "sandbox.delete"

_FLUSH_S = 1.0
_POLL_S = 0.25
"""How soon a stop is noticed."""


class Row(msgspec.Struct, frozen=True):
    due_ns: int
    sent_ns: int
    done_ns: int
    outcome: Outcome
    tries: int
    detail: str
    ref: str


class Samples:
    """Samples of one metric, numbered without gaps and handed over in batches."""

    def __init__(self, metric: str, phase: str, source: str) -> None:
        self._metric, self._phase, self._source = metric, phase, source
        self._rows: list[Row] = []
        self.count = 0

    def add(self, row: Row) -> None:
        self._rows.append(row)
        self.count += 1

    def flush(self, emit: Emit) -> None:
        rows, self._rows = self._rows, []
        if not rows:
            return
        details = tuple(dict.fromkeys(["", *(row.detail for row in rows)]))
        first = self.count - len(rows)
        table = np.array(
            [
                (first + i, r.due_ns, r.sent_ns, r.done_ns, r.outcome, r.tries, 0, details.index(r.detail))
                for i, r in enumerate(rows)
            ],
            dtype=SAMPLE_DTYPE,
        )
        refs = tuple(row.ref for row in rows)
        emit(SampleBatch(self._metric, self._phase, self._source, table.tobytes(), details, refs))


class ChurnDriver:
    """ports.Driver. `runtime` makes the PodRuntime inside the event loop that will use it.

    Samples: `sandbox.setup` one a pod, from due until it is up over all attempts, or UNKNOWN at the moment it was
    given up (its ref holds the container ids of all its ADDs, parted by spaces); `sandbox.attempt` one an ADD;
    `sandbox.delete` one a DEL, of a failed ADD or of a pod's removal. Attempts count from their own start: nobody
    but the kubelet asks for them.

    A pod is watched for load.timeout after it was due, also beyond the window's end: the stop that the engine gives
    at the end of every phase lets nothing more become due and cuts nothing short. `grace_ns`, when given, does: what
    is not up that long after a stop is given up. Removals (load.delete_after) that would begin after the window's
    end do not take place.
    """

    def __init__(
        self, load: Churn, runtime: Callable[[], PodRuntime], source: str, *, grace_ns: int | None = None
    ) -> None:
        self._load = load
        self._make_runtime = runtime
        self._source = source
        self._grace_ns = grace_ns

    def run(self, window: Window, emit: Emit) -> dict[str, int]:
        """ports.Driver."""
        return asyncio.run(self.work(window, emit))

    async def work(self, window: Window, emit: Emit) -> dict[str, int]:
        """`run`, for an owner that has an event loop of its own."""
        return await _Churn(self._load, window, emit, self._source, self._grace_ns).run(self._make_runtime)


class _Churn:
    """One run of the driver."""

    def __init__(self, load: Churn, window: Window, emit: Emit, source: str, grace_ns: int | None) -> None:
        self._load, self._window, self._emit, self._grace_ns = load, window, emit, grace_ns
        self._samples = {name: Samples(name, window.phase, source) for name in (SETUP, ATTEMPT, DELETE)}
        self._waiting = 0
        self._stopped = asyncio.Event()

    async def run(self, make_runtime: Callable[[], PodRuntime]) -> dict[str, int]:
        runtime = make_runtime()
        helpers = [asyncio.create_task(self._flush_regularly()), asyncio.create_task(self._watch_for_stop())]
        pods: list[asyncio.Task[None]] = []
        try:
            await self._arrivals(runtime, pods)
            await asyncio.gather(*pods)
        finally:
            for task in (*helpers, *pods):
                task.cancel()
            await asyncio.gather(*helpers, *pods, return_exceptions=True)
            await runtime.close()
            self._flush()
        return {name: samples.count for name, samples in self._samples.items()}

    async def _arrivals(self, runtime: PodRuntime, pods: list[asyncio.Task[None]]) -> None:
        window, pace = self._window, pacer(self._load.pace, self._window.seed)
        while not (window.stopped() or self._stopped.is_set()):
            offset_ns = pace.next(time.monotonic_ns() - window.start_ns, len(pods))
            if offset_ns is None or window.start_ns + offset_ns >= window.end_ns:
                return
            due_ns = window.start_ns + offset_ns
            if not await self._until(due_ns):
                return
            pod = asyncio.create_task(self._pod(runtime, len(pods), due_ns))
            pod.add_done_callback(self._end_if_broken)
            pods.append(pod)

    def _end_if_broken(self, pod: asyncio.Task[None]) -> None:
        """A runtime that raises is broken: nothing more becomes due, and `run` raises at once."""
        if not pod.cancelled() and pod.exception() is not None:
            self._stopped.set()

    async def _until(self, t_ns: int) -> bool:
        """Sleep until `t_ns`; False when a stop came first."""
        left_s = (t_ns - time.monotonic_ns()) / NS_PER_S
        if left_s <= 0:
            return not self._window.stopped()
        try:
            await asyncio.wait_for(self._stopped.wait(), left_s)
        except TimeoutError:
            return True
        return False

    async def _pod(self, runtime: PodRuntime, index: int, due_ns: int) -> None:
        refs: list[str] = []
        self._waiting += 1
        try:
            sent_ns, outcome, why = await self._bring_up(runtime, index, due_ns + self._load.timeout, refs)
        finally:
            self._waiting -= 1
        done_ns = time.monotonic_ns()
        # A runtime that knows no names of attempts calls all of them by the pod's.
        self._add(SETUP, Row(due_ns, sent_ns, done_ns, outcome, len(refs), why, " ".join(dict.fromkeys(refs))))
        if outcome is Outcome.OK and self._load.delete_after is not None:
            await self._remove(runtime, index, done_ns + self._load.delete_after)

    async def _bring_up(
        self, runtime: PodRuntime, index: int, deadline_ns: int, refs: list[str]
    ) -> tuple[int, Outcome, str]:
        """(when it really began, outcome, why it is not up)."""
        sent_ns = time.monotonic_ns()
        try:
            await runtime.admit(index, deadline_ns)
            sent_ns = time.monotonic_ns()
            up, why = await self._start(runtime, index, deadline_ns, refs)
        except NotUp as end:
            return sent_ns, end.outcome, end.why
        return sent_ns, Outcome.OK if up else Outcome.UNKNOWN, why

    async def _remove(self, runtime: PodRuntime, index: int, at_ns: int) -> None:
        if at_ns < self._window.end_ns and await self._until(at_ns):
            await runtime.remove_pod(index, lambda attempt: self._attempt(attempt, []))

    async def _start(self, runtime: PodRuntime, index: int, deadline_ns: int, refs: list[str]) -> tuple[bool, str]:
        """(up, why not)."""
        start = asyncio.create_task(runtime.start_pod(index, deadline_ns, lambda a: self._attempt(a, refs)))
        try:
            if self._grace_ns is not None:
                given_up = asyncio.create_task(self._graceful_stop(self._grace_ns))
                await asyncio.wait({start, given_up}, return_when=asyncio.FIRST_COMPLETED)
                given_up.cancel()
                if not start.done():
                    return False, "stopped"
            up = await start
            return up, "" if up else "not up in time"
        finally:
            start.cancel()
            await asyncio.gather(start, return_exceptions=True)

    async def _graceful_stop(self, grace_ns: int) -> None:
        await self._stopped.wait()
        await asyncio.sleep(grace_ns / NS_PER_S)

    def _attempt(self, attempt: Attempt, refs: list[str]) -> None:
        if attempt.op == "ADD":
            refs.append(attempt.ref)
        self._add(
            ATTEMPT if attempt.op == "ADD" else DELETE,
            Row(attempt.start_ns, attempt.start_ns, attempt.end_ns, attempt.outcome, 1, attempt.detail, attempt.ref),
        )

    def _add(self, metric: str, row: Row) -> None:
        self._samples[metric].add(row)

    def _flush(self) -> None:
        for samples in self._samples.values():
            samples.flush(self._emit)
        self._emit(Reading(time.monotonic_ns(), "sandbox.waiting", self._waiting))

    async def _flush_regularly(self) -> None:
        while True:
            self._flush()
            await asyncio.sleep(_FLUSH_S)

    async def _watch_for_stop(self) -> None:
        while not self._window.stopped():  # noqa: ASYNC110 - a Window can only be asked
            await asyncio.sleep(_POLL_S)
        self._stopped.set()
