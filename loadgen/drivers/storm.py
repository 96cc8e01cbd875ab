"""The HDFS-like short-connection storm: one new TCP connection per request, open loop, from one pod.

The C loop (loadgen.native.Storm) starts and times the operations. This module says when they are due, a slice of
100 ms ahead, and hands on what has ended. Between two slices nothing is started, so a slice is taken up late by the
time that the hand-over took; samples show it as the difference of due and sent.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import closing
from ipaddress import IPv4Address

from loadgen.core import model
from loadgen.core.pacing import Schedule, pacer
from loadgen.core.ports import Emit, Window
from loadgen.core.samples import SampleBatch
from loadgen.core.units import NS_PER_S
from loadgen.drivers.limits import raise_open_files
from loadgen.native import STORM_DETAILS, Storm

METRIC = "storm.connect"
SLICE_NS = 100_000_000
EMIT_NS = 250_000_000
GRACE_NS = 250_000_000
"""Beyond the timeout of the last operation, so that it ends as a timeout and not as abandoned."""

Target = tuple[IPv4Address, int]
"""Address and TCP port. A conntrack entry has both in its key: to the table, 500 pairs are 500 peers."""


class StormDriver:
    """ports.Driver of a Storm load. Runs in the thread, and so in the network namespace, that calls `run`."""

    def __init__(self, load: model.Storm, source: str, targets: Sequence[Target]) -> None:
        self._load = load
        self._source = source
        self._targets = targets

    def run(self, window: Window, emit: Emit) -> dict[str, int]:
        """Connect as the load's pace says, to the targets in an order drawn from the window's seed.

        Operations queued when `window.stopped()` turns true, at most a slice, still start. What has not ended one
        timeout after that, or after the window's end, is abandoned: a sample like any other.
        """
        schedule = Schedule(pacer(self._load.pace, window.seed), window.start_ns, window.end_ns, time.monotonic_ns())
        with closing(self._open(window.seed)) as storm:
            outlet = _Outlet(storm, window.phase, self._source, emit)
            while not schedule.is_over:
                _take_turn(storm, schedule, outlet, window)
            last_ns = max(schedule.last_due_ns, time.monotonic_ns())
            _finish(storm, outlet, give_up_ns=last_ns + int(self._load.timeout) + GRACE_NS)
            outlet.send()
        return {METRIC: schedule.created}

    def _open(self, seed: int) -> Storm:
        order = list(self._targets)
        random.Random(seed).shuffle(order)
        return Storm(
            targets=b"".join(address.packed + port.to_bytes(2, "big") for address, port in order),
            request_bytes=self._load.request_bytes,
            reply_bytes=self._load.reply_bytes,
            close=self._load.close,
            timeout_ns=int(self._load.timeout),
            max_open=raise_open_files(),
        )


def _take_turn(storm: Storm, schedule: Schedule, outlet: _Outlet, window: Window) -> None:
    """Queue a slice of the schedule and live through it."""
    now_ns = time.monotonic_ns()
    until_ns = now_ns + SLICE_NS
    if window.stopped():
        schedule.end()
    storm.push(schedule.take_before(until_ns, now_ns))
    storm.run(until_ns)
    outlet.offer(until_ns)
    if not storm.open and not schedule.is_over:
        time.sleep(max(0, until_ns - time.monotonic_ns()) / NS_PER_S)


def _finish(storm: Storm, outlet: _Outlet, give_up_ns: int) -> None:
    """Let what is open or queued end, but not longer than until `give_up_ns`."""
    while storm.open or storm.queued:
        now = time.monotonic_ns()
        if now >= give_up_ns:
            storm.abandon()
        storm.run(min(now + SLICE_NS, give_up_ns))
        outlet.offer(now)


class _Outlet:
    """Passes on the samples of a storm, every quarter of a second while it lasts."""

    def __init__(self, storm: Storm, phase: str, source: str, emit: Emit) -> None:
        self._storm = storm
        self._phase = phase
        self._source = source
        self._emit = emit
        self._next_ns = 0

    def offer(self, now_ns: int) -> None:
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + EMIT_NS
            self.send()

    def send(self) -> None:
        rows = self._storm.drain()
        if rows:
            self._emit(SampleBatch(METRIC, self._phase, self._source, rows, STORM_DETAILS))
