"""Cilium put into a cluster of our own by its Helm chart, and waited for until it really works."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from loadgen.core.errors import ConfigError, HarnessError
from loadgen.kube import manifests
from loadgen.kube.api import KubeApi, KubeError
from loadgen.kube.cni.cilium import NAME, NAMESPACE, SELECTOR
from loadgen.kube.helm import Chart, Helm
from loadgen.kube.objects import Condition, ListOf, Metadata, Pod, Seen
from loadgen.kube.rollout import Rollout

LIMIT_S = 300.0
"""Nodes Ready and CoreDNS up, after the agents are: a few seconds when images are there."""
_POLL_S = 1.0
_CONTROL_PLANE = "node-role.kubernetes.io/control-plane"


class _Address(Seen, frozen=True):
    type: str
    address: str


class _NodeSpec(Seen, frozen=True):
    pod_c_i_d_rs: tuple[str, ...] = msgspec.field(name="podCIDRs", default=())


class _NodeStatus(Seen, frozen=True):
    addresses: tuple[_Address, ...] = ()
    conditions: tuple[Condition, ...] = ()


class Node(Seen, frozen=True):
    metadata: Metadata
    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()

    @property
    def address(self) -> str:
        return next((a.address for a in self.status.addresses if a.type == "InternalIP"), "")

    @property
    def ready(self) -> bool:
        return any(c.type == "Ready" and c.true for c in self.status.conditions)


class Layers(msgspec.Struct, frozen=True):
    """Value files, the later ones over the earlier, and what only the cluster itself knows."""

    files: tuple[Path, ...]
    values: dict[str, Any]


def layers(nodes: Sequence[Node], *, kube_proxy: bool, bundled: bool) -> Layers:
    """What suits a cluster with these nodes. ConfigError when it has no kube-proxy and no control plane to see."""
    names = ["base"]
    values: dict[str, Any] = {}
    if any(":" in cidr for node in nodes for cidr in node.spec.pod_c_i_d_rs):
        names.append("dual-stack")
    if not kube_proxy:
        names.append("kube-proxy-free")
        masters = [node.address for node in nodes if _CONTROL_PLANE in node.metadata.labels and node.address]
        if not masters:
            raise ConfigError("no kube-proxy and no control plane among the nodes: where is the API server?")
        values["k8sServiceHost"] = masters[0]
    if bundled:
        names.append("bundle")
    return Layers(tuple(manifests.FOLDER / "cilium" / f"{name}.yaml" for name in names), values)


async def install(api: KubeApi, chart: Chart, *, bundled: bool = False) -> None:
    """Return when agents, nodes and CoreDNS are Ready; HarnessError says what is not. The release must not exist."""
    nodes = (await api.get("/api/v1/nodes", ListOf[Node])).items
    found = layers(nodes, kube_proxy=await _has_kube_proxy(api), bundled=bundled)
    await Helm(api.context, NAMESPACE).install(NAME, chart, found.files, found.values)
    await Rollout(api, NAMESPACE, NAME, SELECTOR).ready()
    await until_usable(api)


async def _has_kube_proxy(api: KubeApi) -> bool:
    try:
        await api.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/kube-proxy")
    except KubeError as error:
        if error.status == 404:
            return False
        raise
    return True


async def until_usable(api: KubeApi) -> None:
    """Nodes and CoreDNS are Ready: nodes can be so while agents crash, agents while CoreDNS has no network yet."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        missing = await _not_ready(api)
        if not missing:
            return
        if time.monotonic() > deadline:
            raise HarnessError(f"the cluster is not Ready after {LIMIT_S:g} s: {', '.join(missing)}")
        await asyncio.sleep(_POLL_S)


async def _not_ready(api: KubeApi) -> list[str]:
    nodes = (await api.get("/api/v1/nodes", ListOf[Node])).items
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    dns = (await api.get(path, ListOf[Pod], labelSelector="k8s-app=kube-dns")).items
    found = [f"node {node.metadata.name}" for node in nodes if not node.ready]
    found += [f"pod {pod.metadata.name}" for pod in dns if not pod.ready]
    return found
