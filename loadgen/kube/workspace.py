"""Our namespace in a cluster: claimed by one run at a time, removed with everything in it."""

from __future__ import annotations

import asyncio
from typing import Any

from loadgen.core.errors import ConfigError, HarnessError
from loadgen.kube.api import KubeApi, KubeError
from loadgen.kube.manifests import render

MANAGED = "app.kubernetes.io/managed-by"
RUN = "loadgen/run"
GONE_LIMIT_S = 180.0
POLL_S = 0.5


async def owner(api: KubeApi, namespace: str) -> str | None:
    """The run that has claimed the namespace; None when nobody of ours has."""
    there = await _find(api, namespace)
    labels = there["metadata"].get("labels", {}) if there else {}
    return labels.get(RUN, "unknown") if labels.get(MANAGED) == "loadgen" else None


async def claim(api: KubeApi, namespace: str, run: str) -> None:
    """Make the namespace; ConfigError when there is one that is not ours, or that another run has."""
    holder = await owner(api, namespace)
    if holder is not None:
        raise ConfigError(
            f"namespace {namespace} in {api.context} belongs to run {holder}; if that run is dead: "
            f"loadgen clean --context {api.context} --namespace {namespace}"
        )
    if await _find(api, namespace) is not None:
        raise ConfigError(
            f"namespace {namespace} exists in {api.context} and is not loadgen's; choose another by --namespace"
        )
    for item in render("namespace", namespace=namespace, run=run):
        await api.apply(item)


async def remove(api: KubeApi, namespace: str) -> bool:
    """Delete the namespace and wait until it is gone. False when there is none, or one that is not ours."""
    if await owner(api, namespace) is None:
        return False
    await api.delete(f"/api/v1/namespaces/{namespace}")
    there: dict[str, Any] | None = None
    try:
        async with asyncio.timeout(GONE_LIMIT_S):
            while (there := await _find(api, namespace)) is not None:  # noqa: ASYNC110 - only the API knows
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise HarnessError(f"namespace {namespace} is still there after {GONE_LIMIT_S:g} s: {_why(there)}") from None
    return True


def _why(namespace: dict[str, Any] | None) -> str:
    conditions = (namespace or {}).get("status", {}).get("conditions", [])
    said = [c["message"] for c in conditions if c.get("status") == "True" and c.get("message")]
    return "; ".join(said) or "it says no reason"


async def _find(api: KubeApi, namespace: str) -> dict[str, Any] | None:
    try:
        return await api.get(f"/api/v1/namespaces/{namespace}")
    except KubeError as error:
        if error.status == 404:
            return None
        raise
