"""Real Cilium: its settings changed by Helm or in its ConfigMap, its agents restarted, asked, and put back."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from loadgen.core.errors import ConfigError, HarnessError
from loadgen.core.model import Cilium, Settings
from loadgen.kube import releasechart
from loadgen.kube.api import KubeApi, KubeError
from loadgen.kube.cni import CniFacts, CniName, ciliumvalues
from loadgen.kube.cni.ciliumvalues import FILES_SCRIPT, KEYS, Running, Version
from loadgen.kube.helm import Chart, Helm, Release
from loadgen.kube.objects import Pod
from loadgen.kube.rollout import Rollout

NAMESPACE, NAME, CONFIG_MAP = "kube-system", "cilium", "cilium-config"
SELECTOR, CONTAINER = "k8s-app=cilium", "cilium-agent"
_CLIENT = 'command -v cilium-dbg >/dev/null && exec cilium-dbg "$@"; exec cilium "$@"'
"""The agent's client is called cilium in 1.14."""
_ASKED_AT_ONCE = 16

_FIXED = "the GC interval is fixed at {}, in place of an interval that has drifted there"
_RESIZED = (
    "the CT tables were made anew, empty, with {:,} (TCP) and {:,} (other) entries, not the cluster's own sizes"
)
_NEAREST = "Cilium {} is judged by the rules of {}, the nearest version that is modelled"


class Installed(msgspec.Struct, frozen=True):
    """Where Cilium is in the cluster, and which Helm release it is of ("": of none)."""

    namespace: str
    daemonset: str
    release: str
    release_namespace: str
    image: str

    @property
    def config_map(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/configmaps/{CONFIG_MAP}"


class Before(msgspec.Struct, frozen=True):
    """What `restore` needs. `config`: the whole ConfigMap, for a rollback resets what was patched into it by hand."""

    installed: Installed
    config: dict[str, str]
    revision: int = 0
    """Of the Helm release; 0: there is none."""
    chart: str = ""
    values: dict[str, Any] = {}


class CiliumCni:
    """cni.Cni. A Helm release is upgraded, by the chart that Helm keeps of it or by `chart`; else the ConfigMap is
    patched."""

    name: CniName = "cilium"
    pins = "/sys/fs/bpf/tc/globals"

    def __init__(self, api: KubeApi, chart: Chart | None = None) -> None:
        self._api, self._chart = api, chart
        self._there: Installed | None = None
        self._running: Version | None = None
        self._before: Before | None = None
        self._notes: tuple[str, ...] = ()

    # --- what there is ------------------------------------------------------------------------------------------

    async def installed(self) -> Installed:
        """ConfigError when there is no Cilium here: a run installs none."""
        if self._there is None:
            self._there = await self._find()
        return self._there

    async def _find(self) -> Installed:
        try:
            found = await self._api.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/{NAME}")
        except KubeError as error:
            if error.status != 404:
                raise
            all_over = await self._api.get("/apis/apps/v1/daemonsets", labelSelector=SELECTOR)
            if not all_over["items"]:
                raise ConfigError(
                    f"context {self._api.context}: no DaemonSet {NAMESPACE}/{NAME}: this cluster has no Cilium; use "
                    "--cni none or --cni model"
                ) from None
            found = all_over["items"][0]
        metadata = found["metadata"]
        annotations = metadata.get("annotations") or {}
        images = {c["name"]: c["image"] for c in found["spec"]["template"]["spec"]["containers"]}
        return Installed(
            namespace=metadata["namespace"],
            daemonset=metadata["name"],
            release=annotations.get("meta.helm.sh/release-name", ""),
            release_namespace=annotations.get("meta.helm.sh/release-namespace", ""),
            image=images.get(CONTAINER, ""),
        )

    async def rollout(self) -> Rollout:
        there = await self.installed()
        return Rollout(self._api, there.namespace, there.daemonset, SELECTOR)

    async def _release(self) -> tuple[Helm, Release] | None:
        there = await self.installed()
        if not there.release:
            return None
        helm = Helm(self._api.context, there.release_namespace)
        found = await helm.release(there.release)
        return (helm, found) if found is not None else None

    async def version(self) -> Version:
        """By the agent's own word; that of the chart or the image where no agent answers."""
        if self._running is None:
            self._running = await self._asked_version()
        return self._running

    async def _asked_version(self) -> Version:
        for pod in await (await self.rollout()).pods():
            if pod.ready:
                said = await self._ask(pod, "version")
                if found := re.search(r"^\s*(?:Daemon|Client):\s*(\d+\.\d+\.\S+)", said, re.MULTILINE):
                    return Version.parse(found[1])
        owned = await self._release()
        tag = (await self.installed()).image.partition("@")[0].rpartition(":")[2]
        return Version.parse((owned[1].version if owned else "") or tag)

    def check(self, settings: Settings, where: str) -> None:
        """ConfigError for what this Cilium has no setting for; which one it is, is known once `facts` has asked."""
        ciliumvalues.check(settings.cilium, f"{where}.cilium", self._running)

    async def ensure(self, image: str) -> bool:  # noqa: ARG002 - our image has no part in Cilium
        """False; ConfigError when there is no Cilium here, or one that is not well."""
        there = await self.installed()
        rollout = await self.rollout()
        status = (await rollout.daemonset()).status
        ready = sum(pod.ready for pod in await rollout.pods())
        if ready < status.desired_number_scheduled:
            raise ConfigError(
                f"context {self._api.context}: {ready} of {status.desired_number_scheduled} Cilium agents are Ready; "
                f"see kubectl -n {there.namespace} get pods -l {SELECTOR}"
            )
        owned = await self._release()
        if owned is not None and owned[1].status.startswith("pending"):
            raise ConfigError(
                f"Helm release {there.release_namespace}/{there.release} is {owned[1].status}: a helm is at work, or "
                f"one was killed; helm -n {there.release_namespace} rollback {there.release} mends the latter"
            )
        return False

    async def facts(self) -> CniFacts:
        there, version = await self.installed(), await self.version()
        config = await self._config()
        environment = {
            "cilium_from": f"Helm release {there.release}" if there.release else f"ConfigMap {CONFIG_MAP}",
            "kube_proxy_replacement": config.get("kube-proxy-replacement", ""),
            "routing": f"{config.get('routing-mode', '')} {config.get('tunnel-protocol', '')}".strip(),
            "ipam": config.get("ipam", ""),
            "ipv6": config.get("enable-ipv6", ""),
        }
        nearest = () if version.profile == f"{version.major}.{version.minor}" else (version.profile,)
        judged = tuple(_NEAREST.format(version, profile) for profile in nearest)
        return CniFacts("cilium", str(version), (*self._notes, *judged), environment)

    async def _config(self) -> dict[str, str]:
        return (await self._api.get((await self.installed()).config_map)).get("data") or {}

    # --- change and put back ------------------------------------------------------------------------------------

    async def save(self) -> dict[str, str]:
        owned = await self._release()
        found = Before(await self.installed(), await self._config())
        if owned is not None:
            helm, release = owned
            values = await helm.values(found.installed.release)
            found = msgspec.structs.replace(found, revision=release.revision, chart=release.chart, values=values)
        self._before = found
        return {"cilium": msgspec.json.encode(found).decode()}

    async def apply(self, settings: Settings) -> None:
        """cni.Cni. Settings that say nothing of Cilium leave it as it is, or was before another variant."""
        wanted = settings.cilium
        if wanted == Cilium():
            if self._before is not None:
                await self._restore(self._before)
            self._notes = ()
            return
        version = await self.version()
        ciliumvalues.check(wanted, "settings.cilium", version)
        rollout, was = await self.rollout(), await self._config()
        since = await rollout.snapshot()
        state = "its settings may have been changed, its agents run as before"
        try:
            try:
                await self._set(wanted, version)
            except ConfigError as error:
                raise ConfigError(f"{error}; nothing has been changed") from None
            state = "its settings have been changed, and not all of its agents run with them"
            await rollout.restart(since)
            await self._verify(ciliumvalues.config_map(wanted))
        except (HarnessError, KubeError) as error:
            context = self._api.context
            raise HarnessError(
                f"{error}; Cilium in {context}: {state}; what was there before comes back at the end of the run, or "
                f"by `loadgen clean --context {context}`"
            ) from error
        self._notes = tuple(_notes(wanted, self._before.config if self._before else was))

    async def _set(self, wanted: Cilium, version: Version) -> None:
        there, owned = await self.installed(), await self._release()
        if owned is None:
            await self._api.patch(there.config_map, {"data": ciliumvalues.config_map(wanted)})
            return
        helm, release = owned
        values = ciliumvalues.helm(wanted, version)
        with tempfile.TemporaryDirectory(prefix="loadgen-chart-") as folder:
            await helm.upgrade(there.release, await self._chart_of(release, Path(folder)), values)

    async def _chart_of(self, release: Release, folder: Path) -> Chart:
        if self._chart is not None:
            return self._chart
        there = await self.installed()
        namespace, name = there.release_namespace, there.release
        return Chart(str(await releasechart.write(self._api, namespace, name, release.revision, folder)))

    async def restore(self, saved: Mapping[str, str]) -> None:
        """cni.Cni. Nothing is restarted where nothing had been changed."""
        try:
            before = msgspec.json.decode(saved["cilium"], type=Before)
        except (KeyError, msgspec.MsgspecError) as error:
            raise HarnessError(f"what was saved of Cilium is not readable: {error}") from None
        await self._restore(before)

    async def _restore(self, before: Before) -> None:
        try:
            rollout = await self.rollout()
            since = await rollout.snapshot()
            if before.revision:
                await self._roll_back(before)
            await self._put_back_config(before)
            await rollout.unmark(since)
            wanted = {key: before.config.get(key) for key in KEYS}
            if await self._differences(wanted):
                # Settings are as they were, agents are not: a run was killed in between.
                await rollout.recreate()
                await self._verify(wanted)
        except KubeError as error:
            raise HarnessError(f"Cilium is not put back: {error}") from error

    async def _roll_back(self, before: Before) -> None:
        there = before.installed
        helm = Helm(self._api.context, there.release_namespace)
        release = await helm.release(there.release)
        where = f"Helm release {there.release_namespace}/{there.release}"
        if release is None:
            raise HarnessError(f"{where} is gone; its revision {before.revision} cannot come back")
        same = release.status == "deployed" and release.chart == before.chart
        if same and await helm.values(there.release) == before.values:
            return
        if any(one.revision == before.revision for one in await helm.history(there.release)):
            await helm.rollback(there.release, before.revision)
            return
        # Somebody has cut the history short meanwhile.
        with tempfile.TemporaryDirectory(prefix="loadgen-chart-") as folder:
            chart = await self._chart_of(release, Path(folder))
            await helm.upgrade(there.release, chart, before.values, reuse=False)

    async def _put_back_config(self, before: Before) -> None:
        """Of a release all of it, for a rollback resets what was patched by hand; else only what we may change."""
        there = await self._config()
        keys = {*there, *before.config} if before.revision else set(KEYS)
        patch = {key: before.config.get(key) for key in keys if there.get(key) != before.config.get(key)}
        if patch:
            # In a merge patch a null takes the key away.
            await self._api.patch(before.installed.config_map, {"data": patch})

    # --- asking the agents --------------------------------------------------------------------------------------

    async def _verify(self, wanted: Mapping[str, str | None]) -> None:
        if wrong := await self._differences(wanted):
            raise HarnessError(f"agents run with other settings than asked, although restarted: {'; '.join(wrong)}")

    async def _differences(self, wanted: Mapping[str, str | None]) -> list[str]:
        """Agents that run otherwise, and how; all are asked."""
        pods = await (await self.rollout()).pods()
        gate = asyncio.Semaphore(_ASKED_AT_ONCE)

        async def ask(pod: Pod) -> Running:
            async with gate:
                return Running.parse(await self._ask(pod, "config", "--all"), await self._files(pod))

        told = await asyncio.gather(*map(ask, pods))
        found = ((pod, ciliumvalues.differences(wanted, running)) for pod, running in zip(pods, told, strict=True))
        return [f"{pod.metadata.name} on {pod.spec.node_name}: {', '.join(wrong)}" for pod, wrong in found if wrong]

    async def _ask(self, pod: Pod, *words: str) -> str:
        """What the agent's client says. HarnessError when it does not."""
        argv = ["/bin/sh", "-c", _CLIENT, "sh", *words]
        done = await self._api.exec(pod.metadata.name, CONTAINER, argv, namespace=pod.metadata.namespace)
        if done.code == 0:
            return done.stdout.decode(errors="replace")
        said = done.stderr.decode(errors="replace").strip() or f"exit code {done.code}"
        raise HarnessError(f"agent {pod.metadata.name}: cilium-dbg {' '.join(words)}: {said}")

    async def _files(self, pod: Pod) -> str:
        done = await self._api.exec(
            pod.metadata.name, CONTAINER, ["/bin/sh", "-c", FILES_SCRIPT], namespace=pod.metadata.namespace
        )
        return done.stdout.decode(errors="replace") if done.code == 0 else ""

    async def agent_metrics(self, node: str) -> str | None:
        """None when agents serve none: prometheus.enabled is off."""
        address = (await self._config()).get("prometheus-serve-addr", "")
        port = address.rpartition(":")[2]
        if not port.isdecimal():
            return None
        for pod in await (await self.rollout()).pods():
            if pod.spec.node_name == node and pod.metadata.deletion_timestamp is None:
                return self._api.pod_proxy(pod.metadata.namespace, pod.metadata.name, int(port), "metrics")
        return None


def _notes(wanted: Cilium, was: Mapping[str, str]) -> list[str]:
    """What a report has to say of settings in force."""
    found = []
    if not wanted.gc_interval and wanted.gc_interval_now:
        found.append(_FIXED.format(ciliumvalues.fixed_interval(wanted)))
    sizes = (was.get(ciliumvalues.TCP_MAX), was.get(ciliumvalues.ANY_MAX))
    if sizes != (str(wanted.bpf.ct_tcp_max), str(wanted.bpf.ct_any_max)):
        found.append(_RESIZED.format(wanted.bpf.ct_tcp_max, wanted.bpf.ct_any_max))
    return found
