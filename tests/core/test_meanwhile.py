import numpy as np
import pytest

from loadgen.core.history import Series
from loadgen.core.meanwhile import Meanwhile, around, mean_by_look, rate_by_look, scopes
from loadgen.core.samples import Mark
from tests import clusters, factories
from tests.factories import ns, series

AT = [0.0, 10.0, 20.0, 30.0, 40.0]


def agent() -> dict[str, Series]:
    """A burst between 10 s and 30 s: 12 endpoints of 2.6 s, of it 2.5 s for the table; 44 creates refused."""
    return {
        "cilium|started": series(AT, [5.0] * 5),
        "cilium.limiter.wait": series(AT, [0, 0.1, 26.7, 12.0, 3.0]),
        "cilium.limiter.processing": series(AT, [0, 0.2, 1.6, 1.4, 0.3]),
        "cilium.regeneration.total|sum": series(AT, [3, 3, 19, 34.2, 34.2]),
        "cilium.regeneration.total|count": series(AT, [3, 3, 9, 15, 15]),
        "cilium.regeneration.waitingForCTClean|sum": series(AT, [0.1, 0.1, 15, 30.1, 30.1]),
        "cilium.regeneration.waitingForCTClean|count": series(AT, [3, 3, 9, 15, 15]),
        "cilium.regeneration.bpfLoadProg|sum": series(AT, [0.1, 0.1, 0.2, 0.2, 0.2]),
        "cilium.regeneration.bpfLoadProg|count": series(AT, [3, 3, 9, 15, 15]),
        "cilium.creates_refused": series(AT, [7, 7, 30, 51, 51]),
        "cilium.ct.walks": series(AT, [6, 6, 18, 30, 30]),
        "ct.tcp.entries": series(AT, [1e6, 1e6, 1.02e6, 1.01e6, 10.0]),
        "containerd.set_up_pod|count": series(AT, [10, 10, 16, 22, 23]),
        "containerd.set_up_pod|sum": series(AT, [5, 5, 125, 305, 305.5]),
    }


def test_what_the_node_did_in_a_stretch() -> None:
    data = clusters.run({}, agent(), marks=[Mark(ns(22), "gc", "ct4"), Mark(ns(39), "gc", "ct4")])
    found = around(data)(ns(11), ns(29))
    assert found == Meanwhile(
        cni_adds=12,
        cni_s=25.0,
        limiter_wait_s=26.7,
        limiter_processing_s=1.6,
        regenerations=12,
        stages={"total": pytest.approx(2.6), "waitingForCTClean": 2.5, "bpfLoadProg": pytest.approx(0.1 / 12)},
        entries=1.02e6,
        walks=24,
        passes=1,
        refused=44,
    )
    assert found.sentence() == (
        "12 CNI ADDs ended, 25s each, creates waited up to 26.7s in the API limiter, and then took 1.6s, "
        "12 endpoints regenerated (waitingForCTClean 2.5s each), 1,020,000 CT entries, 1 GC pass, 24 table walks, "
        "44 creates refused (429)"
    )


def test_a_reading_holds_until_the_next() -> None:
    found = around(clusters.run({}, {"cilium.limiter.wait": series(AT, [0, 9.0, 1.0, 0, 0])}))(ns(12), ns(14))
    assert found is not None
    assert found.limiter_wait_s == 9.0


def test_nothing_is_known_without_readings() -> None:
    assert around(clusters.run({}, {}))(ns(11), ns(29)) is None
    assert Meanwhile().sentence() == ""


def test_a_stage_that_appeared_in_the_stretch_began_at_nothing() -> None:
    """The first endpoint of an agent makes the metric: its page was there before, the metric was not."""
    late = {
        "cilium|started": series([0, 10, 20], [5.0] * 3),
        "cilium.regeneration.total|sum": series([20], [6.0]),
        "cilium.regeneration.total|count": series([20], [3.0]),
    }
    found = around(clusters.run({}, late))(ns(11), ns(29))
    assert found is not None
    assert (found.regenerations, found.stages) == (3, {"total": 2.0})
    assert around(clusters.run({}, {k: s for k, s in late.items() if "|started" not in k}))(ns(11), ns(29)) is None


def test_the_agents_own_count_of_the_table_stands_in_for_ours() -> None:
    found = around(clusters.run({}, {"cilium.ct.alive": series(AT, [5.0] * 5)}))(ns(11), ns(29))
    assert found is not None
    assert found.entries == 5.0


def test_stages_that_are_told() -> None:
    assert scopes(agent()) == ["bpfLoadProg", "total", "waitingForCTClean"]


def test_means_between_looks() -> None:
    found = mean_by_look(agent(), "containerd.set_up_pod")
    assert found is not None
    assert found.t_ns.tolist() == [ns(t) for t in AT]
    assert found.values.tolist() == [0.0, 20.0, 30.0, 0.5, 0.5]
    assert mean_by_look({}, "containerd.set_up_pod") is None


def test_rates_between_looks_know_a_restart() -> None:
    found = rate_by_look(Series(np.array([ns(0), ns(2), ns(4)]), np.array([10.0, 14.0, 6.0])))
    assert found is not None
    assert found.values.tolist() == [2.0, 3.0, 3.0]
    assert rate_by_look(Series(np.array([factories.START_NS]), np.array([1.0]))) is None
