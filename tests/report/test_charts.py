from __future__ import annotations

import numpy as np
import pytest

from loadgen.core.results import Results
from loadgen.core.samples import Outcome
from loadgen.report import charts, view
from loadgen.report.charts import CHART_POINTS, MAX_LANES, MAX_REPEATS
from loadgen.report.figure import Chart, Limit
from tests import factories

PLAN = factories.scenario()


def ct_of(results: Results) -> Chart:
    chart = charts.ct_chart(results.scenario, view.variants(results))
    assert chart is not None
    return chart


def with_setup(**options: object) -> Results:
    """Both variants with the same sandboxes, made by factories.samples."""
    samples = factories.samples(**options)  # type: ignore[arg-type]
    runs = [
        factories.run(factories.info(PLAN, name), {"sandbox.setup": samples}, run_marks=factories.marks(PLAN))
        for name in ("before", "after")
    ]
    return factories.results(PLAN, runs)


def test_the_table_s_panels_share_their_scales() -> None:
    chart = ct_of(factories.spiral())
    assert [(p.title, p.colour) for p in chart.panels] == [("before", "v0"), ("after", "v1")]
    assert chart.y.high == pytest.approx(2_200_000 * 1.08)
    assert chart.x.high == pytest.approx(120 * 1.02)


def test_gc_passes_and_phases_are_marked_on_the_run_s_clock() -> None:
    _, after = ct_of(factories.spiral()).panels
    assert after.ticks == [31.5, 91.5]
    assert [(b.name, b.start, b.end, b.measured) for b in after.bands] == [
        ("storm", 0, 30, False),
        ("burst", 30, 120, True),
    ]


def test_the_alternative_text_has_the_key_numbers() -> None:
    assert (
        "after: 2,000,000 entries at first, at most 2,000,000, 60,000 at the end, 2 GC passes"
        in ct_of(factories.spiral()).alt
    )


def test_the_queue_s_picture_has_what_was_read_and_no_more() -> None:
    chart = charts.queue_chart(PLAN, view.variants(factories.spiral()))
    assert chart is not None
    assert chart.key == [("agent-lock-waiters", "waiting for a CT table's delete lock")]
    assert "before: at most 49 waiting for a CT table's delete lock" in chart.alt


def test_each_sandbox_has_a_lane_the_longest_on_top() -> None:
    chart = charts.lanes_chart(PLAN, view.variants(factories.spiral()))
    assert chart is not None
    before, after = chart.panels
    assert [lane.end - lane.start for lane in before.lanes[:2]] == [4.5, 9.0]
    assert [lane.symbol for lane in before.lanes].count("open") == 31
    assert (after.lanes[-1].end, after.lanes[-1].symbol) == (36.375, "dot")
    assert chart.y.high == 51


def test_failed_attempts_stand_on_their_sandbox_s_lane() -> None:
    setup = factories.samples([30, 30], [50.0, 5.0], refs=["a1 a2", "b1"], tries=[2, 1])
    outcome = [Outcome.FAIL, Outcome.UNKNOWN, Outcome.OK]  # the second is given up with its sandbox
    attempts = factories.samples([30, 40, 30], [9.0, 39.99, 5.0], outcome=outcome, refs=["a1", "a2", "b1"])
    by_metric = {"sandbox.setup": setup, "sandbox.attempt": attempts}
    run = factories.run(factories.info(PLAN, "after"), by_metric, run_marks=factories.marks(PLAN))
    chart = charts.lanes_chart(PLAN, view.variants(factories.results(PLAN, [run])))
    assert chart is not None
    assert [lane.failed for lane in chart.panels[0].lanes] == [[], [39.0]]


def test_many_lanes_are_thinned_and_the_chart_says_so() -> None:
    n = 1_000
    outcome = np.where(np.arange(n) % 100 == 0, int(Outcome.UNKNOWN), int(Outcome.OK))
    results = with_setup(due_s=np.linspace(30, 60, n), took_s=np.linspace(1, 50, n), outcome=outcome)
    chart = charts.lanes_chart(PLAN, view.variants(results))
    assert chart is not None
    lanes = chart.panels[0].lanes
    assert len(lanes) <= MAX_LANES
    assert [lane.symbol for lane in lanes].count("open") == 10
    assert f"before: thinned to {len(lanes)} of 1,000 sandboxes" in chart.notes[0]


def test_a_burst_has_no_picture_over_time_but_arrivals_have() -> None:
    burst = with_setup(due_s=[30.0] * 50, took_s=[1.0] * 50)
    spread = with_setup(due_s=np.linspace(30, 60, 50), took_s=[1.0] * 50)
    found = [charts.points_chart(PLAN, view.variants(r), "sandbox.setup", "Setup") for r in (burst, spread)]
    assert found[0] is None
    assert found[1] is not None
    assert found[1].panels[0].limits == [Limit("y", 30.0, "p99 < 30s")]
    assert (found[1].y.low, found[1].y.high) == (1.0, 50.0)  # up to the limit


def test_thinned_points_keep_every_slow_one_and_the_note_counts_them() -> None:
    results = factories.realistic()
    chart = charts.points_chart(results.scenario, view.variants(results), "dns.lookup", "Lookups")
    assert chart is not None
    before = chart.panels[0]
    shown = [y for points in before.points for y in points.y]
    rows = results.runs[0].data.samples["dns.lookup"].rows
    slow = ((rows["done_ns"] - rows["due_ns"]) > 4e9).sum()
    assert len(shown) <= CHART_POINTS // 2
    assert sum(y > 4 for y in shown) == slow > 100
    assert f"before: thinned to {len(shown):,} of 37,000 points" in chart.notes[0]


def test_outcomes_have_symbols_of_their_own() -> None:
    due = np.linspace(30, 60, 30)
    results = with_setup(due_s=due, took_s=[1.0] * 30, outcome=[Outcome.OK, Outcome.FAIL, Outcome.UNKNOWN] * 10)
    chart = charts.points_chart(PLAN, view.variants(results), "sandbox.setup", "Setup")
    assert chart is not None
    assert [(p.symbol, len(p.x)) for p in chart.panels[0].points] == [("dot", 10), ("cross", 10), ("open", 10)]
    assert chart.key == [("dot", "ended well"), ("cross", "failed"), ("open", "given up there")]
    assert "10 given up, 10 failed" in chart.alt


def test_repeats_stand_in_rows_and_what_is_left_out_is_said() -> None:
    runs = [factories.spiral_run(PLAN, name, repeat=i) for i in range(5) for name in ("before", "after")]
    chart = ct_of(factories.results(PLAN, runs))
    assert [p.title for p in chart.panels[:4]] == ["before, run 1", "after, run 1", "before, run 2", "after, run 2"]
    assert len(chart.panels) == 2 * MAX_REPEATS
    assert chart.notes == ["4 more runs have no panel here; the tables pool all runs."]


def test_without_data_there_is_no_picture() -> None:
    run = factories.run(factories.info(PLAN, "after"), {}, {"ct.tcp.entries": factories.series([], [])})
    variants = view.variants(factories.results(PLAN, [run]))
    assert charts.ct_chart(PLAN, variants) is None
    assert charts.queue_chart(PLAN, variants) is None
    assert charts.lanes_chart(PLAN, variants) is None
    assert charts.points_chart(PLAN, variants, "dns.lookup", "Lookups") is None
