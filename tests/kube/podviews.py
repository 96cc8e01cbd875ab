"""Pods and events as the API sends them, for tests of what is read from them."""

from __future__ import annotations

from typing import Any

import msgspec

from loadgen.kube.objects import Event, Pod

T0 = "2026-11-03T10:00:00Z"


def condition(kind: str, status: str, at: str = T0, **more: str) -> dict[str, str]:
    return {"type": kind, "status": status, "lastTransitionTime": at, **more}


def pod(
    name: str = "churn-abc-0",
    *,
    uid: str = "",
    node: str = "",
    metadata: dict[str, Any] | None = None,
    **status: Any,
) -> Pod:
    item = {
        "metadata": {
            "name": name,
            "namespace": "x",
            "uid": uid or f"uid-{name}",
            "creationTimestamp": T0,
            **(metadata or {}),
        },
        "spec": {"nodeName": node} if node else {},
        "status": status,
    }
    return msgspec.json.decode(msgspec.json.encode(item), type=Pod)


def up(name: str = "churn-abc-0", at: str = T0, **more: Any) -> Pod:
    return pod(name, node="n", conditions=[condition("PodReadyToStartContainers", "True", at)], **more)


def event(about: str, reason: str, message: str, *, uid: str = "", count: int | None = 1, name: str = "e") -> Event:
    """`uid` and `name` are the event's own; `about` the name of the pod it is about."""
    item = {
        "metadata": {"name": name, "uid": uid or f"{about} {reason} {message}"},
        "involvedObject": {"kind": "Pod", "name": about, "uid": f"uid-{about}"},
        "reason": reason,
        "message": message,
        "count": count,
    }
    return msgspec.json.decode(msgspec.json.encode(item), type=Event)
