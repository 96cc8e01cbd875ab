"""The GC loop over real tables: what it deletes, when it comes, and how it shares the lock."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

import pytest

from loadgen.core.agentapi import GcState
from loadgen.core.cilium import PROFILES
from loadgen.core.model import Cilium
from loadgen.core.units import NS_PER_S, Duration
from loadgen.lab.agent.ctgc import GarbageCollector
from loadgen.lab.agent.metrics import Metrics
from loadgen.lab.agent.spans import SpanLog

pytestmark = pytest.mark.kernel


def s(seconds: float) -> Duration:
    return Duration(round(seconds * NS_PER_S))


def test_pass_deletes_what_has_expired_and_nothing_else(start_agent):
    agent = start_agent()
    agent.fill(7_001, left_s=-1)
    agent.fill(5_000, pod=99, left_s=60)
    agent.fill(23, table="any", left_s=-1)
    assert agent.request("POST", "/v1/loadgen/gc") == (200, {"deleted": 7_024})
    assert agent.entries("tcp") == 5_000
    assert agent.entries("any") == 0
    state = agent.state()
    assert (state.gc.runs, state.gc.deleted) == (1, 7_024)
    assert (state.tables["tcp"].entries, state.tables["tcp"].walks) == (5_000, 2)
    spans = [span for span in agent.spans() if span.op == "gc" and span.ref == "1"]
    assert [span.stage for span in spans] == ["lock-wait tcp", "walk tcp", "lock-wait any", "walk any", "total"]
    assert (spans[1].n, spans[1].deleted) == (12_001, 7_001)
    assert (spans[4].deleted, spans[4].outcome) == (7_024, "ok")


class NothingToCollect:
    """Tables in which nothing has expired: the interval is all that is looked at."""

    async def collect(self, _ref: str) -> tuple[int, float]:
        return 0, 0.0


@pytest.mark.parametrize(
    ("profile", "settings", "interval_s"),
    [
        ("1.16", {}, 300),
        ("1.16", {"gc_interval": s(60), "gc_interval_now": s(43_200), "gc_max_interval": s(5)}, 60),
        ("1.16", {"gc_interval_now": s(43_200)}, 43_200),
        ("1.16", {"gc_interval_now": s(43_200), "gc_max_interval": s(600)}, 600),
        ("1.18", {"gc_max_interval": s(120)}, 120),
    ],
)
def test_first_interval(profile, settings, interval_s):
    of = PROFILES[profile]
    gc = GarbageCollector(NothingToCollect(), of, Cilium(**settings), SpanLog(), Metrics(of))  # type: ignore[arg-type]

    async def until_it_waits() -> GcState:
        await gc.initial()
        running = asyncio.create_task(gc.run())
        while gc.state().next_ns is None:  # noqa: ASYNC110 - it is the loop's own state that is looked at
            await asyncio.sleep(0)
        running.cancel()
        return gc.state()

    began_ns = time.monotonic_ns()
    state = asyncio.run(until_it_waits())
    assert (state.interval_ns, state.runs) == (s(interval_s), 0)
    assert state.next_ns is not None
    assert began_ns + s(interval_s) <= state.next_ns <= time.monotonic_ns() + s(interval_s)


def test_periodic_passes_come_by_themselves(start_agent):
    agent = start_agent(conntrackGCInterval="50ms")
    agent.fill(1_000, left_s=-1)
    agent.until(lambda state: state.gc.runs >= 3 and state.tables["tcp"].entries == 0)
    totals = [span for span in agent.spans() if span.op == "gc" and span.stage == "total"]
    assert all(after.start_ns - before.end_ns >= s(0.05) for before, after in pairwise(totals))
    assert agent.entries() == 0


def test_interval_follows_the_rule_after_a_pass(start_agent):
    agent = start_agent(gcIntervalNow="100s")
    agent.fill(200_000, left_s=-1)  # 38 % of the table's capacity
    agent.request("POST", "/v1/loadgen/gc")
    # The pass came long before its time, which counts for more: the most the rule allows, 90 % shorter.
    assert agent.state().gc.interval_ns == s(10)
    assert "interval recalculated expectedPrevInterval=1m40s newInterval=10s" in agent.log()


@pytest.mark.parametrize(("profile", "batch"), [("1.16", False), ("1.18", True)])
def test_scrubs_wait_for_a_pass_and_count_in_its_metrics(start_agent, profile, batch):
    agent = start_agent(profile=profile)
    agent.fill(100_000)
    collecting = agent.pool.submit(agent.request, "POST", "/v1/loadgen/gc")
    agent.until(lambda state: state.gc.next_ns is None or state.gc.runs == 1)
    assert agent.create(2) == 201
    assert collecting.result()[0] == 200
    (periodic,) = [span for span in agent.walks("gc") if span.ref == "1"]
    (scrub,) = agent.walks("endpoint-create")
    assert scrub.start_ns >= periodic.end_ns
    text = agent.request("GET", "/metrics")[1].decode()
    runs = 'cilium_datapath_conntrack_gc_runs_total{family="ipv4",protocol="TCP",status="completed"} 3.0'
    assert runs in text
    assert ("cilium_datapath_conntrack_gc_interval_seconds" in text) is batch
