"""The wait for a DaemonSet's pods: whom it believes, and what it says of those that do not come."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from loadgen.core.errors import HarnessError
from loadgen.kube import daemonset
from loadgen.kube.daemonset import DaemonSet
from tests.kube.apiserver import talk

NEW = {"loadgen/generation": "2"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemonset, "POLL_S", 0.0)


def pod(node: str, *, generation: str = "2", ready: bool = True, **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": f"agent-{node}", "annotations": {"loadgen/generation": generation, "other": "x"}},
        "spec": {"nodeName": node},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}], **status},
    }


def ending(node: str) -> dict[str, Any]:
    found = pod(node)
    found["metadata"]["deletionTimestamp"] = "2026-11-30T00:00:00Z"
    return found


def waiting(reason: str, name: str = "agent") -> list[dict[str, Any]]:
    return [{"name": name, "image": "loadgen:9", "state": {"waiting": {"reason": reason}}}]


def served(
    tmp_path: Path, looks: list[list[dict[str, Any]]], work: Callable[[DaemonSet], Any], *, observed: int = 2
) -> Any:
    """`looks`: the pods as they are found, look by look; the last ones for ever."""
    left = list(looks)

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/log"):
            assert request.query["tailLines"] == "1"
            return web.Response(text="time=x level=ERROR msg=/opt/cni/bin has no ptp\n")
        if request.path.endswith("/pods"):
            assert request.query["labelSelector"] == "app.kubernetes.io/name=agent"
            return web.json_response({"items": left.pop(0) if len(left) > 1 else left[0]})
        assert request.path == "/apis/apps/v1/namespaces/kube-system/daemonsets/agent"
        status = {"observedGeneration": observed, "desiredNumberScheduled": 2}
        return web.json_response({"metadata": {"generation": 2}, "status": status})

    async def conversation(api: Any) -> Any:
        return await work(DaemonSet(api, "kube-system", "agent"))

    return talk(tmp_path, answer, conversation)


def test_it_waits_for_a_ready_pod_of_this_generation_on_every_node(tmp_path):
    looks = [
        [],
        [pod("a", generation="1"), pod("b", generation="1")],
        [ending("a"), pod("b", ready=False)],
        [pod("a", ready=False), pod("b")],
        [ending("a"), pod("a"), pod("b")],
        [],
    ]
    found = served(tmp_path, looks, lambda ds: ds.rolled_out(NEW))
    assert {node: p.metadata.name for node, p in found.items()} == {"a": "agent-a", "b": "agent-b"}


@pytest.mark.parametrize(
    ("pods", "says"),
    [
        ([pod("a")], r"agent: 1 of 2 nodes have it after 0 s: their pods have not been made"),
        ([pod("a"), ending("b")], r"node b: agent-b is still ending"),
        (
            [pod("a"), pod("b", ready=False, containerStatuses=waiting("CrashLoopBackOff"))],
            r"node b: container agent: CrashLoopBackOff: /opt/cni/bin has no ptp",
        ),
        (
            [pod("a"), pod("b", ready=False, containerStatuses=[{"name": "install", "state": {"running": {}}}])],
            r"node b: container install is not ready: /opt/cni/bin has no ptp",
        ),
        (
            [
                pod(
                    "b",
                    ready=False,
                    initContainerStatuses=waiting("CreateContainerError", "bpffs"),
                    containerStatuses=waiting("PodInitializing"),
                )
            ],
            r"0 of 2 nodes .* node b: container bpffs: CreateContainerError",
        ),
        (
            [pod("b", ready=False, phase="Pending", containerStatuses=waiting("ContainerCreating"))],
            r"node b: Pending",
        ),
    ],
)
def test_what_keeps_a_node_from_it(tmp_path, pods, says):
    with pytest.raises(HarnessError, match=says):
        served(tmp_path, [pods], lambda ds: ds.rolled_out(NEW, limit_s=0))


def test_a_missing_image_is_not_waited_for_to_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(daemonset, "PROBLEM_LIMIT_S", 0.0)
    pods = [pod("a"), pod("b", ready=False, initContainerStatuses=waiting("ErrImagePull", "bpffs"))]
    with pytest.raises(HarnessError, match=r"node b: ErrImagePull: loadgen:9: load the image there"):
        served(tmp_path, [pods], lambda ds: ds.rolled_out(NEW))


def test_a_controller_that_has_not_seen_the_change_is_not_believed(tmp_path):
    with pytest.raises(HarnessError, match="2 of 2 nodes have it"):
        served(tmp_path, [[pod("a"), pod("b")]], lambda ds: ds.rolled_out(NEW, limit_s=0.2), observed=1)


def test_gone(tmp_path):
    assert served(tmp_path, [[pod("a")], [ending("a")], []], lambda ds: ds.gone()) is None
    with pytest.raises(HarnessError, match="agent: pods do not end: agent-a on a"):
        served(tmp_path, [[ending("a")]], lambda ds: ds.gone(limit_s=0))
