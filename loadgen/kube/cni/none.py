"""The cluster's own network, as it is: nothing of it is changed, and what is asked of Cilium must be so already."""

from __future__ import annotations

from collections.abc import Mapping

from loadgen.core.errors import ConfigError
from loadgen.core.model import Cilium, Settings
from loadgen.kube.api import KubeApi, KubeError
from loadgen.kube.cni import CniFacts, CniName, ciliumvalues
from loadgen.kube.cni.ciliumvalues import Running
from loadgen.kube.objects import ListOf, Metadata, Seen

_NAMESPACE = "kube-system"
_CONFIG_MAP = f"/api/v1/namespaces/{_NAMESPACE}/configmaps/cilium-config"
_NETWORKS = (
    "cilium", "calico-node", "kindnet", "kube-flannel-ds", "kube-flannel", "aws-node", "azure-cni", "antrea-agent",
    "weave-net", "kube-router", "netd", "anetd",
)  # fmt: skip
"""DaemonSets that are a cluster's network, by the names that their projects give them."""


class _Named(Seen, frozen=True):
    metadata: Metadata = Metadata()


class NoneCni:
    """cni.Cni that does nothing."""

    name: CniName = "none"
    pins = ""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._config: dict[str, str] | None = None
        """Of a Cilium that is the cluster's network, once `facts` has looked for one."""

    def check(self, settings: Settings, where: str) -> None:
        """ConfigError when the variant asks for something of Cilium that is not so already."""
        wanted = settings.cilium
        if wanted == Cilium():
            return
        if self._config is None:
            raise ConfigError(f"{where}.cilium: --cni none changes nothing; use --cni cilium or --cni model")
        there = Running(shown={}, files=self._config)
        if wrong := ciliumvalues.differences(ciliumvalues.config_map(wanted), there):
            raise ConfigError(
                f"{where}.cilium: --cni none changes nothing, and this cluster's Cilium has {', '.join(wrong)}; use "
                "--cni cilium"
            )

    async def ensure(self, image: str) -> bool:  # noqa: ARG002 - the protocol's
        return False

    async def facts(self) -> CniFacts:
        return CniFacts("none", environment={"network": await self._network()})

    async def _network(self) -> str:
        """The name of what does it, as far as its DaemonSet tells."""
        path = f"/apis/apps/v1/namespaces/{_NAMESPACE}/daemonsets"
        there = {item.metadata.name for item in (await self._api.get(path, ListOf[_Named])).items}
        found = [name for name in _NETWORKS if name in there]
        if "cilium" in found:
            self._config = await self._cilium()
        return ", ".join(found) or "unknown"

    async def _cilium(self) -> dict[str, str] | None:
        try:
            return (await self._api.get(_CONFIG_MAP)).get("data") or {}
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    async def save(self) -> dict[str, str]:
        return {}

    async def apply(self, settings: Settings) -> None:
        pass

    async def restore(self, saved: Mapping[str, str]) -> None:
        pass

    async def agent_metrics(self, node: str) -> str | None:  # noqa: ARG002
        return None
