"""The chart `cilium-like` in a cluster, as somebody else would look at it, and settings to apply to it."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from loadgen.core.model import ApiLimit, Bpf, Cilium, Settings
from loadgen.core.units import Duration
from loadgen.kube.api import KubeApi
from loadgen.kube.cni.cilium import CiliumCni

CHART = Path(__file__).with_name("charts") / "cilium-like"
NAMESPACE, OURS = "cilium-like", "loadgen-helm"
SIZES = Bpf(ct_tcp_max=4_194_304, ct_any_max=65_536)
BEFORE = Settings(cilium=Cilium(gc_interval_now=Duration.parse("12h"), bpf=SIZES))
AFTER = Settings(cilium=Cilium(gc_interval=Duration.parse("60s"), bpf=SIZES))
LIMITED = Settings(
    cilium=Cilium(
        gc_interval=Duration.parse("60s"),
        gc_max_interval=Duration.parse("1h"),
        api_rate_limit={
            "endpoint-create": ApiLimit(rate_limit=1000, rate_burst=1000, auto_adjust=False),
            "endpoint-delete": ApiLimit(parallel_requests=1000),
        },
    )
)
T = TypeVar("T")


class Cluster:
    """One with a namespace for the chart."""

    def __init__(self, context: str) -> None:
        self.context = context

    def kubectl(self, *args: str) -> str:
        return self._run("kubectl", "--context", self.context, "-n", NAMESPACE, *args)

    def helm(self, *args: str) -> str:
        return self._run("helm", "--kube-context", self.context, "-n", NAMESPACE, *args)

    def _run(self, *argv: str) -> str:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout

    def on(self, work: Callable[[CiliumCni], Awaitable[T]]) -> T:
        """With an adapter that knows nothing of those before it."""

        async def main() -> T:
            async with KubeApi.from_kubeconfig(self.context) as api:
                await api.probe()
                return await work(CiliumCni(api))

        return asyncio.run(main())

    def install(self, *sets: str) -> None:
        """By other hands than ours; returns when the agents are Ready."""
        self.helm("upgrade", "--install", "cilium", str(CHART), *(word for one in sets for word in ("--set", one)))
        self.on(ready)

    def config(self) -> dict[str, str]:
        return json.loads(self.kubectl("get", "configmap", "cilium-config", "-o", "json"))["data"]

    def template(self) -> dict[str, object]:
        return json.loads(self.kubectl("get", "daemonset", "cilium", "-o", "json"))["spec"]["template"]

    def agents(self) -> dict[str, str]:
        """UID → node."""
        found = json.loads(self.kubectl("get", "pods", "-l", "k8s-app=cilium", "-o", "json"))["items"]
        return {pod["metadata"]["uid"]: pod["spec"]["nodeName"] for pod in found}

    def running(self) -> set[str]:
        """The interval of every agent, by its own word."""
        names = self.kubectl("get", "pods", "-l", "k8s-app=cilium", "-o", "name").split()
        told = [
            self.kubectl("exec", name, "-c", "cilium-agent", "--", "cilium-dbg", "config", "--all") for name in names
        ]
        return {line.split()[-1] for text in told for line in text.splitlines() if "ConntrackGCInterval" in line}

    def values(self) -> object:
        return json.loads(self.helm("get", "values", "cilium", "-o", "json"))

    def state(self) -> tuple[object, ...]:
        return self.config(), self.template(), self.values()


async def ready(cni: CiliumCni) -> None:
    await (await cni.rollout()).ready()


@contextmanager
def namespace(context: str) -> Iterator[Cluster]:
    found = Cluster(context)
    found.kubectl("create", "namespace", NAMESPACE)
    try:
        yield found
    finally:
        found.kubectl("delete", "namespace", NAMESPACE)
