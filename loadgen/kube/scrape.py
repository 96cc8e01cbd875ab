"""Metrics of the node under test through the API server: kubelet, containerd, the network's agent, CoreDNS.

No Prometheus is needed. Every source is a page that is read every few seconds; one that does not answer is left out
of that look, never made up. A source that a threshold rests on must answer, the others are welcome.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from loadgen.core import ciliummetrics, pages
from loadgen.core.errors import ConfigError, HarnessError, LoadgenError
from loadgen.core.pages import Page
from loadgen.core.ports import Emit
from loadgen.core.samples import Reading
from loadgen.core.units import NS_PER_S
from loadgen.kube import podbody
from loadgen.kube.api import KubeApi, KubeError
from loadgen.kube.cni import Cni
from loadgen.kube.objects import ListOf, Metadata, Seen
from loadgen.kube.watch import Kind, Watch

EVERY_S = 3.0
LIMIT_S = 8.0
"""One page may take so long; on a starved node even /metrics does."""
PATIENCE_S = 45.0
"""A source that is asked for may be silent so long: a kubelet that restarts is not the end of a run."""
LAST_LOOK_S = 10.0
FIRST_TRIES = 3
RETRY_S = 1.0

CONTAINERD_PORT = 1338
"""Where our kind configs let containerd show its metrics; a cluster of others' may do the same."""
COREDNS_PORT = 9153
_DNS = "/api/v1/namespaces/kube-system/pods"
_DNS_SELECTOR = "k8s-app=kube-dns"

OTHER_PODS, OTHER_CNI_PODS = "other_pods|all", "other_pods|cni"
"""Pods on the node that are not of this run, as many as have been seen; without those on the host's network."""


class NotThere(Exception):
    """The source does not exist here, and why."""


class Source(Protocol):
    """One page, or pages that are one."""

    name: str
    page: Page

    async def read(self) -> list[Reading]:
        """A look. NotThere, KubeError, LoadgenError or ValueError when there is nothing to see."""
        ...


class Scraper:
    """Of one node. `thresholds`: those of the scenario, which say what sources are asked for; `run`: the id that all
    our pods are labelled with, so that others' are known."""

    def __init__(self, api: KubeApi, node: str, cni: Cni, thresholds: Collection[str] = (), run: str = "") -> None:
        self._api, self._node = api, node
        self._thresholds = tuple(thresholds)
        self._sources: tuple[Source, ...] = (
            NodePage(api, "kubelet", api.node_proxy(node, "metrics"), pages.KUBELET),
            NodePage(api, "containerd", api.node_proxy(node, "v1/metrics", CONTAINERD_PORT), pages.CONTAINERD),
            AgentPage(api, node, cni),
            DnsServers(api),
        )
        self._others = OtherPods(api, node, run)
        self._silent_since: dict[str, float] = {}
        self._looking = asyncio.Lock()

    async def describe(self) -> dict[str, str]:
        """Which sources there are, for the run's environment. ConfigError when one that is asked for is not there."""
        return dict(await asyncio.gather(*(self._first_look(source) for source in self._sources)))

    async def _first_look(self, source: Source) -> tuple[str, str]:
        why = await self._why_not(source)
        if why and self._asked(source):
            raise ConfigError(f"node {self._node}: no metrics of {source.name}, on which a threshold rests: {why}")
        return f"{source.name} metrics", f"none: {why}" if why else "read"

    async def _why_not(self, source: Source) -> str:
        """Why it cannot be read, empty when it can. What may pass is tried again."""
        why = ""
        for attempt in range(FIRST_TRIES):
            await asyncio.sleep(RETRY_S * min(attempt, 1))
            try:
                await source.read()
                return ""
            except (NotThere, ConfigError) as error:
                return _words(error)
            except (KubeError, HarnessError, ValueError) as error:
                why = _words(error)
                if isinstance(error, KubeError) and (error.status < 500 or why == _NOBODY):
                    return why
        return why

    def _asked(self, source: Source) -> bool:
        return pages.asked(source.page, self._thresholds)

    async def run(self, emit: Emit) -> None:
        """Look every few seconds until cancelled, and once more then: the end of the run is seen too.

        HarnessError when a source that is asked for stays silent.
        """
        others = asyncio.create_task(self._others.follow())
        try:
            while True:
                began = time.monotonic()
                await self.look(emit)
                await asyncio.sleep(max(0.0, EVERY_S - (time.monotonic() - began)))
        except asyncio.CancelledError:
            try:
                async with asyncio.timeout(LAST_LOOK_S):
                    await self.look(emit)
            except (TimeoutError, HarnessError):
                pass  # the run is over; the analysis sees by the last reading how far it can see
            raise
        finally:
            others.cancel()
            await asyncio.gather(others, return_exceptions=True)

    async def look(self, emit: Emit) -> None:
        """Read all sources now. Called beside `run` where a phase begins or ends."""
        async with self._looking:
            await asyncio.gather(*(self._look_at(source, emit) for source in self._sources))
            for reading in self._others.readings():
                emit(reading)

    async def _look_at(self, source: Source, emit: Emit) -> None:
        try:
            found = await source.read()
        except (KubeError, LoadgenError, ValueError, NotThere) as error:
            self._missed(source, error)
            return
        self._silent_since.pop(source.name, None)
        for reading in found:
            emit(reading)

    def _missed(self, source: Source, error: Exception) -> None:
        now = time.monotonic()
        silent_s = now - self._silent_since.setdefault(source.name, now)
        if silent_s >= PATIENCE_S and self._asked(source):
            raise HarnessError(
                f"node {self._node}: no metrics of {source.name} for {silent_s:.0f} s, and a threshold rests on "
                f"them: {_words(error)}"
            ) from error


_NOBODY = "nothing listens there"


def _words(error: Exception) -> str:
    """Why, in one line that is the same in every run."""
    text = error.message or f"HTTP {error.status}" if isinstance(error, KubeError) else str(error)
    if "connection refused" in text:
        return _NOBODY
    return text.splitlines()[0] if text else type(error).__name__


# --- sources ---------------------------------------------------------------------------------------------------


class NodePage:
    """A page that the node itself serves."""

    def __init__(self, api: KubeApi, name: str, path: str, page: Page) -> None:
        self._api, self._path = api, path
        self.name, self.page = name, page

    async def read(self) -> list[Reading]:
        began_ns = time.monotonic_ns()
        found = await _page(self._api, self._path, self.page)
        t_ns = found[0].t_ns
        return [*found, Reading(t_ns, self.name + pages.TOOK, (t_ns - began_ns) / NS_PER_S)]


class AgentPage:
    """The page of the network's agent on the node, whose pod is another one after a restart."""

    name = "agent"

    def __init__(self, api: KubeApi, node: str, cni: Cni) -> None:
        self._api, self._node, self._cni = api, node, cni
        self._path = ""
        self.page: Page = ciliummetrics.page("")

    async def read(self) -> list[Reading]:
        if not self._path:
            path = await self._cni.agent_metrics(self._node)
            if path is None:
                raise NotThere("the network has none")
            self._path = path
            self.page = ciliummetrics.page((await self._cni.facts()).version)
        try:
            return await _page(self._api, self._path, self.page)
        except (KubeError, HarnessError):
            self._path = ""
            raise


class DnsServers:
    """All CoreDNS pods as one. A pod that comes or restarts begins at 0 and the sum goes on growing."""

    name = "CoreDNS"
    page = pages.COREDNS

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._totals: dict[str, float] = {}
        self._last: dict[tuple[str, str], float] = {}

    async def read(self) -> list[Reading]:
        pods = await self._api.get(_DNS, ListOf[_Named], labelSelector=_DNS_SELECTOR)
        names = [pod.metadata.name for pod in pods.items if pod.metadata.deletion_timestamp is None]
        if not names:
            raise NotThere(f"no pod {_DNS_SELECTOR} in kube-system")
        paths = [self._api.pod_proxy("kube-system", name, COREDNS_PORT, "metrics") for name in names]
        looks = await asyncio.gather(*(_page(self._api, path, self.page) for path in paths))
        # The totals move only once every pod has answered: a sum over some of them is none.
        for name, look in zip(names, looks, strict=True):
            for reading in look:
                self._add(name, reading)
        t_ns = max(reading.t_ns for look in looks for reading in look)
        return [Reading(t_ns, series, total) for series, total in self._totals.items()]

    def _add(self, pod: str, reading: Reading) -> None:
        before = self._last.get((pod, reading.series), 0.0)
        grown = reading.value - before if reading.value >= before else reading.value
        self._totals[reading.series] = self._totals.get(reading.series, 0.0) + grown
        self._last[pod, reading.series] = reading.value


class _PodSpec(Seen, frozen=True):
    host_network: bool = False


class _Other(Seen, frozen=True):
    metadata: Metadata
    spec: _PodSpec = _PodSpec()


class _Named(Seen, frozen=True):
    metadata: Metadata


class OtherPods:
    """Pods that came to the node and are not of this run: the kubelet counts their sandboxes as well.

    They are watched: many live shorter than from one look to the next.
    """

    def __init__(self, api: KubeApi, node: str, run: str) -> None:
        # Without a run's id at least the churns' pods are known.
        selector = f"{podbody.RUN}!={run}" if run else f"!{podbody.CHURN}"
        fields = f"spec.nodeName={node}"
        self._watch = Watch(api, "/api/v1/pods", _Other, self.saw, selector=selector, fields=fields)
        self._seen: dict[str, bool] = {}
        self._lost = False

    async def follow(self) -> None:
        """Until cancelled. When we may not, or the watch is lost, it is no longer known who came."""
        try:
            await self._watch.run()
        except LoadgenError:
            self._lost = True

    def saw(self, kind: Kind, pod: _Other, received_ns: int) -> None:  # noqa: ARG002
        """A pod of others in a new state, as kube.watch tells it."""
        self._seen[pod.metadata.uid] = pod.spec.host_network

    def readings(self) -> Iterator[Reading]:
        """As many as were ever seen; nothing while that is not known."""
        if self._watch.synced.is_set() and not self._lost:
            t_ns = time.monotonic_ns()
            yield Reading(t_ns, OTHER_PODS, float(len(self._seen)))
            yield Reading(t_ns, OTHER_CNI_PODS, float(sum(not host for host in self._seen.values())))


async def _page(api: KubeApi, path: str, page: Sequence[pages.Wanted]) -> list[Reading]:
    text = (await api.raw("GET", path, limit_s=LIMIT_S)).decode(errors="replace")
    found = pages.read(page, text, time.monotonic_ns())
    if not found:
        raise ValueError(f"{path}: nothing of what is wanted is on that page")
    return found
