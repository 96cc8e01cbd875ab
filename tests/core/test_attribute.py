import numpy as np
import pytest

from loadgen.core.attribute import FAILED, LAST, THROTTLED, slowest_sandboxes, walk_stats
from loadgen.core.history import MetricSamples
from loadgen.core.meanwhile import Meanwhile
from loadgen.core.samples import SAMPLE_DTYPE, Outcome, Span
from loadgen.core.units import NS_PER_S
from tests.clusters import Pod, watched

S = NS_PER_S


def sandboxes() -> MetricSamples:
    rows = np.zeros(3, dtype=SAMPLE_DTYPE)
    rows["done_ns"] = [5 * S, 120 * S, 60 * S]
    rows["outcome"] = [Outcome.OK, Outcome.UNKNOWN, Outcome.OK]
    rows["tries"] = [1, 2, 1]
    zeros = np.zeros(3, dtype=np.int32)
    return MetricSamples(rows, ("",), zeros, ("burst",), zeros, ("pods@node",), ("a", "b1 b2", "c"))


def attempts() -> MetricSamples:
    rows = np.zeros(2, dtype=SAMPLE_DTYPE)
    rows["sent_ns"] = [0, 105 * S]
    rows["done_ns"] = [91 * S, 120 * S]
    zeros = np.zeros(2, dtype=np.int32)
    return MetricSamples(rows, ("",), zeros, ("burst",), zeros, ("pods@node",), ("b1", "b2"))


SPANS = (
    Span("endpoint-create", "b1", "build-wait", 0, 70 * S),
    Span("endpoint-create", "b1", "lock-wait tcp", 70 * S, 80 * S),
    Span("endpoint-create", "b1", "walk tcp", 80 * S, 90 * S, n=4_000_000),
    Span("endpoint-create", "b2", "build-wait", 105 * S, 300 * S),
    Span("endpoint-delete", "b1", "walk tcp", 90 * S, 100 * S, n=1_000_000),
    Span("endpoint-create", "c", "total", 0, 60 * S),
)


def test_the_slowest_come_first_with_the_time_of_all_their_attempts() -> None:
    first, second = slowest_sandboxes(sandboxes(), attempts(), SPANS, count=2)
    assert (first.ref, first.seconds, first.tries, first.up) == ("b1 b2", 120, 2, False)
    # of b2's wait only what lies before the sandbox was given up
    assert first.causes == {
        "waiting for a build permit behind other endpoints' table walks": 85,
        "waiting for a CT table's delete lock": 10,
        "walking the CT tables": 10,
        "waiting for the kubelet's next attempt": 14,
    }
    assert first.sentence().startswith("not up after 2m and 2 attempts: 1m25s waiting for a build permit")
    assert (second.ref, second.causes) == ("c", {})
    assert "no span of the agent" in second.sentence()


def test_a_pods_name_may_stand_for_all_its_attempts() -> None:
    """On a cluster a sandbox's attempts have one name; its spans are counted once."""
    named = sandboxes()._replace(refs=("a", "b1 b1", "c"))
    (found,) = slowest_sandboxes(named, None, SPANS, count=1)
    assert found.causes["walking the CT tables"] == 10


def test_on_a_cluster_the_node_tells_what_the_spans_do_not() -> None:
    asked: list[tuple[int, int]] = []

    def around(start_ns: int, end_ns: int) -> Meanwhile:
        asked.append((start_ns, end_ns))
        return Meanwhile(limiter_wait_s=26.7, refused=44)

    late = sandboxes()
    late.rows["sent_ns"][1] = 15 * S
    first, second = slowest_sandboxes(late, attempts(), SPANS, count=2, around=around)
    assert asked == [(0, 120 * S), (0, 60 * S)]
    assert first.causes[THROTTLED] == 15
    assert "15s held back by loadgen's own API limit" in first.sentence()
    told = "creates waited up to 26.7s in the API limiter, 44 creates refused (429)"
    assert first.sentence().endswith(f"; meanwhile on the node: {told}")
    assert second.sentence() == f"up after 1m and 1 attempt: on the node {told}"


def test_on_a_cluster_without_spans_a_pods_own_attempts_tell() -> None:
    pods = [Pod((15.0, "429 Busy"), (30.0, "429 Busy"), (2.0, "")), Pod((50.0, ""))]
    found = watched(pods)
    first, second = slowest_sandboxes(found["sandbox.setup"], found["sandbox.attempt"], (), around=lambda a, b: None)
    assert first.causes[FAILED.format(why="429 Busy")] == pytest.approx(15.75 + 43.0)
    assert first.causes[LAST] == pytest.approx(15.0)
    assert first.sentence().startswith("up after 1m14s and 3 attempts: 58.75s in attempts that failed (429 Busy)")
    assert second.causes == {THROTTLED: 0}


def test_nothing_is_attributed_without_samples_or_names() -> None:
    assert slowest_sandboxes(None, None, SPANS) == []
    assert slowest_sandboxes(sandboxes()._replace(refs=()), None, SPANS) == []


def test_walks_are_added_up() -> None:
    found = walk_stats(SPANS)
    assert (found.walks, found.entries, found.seconds, found.longest_s) == (2, 5_000_000, 20, 10)
    assert found.us_per_entry == pytest.approx(4.0)
    assert walk_stats(()).us_per_entry == 0
