"""Small nodes and workloads for tests of the simulation."""

from __future__ import annotations

from typing import Any

import numpy as np

from loadgen.core.model import ApiLimit
from loadgen.core.simulate.costs import Costs
from loadgen.core.simulate.fleet import AgentSettings, Connections, NodeType, Pods, Sizes, Workload, times
from loadgen.core.simulate.node import simulate_node
from loadgen.core.simulate.outcome import NodeOutcome
from loadgen.core.units import Duration

RAISED = {
    "endpoint-create": ApiLimit(rate_limit=0, parallel_requests=0, auto_adjust=False),
    "endpoint-delete": ApiLimit(parallel_requests=0, auto_adjust=False),
}


def settings(**changes: Any) -> AgentSettings:
    """The limits lifted, no pass in the way, 1 M places."""
    usual = {
        "gc_interval": Duration.parse("12h"),
        "bpf": Sizes(ct_tcp_max=1_048_576, ct_any_max=65_536),
        "api_rate_limit": RAISED,
    }
    return AgentSettings(**{**usual, **changes})


def node_type(of: AgentSettings, *workloads: str, **changes: Any) -> NodeType:
    """Two CPUs and round costs: 1 µs an entry, 0.1 s for the plugin, nothing else."""
    costs = Costs(
        per_entry=Duration(1000),
        per_entry_batch=Duration(250),
        per_slot=Duration(0),
        per_delete=Duration(0),
        plugin=Duration.parse("100ms"),
        load=Duration(0),
        start_gap=Duration(0),
    )
    usual = {"memory": "24GiB", "cpus": 2, "spread": 0.0, "settings": of, "costs": costs, "workloads": workloads}
    return NodeType(**{**usual, **changes})


def standing(entries: int) -> Workload:
    """Entries that are always there and never expire."""
    return Workload(connections=Connections(rate=1e-6, open=entries))


def burst(size: int, lifetime: str = "10h", give_up: str = "10h") -> Workload:
    pods = Pods(burst=size, every=times(36_000), lifetime=times(Duration.parse(lifetime).seconds))
    return Workload(start=times(1), pods=Pods(pods.burst, pods.every, pods.lifetime, Duration.parse(give_up)))


def run(of: NodeType, workloads: dict[str, Workload], hours: float, **more: Any) -> NodeOutcome:
    return simulate_node(1, "node", 0, 0, of, workloads, hours * 3600, **more)


def of_burst(size: int, entries: int, hours: float = 1.0, **changes: Any) -> NodeOutcome:
    """A burst on a table with so many entries."""
    workloads = {"old": standing(entries), "burst": burst(size)}
    return run(node_type(settings(**changes), *workloads), workloads, hours)


def took(outcome: NodeOutcome) -> list[float]:
    return [round(float(s), 3) for s in np.sort(outcome.pods["took_s"])]
