"""The agent's description of itself survives its journey as JSON."""

from __future__ import annotations

import msgspec

from loadgen.core.agentapi import AgentState, GcState, LimiterState, SpanPage, TableState
from loadgen.core.samples import Span


def test_state_and_spans_as_json():
    table = TableState(capacity=1024, locked=True, waiters=3, entries=9, walks=2)
    state = AgentState(
        profile="1.16",
        t_ns=5,
        gc=GcState(interval_ns=60, runs=1, next_ns=None, deleted=0),
        tables={"tcp": table, "any": table},
        endpoints={"ready": 2},
        build_permits=2,
        building=2,
        build_waiters=7,
        limiters={"endpoint-create": LimiterState(1, 2, 0.5, 0.25, 2)},
        created=8,
        create_failed=1,
    )
    assert msgspec.json.decode(msgspec.json.encode(state), type=AgentState) == state
    assert state.lock_waiters == 6
    page = SpanPage(3, 4, [Span("gc", "1", "walk tcp", 1, 2, n=5, deleted=4)])
    assert msgspec.json.decode(msgspec.json.encode(page), type=SpanPage) == page
