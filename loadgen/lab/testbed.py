"""The lab as a testbed (ports.Testbed): one variant applied to a fresh set of namespaces, tables and processes."""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from loadgen import __version__
from loadgen.core import cilium, resolvconf
from loadgen.core.errors import ConfigError, HarnessError
from loadgen.core.model import (
    Churn,
    CtFill,
    Dns,
    DnsRaceDrop,
    Load,
    Resolver,
    Scenario,
    Settings,
    Storm,
    Variant,
)
from loadgen.core.ports import ActiveFault, Attempt, Emit, Running
from loadgen.core.units import NS_PER_S
from loadgen.drivers import libc
from loadgen.drivers.dns import DnsDriver
from loadgen.drivers.pairs import PairsDriver
from loadgen.faults.ct_fill import CtFillFault
from loadgen.faults.race_drop import RaceDropFault
from loadgen.kernel import bpf, support
from loadgen.kernel.threads import to_thread
from loadgen.lab import addresses as plan
from loadgen.lab import rules, topology
from loadgen.lab.agent.config import AgentConfig
from loadgen.lab.dnsserver import DnsServerConfig
from loadgen.lab.kubelet import Kubelet, KubeletConfig
from loadgen.lab.loads import WorkerLoad
from loadgen.lab.nodelocal import NodeLocalConfig
from loadgen.lab.services import Service
from loadgen.lab.sink import SinkConfig
from loadgen.lab.state import LabState
from loadgen.lab.worker import ChurnPlace, ProbePlace, WorkerSpec

PLUGIN = Path(__file__).with_name("cni.py")

_BYTES_PER_ENTRY = 136
"""Preallocated LRU hash, 14-byte keys and 56-byte values: about 120 B an element and a 16 B bucket."""
_BYTES_FOR_THE_REST = 600 << 20

CLIENT_POD_LIMIT_NS = 60 * NS_PER_S
LAST_LOOK_S = 10.0
NOTICE_S = 1.0
"""A dead service is noticed this soon after the probe has complained."""

_EMULATED = (
    "the Cilium agent is a model (profile {profile}); the CT tables, their walks and the lock's queue are real",
    "the kubelet is a model; it calls a real CNI plugin",
    "kube-proxy is two nftables DNAT rules with the kernel's own nf_conntrack",
    "all hosts are network namespaces of one kernel",
)


class Lab:
    """Makes deployments, one after the other, below one LabState that the caller has claimed."""

    name = "lab"

    def __init__(self, state: LabState) -> None:
        self._state = state

    def check(self, scenario: Scenario) -> None:
        check(scenario)

    @asynccontextmanager
    async def session(self, scenario: Scenario, variants: Sequence[Variant]) -> AsyncIterator[None]:  # noqa: ARG002
        """Nothing: every deployment is a lab of its own."""
        yield

    @asynccontextmanager
    async def deploy(self, scenario: Scenario, variant: Variant, log_dir: str) -> AsyncIterator[LabDeployment]:
        self._state.mount()
        deployment = LabDeployment(self._state, scenario, variant, Path(log_dir))
        try:
            async with AsyncExitStack() as stack:
                await deployment.build(stack)
                yield deployment
        finally:
            self._state.unmount()


def check(scenario: Scenario) -> None:
    """Everything about `scenario` that the lab can know before it makes anything; ConfigError or NotSupported."""
    support.require()
    for name, variant in scenario.variants.items():
        where = f"variants.{name}.settings"
        profile = cilium.profile(variant.settings.cilium.profile)
        cilium.api_limits(profile, variant.settings.cilium.api_rate_limit)
        resolvconf.from_settings(variant.settings.resolver, ["127.0.0.1"], source=f"{where}.resolver")
        _check_memory(variant.settings, where)
        for load_name, load in scenario.loads.items():
            if isinstance(load, Dns) and load.via == "fast":
                _check_fast(load_name, load, variant)
    for name, load in scenario.loads.items():
        _check_load(name, load)
    sizes = {(s.request_bytes, s.reply_bytes) for s in scenario.loads.values() if isinstance(s, Storm)}
    if len(sizes) > 1:
        raise ConfigError("loads: the lab's datanodes serve one pair of requestBytes and replyBytes for all storms")
    for name, fault in scenario.faults.items():
        if isinstance(fault, CtFill):
            _check_fill(name, fault, scenario)


def _check_load(name: str, load: Load) -> None:
    if isinstance(load, Storm) and load.targets > plan.MAX_DATANODES:
        raise ConfigError(f"loads.{name}.targets: the lab has at most {plan.MAX_DATANODES:,} datanodes")
    if isinstance(load, Churn) and load.via == "job":
        raise ConfigError(f"loads.{name}.via: job needs a cluster's Job controller, the lab has none; use via: pod")
    if isinstance(load, Dns):
        # The driver knows which names and states it can honour; it opens nothing before it runs.
        DnsDriver(load, Resolver(), ["127.0.0.1"], name)
        if why := libc.missing(load, f"loads.{name}"):
            raise ConfigError(why)


def _check_fast(name: str, load: Dns, variant: Variant) -> None:
    try:
        PairsDriver(load, variant.settings.resolver, ["127.0.0.1"], name)  # it opens nothing before it runs
    except ConfigError as error:
        raise ConfigError(f"variants.{variant.name}: {error}") from None


def _check_memory(settings: Settings, where: str) -> None:
    sizes = settings.cilium.bpf
    needed = (sizes.ct_tcp_max + sizes.ct_any_max) * _BYTES_PER_ENTRY + _BYTES_FOR_THE_REST
    available = support.available_memory()
    if needed > available:
        raise ConfigError(
            f"{where}.cilium.bpf: tables of {sizes.ct_tcp_max:,} and {sizes.ct_any_max:,} entries need about "
            f"{needed / 2**30:.1f} GiB, {available / 2**30:.1f} GiB are available; lower ctTcpMax or ctAnyMax"
        )


def _check_fill(name: str, fault: CtFill, scenario: Scenario) -> None:
    for variant in scenario.variants.values():
        capacity = variant.settings.cilium.bpf.ct_tcp_max
        if fault.entries > capacity:
            raise ConfigError(
                f"faults.{name}.entries: {fault.entries:,} do not fit into a table of {capacity:,} entries "
                f"(variant {variant.name}, settings.cilium.bpf.ctTcpMax)"
            )


class LabDeployment:
    """ports.Deployment. `build` brings everything up; what it makes is taken down by the exit stack it was given."""

    disposable = True
    lead_ns = NS_PER_S // 20

    def __init__(self, state: LabState, scenario: Scenario, variant: Variant, log_dir: Path) -> None:
        self._state = state
        self._scenario = scenario
        self._settings = variant.settings
        self._log_dir = log_dir
        self._services: list[Service] = []
        self._workers = 0
        self._socket = state.run / "cilium.sock"
        self.emulated = self._emulated()
        self.environment = environment()

    def _emulated(self) -> tuple[str, ...]:
        found = [text.format(profile=self._settings.cilium.profile) for text in _EMULATED]
        drifted = self._settings.cilium.gc_interval_now
        if drifted is not None:
            found.append(f"the agent starts with a GC interval of {drifted}, as if it had drifted there")
        if self._settings.resolver.server == "nodelocal":
            found.append("NodeLocal DNSCache is a model: a caching forwarder on a NOTRACK address, upstream by TCP")
        faults = (self.fault(name).emulated for name in self._scenario.faults)
        return (*found, *(text for text in faults if text))

    async def build(self, stack: AsyncExitStack) -> None:
        nodelocal = self._settings.resolver.server == "nodelocal"
        await to_thread(topology.build, self._state, nodelocal=nodelocal)
        stack.push_async_callback(self._stop_services)
        await asyncio.gather(
            self._start("agent", plan.NODE, "loadgen.lab.agent", self._agent_config()),
            self._start("datanodes", plan.DATANODES, "loadgen.lab.sink", self._sink_config()),
            *(
                self._start(plan.dns_netns(i), plan.dns_netns(i), "loadgen.lab.dnsserver", self._dns_config(i))
                for i in range(len(plan.DNS_LINKS))
            ),
        )
        if nodelocal:
            config = NodeLocalConfig(listen=(str(plan.NODELOCAL_DNS),), upstream=str(plan.CLUSTER_DNS))
            await self._start("nodelocal", plan.NODE, "loadgen.lab.nodelocal", config)
        await self._start_client_pods()

    async def _start(self, name: str, netns: str, module: str, config: object) -> None:
        service = await Service.spawn(self._state, name, netns, module, config, self._log_dir)
        # Known before it is ready: one that never gets there is stopped like the others.
        self._services.append(service)
        await service.wait_ready()

    async def _stop_services(self) -> None:
        await asyncio.gather(*(service.stop() for service in self._services))

    def _agent_config(self) -> AgentConfig:
        return AgentConfig(
            socket=str(self._socket),
            pin_dir=str(self._state.pins),
            pod_cidr=str(plan.POD_CIDR),
            gateway=str(plan.POD_GATEWAY),
            cilium=self._settings.cilium,
        )

    def _sink_config(self) -> SinkConfig:
        storms = [load for load in self._scenario.loads.values() if isinstance(load, Storm)]
        load = storms[0] if storms else Storm()
        return SinkConfig(plan.DATANODE_PORT, load.request_bytes, load.reply_bytes)

    def _dns_config(self, index: int) -> DnsServerConfig:
        names = {n.rstrip(".") for load in self._scenario.loads.values() if isinstance(load, Dns) for n in load.names}
        return DnsServerConfig(
            address=str(topology.dns_backends()[index]),
            port=plan.DNS_PORT,
            names=tuple(sorted(names)),
            delay=self._settings.dns.delay,
            loss=self._settings.dns.loss,
            seed=index,
        )

    async def _start_client_pods(self) -> None:
        """The pods that make the load are set up through CNI like any other, before the table is filled."""
        config = KubeletConfig(self._state.netns, PLUGIN, self._socket, netns_name=plan.pod_netns)
        kubelet = Kubelet(config, seed=0)
        failures: list[Attempt] = []

        def note(attempt: Attempt) -> None:
            if attempt.outcome:
                failures.append(attempt)

        deadline_ns = time.monotonic_ns() + CLIENT_POD_LIMIT_NS
        up = await asyncio.gather(*(kubelet.start_pod(i, deadline_ns, note) for i in range(self._client_pods())))
        if not all(up):
            raise HarnessError(f"the client pods did not come up: {failures[-1].detail}; see {self._log_dir}")

    def _client_pods(self) -> int:
        loads = self._scenario.loads.values()
        return max((load.pods for load in loads if isinstance(load, Storm | Dns)), default=0)

    def fault(self, name: str) -> ActiveFault:
        match self._scenario.faults[name]:
            case CtFill() as fault:
                return CtFillFault(
                    fault,
                    self._state.pins / bpf.TCP_MAP,
                    list(plan.PAST_PODS.hosts()),
                    [plan.datanode(i) for i in range(plan.PAST_DATANODES)],
                    plan.DATANODE_PORT,
                    seed=1,
                )
            case DnsRaceDrop(probability=probability) as fault:
                node = self._state.netns / plan.NODE
                return RaceDropFault(fault, node, rules.RACE, rules.race_drop(probability, plan.DNS_PORT))
            case other:
                raise HarnessError(f"the lab has no fault {other!r}")

    async def prepare(self, name: str, load: Load, phase: str, seed: int, emit: Emit) -> Running:
        pods = 1 if isinstance(load, Churn) else load.pods
        places = [plan.NODE if isinstance(load, Churn) else plan.pod_netns(i) for i in range(pods)]
        workers = [await self._spawn(name, load, phase, seed + i, place) for i, place in enumerate(places)]
        running = WorkerLoad(workers, emit)
        try:
            await running.ready()
        except BaseException:
            await running.close()
            raise
        return running

    async def _spawn(self, name: str, load: Load | None, phase: str, seed: int, place: str) -> Service:
        spec = WorkerSpec(
            load=load,
            phase=phase,
            source=f"{name}@{place}",
            seed=seed,
            resolver=self._settings.resolver,
            churn=ChurnPlace(str(self._state.netns), str(PLUGIN), str(self._socket)),
            probe=ProbePlace(
                str(self._socket), str(self._state.pins), tuple(str(b) for b in topology.dns_backends())
            ),
        )
        self._workers += 1
        label = f"worker-{self._workers:02d}-{name}"
        return await Service.spawn(self._state, label, place, "loadgen.lab.worker", spec, self._log_dir)

    async def watch(self, emit: Emit) -> None:
        """The node's probe, and a guard on every service: one that ends breaks the run."""
        probe = WorkerLoad([await self._spawn("probe", None, "", 0, plan.NODE)], emit)
        try:
            await probe.ready()
            now_ns = time.monotonic_ns()
            probe.go(now_ns, now_ns)
            looking = asyncio.create_task(probe.wait())
            guards = {asyncio.create_task(service.ended()): service for service in self._services}
            try:
                await asyncio.wait({looking, *guards}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                # The probe looks once more when it is stopped: the end of the run is seen too.
                probe.stop()
                await asyncio.wait({looking}, timeout=LAST_LOOK_S)
            await _raise_death(guards, looking)
        finally:
            await probe.close()


async def _raise_death(guards: dict[asyncio.Task[None], Service], looking: asyncio.Task[None]) -> None:
    """Raise for the service that ended, or else for the probe. A probe that fails may be the first to notice."""
    done, pending = await asyncio.wait(guards, timeout=NOTICE_S, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    complaint = looking.exception() if looking.done() else None
    for task in done:
        raise guards[task].died() from complaint
    if complaint:
        raise complaint
    raise HarnessError("the probe ended before the run did")


def environment() -> dict[str, str]:
    """What must be equal for two runs in the lab to be comparable."""
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": support.cpu_model(),
        "cpus": str(os.cpu_count()),
        "memory_gib": f"{support.total_memory() / 2**30:.1f}",
        "python": platform.python_version(),
        "loadgen": __version__,
    }
