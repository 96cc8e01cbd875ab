"""A kind cluster as a testbed: made when there is none of that name, used like any other cluster, deleted again."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from loadgen.core.errors import ConfigError
from loadgen.core.model import Bpf, Scenario, Variant
from loadgen.kube import hostchecks, versions
from loadgen.kube.api import KubeApi
from loadgen.kube.bundle import Bundle, collect, fetch_chart
from loadgen.kube.cni import ciliuminstall, make
from loadgen.kube.deployment import ClusterDeployment
from loadgen.kube.helm import Chart
from loadgen.kube.kindcluster import KindCluster
from loadgen.kube.options import ClusterOptions, kind_name
from loadgen.kube.testbed import ClusterTestbed, Say

TOPOLOGIES = {"cilium": "default", "model": "own-cni", "none": "own-cni"}
"""Topology that suits a CNI choice: Cilium wants a cluster without one, the others need the cluster's own."""


class KindTestbed(ClusterTestbed):
    """As any cluster, once it is there."""

    name = "kind"

    def __init__(self, options: ClusterOptions, say: Say) -> None:
        self._cluster = KindCluster(kind_name())
        if options.context not in (None, self._cluster.context):
            raise ConfigError(
                f"--context {options.context}: the context of kind cluster {self._cluster.name} is "
                f"{self._cluster.context}; other clusters are used with --testbed cluster"
            )
        super().__init__(msgspec.structs.replace(options, context=self._cluster.context), say)

    @asynccontextmanager
    async def session(self, scenario: Scenario, variants: Sequence[Variant]) -> AsyncIterator[None]:
        made = not await self._cluster.exists()
        if made:
            await bring_up(self._options, self._say, tables=largest(variants))
        try:
            async with super().session(scenario, variants):
                yield
        finally:
            if made and not self._options.keep:
                self._say(f"kind cluster {self._cluster.name}: deleting it")
                await self._cluster.delete()

    @asynccontextmanager
    async def deploy(self, scenario: Scenario, variant: Variant, log_dir: str) -> AsyncIterator[ClusterDeployment]:
        try:
            async with super().deploy(scenario, variant, log_dir) as deployment:
                yield deployment
        except Exception:
            self._say(f"something failed: the nodes' logs go to {log_dir}/kind")
            if why := await self._cluster.export_logs(Path(log_dir) / "kind"):
                self._say(f"the nodes' logs are not all there: {why}")
            raise


def largest(variants: Sequence[Variant]) -> Bpf:
    """The CT tables that a node has to bear: one variant follows another on the same node."""
    tables = [variant.settings.cilium.bpf for variant in variants] or [Bpf()]
    return Bpf(max(t.ct_tcp_max for t in tables), max(t.ct_any_max for t in tables))


async def bring_up(
    options: ClusterOptions, say: Say, *, switch_context: bool = False, tables: Bpf | None = None
) -> str:
    """Make the cluster with CNI and image in it; returns its context. A half-made cluster is deleted again.

    tables: the largest that a node is to hold. ConfigError before anything is made: for what is missing here, and
    for versions that do not fit together.
    """
    cluster = KindCluster(kind_name())
    topology = options.kind_config or TOPOLOGIES[options.cni]
    await hostchecks.require(options.cni)
    kit = await _ingredients(options, say)
    await hostchecks.require(
        options.cni,
        hostchecks.Plan.of(
            topology,
            cni=options.cni,
            name=cluster.name,
            tables=tables or Bpf(),
            cgroup_v2=kit.needs_cgroup_v2,
            images=(kit.node_image,) if kit.node_image else (),
        ),
    )
    say(f"kind cluster {cluster.name}: making it (topology {topology})")
    await cluster.create(topology, image=kit.node_image, switch_context=switch_context)
    try:
        await _fill(cluster, kit, options, say)
    except BaseException:
        say(f"kind cluster {cluster.name}: deleting it again")
        await cluster.delete()
        raise
    return cluster.context


class Ingredients(NamedTuple):
    """What a cluster is made of: from registries, or from a bundle."""

    node_image: str | None
    needs_cgroup_v2: bool
    source: Bundle | versions.Resolved


async def _ingredients(options: ClusterOptions, say: Say) -> Ingredients:
    kind = await hostchecks.kind_version()
    if options.bundle is not None:
        bundle = Bundle.open(options.bundle)
        notes = await bundle.verify(kind=kind, cilium=options.cilium_version)
        await bundle.load_node_image()
        found = Ingredients(options.node_image or bundle.node_image, False, bundle)
    else:
        pins = versions.resolve(kind=kind, cilium=options.cilium_version)
        notes = pins.notes if options.cni == "cilium" else ()
        pinned = str(pins.node) if pins.node and options.cni == "cilium" else None
        needs_v2 = options.node_image is None and pins.needs_cgroup_v2
        found = Ingredients(options.node_image or pinned, needs_v2, pins)
    for note in notes:
        say(note)
    return found


async def _fill(cluster: KindCluster, kit: Ingredients, options: ClusterOptions, say: Say) -> None:
    if isinstance(kit.source, Bundle):
        say(f"{options.bundle}: loading its images into the nodes")
        await kit.source.load_into(cluster)
    else:
        say(f"{options.image}: loading it into the nodes")
        await cluster.load_image(options.image)
    async with KubeApi.from_kubeconfig(cluster.context) as api:
        await api.probe()
        if options.cni == "cilium":
            await _install_cilium(api, kit.source, say)
        else:
            await ciliuminstall.until_usable(api)
            await make(options.cni, api).ensure(options.image)


async def _install_cilium(api: KubeApi, source: Bundle | versions.Resolved, say: Say) -> None:
    """By a chart that is what the table of versions, or the bundle's manifest, says it is."""
    if isinstance(source, Bundle):
        say(f"Cilium {source.manifest.cilium}: installing it by Helm from the bundle")
        await ciliuminstall.install(api, source.chart, bundled=True)
        return
    say(f"Cilium {source.cilium}: installing it by Helm")
    with tempfile.TemporaryDirectory(prefix="loadgen-chart-") as folder:
        await ciliuminstall.install(api, Chart(str(await fetch_chart(source, Path(folder)))))


async def make_bundle(options: ClusterOptions, out: Path, say: Say) -> None:
    """Collect what `bring_up` needs on a machine without registries."""
    kind = await hostchecks.kind_version()
    pins = versions.resolve(kind=kind, cilium=options.cilium_version)
    await collect(out, pins, kind, [options.image, options.pause_image], say, node_image=options.node_image)


async def take_down(name: str) -> bool:
    """Delete the cluster; False when there is none of that name."""
    cluster = KindCluster(name)
    if not await cluster.exists():
        return False
    await cluster.delete()
    return True
