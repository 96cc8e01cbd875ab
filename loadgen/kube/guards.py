"""What is asked of a cluster before anything in it is changed. Every refusal is one line with its remedy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from loadgen.core.errors import ConfigError
from loadgen.core.model import Burst, Churn, Dns, Scenario, Storm, Variant
from loadgen.kube.api import KubeApi
from loadgen.kube.cni import Cni
from loadgen.kube.options import ClusterOptions

EVENT_LIFE_S = 3600.0
"""kube-apiserver --event-ttl, by default an hour."""

_CONTROL_PLANE = "node-role.kubernetes.io/control-plane"


class Right(NamedTuple):
    """One thing our credentials must allow. Cluster-wide when `namespaced` is False."""

    verb: str
    resource: str
    group: str = ""
    subresource: str = ""
    namespaced: bool = True


RIGHTS = (
    Right("create", "namespaces", namespaced=False),
    Right("delete", "namespaces", namespaced=False),
    Right("list", "nodes", namespaced=False),
    Right("get", "nodes", subresource="proxy", namespaced=False),
    Right("list", "pods", namespaced=False),
    Right("create", "pods"),
    Right("delete", "pods"),
    Right("watch", "pods"),
    Right("create", "pods", subresource="exec"),
    Right("get", "pods", subresource="exec"),
    Right("get", "pods", subresource="proxy"),
    Right("create", "pods", subresource="proxy"),
    Right("watch", "events"),
    Right("create", "configmaps"),
    Right("create", "services"),
    Right("create", "daemonsets", "apps"),
    Right("create", "deployments", "apps"),
)


class Node(NamedTuple):
    """A node, as far as it matters where things go."""

    name: str
    ready: bool
    schedulable: bool
    control_plane: bool
    kind: bool
    pod_room: int
    facts: dict[str, str]


def read_node(item: dict[str, Any]) -> Node:
    """From the API's object. `pod_room` is its allocatable number of pods."""
    metadata, spec, status = item["metadata"], item.get("spec", {}), item["status"]
    conditions = {c["type"]: c["status"] for c in status.get("conditions", [])}
    info = status.get("nodeInfo", {})
    return Node(
        name=metadata["name"],
        ready=conditions.get("Ready") == "True",
        schedulable=not spec.get("unschedulable", False),
        control_plane=_CONTROL_PLANE in metadata.get("labels", {}),
        kind=spec.get("providerID", "").startswith("kind://"),
        pod_room=int(status.get("allocatable", {}).get("pods", 0)),
        facts={
            "kubelet": info.get("kubeletVersion", ""),
            "kernel": info.get("kernelVersion", ""),
            "runtime": info.get("containerRuntimeVersion", ""),
            "node_os": info.get("osImage", ""),
            "node_cpus": status.get("capacity", {}).get("cpu", ""),
            "node_memory": status.get("capacity", {}).get("memory", ""),
        },
    )


def choose_node(nodes: Sequence[Node], wanted: str | None) -> Node:
    """The node under test: the one wanted, or the first worker that can take pods, or the only node."""
    if wanted is not None:
        for node in nodes:
            if node.name == wanted:
                return _usable(node)
        raise ConfigError(f"--node {wanted}: no such node; there are {', '.join(n.name for n in nodes)}")
    usable = [node for node in nodes if node.ready and node.schedulable]
    if not usable:
        states = ", ".join(f"{n.name} ({'not Ready' if not n.ready else 'cordoned'})" for n in nodes)
        raise ConfigError(f"no node can take pods: {states or 'there is none'}; make one Ready, then run again")
    workers = [node for node in usable if not node.control_plane]
    return min(workers or usable, key=lambda node: node.name)


def _usable(node: Node) -> Node:
    if not node.ready:
        raise ConfigError(f"--node {node.name}: it is not Ready; see kubectl describe node {node.name}")
    if not node.schedulable:
        raise ConfigError(f"--node {node.name}: it is cordoned; kubectl uncordon {node.name}, or choose another")
    return node


def refuse_foreign(context: str, nodes: Sequence[Node], options: ClusterOptions, scenario: Scenario) -> None:
    """Changes to a cluster that is not kind's need to be allowed by its context's name."""
    if all(node.kind for node in nodes) or options.allow_context == context:
        return
    changes = [f"the settings of its CNI (--cni {options.cni})"] if options.cni != "none" else []
    changes += [f"fault {name}" for name in scenario.faults]
    if changes:
        raise ConfigError(
            f"context {context} is no kind cluster, and this run would change {', '.join(changes)}; --dry-run says "
            f"what, --allow-context {context} permits it"
        )


def pods_needed(scenario: Scenario) -> int:
    """Pods that may stand on the node under test at once, but for a steady churn, which has no bound."""
    generators = sum(load.pods for load in scenario.loads.values() if isinstance(load, Storm | Dns))
    bursts = [load.pace for load in scenario.loads.values() if isinstance(load, Churn)]
    churned = sum(pace.size * pace.count for pace in bursts if isinstance(pace, Burst))
    return generators + churned + _OURS


_OURS = 3
"""Node helper, Locust master and a datanode, when there is only one node."""


async def check_rights(api: KubeApi, namespace: str) -> None:
    """All that is missing in one line, so that it can be granted in one go."""
    allowed = await asyncio.gather(
        *(
            api.can_i(
                right.verb,
                right.resource,
                group=right.group,
                subresource=right.subresource,
                namespace=namespace if right.namespaced else None,
            )
            for right in RIGHTS
        )
    )
    missing = [
        f"{right.verb} {right.resource}{'/' if right.subresource else ''}{right.subresource}"
        for right, yes in zip(RIGHTS, allowed, strict=True)
        if not yes
    ]
    if missing:
        raise ConfigError(
            f"context {api.context} may not: {', '.join(missing)}; grant these (manifests/rbac.yaml has them), or "
            "use another context"
        )


async def examine(
    api: KubeApi, cni: Cni, options: ClusterOptions, scenario: Scenario, variants: Sequence[Variant]
) -> Node:
    """The node under test, after every question that can be asked beforehand; ConfigError for a bad answer."""
    await check_rights(api, options.namespace)
    found = await api.get("/api/v1/nodes")
    nodes = [read_node(item) for item in found["items"]]
    refuse_foreign(api.context, nodes, options, scenario)
    node = choose_node(nodes, options.node)
    await _check_room(api, node, scenario)
    if options.cni == "cilium":
        # Only then does `check` know which Cilium it is.
        await cni.facts()
    for variant in variants:
        cni.check(variant.settings, f"variants.{variant.name}.settings")
    return node


async def _check_room(api: KubeApi, node: Node, scenario: Scenario) -> None:
    pods = await api.get("/api/v1/pods", fieldSelector=f"spec.nodeName={node.name}")
    there = sum(pod["status"].get("phase") not in ("Succeeded", "Failed") for pod in pods["items"])
    needed = pods_needed(scenario)
    if there + needed > node.pod_room:
        raise ConfigError(
            f"node {node.name} takes {node.pod_room} pods and has {there}; this scenario needs {needed} more; choose "
            "another by --node, or make the loads smaller by --set"
        )
