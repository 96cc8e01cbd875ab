"""What the agent model says of itself under /v1/loadgen: the JSON that the agent writes and the node's probe reads.

GET /v1/loadgen/state answers an AgentState, GET /v1/loadgen/spans?after=N a SpanPage.
"""

from __future__ import annotations

import msgspec

from loadgen.core.samples import Span


class TableState(msgspec.Struct, frozen=True):
    """One CT table's global delete lock. `entries`: seen alive by the last walk that reached the end."""

    capacity: int
    locked: bool
    waiters: int
    entries: int
    walks: int


class GcState(msgspec.Struct, frozen=True):
    """`runs` counts periodic passes (and those asked for by POST /v1/loadgen/gc), never scrubs."""

    interval_ns: int
    runs: int
    next_ns: int | None
    """CLOCK_MONOTONIC time of the next pass; None while one is under way."""
    deleted: int
    """Entries that the last pass deleted, all tables."""


class LimiterState(msgspec.Struct, frozen=True):
    """One API limiter: requests that wait in it, that run, and how far it has adjusted itself."""

    queued: int
    in_flight: int
    factor: float
    rate: float
    parallel: int


class AgentState(msgspec.Struct, frozen=True):
    """A look at the whole agent. Endpoint states are Cilium's own names."""

    profile: str
    t_ns: int
    gc: GcState
    tables: dict[str, TableState]
    endpoints: dict[str, int]
    build_permits: int
    building: int
    build_waiters: int
    limiters: dict[str, LimiterState]
    created: int = 0
    """CT entries that the datapath made since the agent started; 0 without a datapath."""
    create_failed: int = 0
    """Those it could not make."""
    settings: str = ""
    """The core.model.Cilium that it was started with, as JSON."""

    @property
    def lock_waiters(self) -> int:
        """Creates, deletes and GC passes that wait for any table's lock."""
        return sum(table.waiters for table in self.tables.values())


class SpanPage(msgspec.Struct, frozen=True):
    """Spans number `first`, `first` + 1, … Ask again with after=`next`. `first` above that `after`: some are lost."""

    first: int
    next: int
    spans: list[Span]
