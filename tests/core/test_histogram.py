import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.core import histogram
from loadgen.core.histogram import Bounds, Histogram, growth, increase, looks, readings
from loadgen.core.history import Series
from loadgen.core.promtext import samples
from loadgen.core.stats import Latencies, percentile
from loadgen.core.units import NS_PER_S as S
from tests.clusters import KUBELET_EDGES, counted

INF = math.inf


def histogram_of(seconds: list[float], edges: tuple[float, ...] = KUBELET_EDGES) -> Histogram:
    values = np.array(seconds)
    return Histogram(edges, tuple(float((values <= edge).sum()) for edge in edges), float(values.sum()), len(values))


@pytest.mark.parametrize(
    ("seconds", "low", "high"),
    [
        (0.004, 0.0, 0.005),  # a name that is reserved
        (0.6, 0.48828125, 1.220703125),
        (10.0, 7.62939453125, 19.073486328125),  # a plugin that takes 10 s
        (240.0, 119.20928955078125, 298.0232238769531),  # the kubelet's deadline
        (1000.0, 745.0580596923828, INF),
    ],
)
def test_a_quantile_is_the_bucket_it_lies_in(seconds: float, low: float, high: float) -> None:
    assert histogram_of([seconds]).quantile(50) == Bounds(low, high)


def test_count_and_mean_are_exact() -> None:
    seen = histogram_of([4.3034] * 29)
    assert (seen.count, seen.mean) == (29, pytest.approx(124.8 / 29, rel=1e-4))
    empty = histogram_of([])
    assert (empty.mean, empty.quantile(50)) == (None, None)


@given(st.lists(st.floats(0, 900), min_size=1, max_size=60), st.sampled_from([50.0, 90.0, 99.0, 99.9]))
def test_the_bounds_hold_the_exact_percentile(seconds: list[float], q: float) -> None:
    bounds = histogram_of(seconds).quantile(q)
    assert bounds is not None
    exact = percentile(Latencies(np.sort(np.array(seconds)), np.zeros(len(seconds), dtype=bool)), q).value
    assert bounds.low <= exact <= bounds.high


@given(st.lists(st.floats(0, 900), min_size=3, max_size=60), st.floats(0, 900), st.integers(1, 3))
def test_slack_covers_observations_that_are_not_known(seconds: list[float], other: float, slack: int) -> None:
    """Up to `slack` foreign ones in the histogram: the bounds still hold what the others' percentile is."""
    bounds = histogram_of([*seconds, *[other] * slack]).quantile(90, slack)
    assert bounds is not None
    exact = percentile(Latencies(np.sort(np.array(seconds)), np.zeros(len(seconds), dtype=bool)), 90).value
    assert bounds.low <= exact <= bounds.high


def test_how_many_are_above_a_value_is_known_at_the_edges_only() -> None:
    seen = histogram_of([1.0, 2.0, 5.0, 10.0, 30.0])
    assert seen.above(7.62939453125) == Bounds(2, 2)
    assert seen.above(10.0) == Bounds(1, 2)
    assert seen.above(0.0) == Bounds(5, 5)


def test_histograms_with_other_buckets_cannot_be_added() -> None:
    assert histogram_of([1.0]).plus(histogram_of([2.0])) == histogram_of([1.0, 2.0])
    with pytest.raises(ValueError, match="different buckets"):
        histogram_of([1.0]).plus(histogram_of([2.0], (1.0, INF)))


# --- looks -------------------------------------------------------------------------------------------------------


def test_a_look_becomes_readings_of_one_instant() -> None:
    page = 'h_bucket{a="x",le="0.5"} 2\nh_bucket{a="x",le="+Inf"} 3\nh_sum{a="x"} 4.5\nh_count{a="x"} 3\n'
    page += 'h_bucket{a="y",le="0.5"} 1\nh_bucket{a="y",le="+Inf"} 1\nh_sum{a="y"} 0.25\nh_count{a="y"} 1\n'
    found = {r.series: r.value for r in readings("mine", "h", samples(page, ["h_bucket", "h_sum", "h_count"]), 7)}
    assert found == {"mine|le=0.5": 3, "mine|le=+Inf": 4, "mine|sum": 4.75, "mine|count": 4}


def test_growth_is_what_came_between_the_looks_around_a_window() -> None:
    found = counted("k", [(1, 10.0), (5, 0.6), (6, 0.7), (20, 0.2)], looks_s=[0, 3, 6.5, 9, 30])
    seen = looks(found, "k")
    assert seen is not None
    grown = growth(seen, 4 * S, 8 * S)
    assert grown is not None
    assert (grown.start_ns, grown.end_ns, grown.resets) == (3 * S, 9 * S, 0)
    assert (grown.seen.count, grown.seen.sum) == (2, pytest.approx(1.3))
    assert grown.seen.quantile(99) == Bounds(0.48828125, 1.220703125)


def test_a_window_beyond_the_looks_takes_the_nearest() -> None:
    seen = looks(counted("k", [(1, 1.0)], looks_s=[0, 3]), "k")
    assert seen is not None
    grown = growth(seen, -9 * S, 99 * S)
    assert grown is not None
    assert (grown.start_ns, grown.end_ns, grown.seen.count) == (0, 3 * S, 1)
    assert growth(seen, 50 * S, 99 * S) is None


def test_a_histogram_that_was_not_there_yet_began_at_nothing() -> None:
    found = counted("k", [(5, 1.0)], looks_s=[0, 3, 6])
    assert found["k|le=+Inf"].t_ns.tolist() == [6 * S]  # families appear after their first use
    seen = looks(found, "k")
    assert seen is not None
    grown = growth(seen, 0, 6 * S)
    assert grown is not None
    assert grown.seen.count == 1


def test_a_restarted_process_begins_anew() -> None:
    found = counted("k", [(1, 1.0), (2, 1.0), (4, 1.0), (8, 2.0)], looks_s=[0, 3, 6, 9], restart_s=5)
    seen = looks(found, "k")
    assert seen is not None
    grown = growth(seen, 0, 9 * S)
    assert grown is not None
    # The one at 4 s was never seen: the look at 6 s came after the restart.
    assert (grown.resets, grown.seen.count, grown.seen.sum) == (1, 3, pytest.approx(4.0))


def test_a_restart_that_the_counts_hide_shows_in_the_process_start() -> None:
    found = counted("k", [(1, 1.0), (6, 1.0), (7, 1.0)], looks_s=[0, 3, 8], restart_s=5)
    started = Series(np.array([0, 3 * S, 8 * S]), np.array([100.0, 100.0, 200.0]))
    seen = looks(found, "k")
    assert seen is not None
    without, known = growth(seen, 0, 8 * S), growth(seen, 0, 8 * S, started)
    assert without is not None
    assert known is not None
    assert (without.resets, without.seen.count) == (0, 2)
    assert (known.resets, known.seen.count) == (1, 3)


def test_a_page_that_came_late_shows_what_was_when_it_was_asked_for() -> None:
    found = counted("k", [(4, 1.0)], looks_s=[0, 5, 12])
    found["k|took"] = Series(np.array([0, 5 * S, 12 * S]), np.array([0.1, 3.0, 0.1]))
    seen = looks(found, "k", "k|took")
    assert seen is not None
    grown = growth(seen, 0, 3 * S)
    assert grown is not None
    # Asked for at 2 s: what ended until 3 s may not be on that page.
    assert (grown.end_ns, grown.last_ns) == (round(11.9 * S), 12 * S)


def test_a_look_without_all_its_buckets_is_left_out() -> None:
    found = counted("k", [(1, 1.0), (4, 1.0)], looks_s=[0, 3, 6])
    found["k|le=0.005"] = Series(found["k|le=0.005"].t_ns[1:], found["k|le=0.005"].values[1:])
    seen = looks(found, "k")
    assert seen is not None
    assert seen.t_ns.tolist() == [0, 6 * S]
    assert looks({}, "k") is None


def test_a_counter_grows_from_look_to_look() -> None:
    series = Series(np.array([0, S, 2 * S, 3 * S]), np.array([5.0, 9.0, 2.0, 3.0]))
    assert increase(series, 0, 3 * S) == 4 + 2 + 1
    assert increase(series, S // 2, S) == 4
    assert increase(series, 9 * S, 10 * S) is None


def test_ranks_are_those_of_the_exact_statistics() -> None:
    assert [histogram.nearest_rank(q, n) for q, n in ((50, 1), (50, 4), (99.9, 1000), (99, 200))] == [1, 2, 999, 198]
