"""The agent's periodic passes: Cilium's interval rule, and what the tables look like before and after.

Between two bends of the flows everything is linear: once two passes have found the same garbage and set the same
interval, so will all that follow. These are then made in one step, until something happens on the node.
"""

from __future__ import annotations

from typing import Protocol

from loadgen.core.cilium import GC_START_NS, GcInterval, Profile, next_gc_interval
from loadgen.core.simulate.agent import Agent
from loadgen.core.simulate.costs import walk_ns
from loadgen.core.simulate.fleet import AgentSettings
from loadgen.core.simulate.flows import Table

STEADY = 2
"""Passes in a row that must have found the same before those to come are taken to find it too."""
_SAME = 1e-6


class Looker(Protocol):
    """Who notes what the TCP table looks like."""

    next_ns: int
    """When it wants to look next."""

    def upto(self, t_ns: int, seen: tuple[float, float] | None = None) -> None:
        """The tables' course up to then is known: look at the times that are due, and at t_ns itself.

        `seen`: entries and expired ones of the TCP table at t_ns, for who has counted them already.
        """
        ...

    def passed(self, start_ns: int, end_ns: int, garbage: float, ratio: float, wait_ns: int) -> None:
        """A pass has ended: when it was due and when it was over, what it deleted, and when the next comes."""
        ...


class Collector:
    """The GC loop of one agent. `interval_ns` is what it waits now."""

    def __init__(self, agent: Agent, of: Profile, settings: AgentSettings, looker: Looker, until_ns: int) -> None:
        """`until_ns`: nobody is interested in what comes after."""
        self._agent, self._profile, self._looker, self._until_ns = agent, of, looker, until_ns
        self._timeline, self._tables, self._locks = agent.timeline, agent.tables, agent.locks
        self._fixed_ns = int(settings.gc_interval or 0)
        self._max_ns = int(settings.gc_max_interval or 0)
        start_ns = self._fixed_ns or (min(GC_START_NS, self._max_ns) if self._max_ns else GC_START_NS)
        self._interval = GcInterval(start_ns, 0)
        self._last_start_ns = self._timeline.now_ns
        self._garbage, self._ratio, self._same = -1.0, 0.0, 0
        self.passes = 0
        self._timeline.after(self._interval.wait_ns, self._due)

    @property
    def interval_ns(self) -> int:
        return self._interval.wait_ns

    def bend(self) -> None:
        """Something about the flows has changed: what passes have found says nothing about the next."""
        self._same = 0

    def _due(self) -> None:
        start_ns, next_ns = self._timeline.now_ns, self._timeline.next_ns()
        after_ns = self._until_ns if next_ns is None else min(next_ns, self._until_ns)
        if self._agent.busy == 0:
            found = [table.counts(start_ns) for table in self._tables]
            took_ns = sum(self._walk_ns(table, seen) for table, seen in zip(self._tables, found, strict=True))
            if after_ns > start_ns + took_ns:
                self._at_once(start_ns, found, took_ns, after_ns)
                return
        self._agent.busy += 1
        self._queue(0, start_ns, ())

    # --- one pass ---------------------------------------------------------------------------------------------

    def _at_once(self, start_ns: int, found: list[tuple[float, float]], took_ns: int, after_ns: int) -> None:
        """Nothing else happens on the node before this pass is over."""
        self._looker.upto(start_ns, found[0])
        self._set_passed(start_ns)
        self._count(took_ns, 1)
        tcp, other = ((seen[1], seen[1] / t.capacity) for seen, t in zip(found, self._tables, strict=True))
        self._end(start_ns, start_ns + took_ns, tcp, other)
        self._skip(start_ns, took_ns, after_ns)

    def _walk_ns(self, table: Table, seen: tuple[float, float]) -> int:
        return walk_ns(self._agent.costs, table.capacity, seen[0], seen[1], batch=self._agent.batch)

    def _count(self, took_ns: int, passes: int) -> None:
        self._agent.walked_ns["gc"] += took_ns * passes
        self._agent.walks["gc"] += 2 * passes

    def _queue(self, which: int, began_ns: int, found: tuple[tuple[float, float], ...]) -> None:
        """Beside creates and deletes: wait for each table's lock like them."""
        table, lock, timeline = self._tables[which], self._locks[which], self._timeline

        def locked() -> None:
            took_ns = self._walk_ns(table, table.counts(timeline.now_ns))
            self._agent.walked_ns["gc"] += took_ns
            self._agent.walks["gc"] += 1
            timeline.after(took_ns, walked, timeline.now_ns)

        def walked(start_ns: int) -> None:
            both = (*found, self._collect(start_ns, which))
            lock.give_back()
            if which == 0:
                self._queue(1, began_ns, both)
            else:
                self._agent.busy -= 1
                self._same = 0
                self._end(began_ns, timeline.now_ns, both[0], both[1])
                timeline.after(self._interval.wait_ns, self._due)

        lock.take(locked)

    def _collect(self, start_ns: int, which: int) -> tuple[float, float]:
        """Delete what had expired then; how many, and as a share of the capacity."""
        table = self._tables[which]
        if which == 0:
            self._looker.upto(self._timeline.now_ns)
        garbage = table.counts(start_ns)[1]
        table.collect(start_ns)
        return garbage, garbage / table.capacity

    def _end(self, start_ns: int, end_ns: int, tcp: tuple[float, float], other: tuple[float, float]) -> None:
        self.passes += 1
        before, garbage = self._interval, tcp[0] + other[0]
        self._interval = next_gc_interval(
            self._profile,
            before.remembered_ns,
            max(tcp[1], other[1]),
            elapsed_ns=start_ns - self._last_start_ns,
            fixed_ns=self._fixed_ns,
            max_ns=self._max_ns,
        )
        alike = abs(garbage - self._garbage) <= _SAME * max(1.0, garbage) and before.wait_ns == self._interval.wait_ns
        self._same = self._same + 1 if alike else 0
        self._garbage, self._ratio, self._last_start_ns = garbage, max(tcp[1], other[1]), start_ns
        self._looker.passed(start_ns, end_ns, garbage, self._ratio, self._interval.wait_ns)

    # --- many passes ------------------------------------------------------------------------------------------

    def _skip(self, start_ns: int, took_ns: int, after_ns: int) -> None:
        """The pass that began at `start_ns` was made at once. Make those that are like it, up to the next event."""
        cycle_ns = self._interval.wait_ns + took_ns
        alike = 0
        if self._same >= STEADY:
            alike = max(0, (after_ns - start_ns) // cycle_ns - 1)
        if alike:
            last_ns = start_ns + alike * cycle_ns
            while self._looker.next_ns <= last_ns:
                look_ns = self._looker.next_ns
                self._set_passed(start_ns + (look_ns - start_ns) // cycle_ns * cycle_ns)
                self._looker.upto(look_ns)
            self._set_passed(last_ns - cycle_ns)
            self._looker.upto(last_ns)
            self._set_passed(last_ns)
            self._count(took_ns, alike)
            self.passes += alike
            self._last_start_ns = last_ns
            self._looker.passed(last_ns, last_ns + took_ns, self._garbage, self._ratio, self._interval.wait_ns)
        self._timeline.at(self._last_start_ns + cycle_ns, self._due)

    def _set_passed(self, start_ns: int) -> None:
        for table in self._tables:
            table.collect(start_ns)
