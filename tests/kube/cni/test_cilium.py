from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from loadgen.core.errors import ConfigError, HarnessError
from loadgen.core.model import Bpf, Cilium, Settings
from loadgen.core.units import Duration
from loadgen.kube.api import KubeApi
from loadgen.kube.cni import cilium, make
from loadgen.kube.cni.cilium import CiliumCni, Installed
from tests.kube.apiserver import status, talk

HELM = {"meta.helm.sh/release-name": "cni", "meta.helm.sh/release-namespace": "networking"}
CONFIG = {"ipam": "kubernetes", "routing-mode": "native", "enable-ipv6": "false", "prometheus-serve-addr": ":9962"}
KUBE_SYSTEM = "/apis/apps/v1/namespaces/kube-system/daemonsets/cilium"


def daemonset(namespace: str, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    image = "quay.io/cilium/cilium:v1.17.18@sha256:00"
    return {
        "metadata": {"name": "cilium", "namespace": namespace, "annotations": annotations or {}},
        "spec": {"template": {"spec": {"containers": [{"name": "cilium-agent", "image": image}]}}},
        "status": {"desiredNumberScheduled": 1},
    }


def pod(name: str, node: str, *, ready: bool = False) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "kube-system"},
        "spec": {"nodeName": node},
        "status": {"conditions": [{"type": "Ready", "status": str(ready)}]},
    }


def cluster(answers: dict[str, Any]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handler(request: web.Request) -> web.Response:
        found = answers.get(request.path)
        return web.json_response(found) if found is not None else status(404, "NotFound", request.path)

    return handler


def ask(tmp_path: Path, answers: dict[str, Any], work: Callable[[CiliumCni], Awaitable[Any]]) -> Any:
    async def conversation(api: KubeApi) -> Any:
        found = make("cilium", api)
        assert isinstance(found, CiliumCni)
        return await work(found)

    return talk(tmp_path, cluster(answers), conversation)


def test_cilium_where_it_is_by_default(tmp_path: Path) -> None:
    found = ask(tmp_path, {KUBE_SYSTEM: daemonset("kube-system")}, CiliumCni.installed)
    assert found == Installed("kube-system", "cilium", "", "", "quay.io/cilium/cilium:v1.17.18@sha256:00")
    assert found.config_map == "/api/v1/namespaces/kube-system/configmaps/cilium-config"


def test_cilium_somewhere_else_and_the_release_that_it_is_of(tmp_path: Path) -> None:
    answers = {"/apis/apps/v1/daemonsets": {"items": [daemonset("cilium-system", HELM)]}}
    found = ask(tmp_path, answers, CiliumCni.installed)
    assert (found.namespace, found.release, found.release_namespace) == ("cilium-system", "cni", "networking")


def test_a_cluster_without_cilium(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="this cluster has no Cilium; use --cni none or --cni model"):
        ask(tmp_path, {"/apis/apps/v1/daemonsets": {"items": []}}, lambda cni: cni.ensure(""))


def test_agents_that_are_not_ready(tmp_path: Path) -> None:
    pods = {"items": [pod("cilium-1", "node-1")]}
    answers = {KUBE_SYSTEM: _with_rollout(), "/api/v1/namespaces/kube-system/pods": pods}
    with pytest.raises(ConfigError, match="0 of 1 Cilium agents are Ready; see kubectl -n kube-system get pods"):
        ask(tmp_path, answers, lambda cni: cni.ensure(""))


def _with_rollout() -> dict[str, Any]:
    found = daemonset("kube-system")
    return found | {"metadata": found["metadata"] | {"generation": 1}}


def test_its_version_by_the_image_where_no_agent_answers_and_what_follows_of_it(tmp_path: Path) -> None:
    answers = {
        KUBE_SYSTEM: _with_rollout(),
        "/api/v1/namespaces/kube-system/pods": {"items": [pod("cilium-1", "node-1")]},
        "/api/v1/namespaces/kube-system/configmaps/cilium-config": {"data": CONFIG},
    }

    async def work(cni: CiliumCni) -> Any:
        newer = Settings(cilium=Cilium(profile="1.18"))
        cni.check(newer, "variants.x.settings")  # nobody has asked yet which Cilium this is
        facts = await cni.facts()
        with pytest.raises(ConfigError, match=r"variants\.x\.settings\.cilium\.profile: 1\.18, but Cilium 1\.17\.18"):
            cni.check(newer, "variants.x.settings")
        cni.check(Settings(), "variants.x.settings")
        return facts

    facts = ask(tmp_path, answers, work)
    assert (facts.name, facts.version) == ("cilium", "1.17.18")
    assert facts.emulated == ("Cilium 1.17.18 is judged by the rules of 1.16, the nearest version that is modelled",)
    assert facts.environment["routing"] == "native"
    assert facts.environment["cilium_from"] == "ConfigMap cilium-config"


def test_where_an_agents_metrics_are(tmp_path: Path) -> None:
    config = "/api/v1/namespaces/kube-system/configmaps/cilium-config"
    answers = {
        KUBE_SYSTEM: _with_rollout(),
        "/api/v1/namespaces/kube-system/pods": {"items": [pod("cilium-1", "node-1"), pod("cilium-2", "node-2")]},
        config: {"data": CONFIG},
    }

    async def work(cni: CiliumCni) -> list[str | None]:
        found = [await cni.agent_metrics("node-2"), await cni.agent_metrics("node-9")]
        answers[config] = {"data": {}}
        return [*found, await cni.agent_metrics("node-2")]

    path = "/api/v1/namespaces/kube-system/pods/cilium-2:9962/proxy/metrics"
    assert ask(tmp_path, answers, work) == [path, None, None]


@pytest.mark.parametrize("saved", [{}, {"cilium": "garbage"}, {"cilium": "{}"}])
def test_what_cannot_be_read_is_not_put_back(tmp_path: Path, saved: dict[str, str]) -> None:
    with pytest.raises(HarnessError, match="what was saved of Cilium is not readable"):
        ask(tmp_path, {}, lambda cni: cni.restore(saved))


def test_settings_that_say_nothing_of_cilium_need_no_cilium(tmp_path: Path) -> None:
    ask(tmp_path, {}, lambda cni: cni.apply(Settings()))
    settings = Settings(cilium=Cilium(gc_interval=Duration.parse("60s")))
    with pytest.raises(ConfigError, match="no Cilium"):
        ask(tmp_path, {"/apis/apps/v1/daemonsets": {"items": []}}, lambda cni: cni.apply(settings))


@pytest.mark.parametrize(
    ("wanted", "was", "said"),
    [
        (Cilium(gc_interval=Duration.parse("60s"), bpf=Bpf(2048, 1024)), ("2048", "1024"), []),
        (Cilium(gc_interval_now=Duration.parse("12h"), bpf=Bpf(2048, 1024)), ("2048", "1024"), ["fixed at 12h"]),
        (Cilium(gc_interval=Duration.parse("60s"), bpf=Bpf(2048, 1024)), ("4096", "1024"), ["2,048 (TCP) and 1,024"]),
    ],
)
def test_what_a_report_says_of_settings(wanted: Cilium, was: tuple[str, str], said: list[str]) -> None:
    config = {"bpf-ct-global-tcp-max": was[0], "bpf-ct-global-any-max": was[1]}
    found = cilium._notes(wanted, config)
    assert len(found) == len(said)
    assert all(words in text for words, text in zip(said, found, strict=True))
