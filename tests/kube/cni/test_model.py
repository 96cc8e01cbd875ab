"""The model's adapter against a server that answers as a cluster would; e2e/test_model.py does it on a real one."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from loadgen.core.agentapi import AgentState, GcState, TableState
from loadgen.core.errors import ConfigError, HarnessError
from loadgen.core.model import ApiLimit, Bpf, Cilium, Settings, seconds
from loadgen.kube import daemonset
from loadgen.kube.cni import make
from loadgen.kube.cni.model import ModelCni, mismatch
from loadgen.lab.agent.config import settings_text
from tests.kube.apiserver import status, talk

DRIFTED = Cilium(profile="1.16", gc_interval_now=seconds(43_200), bpf=Bpf(1_048_576, 65_536))
MINUTE = Cilium(profile="1.18", gc_interval=seconds(60))


def state(runs: Cilium, **changes: Any) -> AgentState:
    """What an agent says that was started with these settings."""
    interval = runs.gc_interval or runs.gc_interval_now or seconds(300)
    sizes = runs.bpf
    said = AgentState(
        profile=runs.profile,
        t_ns=1,
        gc=GcState(int(interval), 0, None, 0),
        tables={
            "tcp": TableState(sizes.ct_tcp_max, locked=False, waiters=0, entries=0, walks=0),
            "any": TableState(sizes.ct_any_max, locked=False, waiters=0, entries=0, walks=0),
        },
        endpoints={},
        build_permits=2,
        building=0,
        build_waiters=0,
        limiters={},
        settings=settings_text(runs),
    )
    return msgspec.structs.replace(said, **changes)


@pytest.mark.parametrize("settings", [Cilium(), DRIFTED, MINUTE])
def test_an_agent_that_runs_as_asked(settings):
    assert mismatch(state(settings), settings) == ""


def test_an_interval_that_the_longest_one_cuts():
    settings = msgspec.structs.replace(DRIFTED, gc_max_interval=seconds(600))
    running = state(settings, gc=GcState(int(seconds(600)), 0, None, 0))
    assert mismatch(running, settings) == ""


@pytest.mark.parametrize(
    ("running", "says"),
    [
        (state(MINUTE), "profile 1.18, not 1.16"),
        (state(DRIFTED, tables={}), "tables of {}, not {'tcp': 1048576, 'any': 65536}"),
        (state(DRIFTED, gc=GcState(300_000_000_000, 0, None, 0)), "a GC interval of 300 s, not 12h"),
        (state(DRIFTED, settings="{}"), "{}, not {"),
    ],
)
def test_an_agent_that_runs_with_something_else(running, says):
    assert mismatch(running, DRIFTED).startswith(says)


class Cluster:
    """Two nodes. What is written is there; pods are as their DaemonSet says, their agents as the ConfigMap does."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.changes: list[str] = []
        self.stubborn: Cilium | None = None
        """What the agents run with, whatever the ConfigMap says."""
        self.cilium: list[dict[str, Any]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if path == "/api/v1" or (path.startswith("/apis/") and path.count("/") == 3):
            return web.json_response({"resources": [_resource(kind) for kind in _KINDS]})
        if path == "/api/v1/pods":
            return web.json_response({"items": self.cilium})
        if path.endswith("/pods"):
            return web.json_response({"items": self.pods()})
        if path.endswith("/proxy/v1/loadgen/state"):
            return web.Response(body=msgspec.json.encode(self.state()), content_type="application/json")
        return await self.object(request)

    async def object(self, request: web.Request) -> web.StreamResponse:
        path, kind = request.path, request.path.split("/")[-2]
        if request.method == "DELETE":
            self.objects.pop(path, None)
            self.changes.append(f"delete {kind}")
            return web.json_response({})
        if request.method == "PATCH":
            self.changes.append(kind)
            self.objects[path] = _merged(self.objects.get(path, {}), json.loads(await request.read()))
        if path not in self.objects:
            return status(404, "NotFound", f"{path} not found")
        found = self.objects[path]
        if kind == "daemonsets":
            found = {**found, "status": {"observedGeneration": 1, "desiredNumberScheduled": 2}}
            found["metadata"] = {**found["metadata"], "generation": 1}
        return web.json_response(found)

    def find(self, kind: str) -> dict[str, Any] | None:
        return next((item for path, item in self.objects.items() if path.split("/")[-2] == kind), None)

    def agent(self) -> dict[str, Any]:
        found = self.find("configmaps")
        assert found is not None
        return json.loads(found["data"]["agent.json"])

    def state(self) -> AgentState:
        running = msgspec.convert(self.agent()["cilium"], Cilium, dec_hook=lambda kind, text: kind.parse(text))
        return state(self.stubborn or running)

    def pods(self) -> list[dict[str, Any]]:
        there = self.find("daemonsets")
        if there is None:
            return []
        annotations = there["spec"]["template"]["metadata"]["annotations"]
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        return [
            {"metadata": {"name": f"agent-{n}", "annotations": annotations}, "spec": {"nodeName": n}, "status": ready}
            for n in ("a", "b")
        ]


_KINDS = ("ServiceAccount", "Role", "RoleBinding", "ConfigMap", "DaemonSet")


def _resource(kind: str) -> dict[str, Any]:
    return {"name": f"{kind.lower()}s", "kind": kind, "namespaced": True}


def _merged(old: Any, new: Any) -> Any:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(daemonset, "POLL_S", 0.0)
    return Cluster()


@pytest.fixture
def using(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`using(work)`: what `await work(cni)` returns. Commands in pods are only noted."""

    async def noted(self: ModelCni, pod: Any) -> str:
        cluster.changes.append(f"remove from {pod.spec.node_name}")
        return ""

    monkeypatch.setattr(ModelCni, "_remove_from", noted)

    def use(work: Callable[[ModelCni], Awaitable[Any]]) -> Any:
        async def conversation(api: Any) -> Any:
            cni = make("model", api)
            assert isinstance(cni, ModelCni)
            return await work(cni)

        return talk(tmp_path, cluster.answer, conversation)

    return use


def test_it_is_installed_once_with_the_defaults_of_cilium(cluster, using):
    assert using(lambda cni: cni.ensure("loadgen:1")) is True
    assert cluster.changes == ["serviceaccounts", "roles", "rolebindings", "configmaps", "daemonsets"]
    agent = cluster.agent()
    assert (agent["chained"], agent["spans_by"], agent["metrics_listen"]) == (True, "pod", ":9962")
    assert agent["pin_dir"] == "/host/sys/fs/bpf/tc/globals"
    cluster.changes.clear()
    assert using(lambda cni: cni.ensure("loadgen:1")) is False
    assert cluster.changes == []


def test_another_image_takes_the_place_of_the_old_one_and_settings_stay(cluster, using):
    using(lambda cni: cni.install("loadgen:1"))
    using(lambda cni: cni.apply(Settings(cilium=MINUTE)))
    assert using(lambda cni: cni.ensure("loadgen:2")) is False
    assert cluster.find("daemonsets")["spec"]["template"]["spec"]["containers"][0]["image"] == "loadgen:2"
    assert cluster.agent()["cilium"]["conntrackGCInterval"] == "1m"


def test_each_variant_restarts_the_agents_even_when_nothing_changes(cluster, using):
    using(lambda cni: cni.install("loadgen:1"))
    generations = []
    for settings in (DRIFTED, DRIFTED, MINUTE):
        using(lambda cni, s=settings: cni.apply(Settings(cilium=s)))
        template = cluster.find("daemonsets")["spec"]["template"]
        generations.append(template["metadata"]["annotations"]["loadgen/generation"])
    assert len(set(generations)) == 3
    assert cluster.agent()["cilium"]["profile"] == "1.18"


def test_agents_that_do_not_run_with_it_are_named(cluster, using):
    using(lambda cni: cni.install("loadgen:1"))
    cluster.stubborn = Cilium()
    with pytest.raises(HarnessError, match=r"node [ab]: the agent runs with profile 1\.16, not 1\.18"):
        using(lambda cni: cni.apply(Settings(cilium=MINUTE)))


def test_put_back_is_what_there_was(cluster, using):
    nothing = using(lambda cni: cni.save())
    assert nothing == {"agent": ""}
    using(lambda cni: cni.install("loadgen:1"))
    before = using(lambda cni: cni.save())
    using(lambda cni: cni.apply(Settings(cilium=DRIFTED)))
    using(lambda cni: cni.restore(before))
    assert using(lambda cni: cni.save()) == before
    cluster.changes.clear()
    using(lambda cni: cni.restore(before))
    assert cluster.changes == []
    for _ in range(2):
        using(lambda cni: cni.restore(nothing))
        assert cluster.objects == {}
    assert cluster.changes[:3] == ["remove from a", "remove from b", "delete daemonsets"]
    with pytest.raises(HarnessError, match="loadgen-agent is gone from kube-system: loadgen up"):
        using(lambda cni: cni.restore(before))


def test_an_install_that_fails_leaves_nothing(cluster, using):
    cluster.stubborn = MINUTE
    with pytest.raises(HarnessError, match="the agent runs with profile"):
        using(lambda cni: cni.install("loadgen:1"))
    assert cluster.objects == {}


def test_beside_a_real_cilium_it_is_refused(cluster, using):
    cluster.cilium = [{"metadata": {"name": "cilium-x"}}]
    with pytest.raises(ConfigError, match="context test: Cilium runs in this cluster"):
        using(lambda cni: cni.ensure("loadgen:1"))
    assert cluster.changes == []


def test_where_the_metrics_of_a_node_are(cluster, using):
    using(lambda cni: cni.install("loadgen:1"))
    path = using(lambda cni: cni.agent_metrics("b"))
    assert path == "/api/v1/namespaces/kube-system/pods/agent-b:9962/proxy/metrics"
    with pytest.raises(HarnessError, match="node c: no loadgen-agent runs there"):
        using(lambda cni: cni.agent_metrics("c"))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (Cilium(profile="1.7"), r"variants\.x\.settings\.cilium\.profile: no profile '1\.7'"),
        (Cilium(api_rate_limit={"ipam": ApiLimit()}), r"variants\.x\.settings\.cilium\.apiRateLimit: no call 'ipam'"),
    ],
)
def test_settings_that_no_model_has(using, settings, says):
    async def check(cni: ModelCni) -> None:
        cni.check(Settings(cilium=settings), "variants.x.settings")

    with pytest.raises(ConfigError, match=says):
        using(check)
