"""A conntrack table over time without a look at single connections: constant rates, known lifetimes, closed forms.

Every entry of a flow expires `ttl` after it came (the connection's life plus 10 s after both FINs; 60 s for UDP; the
whole TCP lifetime when one side never closes). A pass that starts at `g` deletes what expired before g. So at time t

    entries = arrived(t) - arrived(g - ttl)        expired = arrived(t - ttl) - arrived(g - ttl)

A full LRU table evicts its oldest entries, and those are the expired ones first. (The kernel's LRU is approximate and
evicts a little before the table is full.)
"""

from __future__ import annotations

from collections.abc import Iterator

from loadgen.core.units import NS_PER_S


class Flow:
    """Entries that come at a constant `rate` per second from `start_ns` until `end_ns`."""

    __slots__ = ("end_ns", "per_ns", "start_ns", "ttl_ns")

    def __init__(self, rate: float, ttl_ns: int, start_ns: int, end_ns: int) -> None:
        self.per_ns = rate / NS_PER_S
        self.ttl_ns = ttl_ns
        self.start_ns = start_ns
        self.end_ns = end_ns

    def arrived(self, t_ns: int) -> float:
        if t_ns <= self.start_ns:
            return 0.0
        return (min(t_ns, self.end_ns) - self.start_ns) * self.per_ns


class Table:
    """One CT table: `flows` into it, `open_entries` that are always there, and the start of the last pass."""

    __slots__ = ("_gone", "capacity", "evicted_live", "flows", "open_entries", "passed_ns")

    def __init__(self, capacity: int, booted_ns: int) -> None:
        self.capacity = capacity
        self.flows: list[Flow] = []
        self.open_entries = 0.0
        self.passed_ns = booted_ns
        self._gone = 0.0
        """Entries of `flows` that passes have deleted so far."""
        self.evicted_live = 0.0
        """Largest number of entries of live connections that had no room in the table."""

    def counts(self, t_ns: int) -> tuple[float, float]:
        """Entries and how many of them have expired."""
        expired = -self._gone
        total = self.open_entries + expired
        for flow in self.flows:  # Flow.arrived, written out: this is where the time of a simulation goes
            start_ns, end_ns, per_ns = flow.start_ns, flow.end_ns, flow.per_ns
            if t_ns > start_ns:
                total += ((t_ns if t_ns < end_ns else end_ns) - start_ns) * per_ns
                old_ns = t_ns - flow.ttl_ns
                if old_ns > start_ns:
                    expired += ((old_ns if old_ns < end_ns else end_ns) - start_ns) * per_ns
        evicted = total - self.capacity
        if evicted <= 0:
            return total, expired
        if evicted > expired:
            self.evicted_live = max(self.evicted_live, evicted - expired)
        return float(self.capacity), max(0.0, expired - evicted)

    def entries(self, t_ns: int) -> float:
        return self.counts(t_ns)[0]

    def collect(self, started_ns: int) -> None:
        """A pass that started then has deleted what had expired; flows that have nothing left are forgotten."""
        self.passed_ns = started_ns
        gone, ended = 0.0, False
        for flow in self.flows:
            old_ns = started_ns - flow.ttl_ns
            gone += flow.arrived(old_ns)
            ended = ended or flow.end_ns <= old_ns
        self._gone = gone
        if ended:
            self._keep([flow for flow in self.flows if flow.end_ns > started_ns - flow.ttl_ns])

    def drop(self, flows: list[Flow]) -> None:
        """A scrub has deleted all entries of these."""
        gone = set(map(id, flows))
        self._keep([flow for flow in self.flows if id(flow) not in gone])

    def _keep(self, flows: list[Flow]) -> None:
        self.flows = flows
        self._gone = sum(flow.arrived(self.passed_ns - flow.ttl_ns) for flow in flows)


def bends(flows: list[Flow]) -> Iterator[int]:
    """When the course of a table's entries or of its garbage changes by itself: between two bends it is linear."""
    for flow in flows:
        yield from (flow.start_ns, flow.end_ns, flow.start_ns + flow.ttl_ns, flow.end_ns + flow.ttl_ns)
