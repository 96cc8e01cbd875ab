"""What a simulated node leaves behind, and what a policy did to a fleet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

UP, GIVEN_UP, WAITING = 0, 1, 2
STATES = ("up", "given up", "waiting")

POD_DTYPE = np.dtype(
    [
        ("node", "<i4"),
        ("workload", "<i2"),  # its place in the fleet file
        ("due_s", "<f8"),
        ("took_s", "<f4"),  # from due until up, given up, or the end of the simulation
        ("state", "u1"),  # STATES
        ("attempts", "<u2"),
        ("timeouts", "<u2"),  # ADDs that the plugin gave up
        ("refused", "<u2"),  # ADDs answered 429
    ]
)


class Pass(NamedTuple):
    """One GC pass: when it began, what it deleted, as a share of capacity, and when the next comes (s)."""

    t_s: float
    garbage: float
    ratio: float
    next_s: float


class NodeOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One node. `grid`, `intervals`: entries of its TCP table and the GC interval (s) at regular times."""

    number: int
    pods: np.ndarray
    grid: np.ndarray
    intervals: np.ndarray
    capacity: int
    peak_entries: float
    evicted_live: float
    passes: int
    walks: int
    scrub_s: float
    gc_s: float
    longest_queue: int
    most_waiting: int
    events: int
    close: tuple[tuple[float, float, float], ...] = ()
    """(second, entries, expired), only of a node looked at closely; `gc` and `waiting` too."""
    gc: tuple[Pass, ...] = ()
    waiting: tuple[tuple[float, int], ...] = ()


class PolicySummary(msgspec.Struct, frozen=True, kw_only=True):
    """A policy over a whole fleet, or over one type of its nodes. Times in seconds."""

    policy: str
    describe: str
    nodes: int
    pods: int
    late: int
    """Up later than the goal, given up, or still not up after more than the goal."""
    unknown: int
    """Due so shortly before the end that nobody can say: not up yet, and not late yet. In no percentile."""
    given_up: int
    timeouts: int
    refused: int
    failing_nodes: int
    """Nodes where at least one ADD failed."""
    spiralling_nodes: int
    """Nodes where one pod needed three attempts or more."""
    p50_s: float | None
    p99_s: float | None
    max_s: float | None
    bounded: bool
    """p99 or max is a lower bound: pods that were never up decide it."""
    peak_entries: float
    """The largest table of any node."""
    evicted_live: float
    walk_s_per_node_hour: float
    events: int

    @property
    def late_share(self) -> float:
        return self.late / self.pods if self.pods else 0.0

    @property
    def key(self) -> tuple[float, float, float]:
        """What policies are ranked by: late pods, then p99, then the CPU time of all walks."""
        return self.late_share, self.p99_s or 0.0, self.walk_s_per_node_hour


def summarise(
    policy: str, describe: str, nodes: Sequence[NodeOutcome], pods: np.ndarray, goal_s: float, hours: float
) -> PolicySummary:
    """`pods` are those of these nodes, all in one array."""
    unknown = (pods["state"] == WAITING) & (pods["took_s"] <= goal_s)
    known = pods[~unknown]
    took = np.sort(known["took_s"])
    not_up = known[known["state"] != UP]["took_s"]
    failed = pods["timeouts"].astype(int) + pods["refused"]
    p99 = float(took[_rank(len(took), 0.99)]) if len(took) else None
    return PolicySummary(
        policy=policy,
        describe=describe,
        nodes=len(nodes),
        pods=len(pods),
        late=int(((known["took_s"] > goal_s) | (known["state"] != UP)).sum()),
        unknown=int(unknown.sum()),
        given_up=int((pods["state"] == GIVEN_UP).sum()),
        timeouts=int(pods["timeouts"].sum()),
        refused=int(pods["refused"].sum()),
        failing_nodes=len(np.unique(pods["node"][failed > 0])),
        spiralling_nodes=len(np.unique(pods["node"][pods["attempts"] >= 3])),
        p50_s=float(took[_rank(len(took), 0.5)]) if len(took) else None,
        p99_s=p99,
        max_s=float(took[-1]) if len(took) else None,
        bounded=bool(len(not_up)) and p99 is not None and bool(not_up.min() <= p99),
        peak_entries=max((n.peak_entries for n in nodes), default=0.0),
        evicted_live=max((n.evicted_live for n in nodes), default=0.0),
        walk_s_per_node_hour=sum(n.scrub_s + n.gc_s for n in nodes) / max(1, len(nodes)) / hours,
        events=sum(n.events for n in nodes),
    )


def _rank(count: int, share: float) -> int:
    """Nearest rank."""
    return max(0, int(np.ceil(share * count)) - 1)


def ranked(summaries: Sequence[PolicySummary]) -> list[PolicySummary]:
    """Best first."""
    return sorted(summaries, key=lambda s: s.key)
