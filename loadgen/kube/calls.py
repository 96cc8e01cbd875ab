"""The few calls that a churn makes, each repeated until the API server has heard it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec

from loadgen.core.errors import ConfigError, HarnessError, LoadgenError
from loadgen.core.units import Duration
from loadgen.kube.api import KubeApi, KubeError
from loadgen.kube.objects import Condition, ListOf, Pod, Seen

INSIST_S = 60.0
"""A call is repeated for so long while the API server does not answer: as long as a watch waits for it."""
RETRY_S = 0.5


class _Conditions(Seen, frozen=True):
    conditions: tuple[Condition, ...] = ()


class _Node(Seen, frozen=True):
    status: _Conditions = _Conditions()


class _KubeletConfig(Seen, frozen=True):
    runtime_request_timeout: str = ""


class _Configz(msgspec.Struct, frozen=True):
    kubeletconfig: _KubeletConfig = _KubeletConfig()


class ChurnCalls:
    """Calls about the pods and Jobs of one worker, which `selector` finds."""

    def __init__(self, api: KubeApi, namespace: str, selector: str) -> None:
        self._api, self._selector = api, selector
        self.pods = f"/api/v1/namespaces/{namespace}/pods"
        self.jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        self.events = f"/api/v1/namespaces/{namespace}/events"

    async def create(self, path: str, name: str, body: bytes) -> None:
        """Once: when an answer was lost, the name tells that the call had been heard."""
        await _insist(f"create {name}", lambda: self._api.raw("POST", path, body), "AlreadyExists")

    async def delete(self, path: str) -> None:
        await _insist(f"delete {path}", lambda: self._api.delete(path), "NotFound")

    async def delete_all(self, path: str, *, grace_s: int | None = None) -> None:
        """A namespace that is not found is gone with all in it."""
        delete = self._api.delete_collection
        await _insist(f"delete {path}", lambda: delete(path, self._selector, grace_s=grace_s), "NotFound")

    async def any_left(self) -> bool:
        return bool(await self._list(limit="1"))

    async def count_left(self) -> int:
        return len(await self._list())

    async def _list(self, **params: str) -> tuple[Pod, ...]:
        try:
            return (await self._api.get(self.pods, ListOf[Pod], labelSelector=self._selector, **params)).items
        except KubeError as error:
            raise HarnessError(f"cannot list pods: {error}") from error

    async def node_trouble(self, node: str) -> str:
        """Why the node is not Ready; empty when it is, or may not be asked."""
        try:
            found = await self._api.get(f"/api/v1/nodes/{node}", _Node)
        except (KubeError, ConfigError):
            return ""
        ready = next((c for c in found.status.conditions if c.type == "Ready"), None)
        return "" if ready is None or ready.true else ready.message or ready.reason

    async def longest_attempt_s(self, node: str) -> float | None:
        """The kubelet gives a RunPodSandbox twice its runtimeRequestTimeout. None: it may not be asked."""
        try:
            found = await self._api.get(f"/api/v1/nodes/{node}/proxy/configz", _Configz)
            return 2 * Duration.parse(found.kubeletconfig.runtime_request_timeout).seconds
        except (KubeError, LoadgenError, ValueError):
            return None  # it only serves to say a number with `kubelet deadline`


async def _insist(what: str, call: Callable[[], Awaitable[object]], fine: str) -> None:
    """Call until the server has heard it; refusing for the reason `fine` is as good as obeying."""
    deadline = time.monotonic() + INSIST_S
    while True:
        try:
            await call()
            return
        except KubeError as error:
            if error.reason == fine:
                return
            failure = HarnessError(f"cannot {what}: {error}")
            if error.status < 500 and error.status != 409:
                raise failure from error
        except HarnessError as error:
            failure = error
        if time.monotonic() > deadline:
            raise failure
        await asyncio.sleep(RETRY_S)
