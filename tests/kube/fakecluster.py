"""An API server with pods, Jobs and events in memory, and a kubelet behind it that does what a test says.

It stands in for what a real one cannot be made to do: answers that get lost, nodes that die, pods that do not go.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from aiohttp import web

from tests.kube.apiserver import status

NAMESPACE = "/api/v1/namespaces/x"
JOBS = "/apis/batch/v1/namespaces/x/jobs"
UP = {"conditions": [{"type": "PodReadyToStartContainers", "status": "True"}]}


class FakeCluster:
    """`life(pod)` is called with every new pod; it changes it by `set_status`, or leaves it as it is."""

    def __init__(self, life: Callable[[str], None] = lambda _: None) -> None:
        self.life = life
        self.pods: dict[str, dict[str, Any]] = {}
        self.jobs: dict[str, int] = {}
        self.asked: list[str] = []
        """METHOD PATH of every call."""
        self.ready = True
        self.stuck = False
        """Pods do not go unless they are forced to."""
        self.answers: list[Callable[[web.Request], web.StreamResponse]] = []
        """What the next creates are answered with, instead of the truth."""
        self._version = 0
        self._watches: dict[str, list[asyncio.Queue[bytes]]] = {"pods": [], "events": []}
        self._events: list[dict[str, Any]] = []

    # --- what the kubelet does ----------------------------------------------------------------------------------

    def set_status(self, name: str, node: str = "n", **new: Any) -> None:
        pod = self.pods[name]
        pod["spec"]["nodeName"] = node
        pod["status"] = {**pod["status"], **new}
        self._tell("pods", "MODIFIED", pod)

    def come_up(self, name: str) -> None:
        self.set_status(name, **UP)

    def say(self, name: str, reason: str, message: str) -> None:
        about = {"kind": "Pod", "name": name, "uid": self.pods[name]["metadata"]["uid"]}
        number = len(self._events)
        event = {"metadata": {"name": f"e{number}", "uid": f"e{number}"}, "involvedObject": about, "count": 1}
        self._events.append({**event, "reason": reason, "message": message})
        self._tell("events", "ADDED", self._events[-1])

    def vanish(self, name: str) -> None:
        self._tell("pods", "DELETED", self.pods.pop(name))

    # --- the API ------------------------------------------------------------------------------------------------

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        path, method = request.path, request.method
        if "watch" in request.query:
            return await self._watch(request)
        self.asked.append(f"{method} {path}")
        match method, path:
            case "GET", "/version":
                return web.json_response({"gitVersion": "v1.34.4"})
            case "GET", "/api/v1/nodes/n/proxy/configz":
                return web.json_response({"kubeletconfig": {"runtimeRequestTimeout": "15s"}})
            case "GET", "/api/v1/nodes/n":
                state = {
                    "type": "Ready",
                    "status": str(self.ready),
                    "message": "Kubelet stopped posting node status.",
                }
                return web.json_response({"metadata": {"name": "n"}, "status": {"conditions": [state]}})
            case "GET", _:
                items = list(self.pods.values()) if path.endswith("pods") else self._events
                return web.json_response({"metadata": {"resourceVersion": str(self._version)}, "items": items})
            case "POST", _:
                return await self._create(request)
            case "DELETE", _:
                return self._delete(request)
        return status(404, "NotFound", path)

    async def _create(self, request: web.Request) -> web.StreamResponse:
        item = await request.json()
        name = item["metadata"]["name"]
        if self.answers:
            return self.answers.pop(0)(request)
        if name in self.pods:
            return status(409, "AlreadyExists", f'pods "{name}" already exists')
        self.make(item)
        return web.json_response(item, status=201)

    def make(self, item: dict[str, Any]) -> None:
        name = item["metadata"]["name"]
        if item["kind"] == "Job":
            self.jobs[name] = item["spec"]["completions"]
            for index in range(self.jobs[name]):
                metadata = {
                    "name": f"{name}-{index}-abcde",
                    "labels": {"job-name": name},
                    "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
                }
                self._add(metadata)
        else:
            self._add({"name": name})

    def _add(self, metadata: dict[str, Any]) -> None:
        name = metadata["name"]
        uid = f"uid-{name}"
        self.pods[name] = {"metadata": {"namespace": "x", "uid": uid, **metadata}, "spec": {}, "status": {}}
        self._tell("pods", "ADDED", self.pods[name])
        self.life(name)

    def _delete(self, request: web.Request) -> web.StreamResponse:
        _, _, name = request.path.removeprefix(f"{NAMESPACE}/pods").removeprefix(JOBS).rpartition("/")
        if request.path.startswith(JOBS):
            gone = [pod for pod in self.pods if pod.startswith(f"{name}-")]
        else:
            gone = [name] if name else list(self.pods)
        for pod in gone:
            if pod in self.pods and (not self.stuck or request.query.get("gracePeriodSeconds") == "0"):
                self.vanish(pod)
        return web.json_response({})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        waiting: asyncio.Queue[bytes] = asyncio.Queue()
        self._watches[request.path.rpartition("/")[2]].append(waiting)
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(await waiting.get())

    def _tell(self, kind: str, what: str, item: dict[str, Any]) -> None:
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        line = json.dumps({"type": what, "object": item}).encode() + b"\n"
        for waiting in self._watches[kind]:
            waiting.put_nowait(line)


def lose(cluster: FakeCluster, request: web.Request) -> web.StreamResponse:
    """The connection breaks before the answer is sent. Whether it was done, the caller cannot know."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()
