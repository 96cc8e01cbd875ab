from __future__ import annotations

import numpy as np
import pytest

from loadgen.core.history import RunData
from loadgen.core.samples import Mark, Outcome, Span
from loadgen.core.stats import Value
from loadgen.report import view
from tests import factories


def test_variants_stand_in_the_scenario_s_order_and_are_numbered_by_role() -> None:
    plan = factories.scenario(("before", "gc-only", "dns-only", "after"))
    runs = [factories.spiral_run(plan, name) for name in ("after", "dns-only", "before", "gc-only")]
    found = view.variants(factories.results(plan, runs))
    assert [(v.name, v.number) for v in found] == [("before", 0), ("gc-only", 2), ("dns-only", 3), ("after", 1)]


def test_repeats_are_pooled_with_their_details() -> None:
    plan = factories.scenario()
    parts = [
        factories.samples([30, 31], [1.0, 2.0], outcome=Outcome.FAIL, detail=["a", "b"]),
        factories.samples([30, 31, 32], [3.0, 4.0, 5.0], outcome=Outcome.FAIL, detail=["b", "c", "b"]),
    ]
    runs = [
        factories.run(factories.info(plan, "after", repeat=i), {"dns.lookup": s}, run_marks=factories.marks(plan))
        for i, s in enumerate(parts)
    ]
    (after,) = view.variants(factories.results(plan, runs))
    pool = after.pools["dns.lookup"]
    assert pool.latencies.seconds.tolist() == [1, 2, 3, 4, 5]
    assert pool.summary.reasons == {"a": 1, "b": 3, "c": 1}


def test_only_measured_phases_count() -> None:
    plan = factories.scenario()
    samples = factories.samples([1, 31], [9.0, 1.0], phase=["storm", "burst"])
    run = factories.run(factories.info(plan, "after"), {"dns.lookup": samples}, run_marks=factories.marks(plan))
    (after,) = view.variants(factories.results(plan, [run]))
    assert after.pools["dns.lookup"].latencies.seconds.tolist() == [1.0]


def test_a_percentile_that_so_few_samples_cannot_give_is_none() -> None:
    before, _ = view.variants(factories.spiral())
    pool = before.pools["sandbox.setup"]
    assert pool.percentile(99) == Value(90.0, True)
    assert pool.percentile(99.9) is None


def test_a_counter_is_its_growth_over_all_runs() -> None:
    plan = factories.scenario()
    runs = [factories.spiral_run(plan, "after", repeat=i) for i in (0, 1)]
    (after,) = view.variants(factories.results(plan, runs))
    assert after.total("nfct.clash_resolve") == 30
    assert after.total("nfct.drop") is None
    assert after.values("race.drops").tolist() == [0, 4, 0, 4]
    assert len(after.values("nfct.drop")) == 0


def test_a_run_that_left_nothing_is_shown_as_nothing() -> None:
    plan = factories.scenario()
    data = factories.run(factories.info(plan, "after"), {})
    (after,) = view.variants(factories.results(plan, [data]))
    assert (after.pools, after.walks.walks, list(after.slowest)) == ({}, 0, [])
    assert view.duration_s(data) == 0


@pytest.mark.parametrize(("variant", "slowest"), [("before", 90.0), ("after", 6.375)])
def test_the_slowest_sandboxes_come_first(variant: str, slowest: float) -> None:
    found = {v.name: v for v in view.variants(factories.spiral())}[variant]
    seconds = [a.seconds for a in found.slowest]
    assert len(seconds) == view.SLOWEST
    assert seconds[0] == slowest
    assert np.all(np.diff(seconds) <= 0)


def test_a_run_lasts_until_its_latest_mark_wherever_that_stands() -> None:
    plan = factories.scenario()
    marks = (Mark(factories.ns(12), "phase-end", "burst"), Mark(factories.ns(1), "gc", "0"))
    assert view.duration_s(factories.run(factories.info(plan, "after"), {}, run_marks=marks)) == 12


def counted(spans: list[Span]) -> RunData:
    readings = {
        "ct.tcp.entries": factories.series([0, 10, 40], [100, 200, 50]),
        "ct.tcp.expired_share": factories.series([5, 15, 45], [0.5, 0.5, 0.2]),
    }
    return factories.run(factories.info(factories.scenario(), "after"), {}, readings, spans)


def test_expired_entries_are_the_share_of_the_entries_last_counted() -> None:
    assert view.expired_entries(counted([])).values.tolist() == [50, 100, 10]


def test_walks_count_the_table_between_two_readings() -> None:
    gc = Span("gc", "1", "walk tcp", factories.ns(20), factories.ns(25), n=210, deleted=190)
    create = Span("endpoint-create", "a", "walk tcp", factories.ns(29), factories.ns(30), n=30)
    others = [
        Span("endpoint-create", "a", "walk any", factories.ns(30), factories.ns(31), n=9_999),
        Span("gc", "0", "walk tcp", factories.ns(-2), factories.ns(-1), n=0),  # before the run
    ]
    data = counted([create, *others, gc])
    entries, expired = view.table_entries(data), view.expired_entries(data)
    assert entries.values.tolist() == [100, 200, 20, 30, 50]
    assert expired.values.tolist() == [50, 100, 0, 10]  # a GC pass leaves none
    assert expired.t_ns.tolist() == [factories.ns(t) for t in (5, 15, 25, 45)]


def test_without_readings_there_is_nothing_to_share() -> None:
    data = factories.run(factories.info(factories.scenario(), "after"), {})
    assert len(view.table_entries(data).values) == len(view.expired_entries(data).values) == 0


def test_the_agent_s_first_gc_pass_belongs_to_no_run() -> None:
    plan = factories.scenario()
    marks = factories.marks(plan, gc_s=(64.25, -0.2, 4.5))
    assert view.gc_passes(factories.run(factories.info(plan, "after"), {}, run_marks=marks)) == [4.5, 64.25]
