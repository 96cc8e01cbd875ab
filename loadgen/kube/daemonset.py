"""DaemonSets of ours: their pods by node, and the wait until every node has one of the generation that was asked for.

`kubectl rollout status` goes by counters that are stale for a moment after each change. Here the pods themselves are
looked at: each has to carry the template's annotations and be Ready.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping

import msgspec

from loadgen.core.errors import HarnessError, LoadgenError
from loadgen.kube.api import KubeApi, KubeError
from loadgen.kube.objects import ContainerStatus, ListOf, Pod

LIMIT_S = 180.0
PROBLEM_LIMIT_S = 30.0
"""How long a pod may be kept from its image: a registry may be slow, a node without it stays without it."""
POLL_S = 0.5

_NO_IMAGE = frozenset({"ErrImageNeverPull", "ErrImagePull", "ImagePullBackOff", "InvalidImageName"})


class _Metadata(msgspec.Struct):
    generation: int = 0


class _Status(msgspec.Struct, rename="camel"):
    observed_generation: int = 0
    desired_number_scheduled: int = 0


class _DaemonSet(msgspec.Struct):
    metadata: _Metadata
    status: _Status


class DaemonSet:
    """One of ours; its pods carry its name as `app.kubernetes.io/name`."""

    def __init__(self, api: KubeApi, namespace: str, name: str) -> None:
        self._api, self._namespace, self.name = api, namespace, name
        self.path = f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}"

    async def pods(self) -> tuple[Pod, ...]:
        return await pods_of(self._api, self._namespace, self.name)

    async def rolled_out(self, annotations: Mapping[str, str], limit_s: float = LIMIT_S) -> dict[str, Pod]:
        """By node its Ready pod with these annotations, once every node has one.

        HarnessError says what keeps which node from it.
        """
        began = time.monotonic()
        while True:
            found = await self._api.get(self.path, _DaemonSet)
            pods = await self.pods()
            good = {
                p.spec.node_name: p for p in pods if p.ready and annotations.items() <= p.metadata.annotations.items()
            }
            current = found.status.observed_generation >= found.metadata.generation
            if current and good and len(good) >= found.status.desired_number_scheduled:
                return good
            waited_s = time.monotonic() - began
            missing_image = [p for p in pods if any(reason in _NO_IMAGE for reason, _ in _waiting(p))]
            if waited_s > limit_s or (missing_image and waited_s > PROBLEM_LIMIT_S):
                raise HarnessError(await self._why(pods, good, waited_s, found.status.desired_number_scheduled))
            await asyncio.sleep(POLL_S)

    async def gone(self, limit_s: float = LIMIT_S) -> None:
        """Return when its last pod has ended; HarnessError names those that do not."""
        deadline = time.monotonic() + limit_s
        while pods := await self.pods():
            if time.monotonic() > deadline:
                names = ", ".join(f"{p.metadata.name} on {p.spec.node_name}" for p in pods)
                raise HarnessError(f"{self.name}: pods do not end: {names}")
            await asyncio.sleep(POLL_S)

    async def _why(self, pods: tuple[Pod, ...], good: Mapping[str, Pod], waited_s: float, desired: int) -> str:
        if desired == 0:
            return f"{self.name}: no node takes it; is the node named right, and does it run?"
        texts = [await self._trouble(pod) for pod in pods if pod.spec.node_name not in good]
        what = "; ".join(texts) or "their pods have not been made"
        return f"{self.name}: {len(good)} of {desired} nodes have it after {waited_s:.0f} s: {what}"

    async def _trouble(self, pod: Pod) -> str:
        """Of one pod that is not as it should be, with the last words of the container that keeps it from that."""
        where = f"node {pod.spec.node_name}" if pod.spec.node_name else pod.metadata.name
        for reason, status in _waiting(pod):
            if reason in _NO_IMAGE:
                return f"{where}: {reason}: {status.image}: load the image there, or into a registry that it reaches"
            if reason not in ("PodInitializing", "ContainerCreating"):
                return f"{where}: container {status.name}: {reason}{await self._last_words(pod, status.name)}"
        for status in pod.status.container_statuses:
            if not status.ready and status.state.running is not None:
                return f"{where}: container {status.name} is not ready{await self._last_words(pod, status.name)}"
        if pod.metadata.deletion_timestamp is not None:
            return f"{where}: {pod.metadata.name} is still ending"
        return f"{where}: {pod.status.phase or 'Pending'} {pod.status.message}".strip()

    async def _last_words(self, pod: Pod, container: str) -> str:
        path = f"/api/v1/namespaces/{self._namespace}/pods/{pod.metadata.name}/log"
        try:
            text = await self._api.text(path, container=container, tailLines="1")
        except (KubeError, LoadgenError):
            return ""  # the reason alone has to do
        said = text.strip().partition(" msg=")
        return f": {said[2] or said[0]}" if text.strip() else ""


async def pods_of(api: KubeApi, namespace: str, name: str) -> tuple[Pod, ...]:
    """The pods of our DaemonSet `name`, those that are ending among them."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    return (await api.get(path, ListOf[Pod], labelSelector=f"app.kubernetes.io/name={name}")).items


def _waiting(pod: Pod) -> Iterator[tuple[str, ContainerStatus]]:
    """Why its containers wait, those of its beginning first."""
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        if status.state.waiting is not None:
            yield status.state.waiting.reason, status
