"""The CT tables as Cilium's agent treats them: one global delete lock each, full walks, and the GC loop.

Source: Cilium pkg/maps/ctmap (globalDeleteLock since PR #9645) and pkg/maps/ctmap/gc.
"""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor

from loadgen import native
from loadgen.core.agentapi import GcState, TableState
from loadgen.core.cilium import GC_START_NS, GcInterval, Profile, batch_size, next_gc_interval
from loadgen.core.model import Cilium
from loadgen.core.samples import Span
from loadgen.core.units import NS_PER_S, format_duration
from loadgen.lab.agent.metrics import Metrics
from loadgen.lab.agent.spans import SpanLog

log = logging.getLogger("agent")


class Table:
    """One CT table and its global delete lock, first come, first served.

    The lock is held for the whole walk, so at most one thread walks a table; the walk holds no GIL.
    """

    def __init__(
        self, name: str, map_name: str, fd: int, capacity: int, profile: Profile, spans: SpanLog, metrics: Metrics
    ) -> None:
        self.name = name
        self.capacity = capacity
        self.waiters = 0
        self._map_name = map_name
        self._fd = fd
        self._batch = batch_size(capacity) if profile.batch_walk else 0
        self._spans, self._metrics = spans, metrics
        self._lock = asyncio.Lock()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"walk-{name}")
        self._cancel = bytearray(4)
        self._entries = self._walks = 0

    async def walk(self, op: str, ref: str, *, address: int | None = None) -> native.CtWalk:
        """Wait for the lock and walk all of the table: delete what has expired, or all entries of `address`.

        OSError when the map cannot be walked, which is a fault of the harness.
        """
        asked_ns = time.monotonic_ns()
        self.waiters += 1
        try:
            await self._lock.acquire()
        finally:
            self.waiters -= 1
        try:
            self._spans.stage(op, ref, f"lock-wait {self.name}", asked_ns)
            loop = asyncio.get_running_loop()
            start_ns, end_ns, walk = await loop.run_in_executor(self._thread, self._walk_now, address)
        finally:
            self._lock.release()
        self._spans.add(Span(op, ref, f"walk {self.name}", start_ns, end_ns, n=walk.seen, deleted=walk.deleted))
        self._walks += 1
        if walk.completed:
            self._entries = walk.seen - walk.deleted
        self._metrics.walked("TCP" if self.name == "tcp" else "non-TCP", self._map_name, self.capacity, walk)
        return walk

    def _walk_now(self, address: int | None) -> tuple[int, int, native.CtWalk]:
        start_ns = time.monotonic_ns()
        walk = native.ct_walk(
            self._fd,
            capacity=self.capacity,
            batch=self._batch,
            now=0 if address is not None else start_ns // NS_PER_S,
            delete=native.CT_EXPIRED if address is None else native.CT_ADDRESS,
            address=address or 0,
            cancel=self._cancel,
        )
        return start_ns, time.monotonic_ns(), walk

    def state(self) -> TableState:
        return TableState(self.capacity, self._lock.locked(), self.waiters, self._entries, self._walks)

    def cancel(self) -> None:
        """End the walk that is under way, and every later one, within milliseconds."""
        self._cancel[0] = 1

    def close(self) -> None:
        self.cancel()
        self._thread.shutdown()


class Conntrack:
    """Both IPv4 tables, always walked one after the other: TCP, then the rest."""

    def __init__(self, tcp: Table, other: Table) -> None:
        self.tables = (tcp, other)

    async def scrub(self, op: str, ref: str, address: int) -> int:
        """Delete every entry of an endpoint's address; returns how many.

        A full walk of every table for each create and each delete (scrubIPsInConntrackTable).
        """
        return sum([(await table.walk(op, ref, address=address)).deleted for table in self.tables])

    async def collect(self, ref: str) -> tuple[int, float]:
        """Delete what has expired; returns how many, and the highest share of a table's capacity."""
        walks = [(table, await table.walk("gc", ref)) for table in self.tables]
        return sum(w.deleted for _, w in walks), max(w.deleted / t.capacity for t, w in walks)

    def cancel(self) -> None:
        for table in self.tables:
            table.cancel()

    def close(self) -> None:
        for table in self.tables:
            table.close()


class GarbageCollector:
    """The loop that walks the tables by Cilium's interval rule. `initial` first, then `run` for ever.

    Cilium skips a pass while the node has no endpoint; a node always has its host endpoint, so none is skipped here.
    """

    def __init__(
        self, conntrack: Conntrack, profile: Profile, settings: Cilium, spans: SpanLog, metrics: Metrics
    ) -> None:
        self._conntrack, self._profile, self._settings = conntrack, profile, settings
        self._spans, self._metrics = spans, metrics
        self._fixed_ns = int(settings.gc_interval or 0)
        self._max_ns = int(settings.gc_max_interval or 0)
        self._interval = GcInterval(self._fixed_ns or GC_START_NS, 0)
        self._last_start_ns = 0
        self._next_ns: int | None = None
        self._passes = self._runs = self._deleted = 0
        self._first: asyncio.Task[int] | None = None
        self._asked: list[asyncio.Future[int]] = []
        self._ask = asyncio.Event()

    async def initial(self) -> None:
        """The first pass, before the API is served.

        Longer than the profile's limit: TimeoutError when such an agent dies of it; else it goes on beside `run`.
        """
        log.info("Starting initial GC of connection tracking")
        self._first = asyncio.create_task(self._pass())
        limit_s = self._profile.initial_scan_timeout_ns / NS_PER_S
        done, _ = await asyncio.wait({self._first}, timeout=limit_s)
        if done:
            self._first.result()
        elif self._profile.initial_scan_fatal:
            raise TimeoutError("Timeout while waiting for initial conntrack scan")
        else:
            log.warning("The initial conntrack scan takes longer than %gs; going on without it", limit_s)

    async def run(self) -> None:
        if self._first:
            await self._first
        drifted_ns = int(self._settings.gc_interval_now or 0)
        if drifted_ns and not self._fixed_ns:
            # An agent that has drifted for days: the next pass is a whole interval away, whatever this one found.
            self._interval = GcInterval(min(drifted_ns, self._max_ns or drifted_ns), drifted_ns)
        while True:
            self._metrics_interval()
            await self._wait(time.monotonic_ns() + self._interval.wait_ns)
            asked, self._asked = self._asked, []
            self._ask.clear()
            log.info("Starting GC of connection tracking")
            deleted = await self._pass()
            self._runs += 1
            for waiting in asked:
                if not waiting.done():
                    waiting.set_result(deleted)

    async def collect_now(self) -> int:
        """One pass outside the timer, as if a signal had woken the loop; returns the entries deleted."""
        asked = asyncio.get_running_loop().create_future()
        self._asked.append(asked)
        self._ask.set()
        return await asked

    async def _wait(self, due_ns: int) -> None:
        self._next_ns = due_ns
        try:
            await asyncio.wait_for(self._ask.wait(), max(0, due_ns - time.monotonic_ns()) / NS_PER_S)
        except TimeoutError:
            pass  # the timer: what is usually waited for
        finally:
            self._next_ns = None

    async def _pass(self) -> int:
        start_ns, ref = time.monotonic_ns(), str(self._passes)
        self._passes += 1
        elapsed_ns = start_ns - self._last_start_ns if self._last_start_ns else None
        self._last_start_ns = start_ns
        deleted, ratio = await self._conntrack.collect(ref)
        self._deleted = deleted
        self._spans.stage("gc", ref, "total", start_ns, deleted=deleted, outcome="ok")
        before = self._interval
        self._interval = next_gc_interval(
            self._profile,
            before.remembered_ns,
            ratio,
            elapsed_ns=elapsed_ns,
            fixed_ns=self._fixed_ns,
            max_ns=self._max_ns,
        )
        if self._interval.wait_ns != before.wait_ns:
            log.info(
                "Conntrack garbage collector interval recalculated expectedPrevInterval=%s newInterval=%s ratio=%g",
                format_duration(before.wait_ns / NS_PER_S),
                format_duration(self._interval.wait_ns / NS_PER_S),
                ratio,
            )
        return deleted

    def _metrics_interval(self) -> None:
        if not self._fixed_ns:
            self._metrics.interval(self._interval.wait_ns)

    def state(self) -> GcState:
        return GcState(self._interval.wait_ns, self._runs, self._next_ns, self._deleted)
