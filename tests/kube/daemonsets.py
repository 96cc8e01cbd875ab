"""A DaemonSet behind a real HTTP server, whose controller takes one step whenever somebody looks at the pods."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from tests.kube.apiserver import status

PATH = "/apis/apps/v1/namespaces/kube-system/daemonsets/cilium"
PODS = "/api/v1/namespaces/kube-system/pods"


class Controller:
    """`slow`: looks that it takes to notice a change. `start`: looks that a new pod takes to become Ready."""

    def __init__(self, nodes: int = 2, *, slow: int = 2, start: int = 2, on_delete: bool = False) -> None:
        self.slow, self.start, self.on_delete = slow, start, on_delete
        self.annotations: dict[str, str] = {}
        self.generation = self.observed = 1
        self.noticed_in = 0
        self.made = 0
        self.dies = ""
        """Why new pods never become Ready."""
        self.log = ""
        self.nodes = [f"node-{number}" for number in range(nodes)]
        self.pods = [self._new(node, ready=True) for node in self.nodes]
        self.deleted: list[str] = []
        self.both_gone = False
        """Whether two nodes were ever without a Ready pod at once."""

    def _new(self, node: str, *, ready: bool = False) -> dict[str, Any]:
        self.made += 1
        name = f"cilium-{self.made}"
        return {"name": name, "uid": f"uid-{self.made}", "node": node, "template": dict(self.annotations),
                "age": self.start if ready else 0}  # fmt: skip

    def step(self) -> None:
        if self.observed < self.generation:
            self.noticed_in -= 1
            if self.noticed_in <= 0:
                self.observed = self.generation
        for pod in self.pods:
            pod["age"] += 1
        old = [pod for pod in self.pods if pod["template"] != self.annotations]
        if self.observed == self.generation and old and not self.on_delete:
            self._replace(old[0])
        missing = set(self.nodes) - {pod["node"] for pod in self.pods}
        self.pods += [self._new(node) for node in sorted(missing)]
        if sum(not self._ready(pod) for pod in self.pods) > 1:
            self.both_gone = True

    def _replace(self, pod: dict[str, Any]) -> None:
        self.pods[self.pods.index(pod)] = self._new(pod["node"])

    def _ready(self, pod: dict[str, Any]) -> bool:
        return pod["age"] >= self.start and not (self.dies and int(pod["uid"][4:]) > len(self.nodes))

    # --- as the API shows it ------------------------------------------------------------------------------------

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == PATH and request.method == "PATCH":
            patch = json.loads(await request.read())["spec"]["template"]["metadata"]["annotations"]
            before = dict(self.annotations)
            for key, value in patch.items():
                self.annotations.pop(key, None) if value is None else self.annotations.__setitem__(key, value)
            if self.annotations != before:
                self.generation += 1
                self.noticed_in = self.slow
            return web.json_response(self.daemonset())
        if request.path == PATH:
            return web.json_response(self.daemonset())
        if request.path == PODS:
            self.step()
            return web.json_response({"items": [self.pod(pod) for pod in self.pods]})
        name = request.path.removeprefix(f"{PODS}/").partition("/")[0]
        if request.method == "DELETE":
            self.deleted.append(name)
            self.pods = [pod for pod in self.pods if pod["name"] != name]
            return web.json_response({})
        if request.path.endswith("/log"):
            return web.Response(text=self.log)
        return status(404, "NotFound", request.path)

    def daemonset(self) -> dict[str, Any]:
        # Counters are those of the generation that was noticed last: after a change they are the old ones.
        current = self.observed == self.generation
        updated = [pod for pod in self.pods if pod["template"] == self.annotations] if current else self.pods
        return {
            "metadata": {"name": "cilium", "generation": self.generation},
            "spec": {
                "updateStrategy": {"type": "OnDelete" if self.on_delete else "RollingUpdate"},
                "template": {"metadata": {"annotations": self.annotations}, "spec": {}},
            },
            "status": {
                "observedGeneration": self.observed,
                "desiredNumberScheduled": len(self.nodes),
                "updatedNumberScheduled": len(updated),
            },
        }

    def pod(self, pod: dict[str, Any]) -> dict[str, Any]:
        ready = self._ready(pod)
        container: dict[str, Any] = {"name": "cilium-agent", "ready": ready, "state": {"running": {}}}
        if self.dies and not ready:
            container["state"] = {"waiting": {"reason": self.dies, "message": "back-off"}}
            container["restartCount"] = pod["age"] if self.dies == "CrashLoopBackOff" else 0
        return {
            "metadata": {"name": pod["name"], "namespace": "kube-system", "uid": pod["uid"]},
            "spec": {"nodeName": pod["node"]},
            "status": {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": str(ready)}],
                "containerStatuses": [container],
            },
        }
