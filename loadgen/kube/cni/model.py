"""The agent model on every node, chained after the cluster's own CNI plugin (manifests/agent.yaml)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

import msgspec

from loadgen.core import cilium
from loadgen.core.agentapi import AgentState
from loadgen.core.errors import ConfigError, HarnessError
from loadgen.core.model import Cilium, Settings
from loadgen.core.units import dec_hook, enc_hook
from loadgen.kube.api import KubeApi, KubeError
from loadgen.kube.cni import CniFacts, CniName
from loadgen.kube.daemonset import DaemonSet
from loadgen.kube.install import Places
from loadgen.kube.manifests import render
from loadgen.kube.objects import Pod
from loadgen.lab.agent.config import AgentConfig, settings_text

NAMESPACE = "kube-system"
"""Not a run's own namespace: an agent that `loadgen up` has installed outlives the runs."""
NAME = "loadgen-agent"
PORT = 9962
"""Of Cilium's agent as well, in its chart."""

CNI_CONFIG, CNI_BIN = "/etc/cni/net.d", "/opt/cni/bin"

REMOVE_LIMIT_S = 60.0
_GENERATION = "loadgen/generation"
_EMULATED = (
    "the Cilium agent is a model (profile {profile}), chained after the cluster's own network ({chain}); the CT "
    "tables, their walks and the lock's queue are real"
)
_DRIFTED = "the agent starts with a GC interval of {interval}, as if it had drifted there"


class Saved(msgspec.Struct, frozen=True):
    """What there was: `agent` is the ConfigMap's text, empty when the model was not installed."""

    agent: str = ""


class ModelCni:
    """cni.Cni of the model."""

    name: CniName = "model"
    pins = "/sys/fs/bpf/tc/globals"

    def __init__(
        self, api: KubeApi, namespace: str = NAMESPACE, *, cni_config: str = CNI_CONFIG, cni_bin: str = CNI_BIN
    ) -> None:
        self._api, self._namespace = api, namespace
        self._folders = (cni_config, cni_bin)
        self._set = DaemonSet(api, namespace, NAME)
        self._configmap = f"/api/v1/namespaces/{namespace}/configmaps/{NAME}"

    def check(self, settings: Settings, where: str) -> None:
        try:
            profile = cilium.profile(settings.cilium.profile)
            cilium.api_limits(profile, settings.cilium.api_rate_limit)
        except ConfigError as error:
            raise ConfigError(f"{where}.{error}") from None

    # --- there or not -------------------------------------------------------------------------------------------

    async def ensure(self, image: str) -> bool:
        """Also brings an agent of another image to this one; it keeps its settings."""
        there = await self._image()
        if there is None:
            await self.install(image)
        elif there != image:
            config = await self._config()
            await self._deploy(image, config.cilium if config else Cilium())
        return there is None

    async def install(self, image: str) -> None:
        """Put it on every node and wait until it runs; HarnessError when it does not, with nothing left behind.

        ConfigError where Cilium is: the model would take its tables away from it.
        """
        await self._refuse_cilium()
        try:
            await self._deploy(image, Cilium())
        except BaseException as error:
            try:
                await self.uninstall()
            except HarnessError as left:
                raise HarnessError(f"{error}; and not all of it could be removed again: {left}") from error
            raise

    async def _deploy(self, image: str, settings: Cilium) -> None:
        config_dir, bin_dir = self._folders
        generation = _new_generation()
        for item in render(
            "agent",
            namespace=self._namespace,
            image=image,
            agent=_agent_json(settings),
            places=msgspec.json.encode(self._places()).decode(),
            generation=generation,
            port=PORT,
            cni_config=config_dir,
            cni_bin=bin_dir,
        ):
            await self._api.apply(item)
        await self._until_running({_GENERATION: generation}, settings)

    async def _image(self) -> str | None:
        """Of the agent that is installed; None when there is none."""
        try:
            found = await self._api.get(self._set.path)
        except KubeError as error:
            if error.status == 404:
                return None
            raise
        return found["spec"]["template"]["spec"]["containers"][0]["image"]

    async def uninstall(self) -> None:
        """Take it off every node. HarnessError names nodes where something may be left, and what."""
        troubles = [text for text in [await self._remove_from(pod) for pod in await self._set.pods()] if text]
        await self._api.delete(self._set.path)
        await self._set.gone()
        for path in (
            f"/apis/rbac.authorization.k8s.io/v1/namespaces/{self._namespace}/rolebindings/{NAME}",
            f"/apis/rbac.authorization.k8s.io/v1/namespaces/{self._namespace}/roles/{NAME}",
            f"/api/v1/namespaces/{self._namespace}/serviceaccounts/{NAME}",
            self._configmap,
        ):
            await self._api.delete(path)
        if troubles:
            raise HarnessError("; ".join(troubles))

    async def _remove_from(self, pod: Pod) -> str:
        """What stood in the way of leaving the pod's node as it was; empty when nothing did."""
        argv = ["python3", "-m", "loadgen.kube.install", "remove", "/etc/loadgen/places.json"]
        try:
            done = await self._api.exec(
                pod.metadata.name, "install", argv, namespace=self._namespace, limit_s=REMOVE_LIMIT_S
            )
            why = done.stderr.decode(errors="replace").strip() if done.code else ""
        except HarnessError as error:
            # A pod that never ran has put nothing there; one that ended takes its things along by itself.
            why = str(error) if pod.ready else ""
        if not why:
            return ""
        config_dir, bin_dir = self._folders
        left = f"{config_dir}/00-loadgen.conflist, {bin_dir}/loadgen-cni and {self.pins}/cilium_ct*"
        return f"node {pod.spec.node_name}: {why}; there may be left: {left}"

    async def _refuse_cilium(self) -> None:
        found = await self._api.get("/api/v1/pods", labelSelector="k8s-app=cilium")
        if found["items"]:
            raise ConfigError(
                f"context {self._api.context}: Cilium runs in this cluster, and its model would take its tables; use "
                "--cni cilium"
            )

    def _places(self) -> Places:
        return Places(
            config="/host/etc/cni/net.d",
            plugins="/host/opt/cni/bin",
            run="/run/loadgen",
            pins=f"/host{self.pins}",
            program="/opt/loadgen/loadgen-cni",
            daemonset=self._set.path,
        )

    # --- settings -----------------------------------------------------------------------------------------------

    async def facts(self) -> CniFacts:
        config = await self._config()
        if config is None:
            raise HarnessError(f"{NAME} is not installed in {self._namespace}")
        settings = config.cilium
        chain = await self._chain()
        emulated = [_EMULATED.format(profile=settings.profile, chain=chain)]
        if settings.gc_interval_now is not None:
            emulated.append(_DRIFTED.format(interval=settings.gc_interval_now))
        return CniFacts("model", settings.profile, tuple(emulated), {"cni_chain": chain})

    async def _chain(self) -> str:
        """The plugins that ours comes after, by name."""
        pod = (await self._set.pods())[0]
        argv = ["python3", "-m", "loadgen.kube.install", "show", "/etc/loadgen/places.json"]
        done = await self._api.exec(pod.metadata.name, "install", argv, namespace=self._namespace)
        if done.code:
            raise HarnessError(f"node {pod.spec.node_name}: {done.stderr.decode(errors='replace').strip()}")
        return ", ".join(done.stdout.decode().split()[:-1])

    async def save(self) -> dict[str, str]:
        config = await self._config_text()
        return {"agent": config or ""}

    async def apply(self, settings: Settings) -> None:
        await self._run_with(_agent_json(settings.cilium), settings.cilium)

    async def restore(self, saved: Mapping[str, str]) -> None:
        there, was = await self._config_text(), saved.get("agent", "")
        if not was:
            await self.uninstall()
        elif there is None:
            raise HarnessError(f"{NAME} is gone from {self._namespace}: loadgen up installs it again")
        elif there != was:
            await self._run_with(was, _decode(was, self._configmap).cilium)

    async def agent_metrics(self, node: str) -> str | None:
        for pod in await self._set.pods():
            if pod.spec.node_name == node and pod.ready:
                return self._api.pod_proxy(self._namespace, pod.metadata.name, PORT, "metrics")
        raise HarnessError(f"node {node}: no {NAME} runs there")

    async def _run_with(self, text: str, settings: Cilium) -> None:
        """Write the configuration, restart every agent, and go by what those that run then say of themselves.

        Restarted they are also when nothing changes: a variant begins with agents that remember nothing.
        """
        generation = _new_generation()
        await self._api.patch(self._configmap, {"data": {"agent.json": text}})
        template = {"metadata": {"annotations": {_GENERATION: generation}}}
        await self._api.patch(self._set.path, {"spec": {"template": template}})
        await self._until_running({_GENERATION: generation}, settings)

    async def _until_running(self, annotations: Mapping[str, str], settings: Cilium) -> None:
        pods = await self._set.rolled_out(annotations)
        await asyncio.gather(*(self._verify(node, pod, settings) for node, pod in pods.items()))

    async def _verify(self, node: str, pod: Pod, settings: Cilium) -> None:
        path = self._api.pod_proxy(self._namespace, pod.metadata.name, PORT, "v1/loadgen/state")
        try:
            state = await self._api.get(path, AgentState)
        except (KubeError, msgspec.MsgspecError) as error:
            raise HarnessError(f"node {node}: the agent does not say what it runs with: {error}") from None
        wrong = mismatch(state, settings)
        if wrong:
            raise HarnessError(f"node {node}: the agent runs with {wrong}")

    async def _config(self) -> AgentConfig | None:
        text = await self._config_text()
        return None if text is None else _decode(text, self._configmap)

    async def _config_text(self) -> str | None:
        try:
            found = await self._api.get(self._configmap)
        except KubeError as error:
            if error.status == 404:
                return None
            raise
        return found["data"]["agent.json"]


def mismatch(state: AgentState, settings: Cilium) -> str:
    """What of a running agent is not as asked for; empty when all is."""
    sizes = {"tcp": settings.bpf.ct_tcp_max, "any": settings.bpf.ct_any_max}
    interval = settings.gc_interval or settings.gc_interval_now
    if settings.gc_interval is None and interval is not None and settings.gc_max_interval is not None:
        interval = min(interval, settings.gc_max_interval)
    running = {name: table.capacity for name, table in state.tables.items()}
    if state.profile != settings.profile:
        return f"profile {state.profile}, not {settings.profile}"
    if running != sizes:
        return f"tables of {running}, not {sizes}"
    if interval is not None and state.gc.interval_ns != interval:
        return f"a GC interval of {state.gc.interval_ns / 1e9:g} s, not {interval}"
    if state.settings != settings_text(settings):
        return f"{state.settings}, not {settings_text(settings)}"
    return ""


def _agent_json(settings: Cilium) -> str:
    config = AgentConfig(
        socket="/run/loadgen/cilium.sock",
        pin_dir=f"/host{ModelCni.pins}",
        chained=True,
        cilium=settings,
        spans_by="pod",
        metrics_listen=f":{PORT}",
        state_dir="/run/loadgen/endpoints",
    )
    return msgspec.json.format(msgspec.json.encode(config, enc_hook=enc_hook)).decode()


def _decode(text: str, where: str) -> AgentConfig:
    try:
        return msgspec.json.decode(text, type=AgentConfig, dec_hook=dec_hook)
    except msgspec.MsgspecError as error:
        raise HarnessError(f"{where}: agent.json: {error}") from None


def _new_generation() -> str:
    return os.urandom(6).hex()
