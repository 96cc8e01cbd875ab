"""The cluster's network as something whose settings can be changed and put back: one adapter per choice of CNI."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

import msgspec

from loadgen.core.model import Settings
from loadgen.kube.options import CniName

if TYPE_CHECKING:
    from loadgen.kube.api import KubeApi


class CniFacts(msgspec.Struct, frozen=True):
    """What the report says of the network. Two runs are comparable when `environment` is equal."""

    name: str
    version: str = ""
    emulated: tuple[str, ...] = ()
    """What of it is not the real thing, a phrase each."""
    environment: dict[str, str] = {}


class Cni(Protocol):
    """How one kind of network takes a variant's settings."""

    name: CniName
    pins: str
    """Folder on the host where its CT tables are pinned, "" when it has none."""

    def check(self, settings: Settings, where: str) -> None:
        """ConfigError for what this network cannot apply, before anything is changed; `where`: the YAML path."""
        ...

    async def ensure(self, image: str) -> bool:
        """Install what is ours, if it is not there; True when this call installed it.

        Cilium and the cluster's own network are never installed by a run: ConfigError when they are not as needed.
        """
        ...

    async def facts(self) -> CniFacts: ...

    async def save(self) -> dict[str, str]:
        """What `restore` needs to put everything back, as small texts. Called before any change, `ensure`'s too."""
        ...

    async def apply(self, settings: Settings) -> None:
        """Return once every agent runs with the settings and has been asked for them; else HarnessError."""
        ...

    async def restore(self, saved: Mapping[str, str]) -> None:
        """Put back what `save` saw. Idempotent; also run by a later process that knows nothing but `saved`."""
        ...

    async def agent_metrics(self, node: str) -> str | None:
        """API path of the metrics of that node's agent (by pod proxy), None when it has none."""
        ...


_ADAPTERS = {
    "cilium": ("loadgen.kube.cni.cilium", "CiliumCni"),
    "none": ("loadgen.kube.cni.none", "NoneCni"),
    "model": ("loadgen.kube.cni.model", "ModelCni"),
}


def make(name: CniName, api: KubeApi) -> Cni:
    """The adapter of that name. Only its own module is imported: Helm is no business of a cluster without Cilium."""
    module, adapter = _ADAPTERS[name]
    return getattr(import_module(module), adapter)(api)
