"""Generator pods: what is planned before anything is made, and what is said of pods that cannot be or that died.

On a real cluster: e2e.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from loadgen.core.errors import ConfigError, HarnessError, NotSupported
from loadgen.core.model import Dns, Load, Resolver, Settings, Storm
from loadgen.kube import generators
from loadgen.kube.datanode import Server
from loadgen.kube.exchange import Targets
from loadgen.kube.generators import DATANODE_PORT, Generators, check, dns_config, plan
from loadgen.kube.objects import Condition, ContainerState, ContainerStatus, ListOf, Metadata, Pod, PodStatus, Waiting

LOOKUPS = Dns(names=("datanode.hdfs.svc.cluster.local.", "www.example.com."))


# --- before anything is made ----------------------------------------------------------------------------------


def test_five_hundred_targets_are_five_hundred_pairs_over_a_few_pods() -> None:
    made = plan({"storm": Storm(targets=500, pods=2), "lookups": LOOKUPS})
    server = made.servers["storm"]
    addresses = tuple(f"10.0.0.{i}" for i in range(len(made.datanodes)))
    assert len(set(Targets(addresses, server.port, server.ports).pairs(500))) == 500
    assert made.workers == ["generator-storm-0", "generator-storm-1", "generator-lookups-0"]
    assert made.services == ["datanode-hdfs"]


def test_storms_have_ports_of_their_own_and_may_differ_in_size() -> None:
    made = plan({"a": Storm(targets=10, request_bytes=1), "b": Storm(targets=2, reply_bytes=9)})
    assert made.servers == {
        "a": Server(DATANODE_PORT, 3, 1, 100),
        "b": Server(DATANODE_PORT + 3, 1, 100, 9),
    }
    assert len(made.datanodes) == 4


def test_without_a_storm_there_is_no_datanode_and_few_targets_need_few() -> None:
    assert plan({"lookups": LOOKUPS}).datanodes == ()
    assert plan({"storm": Storm(targets=1)}).datanodes == ("datanode-0",)


@pytest.mark.parametrize(
    ("loads", "settings", "why"),
    [
        ({"a": Storm(targets=40_000), "b": Storm(targets=30_000)}, Settings(), r"loads\.b\.targets: 30,000"),
        ({"a_b": Storm(), "a-b": Dns()}, Settings(), "rename one"),
        ({"x": Dns(names=("1.x.svc.cluster.local",))}, Settings(), "no name for one"),
        ({"x": Dns()}, Settings(resolver=Resolver("timeout:99")), r"settings\.resolver\.options"),
    ],
)
def test_what_no_cluster_can_have_is_known_beforehand(loads: dict[str, Load], settings: Settings, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check(loads, settings)


def test_a_pod_s_dns_config_says_what_the_variant_says() -> None:
    found = dns_config(Resolver("timeout:1 single-request-reopen", ("a.local",)), "10.96.0.10")
    options = [{"name": "timeout", "value": "1"}, {"name": "single-request-reopen"}]
    assert found == {"nameservers": ["10.96.0.10"], "searches": ["a.local"], "options": options}


# --- pods that cannot be, and pods that die -------------------------------------------------------------------


class Api:
    """A cluster in which the pods are in the state they are put in; one that is not mentioned is Running."""

    def __init__(self, **states: Pod | None) -> None:
        self._states = {name.replace("_", "-"): pod for name, pod in states.items()}
        self.pods: dict[str, Pod] = {}

    async def apply(self, item: dict[str, Any]) -> None:
        name = item["metadata"]["name"]
        if item["kind"] == "Pod" and (pod := self._states.get(name, running(name))) is not None:
            self.pods[name] = pod

    async def get(self, path: str, kind: type | None = None, **params: str) -> Any:
        if path == "/api/v1/nodes":
            return {"items": []}
        return ListOf[Pod](items=tuple(self.pods.values()))

    async def text(self, path: str, **params: str) -> str:
        return "last\nwords\n" if "locust-master" in path else ""

    async def raw(self, method: str, url: str, *args: object, **options: object) -> bytes:
        raise HarnessError("no web server here")

    def pod_proxy(self, namespace: str, pod: str, port: int, path: str) -> str:
        return path


def running(name: str, ip: str = "10.0.0.9", **status: Any) -> Pod:
    ready = Condition("Ready", "True")
    return Pod(Metadata(name=name), status=PodStatus("Running", pod_i_p=ip, conditions=(ready,), **status))


def waiting(name: str, reason: str) -> Pod:
    container = ContainerStatus("c", state=ContainerState(waiting=Waiting(reason)))
    return Pod(Metadata(name=name), status=PodStatus("Pending", container_statuses=(container,)))


def ended(name: str, reason: str) -> Pod:
    container = ContainerStatus("c", state=ContainerState(terminated=Waiting(reason)))
    return Pod(Metadata(name=name), status=PodStatus("Failed", container_statuses=(container,)))


def unschedulable(name: str) -> Pod:
    condition = Condition("PodScheduled", "False", "Unschedulable", "0/3 nodes are available: 3 Insufficient cpu.")
    return Pod(Metadata(name=name), status=PodStatus("Pending", conditions=(condition,)))


def deploy(api: Api, loads: Mapping[str, Storm | Dns]) -> None:
    made = Generators(api, "load", "run", "worker-1", "loadgen:1")  # type: ignore[arg-type]
    asyncio.run(asyncio.wait_for(made.deploy(loads, Settings()), 20))


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        (waiting("locust-master", "ErrImageNeverPull"), "image loadgen:1: ErrImageNeverPull; load it into the nodes"),
        (unschedulable("locust-master"), "no node takes it: 0/3 nodes are available: 3 Insufficient cpu"),
    ],
)
def test_a_pod_that_cannot_start_is_the_user_s_to_mend(pod: Pod, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generators, "PROBLEM_LIMIT_S", 0.2)
    monkeypatch.setattr(generators, "POLL_S", 0.01)
    with pytest.raises(ConfigError, match=f"pod load/locust-master: {why}"):
        deploy(Api(locust_master=pod), {"storm": Storm()})


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        (ended("locust-master", "OOMKilled"), "OOMKilled; it said: last / words"),
        (None, "somebody deleted it"),
    ],
)
def test_a_pod_that_died_breaks_the_harness_at_once(pod: Pod | None, why: str) -> None:
    with pytest.raises(HarnessError, match=f"pod load/locust-master is gone: {why}"):
        deploy(Api(locust_master=pod), {"storm": Storm()})


def test_pods_that_never_get_ready_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generators, "READY_LIMIT_S", 0.2)
    monkeypatch.setattr(generators, "POLL_S", 0.01)
    slow = Pod(Metadata(name="datanode-1"), status=PodStatus("Running"))
    with pytest.raises(HarnessError, match=r"namespace load: after 0\.2 s not ready: datanode-1"):
        deploy(Api(datanode_1=slow), {"storm": Storm()})


def test_a_cluster_of_ipv6_pods_has_no_storm() -> None:
    with pytest.raises(NotSupported, match="storm: pods here have IPv6 addresses"):
        deploy(Api(datanode_0=running("datanode-0", ip="fd00::1")), {"storm": Storm()})


def test_a_load_that_was_not_deployed_for_is_refused() -> None:
    made = Generators(Api(), "load", "run", "worker-1", "loadgen:1")  # type: ignore[arg-type]
    with pytest.raises(HarnessError, match="load storm is not among those"):
        asyncio.run(made.prepare("storm", Storm(), "main", 1, lambda message: None))
