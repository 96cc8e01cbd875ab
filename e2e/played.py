"""A scheduler and a kubelet played on a real API server that has neither: pods are bound, fail, come up and go."""

from __future__ import annotations

import asyncio
import datetime
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from loadgen.core.errors import HarnessError
from loadgen.kube.api import KubeApi, KubeError

NEVER = -1
POLL_S = 0.05
ATTEMPT_S = 0.1
FAILURE = (
    'Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox "{id:064x}": '
    'plugin type="cilium-cni" failed (add): unable to create endpoint: [PUT /endpoint/{{id}}][429] '
    "putEndpointIdTooManyRequests"
)
RESERVED = (
    "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to reserve sandbox name "
    '"x_{uid}_0": name "x_{uid}_0" is reserved for "{uid}"'
)


class PlayedNode:
    """Pod number i fails `failures(i)` times before it is up (NEVER: it stays in its first attempt).

    `repeat`: all failures of a pod are one event whose count rises, as for a text that does not change.
    """

    def __init__(
        self,
        api: KubeApi,
        namespace: str,
        failures: Callable[[int], int] = lambda _: 0,
        *,
        repeat: bool = False,
        full: str = "",
    ) -> None:
        self._api, self._failures, self._repeat, self._full = api, failures, repeat, full
        self._namespace = namespace
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._ids = itertools.count(1)
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._going: set[str] = set()
        self.served: set[str] = set()
        """Names of all pods that were ever seen."""

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                for pod in (await _insist(lambda: self._api.get(self._pods)))["items"]:
                    self._look_after(pod)
                await asyncio.sleep(POLL_S)
        finally:
            for life in self._lives.values():
                life.cancel()
            await asyncio.gather(*self._lives.values(), return_exceptions=True)

    def _look_after(self, pod: dict[str, Any]) -> None:
        metadata = pod["metadata"]
        uid = metadata["uid"]
        self.served.add(metadata["name"])
        if "deletionTimestamp" in metadata and uid not in self._going:
            self._going.add(uid)
            if uid in self._lives:
                self._lives[uid].cancel()
            self._lives[f"{uid} end"] = asyncio.create_task(self._end(metadata["name"]))
        elif uid not in self._lives and uid not in self._going:
            self._lives[uid] = asyncio.create_task(self._live(pod))

    async def _live(self, pod: dict[str, Any]) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        if self._full:
            unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            await self._status(name, {"conditions": [{**unschedulable, "message": self._full}]})
            return
        target = {"apiVersion": "v1", "kind": "Node", "name": "played"}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        await _insist(lambda: self._api.create(f"{self._pods}/{name}/binding", binding))
        await self._status(name, {"conditions": [_condition("PodReadyToStartContainers", False)]})
        number = int(name.rpartition("-")[2])
        failures = self._failures(number)
        if failures == NEVER:
            return
        event = ""
        for count in range(1, failures + 1):
            await asyncio.sleep(ATTEMPT_S)
            event = await self._fail(name, uid, event, count)
        await asyncio.sleep(ATTEMPT_S)
        stands = {"kind": "Pod", "namespace": self._namespace, "name": name, "uid": uid}
        await self._say(f"{name}.up", stands, "Pulled", "Container image already present on machine")
        await asyncio.sleep(ATTEMPT_S)
        up = [_condition("PodReadyToStartContainers", True), _condition("Ready", True)]
        await self._status(name, {"phase": "Running", "podIP": "10.0.0.1", "conditions": up})

    async def _fail(self, name: str, uid: str, event: str, count: int) -> str:
        """A failed attempt; returns the event's name."""
        events = f"/api/v1/namespaces/{self._namespace}/events"
        if self._repeat and event:
            await _insist(lambda: self._api.patch(f"{events}/{event}", {"count": count}))
            return event
        number = next(self._ids)
        about = {"kind": "Pod", "namespace": self._namespace, "name": name, "uid": uid}
        message = RESERVED.format(uid=uid) if self._repeat else FAILURE.format(id=number)
        await self._say(f"{name}.{number:x}", about, "FailedCreatePodSandBox", message)
        return f"{name}.{number:x}"

    async def _say(self, name: str, about: dict[str, str], reason: str, message: str) -> None:
        metadata = {"metadata": {"name": name}, "involvedObject": about}
        event = {"apiVersion": "v1", "kind": "Event", **metadata, "reason": reason, "message": message, "count": 1}
        await _insist(lambda: self._api.create(f"/api/v1/namespaces/{self._namespace}/events", event))

    async def _status(self, name: str, status: dict[str, Any]) -> None:
        path = f"{self._pods}/{name}/status"
        await _insist(lambda: self._api.patch(path, {"status": status}, "strategic"))

    async def _end(self, name: str) -> None:
        await asyncio.sleep(ATTEMPT_S)
        await _insist(lambda: self._api.delete(f"{self._pods}/{name}", grace_s=0))


async def _insist(call: Callable[[], Awaitable[Any]]) -> Any:
    """Until the server answers: a test may have taken it away. What was heard already, or is gone, is as good."""
    while True:
        try:
            return await call()
        except KubeError as error:
            if error.status in (404, 409):
                return None
            if error.status < 500:
                raise
        except HarnessError:
            pass
        await asyncio.sleep(POLL_S)


def _condition(kind: str, true: bool) -> dict[str, str]:
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": kind, "status": "True" if true else "False", "lastTransitionTime": now}


async def make_namespace(api: KubeApi, name: str) -> None:
    try:
        await api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    except KubeError as error:
        if error.reason != "AlreadyExists":
            raise
