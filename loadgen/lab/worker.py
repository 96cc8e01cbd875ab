"""`python -m loadgen.lab.worker SPEC.json`: one load's work in one namespace, or the node's probe."""

from __future__ import annotations

from pathlib import Path

import msgspec

from loadgen.core.model import Churn, Dns, Load, Resolver, Storm
from loadgen.core.ports import Driver
from loadgen.drivers import host
from loadgen.lab import addresses, rules


class ChurnPlace(msgspec.Struct, frozen=True):
    """Where the kubelet model finds what it calls."""

    netns_dir: str
    plugin: str
    agent_socket: str


class ProbePlace(msgspec.Struct, frozen=True):
    agent_socket: str
    pins: str
    dns_backends: tuple[str, ...]


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker is to do. `load` None: it is the probe."""

    load: Load | None
    phase: str
    source: str
    seed: int
    resolver: Resolver = Resolver()
    churn: ChurnPlace | None = None
    probe: ProbePlace | None = None


def driver(spec: WorkerSpec) -> Driver:
    """The driver that `spec.load` means, or the probe. Imports only what this worker needs."""
    match spec.load:
        case Storm() as load:
            from loadgen.drivers.storm import StormDriver

            targets = [(addresses.datanode(i), addresses.DATANODE_PORT) for i in range(load.targets)]
            return StormDriver(load, spec.source, targets)
        case Dns() as load:
            nodelocal = spec.resolver.server == "nodelocal"
            server = str(addresses.NODELOCAL_DNS if nodelocal else addresses.CLUSTER_DNS)
            if load.via == "fast":
                from loadgen.drivers.pairs import PairsDriver

                return PairsDriver(load, spec.resolver, [server], spec.source)
            if load.via != "wire":
                from loadgen.drivers.libc import LibcDriver

                return LibcDriver(load, spec.source, resolver=spec.resolver, server=server)
            from loadgen.drivers.dns import DnsDriver

            return DnsDriver(load, spec.resolver, [server], spec.source)
        case Churn() as load:
            from loadgen.drivers.churn import ChurnDriver
            from loadgen.lab.kubelet import Kubelet, KubeletConfig

            assert spec.churn is not None
            place = spec.churn
            config = KubeletConfig(Path(place.netns_dir), Path(place.plugin), Path(place.agent_socket))
            return ChurnDriver(load, lambda: Kubelet(config, spec.seed), spec.source)
        case None:
            assert spec.probe is not None
            return probe(spec.probe)
    raise TypeError(f"no driver for {spec.load!r}")


def probe(place: ProbePlace) -> Driver:
    """The probe of the lab's node, which has all that can be looked at."""
    from loadgen.probes import node

    servers = [(backend, addresses.DNS_PORT) for backend in place.dns_backends]
    looks: list[node.Look] = [
        node.AgentLook(Path(place.agent_socket)),
        node.NetfilterLook((rules.RACE, rules.RACE_COUNTER)),
        node.DnsServersLook(servers),
        node.TablesLook(Path(place.pins)),
    ]
    return node.NodeProbe(looks)


if __name__ == "__main__":
    host.main(WorkerSpec, driver)
