from __future__ import annotations

import numpy as np
import pytest

from loadgen.core.stats import Latencies
from loadgen.report import distributions, view
from loadgen.report.distributions import Mode, histogram, slow_modes, tail
from tests import factories

PLAN = factories.scenario()


def latencies(*pairs: tuple[float, bool]) -> Latencies:
    return Latencies(np.array([s for s, _ in pairs]), np.array([c for _, c in pairs]))


def test_a_histogram_counts_every_operation_in_the_bin_it_belongs_to() -> None:
    seconds = np.array([0.0, 1e-6, 0.0021, 0.002, 1.0, 5.0, 5.02, 10.0])
    bars = histogram(seconds)
    assert sum(bars.counts) == len(seconds)
    for s in (1.0, 5.0, 10.0):
        i = int(np.searchsorted(bars.edges, s)) - 1
        assert bars.counts[i] == {1.0: 1, 5.0: 2, 10.0: 1}[s]
    assert np.all(np.diff(bars.edges) > 0)


def test_one_value_alone_is_one_bin() -> None:
    assert histogram(np.array([0.003])).counts == [1]


def test_round_times_lie_inside_a_bin_and_not_on_its_edge() -> None:
    edges = np.array(histogram(np.array([0.001, 100.0])).edges)
    for s in (0.1, 1.0, 5.0, 10.0):
        assert np.abs(np.log10(edges / s)).min() > 0.04


@pytest.mark.parametrize(
    ("slow", "modes"),
    [
        ([], []),
        ([5.001, 5.003, 5.009], [Mode(3, 5.003, 3)]),
        ([5.001, 5.003, 10.01], [Mode(2, 5.002, 2), Mode(1, 10.01, 1)]),
        ([0.4], []),  # not half a second
    ],
)
def test_slow_modes_stand_apart_from_the_rest(slow: list[float], modes: list[Mode]) -> None:
    found = slow_modes(np.array([0.004] * 1000 + slow))
    assert [tuple(m) for m in found] == [pytest.approx(tuple(m)) for m in modes]


def test_where_everything_is_slow_nothing_stands_apart() -> None:
    assert slow_modes(np.full(100, 5.0)) == []


def test_the_histogram_names_the_five_second_lookups() -> None:
    chart = distributions.histogram_chart(PLAN, view.variants(factories.spiral()), "dns.lookup", "Lookups")
    assert chart is not None
    before, after = chart.panels
    assert [label.text for label in before.labels] == ["4 near 5.002s"]
    assert after.labels == []
    assert "before: 800 operations; 4 near 5.002s. after: 800 operations; no slow group." in chart.alt
    assert before.limits[0].text == "max < 2.5s"
    assert (chart.x.low, chart.x.high) == pytest.approx((0.001, 100.0))  # with room for the label


def test_a_tail_falls_from_all_to_one_in_n() -> None:
    x, share, cut = tail(latencies((1, False), (2, False), (3, False), (4, False)))
    assert x.tolist() == [1, 2, 3, 4]
    assert share.tolist() == [1, 0.75, 0.5, 0.25]
    assert not cut


def test_a_tail_ends_where_the_slowest_were_given_up() -> None:
    x, share, cut = tail(latencies((1, False), (2, False), (90, True), (90, True)))
    assert x.tolist() == [1, 2, 90]
    assert share.tolist() == [1, 0.75, 0.5]
    assert cut


def test_a_tail_of_nothing_but_given_up_ones_is_a_point() -> None:
    x, share, cut = tail(latencies((90, True), (90, True)))
    assert (x.tolist(), share.tolist(), cut) == ([90], [1.0], True)


def test_a_tail_is_thinned_but_keeps_the_slowest_ones() -> None:
    seconds = np.sort(np.random.default_rng(1).random(100_000))
    x, share, _ = tail(Latencies(seconds, np.zeros(len(seconds), dtype=bool)))
    assert len(x) <= distributions.TAIL_POINTS
    assert x[-5:].tolist() == seconds[-5:].tolist()
    assert (share[0], share[-1]) == (1.0, pytest.approx(1e-5))


def test_tails_of_all_variants_share_a_panel() -> None:
    chart = distributions.tail_chart(PLAN, view.variants(factories.spiral()), "sandbox.setup", "Sandboxes")
    assert chart is not None
    (panel,) = chart.panels
    assert [(line.name, line.colour) for line in panel.lines] == [("before", "v0"), ("after", "v1")]
    assert [(p.symbol, p.x, p.y) for p in panel.points] == [("open", [90.0], [0.62])]
    assert chart.key[-1] == ("open", "the rest was given up here")
    assert "before: 50 operations, p50 at least 1m30s, p99 at least 1m30s." in chart.alt


def test_without_samples_there_is_no_picture() -> None:
    variants = view.variants(factories.spiral())
    assert distributions.histogram_chart(PLAN, variants, "sandbox.delete", "") is None
    assert distributions.tail_chart(PLAN, variants, "sandbox.delete", "") is None
