import numpy as np
import pytest

from loadgen.core import evidence
from loadgen.core.evidence import KUBELET, Range, attempts, seen, windows
from loadgen.core.histogram import Bounds
from loadgen.kube import pods as kube_pods
from tests import clusters, factories
from tests.clusters import LOOKS_S, REFUSED, START_S, Pod, burst

MEASURED = frozenset({"burst"})


def test_the_detail_of_an_open_attempt_is_the_one_that_the_runtime_gives() -> None:
    assert evidence.UNDER_WAY == kube_pods.UNDER_WAY


def test_a_window_lasts_until_the_last_sandbox_of_its_phase_has_ended() -> None:
    samples = clusters.watched([Pod((385.0, ""))])
    (window,) = windows(clusters.run(samples, {}), MEASURED)
    assert window == (factories.ns(START_S), int(samples["sandbox.setup"].rows["done_ns"].max()))
    assert window[1] > factories.ns(390)  # later than the phase's own end


def test_windows_that_overlap_become_one() -> None:
    samples = clusters.watched([Pod((3.0, ""))])
    late = factories.samples([5.0], [20.0], phase="warm", refs=["x/late"])
    both = clusters.run({**samples, "sandbox.attempt": late}, {})
    assert windows(both, frozenset({"warm", "burst"})) == [(factories.ns(0), factories.ns(390))]
    assert len(windows(clusters.run(samples, {}), frozenset({"warm"}))) == 1


def test_a_retry_is_known_by_its_pod() -> None:
    found = attempts(clusters.watched([Pod((1.0, REFUSED), (2.0, "")), Pod((1.0, ""))])["sandbox.attempt"])
    assert found.retry.tolist() == [False, True, False]
    assert found.ok.tolist() == [False, True, True]
    assert len(attempts(None).ok) == 0


def of(pods: list[Pod], **readings: object) -> evidence.Seen:
    samples = clusters.watched(pods)
    data = clusters.run(samples, clusters.node(pods, **readings))  # pyright: ignore[reportArgumentType]
    found = seen(data, KUBELET, attempts(samples["sandbox.attempt"]), windows(data, MEASURED))
    assert found is not None
    return found


def test_attempts_that_began_and_ended_between_the_looks_must_be_in_the_histogram() -> None:
    found = of(burst())
    assert (found.histogram.count, found.errors, found.resets, found.others) == (55, 5, 0, 0)
    assert (found.ok, found.failed, found.slack) == (Range(50, 50), Range(5, 5), 0)
    assert len(found.attempts) == 55


def test_pods_of_others_are_in_it_too() -> None:
    found = of(burst(), foreign=[(20.0, 1.0), (25.0, 1.0)])
    assert (found.histogram.count, found.others, found.slack) == (57, 2, 2)


def test_what_ends_here_after_the_last_look_may_or_may_not_be_in_it() -> None:
    """The watch is late: what it tells of after the page was read may have ended before."""
    pods = [Pod((1.0, "")), Pod((398.5 - START_S, ""))]
    found = of(pods)
    assert LOOKS_S[-1] == 400.0
    assert (found.ok, found.histogram.count) == (Range(2, 2), 2)
    late = of([Pod((1.0, "")), Pod((410.0 - START_S, ""))])
    assert (late.ok, late.histogram.count) == (Range(1, 2), 1)


def test_an_attempt_that_was_given_up_may_end_any_way_at_any_time() -> None:
    pods = [Pod((2.0, "")), Pod((60.0, evidence.UNDER_WAY))]
    found = of(pods)
    assert (found.ok, found.failed) == (Range(1, 2), Range(0, 1))
    assert found.histogram.count == 2  # it ended all the same, and nobody was told


def test_without_two_looks_nothing_is_known() -> None:
    samples = clusters.watched(burst())
    data = clusters.run(samples, {})
    tried = attempts(samples["sandbox.attempt"])
    assert seen(data, KUBELET, tried, windows(data, MEASURED)) is None
    early = clusters.counted(KUBELET, [(1, 1.0)], looks_s=[0, 5], origin_ns=factories.START_NS)
    assert seen(data._replace(readings=early), KUBELET, tried, windows(data, MEASURED)) is None


@pytest.mark.parametrize(("length", "bounds"), [(0.004, (0.0, 0.005)), (10.0, (7.62939453125, 19.073486328125))])
def test_lengths_lie_in_the_kubelets_own_buckets(length: float, bounds: tuple[float, float]) -> None:
    assert of([Pod((length, ""))]).histogram.quantile(50) == Bounds(*bounds)


def test_ranges_add_up() -> None:
    assert Range(1, 2).plus(Range(3, 5)) == Range(4, 7)
    assert np.isclose(Range(4, 7).loose, 3)
