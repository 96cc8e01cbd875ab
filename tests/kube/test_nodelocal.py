from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from loadgen.core.errors import ConfigError
from loadgen.kube.api import KubeApi
from loadgen.kube.nodelocal import Found, NodeLocalDns
from tests.kube.apiserver import status, talk

SYSTEM = "/api/v1/namespaces/kube-system"
SETS = "/apis/apps/v1/namespaces/{}/daemonsets"
DNS_POD = {"spec": {"containers": [{"name": "coredns", "image": "registry.k8s.io/coredns/coredns:v1.12.1"}]}}
SERVICE = {"spec": {"clusterIP": "10.96.0.10"}}


class Cluster:
    """Just enough of one: its DNS, perhaps a cache, and what we put into it."""

    def __init__(self, *, cache: str = "", pods: tuple[Any, ...] = (DNS_POD,)) -> None:
        self.cache, self.pods, self.applied = cache, pods, dict[str, dict[str, Any]]()

    async def handle(self, request: web.Request) -> web.Response:
        match request.method, request.path:
            case "GET", "/api/v1":
                return web.json_response(
                    {"resources": [{"name": "configmaps", "kind": "ConfigMap", "namespaced": True}]}
                )
            case "GET", "/apis/apps/v1":
                return web.json_response(
                    {"resources": [{"name": "daemonsets", "kind": "DaemonSet", "namespaced": True}]}
                )
            case "PATCH", path:
                self.applied[path] = json.loads(await request.read())
                return web.json_response(self.applied[path])
            case "DELETE", path:
                self.applied.pop(path)
                return web.json_response({})
            case "GET", path:
                return self.get(path)
        return status(405, "MethodNotAllowed", request.path)

    def get(self, path: str) -> web.Response:
        theirs = {"spec": {"template": {"spec": {"containers": [{"image": self.cache}]}}}}
        ours = SETS.format("mine") + "/loadgen-nodelocaldns"
        there: dict[str, Any] = {
            f"{SYSTEM}/pods": {"items": self.pods},
            f"{SYSTEM}/services": {"items": [SERVICE]},
            "/api/v1/namespaces/mine/pods": {"items": self.ours_up() if ours in self.applied else []},
            ours: {"metadata": {"generation": 1}, "status": {"observedGeneration": 1, "desiredNumberScheduled": 1}},
        }
        if self.cache:
            there[SETS.format("kube-system") + "/node-local-dns"] = theirs
        return web.json_response(there[path]) if path in there else status(404, "NotFound", path)

    def ours_up(self) -> list[dict[str, Any]]:
        conditions = [{"type": "Ready", "status": "True"}]
        metadata = {"name": "loadgen-nodelocaldns-1", "uid": "u"}
        return [{"metadata": metadata, "spec": {"nodeName": "worker"}, "status": {"conditions": conditions}}]


def test_a_cluster_without_a_cache_gets_one_of_its_own_coredns_and_loses_it_again(tmp_path: Path) -> None:
    cluster = Cluster()

    async def work(api: KubeApi) -> tuple[Found, dict[str, Any]]:
        cache = NodeLocalDns(api, "mine", "worker", "loadgen:1")
        found, made = await cache.ensure(), dict(cluster.applied)
        await cache.remove()
        return found, made

    found, made = talk(tmp_path, cluster.handle, work)
    assert "registry.k8s.io/coredns/coredns:v1.12.1 on worker" in found.what
    assert "NOTRACK" in found.emulated[0]
    config, daemonset = made.values()
    assert "bind 169.254.20.10" in config["data"]["Corefile"]
    assert "forward . 10.96.0.10 {\n        force_tcp" in config["data"]["Corefile"]
    images = [c["image"] for c in daemonset["spec"]["template"]["spec"]["containers"]]
    assert images == ["loadgen:1", "registry.k8s.io/coredns/coredns:v1.12.1"]
    assert cluster.applied == {}


def test_the_clusters_own_cache_is_used_as_it_is(tmp_path: Path) -> None:
    cluster = Cluster(cache="registry.k8s.io/dns/k8s-dns-node-cache:1.26.5")
    found = talk(tmp_path, cluster.handle, lambda api: NodeLocalDns(api, "mine", "worker", "loadgen:1").ensure())
    assert found == Found("the cluster's own, registry.k8s.io/dns/k8s-dns-node-cache:1.26.5")
    assert cluster.applied == {}


def test_a_cluster_with_another_dns_is_refused(tmp_path: Path) -> None:
    cluster = Cluster(pods=())
    with pytest.raises(ConfigError, match=r"neither kube-system/node-local-dns nor CoreDNS pods"):
        talk(tmp_path, cluster.handle, lambda api: NodeLocalDns(api, "mine", "worker", "loadgen:1").ensure())
