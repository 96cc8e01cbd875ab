"""Summaries and ranking."""

import numpy as np

from loadgen.core.simulate.outcome import GIVEN_UP, NODE_DTYPE, POD_DTYPE, UP, WAITING, Nodes, summarise, worst_node


def nodes(*pods: tuple[int, float, int, int], types: int = 1) -> Nodes:
    """pods: (node, took, state, attempts)."""
    rows = np.zeros(len(pods), POD_DTYPE)
    for i, (node, took, state, attempts) in enumerate(pods):
        rows[i]["node"], rows[i]["took_s"], rows[i]["state"], rows[i]["attempts"] = node, took, state, attempts
        rows[i]["timeouts"] = attempts - 1
    of_nodes = np.zeros(3, NODE_DTYPE)
    of_nodes["node"] = range(3)
    of_nodes["scrub_s"], of_nodes["gc_s"] = 3.0, 1.0
    return Nodes(rows, of_nodes, np.zeros((3, 2), np.float32), np.zeros((3, 2), np.float32))


def test_late_pods_are_slow_ones_and_those_that_never_came_up() -> None:
    found = nodes(
        (0, 1.0, UP, 1), (0, 40.0, UP, 1), (1, 10.0, GIVEN_UP, 3), (1, 50.0, WAITING, 2), (2, 5.0, WAITING, 1)
    )
    s = summarise("p", "", found, goal_s=30.0, hours=2.0)
    assert (s.pods, s.late, s.unknown, s.given_up) == (5, 3, 1, 1)
    assert (s.failing_nodes, s.spiralling_nodes, s.timeouts) == (1, 1, 3)
    assert (s.p50_s, s.p99_s, s.max_s) == (10.0, 50.0, 50.0)
    assert s.p99_bounded
    assert s.walk_s_per_node_hour == 2.0


def test_no_pods_no_percentiles() -> None:
    s = summarise("p", "", nodes(), goal_s=30.0, hours=1.0)
    assert (s.pods, s.p50_s, s.max_s, s.late_share, s.p99_bounded) == (0, None, None, 0.0, False)


def test_node_worth_a_closer_look_has_most_failed_attempts() -> None:
    assert worst_node(nodes((0, 1.0, UP, 1), (2, 9.0, UP, 4), (1, 50.0, UP, 1)), 0) == 2
