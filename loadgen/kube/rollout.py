"""Restarting a DaemonSet of somebody else's, and knowing when it has been: pod by pod, old ones told from new.

Helm and kubectl say so too early: a DaemonSet counts as rolled out for them while maxUnavailable pods are missing
(with two nodes and Cilium's default of 2 that is at once), and right after a change by counters that are still old.
"""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import msgspec

from loadgen.core.errors import HarnessError, LoadgenError
from loadgen.kube.api import KubeApi, KubeError
from loadgen.kube.objects import ContainerStatus, ListOf, Pod, Seen

MARK = "loadgen/restarted-at"
"""Annotation of the pod template. A change of it restarts the pods; taking it away restarts them too, and leaves the
DaemonSet as it was."""
STALL_LIMIT_S = 180.0
"""Without another pod becoming Ready. Agents of a big cluster come one by one, which takes as long as it takes."""
PROBLEM_LIMIT_S = 45.0
"""How long a new pod may be kept from starting: an image is pulled, but one that is nowhere stays away."""
CRASHES = 3
_POLL_S = 0.5
_NO_IMAGE = ("ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName")
_NO_START = (*_NO_IMAGE, "CreateContainerConfigError", "CreateContainerError", "RunContainerError")


class _Metadata(Seen, frozen=True):
    generation: int = 0


class _Status(Seen, frozen=True):
    observed_generation: int = 0
    desired_number_scheduled: int = 0
    updated_number_scheduled: int = 0


class _Strategy(Seen, frozen=True):
    type: str = "RollingUpdate"


class _Spec(Seen, frozen=True):
    template: msgspec.Raw
    update_strategy: _Strategy = _Strategy()


class DaemonSet(Seen, frozen=True):
    metadata: _Metadata
    spec: _Spec
    status: _Status = _Status()

    @property
    def template(self) -> dict[str, Any]:
        return msgspec.json.decode(self.spec.template)


class Snapshot(NamedTuple):
    template: dict[str, Any]
    uids: frozenset[str]
    """Of the pods."""


class Rollout:
    """One DaemonSet and the pods that its selector finds."""

    def __init__(self, api: KubeApi, namespace: str, name: str, selector: str) -> None:
        self._api, self._namespace, self._name, self._selector = api, namespace, name, selector
        self._path = f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}"

    async def daemonset(self) -> DaemonSet:
        return await self._api.get(self._path, DaemonSet)

    async def pods(self) -> Sequence[Pod]:
        """Those that are ending among them."""
        path = f"/api/v1/namespaces/{self._namespace}/pods"
        return (await self._api.get(path, ListOf[Pod], labelSelector=self._selector)).items

    async def mark(self) -> str | None:
        """When we have restarted it last; None: never, or that has been put back."""
        annotations = (await self.daemonset()).template.get("metadata", {}).get("annotations") or {}
        return annotations.get(MARK)

    async def snapshot(self) -> Snapshot:
        """What there is before a change that may restart the pods by itself."""
        there = await self.daemonset()
        return Snapshot(there.template, frozenset(pod.metadata.uid for pod in await self.pods()))

    async def restart(self, since: Snapshot | None = None) -> None:
        """Return when every node has a new pod that is Ready; else HarnessError.

        since: from before a change; when that has begun to restart them, they are not restarted twice.
        """
        before = since or await self.snapshot()
        there = await self.daemonset()
        on_delete = there.spec.update_strategy.type == "OnDelete"
        if there.template == before.template or on_delete:
            await self._annotate(datetime.datetime.now(datetime.UTC).isoformat())
        if on_delete:
            await self.recreate()
        await self.ready(gone=before.uids)

    async def unmark(self, since: Snapshot) -> None:
        """Leave nothing of ours in the DaemonSet, which restarts its pods; nothing happens when there is nothing."""
        if await self.mark() is not None:
            await self._annotate(None)
        there = await self.daemonset()
        if there.template == since.template:
            return
        if there.spec.update_strategy.type == "OnDelete":
            await self.recreate()
        await self.ready(gone=since.uids)

    async def _annotate(self, mark: str | None) -> None:
        annotations = {"metadata": {"annotations": {MARK: mark}}}
        await self._api.patch(self._path, {"spec": {"template": annotations}})

    async def recreate(self) -> None:
        """Delete the pods one by one, as a rolling update would, each when the one before is back."""
        for pod in await self.pods():
            await self._api.delete(f"/api/v1/namespaces/{self._namespace}/pods/{pod.metadata.name}")
            await self.ready(gone={pod.metadata.uid}, updated=False)

    async def ready(self, gone: Collection[str] = (), *, updated: bool = True) -> None:
        """Wait until every node has a Ready pod and none of the pods `gone` (uids) is left; else HarnessError.

        updated: they must be of the DaemonSet's present template, too.
        """
        began = progress = time.monotonic()
        most = 0
        while True:
            there, pods = await self.daemonset(), await self.pods()
            fresh = [pod for pod in pods if pod.metadata.uid not in gone]
            good = [pod for pod in fresh if pod.ready]
            if len(good) >= there.status.desired_number_scheduled > 0 and len(fresh) == len(pods):
                known = there.status.observed_generation >= there.metadata.generation
                all_new = there.status.updated_number_scheduled >= there.status.desired_number_scheduled
                if known and (all_new or not updated):
                    return
            now = time.monotonic()
            if len(good) > most:
                most, progress = len(good), now
            hopeless = now - began > PROBLEM_LIMIT_S and any(_cannot_start(pod) for pod in fresh)
            if hopeless or now - progress > STALL_LIMIT_S or any(_crashes(pod) for pod in fresh):
                raise HarnessError(await self._why(there, pods, good, now - began))
            await asyncio.sleep(_POLL_S)

    async def _why(self, there: DaemonSet, pods: Sequence[Pod], good: Sequence[Pod], waited_s: float) -> str:
        desired = there.status.desired_number_scheduled
        name = f"DaemonSet {self._namespace}/{self._name}"
        if desired == 0:
            return f"{name}: no node takes its pods"
        bad = [pod for pod in pods if pod not in good]
        told = "; ".join([await self._trouble(pod) for pod in bad]) or "the others have not been made"
        return f"{name}: {len(good)} of {desired} pods are new and Ready after {waited_s:.0f} s: {told}"

    async def _trouble(self, pod: Pod) -> str:
        """What keeps one pod, with the last words of the container that does not run."""
        where = f"{pod.metadata.name} on {pod.spec.node_name}" if pod.spec.node_name else pod.metadata.name
        if pod.metadata.deletion_timestamp is not None:
            return f"{where}: does not end; is its node Ready?"
        for status in _statuses(pod):
            waiting = status.state.waiting
            if waiting is not None and waiting.reason not in ("PodInitializing", "ContainerCreating"):
                said = await self._last_words(pod, status) or waiting.message
                return f"{where}: {status.name}: {waiting.reason}{f': {said}' if said else ''}"
        for status in _statuses(pod):
            ended = status.state.terminated is not None and status.state.terminated.reason != "Completed"
            if ended or (status.restart_count and not status.ready):
                return f"{where}: {status.name} ended {status.restart_count or 1} times: " + (
                    await self._last_words(pod, status) or "it said nothing"
                )
        unscheduled = pod.condition("PodScheduled")
        if unscheduled is not None and not unscheduled.true:
            return f"{where}: {unscheduled.message}"
        return f"{where}: {pod.status.phase or 'Pending'}, not Ready"

    async def _last_words(self, pod: Pod, status: ContainerStatus) -> str:
        """Of the container that ended last, which is not the one that runs; "" when nothing can be had."""
        path = f"/api/v1/namespaces/{self._namespace}/pods/{pod.metadata.name}/log"
        for previous in ("true", "false") if status.state.running is not None else ("false", "true"):
            try:
                text = await self._api.text(path, container=status.name, tailLines="5", previous=previous)
            except (KubeError, LoadgenError):
                continue  # there is no such container (any more)
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            if lines:
                return next((line for line in lines if "fatal" in line.lower()), lines[-1])
        return ""


def _statuses(pod: Pod) -> tuple[ContainerStatus, ...]:
    return (*pod.status.init_container_statuses, *pod.status.container_statuses)


def _cannot_start(pod: Pod) -> bool:
    return any(s.state.waiting is not None and s.state.waiting.reason in _NO_START for s in _statuses(pod))


def _crashes(pod: Pod) -> bool:
    """Again and again, so that waiting will not mend it."""
    return any(s.restart_count >= CRASHES and not s.ready for s in _statuses(pod))
