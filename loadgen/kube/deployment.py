"""One variant on a cluster (ports.Deployment): its settings in force, its generators up, its probes at work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

from loadgen import __version__
from loadgen.core.errors import HarnessError
from loadgen.core.model import Churn, Dns, DnsRaceDrop, Load, Scenario, Storm, Variant
from loadgen.core.ports import ActiveFault, Emit, Running
from loadgen.core.units import NS_PER_S
from loadgen.kube import logs
from loadgen.kube.api import KubeApi
from loadgen.kube.churn import ChurnSpec
from loadgen.kube.cni import Cni
from loadgen.kube.generators import Generators
from loadgen.kube.guards import Node
from loadgen.kube.local import LocalLoad
from loadgen.kube.nodehelper import NodeHelper
from loadgen.kube.nodelocal import NodeLocalDns
from loadgen.kube.options import ClusterOptions
from loadgen.kube.scrape import Scraper

LOCAL_LEAD_NS = NS_PER_S // 20
_EMULATED = "all hosts of a kind cluster are containers of one kernel"


class Place(NamedTuple):
    """Where a session has settled: the same for all its variants."""

    api: KubeApi
    cni: Cni
    options: ClusterOptions
    node: Node
    run: str


class ClusterDeployment:
    """`build` brings everything up; what it makes is taken down by the exit stack it was given."""

    disposable = False

    def __init__(
        self, place: Place, scenario: Scenario, variant: Variant, log_dir: Path, say: Callable[[str], None]
    ) -> None:
        self._place = place
        self._scenario = scenario
        self._settings = variant.settings
        self._log_dir = log_dir
        self._say = say
        api, options, node = place.api, place.options, place.node
        self._helper = NodeHelper(api, options.namespace, node.name)
        self._generators = Generators(api, options.namespace, place.run, node.name, options.image)
        self._scraper = Scraper(api, node.name, place.cni, scenario.thresholds, run=place.run)
        self._cache: tuple[str, ...] = ()
        self.emulated: tuple[str, ...] = ()
        self.environment: dict[str, str] = {}

    async def build(self, stack: AsyncExitStack) -> None:
        place = self._place
        self._say(f"{place.cni.name}: applying the variant's settings")
        await place.cni.apply(self._settings)
        races = any(isinstance(fault, DnsRaceDrop) for fault in self._scenario.faults.values())
        await self._helper.deploy(place.options.image, race=races)
        generated = {n: load for n, load in self._scenario.loads.items() if isinstance(load, Storm | Dns)}
        await self._ensure_cache(stack)
        if generated:
            stack.push_async_callback(self._generators.remove)
        # Undone from the last to the first: logs are read before the pods go.
        stack.push_async_callback(logs.collect, place.api, place.options.namespace, self._log_dir)
        if generated:
            self._say(f"starting {sum(load.pods for load in generated.values())} generator pods")
            await self._generators.deploy(generated, self._settings)
        await self._describe()

    async def _ensure_cache(self, stack: AsyncExitStack) -> None:
        asks = any(isinstance(load, Dns) for load in self._scenario.loads.values())
        if not asks or self._settings.resolver.server != "nodelocal":
            return
        place = self._place
        cache = NodeLocalDns(place.api, place.options.namespace, place.node.name, place.options.image)
        stack.push_async_callback(cache.remove)
        found = await cache.ensure()
        self._say(f"NodeLocal DNSCache: {found.what}")
        self._cache = found.emulated

    async def _describe(self) -> None:
        """What is emulated and what must be equal for two runs to be comparable."""
        place = self._place
        facts = await place.cni.facts()
        self.environment = {
            "loadgen": __version__,
            "context": place.api.context,
            "kubernetes": place.api.version,
            "node": place.node.name,
            **place.node.facts,
            "cni": f"{facts.name} {facts.version}".strip(),
            "qps": f"{place.options.qps:g}",
            "burst": str(place.options.burst),
            **facts.environment,
            **self._generators.environment,
            **await self._scraper.describe(),
        }
        found = [*facts.emulated]
        found += self._cache
        if place.node.kind:
            found.append(_EMULATED)
        found += [text for name in self._scenario.faults if (text := self.fault(name).emulated)]
        self.emulated = tuple(found)

    @property
    def lead_ns(self) -> int:
        return max(LOCAL_LEAD_NS, self._generators.lead_ns)

    def fault(self, name: str) -> ActiveFault:
        return self._helper.fault(name, self._scenario.faults[name])

    async def prepare(self, name: str, load: Load, phase: str, seed: int, emit: Emit) -> Running:
        # Every phase begins with a look.
        await self._scraper.look(emit)
        if isinstance(load, Churn):
            return await self._prepare_churn(name, load, phase, seed, emit)
        return await self._generators.prepare(name, load, phase, seed, emit)

    async def _prepare_churn(self, name: str, load: Churn, phase: str, seed: int, emit: Emit) -> Running:
        options = self._place.options
        spec = ChurnSpec(
            context=self._place.api.context,
            namespace=options.namespace,
            run=self._place.run,
            node=self._place.node.name,
            image=options.pause_image,
            qps=options.qps,
            burst=options.burst,
            load=load,
            phase=phase,
            source=name,
            seed=seed,
        )
        running = await LocalLoad.start("loadgen.kube.churn", spec, self._log_dir, emit)
        try:
            await running.ready()
        except BaseException:
            await running.close()
            raise
        return running

    async def watch(self, emit: Emit) -> None:
        """Scrapes and the node's probe until cancelled; the first that fails ends the run."""
        parts = [
            asyncio.create_task(self._scraper.run(emit)),
            asyncio.create_task(self._helper.probe(emit, agent=self._place.cni.name == "model")),
        ]
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for part in done:
                part.result()
            raise HarnessError("the node's probe ended before the run did")
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
