"""NodeLocal DNSCache for the variants that want one: the cluster's own, or one made on the node under test."""

from __future__ import annotations

import msgspec

from loadgen.core.errors import ConfigError
from loadgen.kube.api import KubeApi, KubeError
from loadgen.kube.daemonset import DaemonSet
from loadgen.kube.manifests import render

ADDRESS = "169.254.20.10"
"""Where NodeLocal DNSCache listens on every node, by its own manifest."""
NAMESPACE, THEIRS = "kube-system", "node-local-dns"
NAME = "loadgen-nodelocaldns"
LOOK_FOR = "k8s-app=kube-dns"
_OURS = (
    "NodeLocal DNSCache: the cluster's own CoreDNS ({}) by its rules, on {} of the node, with our NOTRACK rules, not "
    "NodeLocal's own image"
)


class Found(msgspec.Struct, frozen=True):
    """`what` it is, in a few words. `emulated`: what a report must say of it; nothing of a real one."""

    what: str
    emulated: tuple[str, ...] = ()


class NodeLocalDns:
    """`ensure`, and `remove` afterwards, whatever happened in between."""

    def __init__(self, api: KubeApi, namespace: str, node: str, image: str) -> None:
        self._api, self._namespace, self._node, self._image = api, namespace, node, image
        self._set = DaemonSet(api, namespace, NAME)

    async def ensure(self) -> Found:
        """Return when it answers on the node.

        ConfigError where there is no CoreDNS to make one of, HarnessError when it does not come up.
        """
        if (theirs := await self._theirs()) is not None:
            return theirs
        coredns, upstream = await self._coredns(), await self._upstream()
        values = {"namespace": self._namespace, "node": self._node, "image": self._image}
        for item in render("nodelocaldns", **values, coredns=coredns, upstream=upstream, address=ADDRESS):
            await self._api.apply(item)
        await self._set.rolled_out({})
        return Found(f"{coredns} on {self._node}, as this cluster has none", (_OURS.format(coredns, ADDRESS),))

    async def remove(self) -> None:
        """Idempotent. Its pod takes address and rules along."""
        await self._api.delete(self._set.path)
        await self._api.delete(f"/api/v1/namespaces/{self._namespace}/configmaps/{NAME}")
        await self._set.gone()

    async def _theirs(self) -> Found | None:
        try:
            found = await self._api.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/{THEIRS}")
        except KubeError as error:
            if error.status == 404:
                return None
            raise
        image = found["spec"]["template"]["spec"]["containers"][0]["image"]
        return Found(f"the cluster's own, {image}")

    async def _coredns(self) -> str:
        """Image of the cluster's DNS."""
        pods = (await self._api.get(f"/api/v1/namespaces/{NAMESPACE}/pods", labelSelector=LOOK_FOR))["items"]
        images = [c["image"] for pod in pods for c in pod["spec"]["containers"] if c["name"] == "coredns"]
        if not images:
            raise ConfigError(
                f"settings.resolver.server: nodelocal: this cluster has neither {NAMESPACE}/{THEIRS} nor CoreDNS "
                f"pods ({LOOK_FOR}) to make a cache of; install NodeLocal DNSCache, or leave that variant out"
            )
        return images[0]

    async def _upstream(self) -> str:
        path = f"/api/v1/namespaces/{NAMESPACE}/services"
        services = (await self._api.get(path, labelSelector=LOOK_FOR))["items"]
        if not services:
            raise ConfigError(f"settings.resolver.server: nodelocal: no Service with {LOOK_FOR} in {NAMESPACE}")
        return services[0]["spec"]["clusterIP"]
