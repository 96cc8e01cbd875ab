"""What our pods and the cluster said, kept beside the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loadgen.core.errors import LoadgenError
from loadgen.kube.api import KubeApi, KubeError
from loadgen.kube.workspace import MANAGED

_TAIL_LINES = 5000
_AGENTS = ("kube-system", "app.kubernetes.io/name=loadgen-agent")


async def collect(api: KubeApi, namespace: str, folder: Path) -> None:
    """Logs of our long-lived pods and the namespace's events into `folder`. What cannot be had is noted there.

    It runs as a run ends, well or not: nothing here may hide how it ended.
    """
    try:
        for place, selector in ((namespace, f"{MANAGED}=loadgen,loadgen/part"), _AGENTS):
            pods = await api.get(f"/api/v1/namespaces/{place}/pods", labelSelector=selector)
            for pod in pods["items"]:
                await _pod(api, pod, folder)
        events = await api.get(f"/api/v1/namespaces/{namespace}/events")
        lines = [_event(item) for item in events["items"]]
        (folder / "events.log").write_text("".join(sorted(lines)))
    except (KubeError, LoadgenError, OSError) as error:
        (folder / "not-collected.log").write_text(f"{error}\n")


async def _pod(api: KubeApi, pod: dict[str, Any], folder: Path) -> None:
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    for container in pod["spec"]["containers"]:
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/log"
        text = await api.text(path, container=container["name"], tailLines=str(_TAIL_LINES))
        (folder / f"{name}.{container['name']}.log").write_text(text)


def _event(item: dict[str, Any]) -> str:
    about = item.get("involvedObject", {})
    when = item.get("lastTimestamp") or item.get("eventTime") or ""
    return f"{when} {about.get('kind')}/{about.get('name')} {item.get('reason')}: {item.get('message')}\n"
