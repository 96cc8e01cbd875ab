from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from loadgen.core.errors import ConfigError
from loadgen.core.model import Cilium, Resolver, Settings
from loadgen.core.units import Duration
from loadgen.kube.api import KubeApi
from loadgen.kube.cni.none import NoneCni
from tests.kube.apiserver import status, talk

FIXED = Settings(cilium=Cilium(gc_interval=Duration.parse("60s")))


def ask(tmp_path: Path, daemonsets: tuple[str, ...], config: dict[str, str] | None, work: Any) -> Any:
    async def handler(request: web.Request) -> web.Response:
        assert request.method == "GET"
        if request.path == "/apis/apps/v1/namespaces/kube-system/daemonsets":
            return web.json_response({"items": [{"metadata": {"name": name}} for name in daemonsets]})
        if config is None:
            return status(404, "NotFound", request.path)
        return web.json_response({"data": config})

    async def conversation(api: KubeApi) -> Any:
        return await work(NoneCni(api))

    return talk(tmp_path, handler, conversation)


@pytest.mark.parametrize(
    ("daemonsets", "network"),
    [(("kube-proxy", "kindnet"), "kindnet"), (("other",), "unknown"), (("cilium", "cilium-envoy"), "cilium")],
)
def test_it_says_what_the_network_is(tmp_path: Path, daemonsets: tuple[str, ...], network: str) -> None:
    facts = ask(tmp_path, daemonsets, None, NoneCni.facts)
    assert (facts.name, facts.environment) == ("none", {"network": network})


def test_nothing_of_ciliums_can_be_asked_for_where_there_is_none(tmp_path: Path) -> None:
    async def work(cni: NoneCni) -> None:
        cni.check(Settings(resolver=Resolver(options="single-request-reopen")), "x")
        for _ in range(2):
            with pytest.raises(ConfigError, match=r"x\.cilium: --cni none changes nothing; use --cni cilium"):
                cni.check(FIXED, "x")
            await cni.facts()
        await cni.apply(FIXED)
        await cni.restore(await cni.save())
        assert not await cni.ensure("")
        assert await cni.agent_metrics("node") is None

    ask(tmp_path, ("kindnet",), None, work)


@pytest.mark.parametrize("interval", ["60s", "1m0s"])
def test_what_is_so_already_may_be_asked_for(tmp_path: Path, interval: str) -> None:
    config = {
        "conntrack-gc-interval": interval,
        "bpf-ct-global-tcp-max": "524288",
        "bpf-ct-global-any-max": "262144",
    }

    async def work(cni: NoneCni) -> None:
        await cni.facts()
        cni.check(FIXED, "x")
        with pytest.raises(
            ConfigError, match=r"Cilium has conntrack-gc-interval '.*' instead of 12h; use --cni cilium"
        ):
            cni.check(Settings(cilium=Cilium(gc_interval_now=Duration.parse("12h"))), "x")

    ask(tmp_path, ("cilium",), config, work)
