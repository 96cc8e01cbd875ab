"""What simulated nodes leave behind, and what a policy did to a fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

UP, GIVEN_UP, WAITING = 0, 1, 2
STATES = ("up", "given up", "waiting")

POD_DTYPE = np.dtype(
    [
        ("type", "<i2"),  # the node's type, by its place in the fleet file; `workload` the same
        ("node", "<i4"),  # number within its type
        ("workload", "<i2"),
        ("due_s", "<f8"),
        ("took_s", "<f4"),  # from due until up, given up, or the end of the simulation
        ("add_s", "<f4"),  # its successful ADD alone; 0 when there was none
        ("state", "u1"),  # STATES
        ("attempts", "<u2"),
        ("timeouts", "<u2"),  # ADDs that the plugin gave up
        ("refused", "<u2"),  # ADDs answered with an error, nearly always 429
    ]
)

NODE_DTYPE = np.dtype(
    [
        ("type", "<i2"),
        ("node", "<i4"),
        ("capacity", "<i4"),  # entries of the TCP table
        ("peak_entries", "<f8"),
        ("evicted_live", "<f8"),  # entries of live connections that at worst had no room
        ("passes", "<i8"),
        ("walks", "<i8"),  # of one table
        ("scrub_s", "<f8"),  # time that creates and deletes walked; `gc_s` that passes did
        ("gc_s", "<f8"),
        ("longest_queue", "<i4"),  # at a table's lock
        ("most_waiting", "<i4"),  # sandboxes under way at once
        ("interval_s", "<f8"),  # GC interval at the end
        ("events", "<i8"),
    ]
)


class Pass(NamedTuple):
    """One GC pass: when it was due and over, what it deleted, that as a share of capacity, the next wait (s)."""

    due_s: float
    end_s: float
    garbage: float
    ratio: float
    next_s: float


class Close(NamedTuple):
    """A node looked at closely: its TCP table as (second, entries, expired), passes, and sandboxes under way."""

    table: list[tuple[float, float, float]]
    passes: list[Pass]
    waiting: list[tuple[float, int]]


class NodeOutcome(NamedTuple):
    """One node. `grid` and `intervals`: its TCP table's entries and its GC interval (s) at regular times."""

    pods: np.ndarray
    row: np.ndarray
    grid: np.ndarray
    intervals: np.ndarray
    close: Close | None = None


class Nodes(NamedTuple):
    """Several nodes: all pods, a row a node, and a row of looks a node."""

    pods: np.ndarray
    rows: np.ndarray
    grid: np.ndarray
    intervals: np.ndarray

    @classmethod
    def of(cls, outcomes: Sequence[NodeOutcome]) -> Nodes:
        return cls(
            np.concatenate([o.pods for o in outcomes]),
            np.concatenate([o.row for o in outcomes]),
            np.vstack([o.grid for o in outcomes]),
            np.vstack([o.intervals for o in outcomes]),
        )

    @classmethod
    def joined(cls, parts: Sequence[Nodes]) -> Nodes:
        return cls(
            np.concatenate([p.pods for p in parts]),
            np.concatenate([p.rows for p in parts]),
            np.vstack([p.grid for p in parts]),
            np.vstack([p.intervals for p in parts]),
        )

    def of_type(self, number: int) -> Nodes:
        mine = self.rows["type"] == number
        return Nodes(self.pods[self.pods["type"] == number], self.rows[mine], self.grid[mine], self.intervals[mine])


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
    p99_bounded: bool
    """A lower bound: a pod that was never up decides it. `max_bounded` the same."""
    max_bounded: bool
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


class PolicyOutcome(NamedTuple):
    """What a policy did. `by_type`: its summary for each node type; `close`: the nodes looked at closely, by type."""

    summary: PolicySummary
    by_type: Mapping[str, PolicySummary]
    nodes: Nodes
    close: Mapping[str, tuple[int, NodeOutcome]]


class Simulation(NamedTuple):
    """Everything that a report needs, the policy `current` first. `took_s`: wall time; `looks_s`: of `Nodes.grid`."""

    name: str
    describe: str
    hours: float
    seed: int
    goal_s: float
    types: tuple[str, ...]
    counts: tuple[int, ...]
    workloads: tuple[str, ...]
    costs: tuple[str, ...]
    looks_s: tuple[float, ...]
    policies: tuple[PolicyOutcome, ...]


def summarise(policy: str, describe: str, nodes: Nodes, goal_s: float, hours: float) -> PolicySummary:
    """What a policy did to these nodes. Percentiles: nearest rank over all pods of which enough is known."""
    pods, rows = nodes.pods, nodes.rows
    unknown = (pods["state"] == WAITING) & (pods["took_s"] <= goal_s)
    known = pods[~unknown]
    took, never_up = np.sort(known["took_s"]), known[known["state"] != UP]["took_s"]
    failing = pods[pods["timeouts"].astype(int) + pods["refused"] > 0]
    p50, p99, longest = (_nearest_rank(took, share) for share in (0.5, 0.99, 1.0))
    least = float(never_up.min()) if len(never_up) else np.inf
    return PolicySummary(
        policy=policy,
        describe=describe,
        nodes=len(rows),
        pods=len(pods),
        late=int(((known["took_s"] > goal_s) | (known["state"] != UP)).sum()),
        unknown=int(unknown.sum()),
        given_up=int((pods["state"] == GIVEN_UP).sum()),
        timeouts=int(pods["timeouts"].sum()),
        refused=int(pods["refused"].sum()),
        failing_nodes=_distinct_nodes(failing),
        spiralling_nodes=_distinct_nodes(pods[pods["attempts"] >= 3]),
        p50_s=p50,
        p99_s=p99,
        max_s=longest,
        p99_bounded=p99 is not None and least <= p99,
        max_bounded=longest is not None and least <= longest,
        peak_entries=float(rows["peak_entries"].max(initial=0.0)),
        evicted_live=float(rows["evicted_live"].max(initial=0.0)),
        walk_s_per_node_hour=float((rows["scrub_s"] + rows["gc_s"]).sum()) / max(1, len(rows)) / hours,
        events=int(rows["events"].sum()),
    )


def _nearest_rank(ascending: np.ndarray, share: float) -> float | None:
    return float(ascending[max(0, int(np.ceil(share * len(ascending))) - 1)]) if len(ascending) else None


def _distinct_nodes(pods: np.ndarray) -> int:
    return len(np.unique(pods["type"].astype(np.int64) << 32 | pods["node"]))


def ranked(outcomes: Sequence[PolicyOutcome]) -> list[PolicyOutcome]:
    """Best first."""
    return sorted(outcomes, key=lambda o: o.summary.key)


def worst_node(nodes: Nodes, type_number: int) -> int:
    """The node of a type that is worth a closer look: most failed attempts, then most waiting, then largest table."""
    mine = nodes.of_type(type_number)
    tries = np.zeros(int(mine.rows["node"].max()) + 1, np.int64)
    np.add.at(tries, mine.pods["node"], mine.pods["attempts"].astype(np.int64) - 1)
    order = np.lexsort((mine.rows["peak_entries"], mine.rows["most_waiting"], tries[mine.rows["node"]]))
    return int(mine.rows["node"][order[-1]])
