import math
from itertools import pairwise

import msgspec
import numpy as np
import pytest

from loadgen.core.agreement import Agreement, Source, agreement
from loadgen.core.evidence import UNDER_WAY
from loadgen.core.histogram import Bounds
from loadgen.core.history import Series
from loadgen.core.judge import measured_phases
from loadgen.core.results import analyse, summary_file
from loadgen.core.units import NS_PER_S
from loadgen.core.verdict import Verdict
from tests import clusters, factories
from tests.clusters import REFUSED, TIMED_OUT, Pod, burst, judged, node, watched

NAMES = ["watch, whole pod", "watch, attempt", "watch, condition", "kubelet", "containerd", "stamps"]


def row(found: Agreement, name: str) -> Source:
    return next(source for source in found.sources if source.name == name)


# --- what agrees -------------------------------------------------------------------------------------------------


def test_every_source_says_what_it_saw() -> None:
    pods = burst()
    found = judged(watched(pods), node(pods))
    assert (found.doubts, found.notes) == ((), ())
    assert [s.name for s in found.sources] == NAMES
    assert not any(s.absent for s in found.sources)
    assert [s.n for s in found.sources] == [50, 55, 50, 55, 55, 50]
    assert [s.failed for s in found.sources] == [0, 5, 0, 5, 0, 0]
    lengths = sorted(length for pod in pods for _, length, _ in pod.operations())
    assert row(found, "kubelet").mean == pytest.approx(sum(lengths) / 55)
    for source in ("kubelet", "containerd"):
        bounds = row(found, source).quantiles["p50"]
        scale = 1.0 if source == "kubelet" else 0.9
        assert bounds.low < scale * lengths[27] <= bounds.high
    assert found.failures == {REFUSED: 5}


def test_exact_sources_have_one_number_and_stamps_a_second_either_way() -> None:
    found = judged(watched([Pod((3.0, ""))] * 60), node([Pod((3.0, ""))] * 60))
    whole, stamped = row(found, "watch, whole pod").quantiles["p99"], row(found, "stamps").quantiles["p99"]
    assert whole == Bounds(pytest.approx(3.8), pytest.approx(3.8))
    assert stamped == Bounds(2.0, 4.0)


def test_ten_seconds_of_a_plugin_are_a_wide_bucket() -> None:
    pods = [Pod((10.0, "")) for _ in range(30)]
    found = judged(watched(pods), node(pods))
    assert row(found, "kubelet").quantiles["p50"] == Bounds(7.62939453125, 19.073486328125)
    assert row(found, "containerd").quantiles["p50"] == Bounds(5.0, 10.0)
    assert found.doubts == ()


def test_a_percentile_needs_its_samples_from_every_source() -> None:
    found = judged(watched(burst(20)), node(burst(20)))
    assert all("p99" not in source.quantiles for source in found.sources)


def test_a_burst_as_it_was_measured_agrees_with_itself() -> None:
    """1 M entries, default limits: 144 x 429 at up to 60 s, 5 time-outs at 90 s, 50 that come up in the end."""
    pods = [Pod(*[(20.0 + 40 * (i % 5) / 4, REFUSED)] * (3 if i < 44 else 2), (40.0, "")) for i in range(50)]
    pods[45:50] = [Pod((91.0, TIMED_OUT), (60.0, REFUSED), (60.0, REFUSED), (47.6, "")) for _ in range(5)]
    found = judged(watched(pods), node(pods))
    assert found.failures == {REFUSED: 44 * 3 + 1 * 2 + 5 * 2, TIMED_OUT: 5}
    assert found.doubts == ()


def test_names_that_are_reserved_fail_at_once_and_never_reach_the_plugin() -> None:
    pods = [Pod((0.004, "sandbox name reserved"), (2.0, "")) for _ in range(20)]
    found = judged(watched(pods), node(pods))
    assert (row(found, "kubelet").n, row(found, "containerd").n) == (40, 20)
    assert row(found, "kubelet").quantiles["p50"] == Bounds(0.0, 0.005)
    assert found.doubts == ()


def test_a_pod_that_was_given_up_is_no_contradiction() -> None:
    """How and when its attempt ended nobody knows: the kubelet may count it or not."""
    pods = [*burst(), Pod((200.0, UNDER_WAY)), Pod((0.5, REFUSED), (390.0, UNDER_WAY))]
    found = judged(watched(pods), node(pods))
    assert found.failures == {REFUSED: 6, UNDER_WAY: 2}
    assert found.doubts == ()


def test_pods_of_others_explain_what_the_kubelet_counts_more() -> None:
    foreign = [(30.0, 1.0), (33.0, 0.5), (36.0, 2.0)]
    found = judged(watched(burst()), node(burst(), foreign))
    assert (row(found, "kubelet").n, found.doubts) == (58, ())
    assert "3 other pods came to the node meanwhile" in row(found, "kubelet").error


# --- what does not -----------------------------------------------------------------------------------------------


def test_sandboxes_that_the_watch_never_saw_are_a_doubt() -> None:
    found = judged(watched(burst(47)), node(burst(50)))
    assert found.doubts[0] == "the kubelet counts 50 sandboxes set up, by our watch 47 came up"


def test_sandboxes_that_the_kubelet_never_made_are_a_doubt() -> None:
    found = judged(watched(burst(50)), node(burst(40)))
    assert "the kubelet counts 40 sandboxes set up, by our watch 50 came up" in found.doubts
    assert "containerd counts 44 CNI ADDs, fewer than the 50 sandboxes that came up by our watch" in found.doubts


def test_lost_events_are_a_doubt() -> None:
    quiet = [Pod(pod.attempts[-1], begin_s=pod.begin_s, queue_s=pod.queue_s) for pod in burst()]
    found = judged(watched(quiet), node(burst()))
    assert found.doubts == ("the kubelet counts 5 failed attempts, by the events there were 0",)


def test_a_watch_that_is_ahead_of_the_kubelet_is_a_doubt() -> None:
    found = judged(watched([Pod((2.0, ""))] * 20), node([Pod((40.0, ""))] * 20))
    assert found.doubts[0] == (
        "p50 of an attempt is above 19.07s by the kubelet, 2.75s by our watch, which cannot be ahead"
    )


def test_a_watch_that_is_far_behind_is_a_doubt() -> None:
    samples = watched([Pod((50.0, ""))] * 20)
    found = judged(samples, node([Pod((0.3, ""))] * 20))
    assert found.doubts[0].startswith("p50 of an attempt is at most 488.3ms by the kubelet, at least 50.75s by our w")


def test_the_pause_before_a_retry_is_no_time_of_an_attempt() -> None:
    """By the watch the second attempt takes 13 s longer than by the kubelet."""
    pods = [Pod((1.0, REFUSED), (1.0, REFUSED), (1.0, "")) for _ in range(30)]
    late = judged(watched(pods, report_s=15.0), node(pods))
    assert [d for d in late.doubts if "attempt is" in d] == []


def test_a_CNI_that_takes_longer_than_the_whole_is_a_doubt() -> None:
    found = judged(watched(burst()), {**node(burst()), **cni_of([Pod((40.0, ""))] * 55)})
    assert found.doubts == (
        "containerd says that 55 CNI ADDs took more than 10s, the kubelet that at most 5 whole attempts did",
    )


def cni_of(pods: list[Pod]) -> dict[str, Series]:
    return {name: series for name, series in node(pods).items() if name.startswith("containerd.set_up_pod")}


def test_stamps_far_from_the_watch_are_a_doubt() -> None:
    pods = burst()
    samples = watched(pods, report_s=0.6)
    stamps = samples["sandbox.stamp"].rows.copy()
    stamps["done_ns"] -= 12 * NS_PER_S
    samples["sandbox.stamp"] = samples["sandbox.stamp"]._replace(rows=stamps)
    (doubt,) = judged(samples, node(pods)).doubts
    assert doubt.startswith(
        "50 of 50 conditions were received more than 3s apart from their stamps, in the median 13"
    )
    assert "later: the clocks of node and API server differ, or the watch lags" in doubt


def test_a_few_late_ones_are_a_starved_API_server() -> None:
    pods = burst()
    samples = watched(pods)
    stamps = samples["sandbox.stamp"].rows.copy()
    stamps["done_ns"][:2] -= 5 * NS_PER_S
    samples["sandbox.stamp"] = samples["sandbox.stamp"]._replace(rows=stamps)
    assert judged(samples, node(pods)).doubts == ()


def test_pods_that_went_before_they_were_stamped_are_noted() -> None:
    samples = watched(burst())
    samples["sandbox.stamp"] = watched(burst()[:45])["sandbox.stamp"]
    found = judged(samples, node(burst()))
    assert found.doubts == ()
    assert found.notes == ("45 pods have a stamp of their sandbox, 50 came up: the others went before it was told",)


def test_a_burst_of_others_at_the_edge_is_no_contradiction() -> None:
    """Their ADDs are done, their sandboxes are not: containerd counts more than the kubelet."""
    readings = node(burst(), [(395.0 + 0.01 * i, 1.0) for i in range(20)])
    kubelet = {name: s for name, s in node(burst()).items() if name.startswith("kubelet")}
    assert judged(watched(burst()), {**readings, **kubelet}).doubts == ()


# --- what is not there -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["kubelet", "containerd", "stamps"])
def test_a_source_that_is_absent_is_named_and_no_doubt(source: str) -> None:
    samples, readings = watched(burst()), node(burst())
    if source == "stamps":
        del samples["sandbox.stamp"]
    readings = {name: s for name, s in readings.items() if not name.startswith(source)}
    found = judged(samples, readings)
    assert row(found, source).absent
    assert (row(found, source).n, row(found, source).quantiles) == (0, {})
    assert found.doubts == ()


def test_no_other_source_at_all_is_said() -> None:
    samples = watched(burst())
    del samples["sandbox.stamp"]
    found = judged(samples, {})
    assert found.doubts == ()
    assert found.notes == ("nothing but our own watch tells how long sandboxes took: no other source could be read",)


def test_containerd_is_held_against_the_watch_when_the_kubelet_is_silent() -> None:
    readings = cni_of([Pod((40.0, ""))] * 55)
    found = judged(watched(burst()), readings)
    assert found.doubts == (
        "containerd says that 55 CNI ADDs took more than 10s, our watch that at most 10 whole attempts did",
    )


def test_pods_of_others_that_cannot_be_listed_leave_room_above() -> None:
    readings = {name: s for name, s in node(burst(), [(30.0, 1.0)]).items() if not name.startswith("other_pods")}
    found = judged(watched(burst()), readings)
    assert found.doubts == ()
    assert found.notes == (
        "other pods of the node could not be listed: the kubelet may have counted sandboxes of theirs",
    )


def test_a_kubelet_that_restarted_knows_too_little_to_contradict() -> None:
    readings = node(burst())
    steady = readings["kubelet|started"]
    readings["kubelet|started"] = Series(steady.t_ns, np.where(steady.t_ns < factories.ns(12), 5.0, 9.0))
    found = judged(watched(burst(40)), readings)
    assert [d for d in found.doubts if d.startswith("the kubelet")] == []
    assert "it restarted meanwhile" in row(found, "kubelet").error


def test_a_run_that_was_cut_short_has_numbers_but_no_doubts() -> None:
    found = judged(watched(burst(40)), node(burst(50)), ending="interrupted")
    assert (found.doubts, row(found, "kubelet").n) == ((), 55)


def test_the_lab_has_no_other_sources() -> None:
    plan, samples = clusters.plan(), watched(burst())
    del samples["sandbox.stamp"]
    assert agreement(clusters.run(samples, {}, testbed="lab"), measured_phases(plan)) is None
    assert agreement(clusters.run({}, node(burst())), measured_phases(plan)) is None


# --- what follows from it ----------------------------------------------------------------------------------------


def verdict(watch: list[Pod], kubelet: list[Pod]) -> tuple[Verdict, str]:
    plan = clusters.plan()
    data = clusters.run(watched(watch), node(kubelet))
    results = analyse(plan, 7, "kind", factories.STARTED, {"01-v": data})
    return results.verdict.verdict, results.verdict.why


def test_a_contradiction_makes_the_verdict_inconclusive() -> None:
    assert verdict(burst(), burst())[0] is Verdict.PASS
    assert verdict(burst(), [*burst(), *[Pod((1.0, ""))] * 5]) == (
        Verdict.INCONCLUSIVE,
        "the runs prove nothing: 01-v: the kubelet counts 55 sandboxes set up, by our watch 50 came up",
    )


def test_the_sources_are_in_the_summary() -> None:
    data = clusters.run(watched(burst()), node(burst()))
    results = analyse(clusters.plan(), 7, "kind", factories.STARTED, {"01-v": data})
    written = msgspec.json.decode(msgspec.json.encode(summary_file(results)))
    kubelet = written["sources"]["01-v"]["sources"][3]
    assert (kubelet["name"], kubelet["n"], len(kubelet["quantiles"]["p50"])) == ("kubelet", 55, 2)
    assert written["sources"]["01-v"]["failures"] == {REFUSED: 5}
    assert "sources" not in msgspec.json.decode(msgspec.json.encode(summary_file(factories.spiral())))


def test_bounds_of_a_censored_percentile_are_open() -> None:
    pods = [Pod((300.0, UNDER_WAY)) for _ in range(10)]
    whole = row(judged(watched(pods), node(pods)), "watch, whole pod").quantiles["p50"]
    assert whole.high == math.inf
    assert all(a != b for a, b in pairwise(whole))
