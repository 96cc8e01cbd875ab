"""What was there before a run changed it, kept in the cluster: a killed run can be undone from anywhere."""

from __future__ import annotations

import msgspec

from loadgen.core.errors import HarnessError
from loadgen.kube.api import KubeApi, KubeError
from loadgen.kube.cni import CniName

_NAME = "loadgen-saved"
_KEY = "saved.json"


class Saved(msgspec.Struct, frozen=True):
    """`settings` is the CNI adapter's own (cni.Cni.save)."""

    cni: CniName
    settings: dict[str, str]


async def write(api: KubeApi, namespace: str, cni: CniName, settings: dict[str, str]) -> None:
    """Before the first change. It goes with the namespace, which is removed once all has been put back."""
    content = msgspec.json.encode(Saved(cni, settings)).decode()
    await api.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": _NAME,
                "namespace": namespace,
                "labels": {"app.kubernetes.io/managed-by": "loadgen"},
            },
            "data": {_KEY: content},
        }
    )


async def read(api: KubeApi, namespace: str) -> Saved | None:
    """None: no run has changed anything yet. HarnessError when what is there cannot be understood."""
    try:
        found = await api.get(f"/api/v1/namespaces/{namespace}/configmaps/{_NAME}")
    except KubeError as error:
        if error.status == 404:
            return None
        raise
    try:
        return msgspec.json.decode(found["data"][_KEY], type=Saved)
    except (KeyError, msgspec.MsgspecError) as error:
        raise HarnessError(f"ConfigMap {namespace}/{_NAME}: not readable as what a run saved: {error}") from None
