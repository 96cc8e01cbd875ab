"""The controller's hand on a node under test: commands of loadgen.kube.node, run in the helper's pod there."""

from __future__ import annotations

import asyncio
import time
from ipaddress import IPv4Address, IPv4Network
from typing import Any, TypeVar

import msgspec

from loadgen.core.errors import ConfigError, HarnessError
from loadgen.core.model import CtFill, DnsRaceDrop, Fault
from loadgen.core.ports import ActiveFault, Emit
from loadgen.core.samples import Log, Mark, Message, Tally
from loadgen.faults.ct_fill import CtFillFault
from loadgen.kube import clocks, daemonset, node
from loadgen.kube.api import KubeApi
from loadgen.kube.clocks import Offset
from loadgen.kube.daemonset import DaemonSet
from loadgen.kube.exec import ExecStream
from loadgen.kube.manifests import render
from loadgen.kube.node import FillSpec, NodeFacts, ProbeSpec, Progress
from loadgen.kube.objects import Pod
from loadgen.kube.streams import BrokenStream, Incoming

T = TypeVar("T")

NAME = "loadgen-node"
CONTAINER = "node"

COMMAND_LIMIT_S = 60.0
FLUSH_LIMIT_S = 600.0
"""16 M entries are a minute of deletes on a quiet machine."""
LAST_LOOK_S = 10.0
"""What the probe may take for its last look, which includes a count of full tables."""
CLOCK_TRIPS = 8

FILL_PORT = 50010
FILL_DATANODES = tuple(str(address) for address in list(IPv4Network("198.18.0.0/22").hosts())[:500])
"""Nobody's: 198.18.0.0/15 is set aside for benchmarks (RFC 2544), so no connection of the cluster's meets them."""
FILL_PODS = 64
FILL_SEED = 1


class NodeHelper:
    """One node's helper. `deploy` first."""

    def __init__(self, api: KubeApi, namespace: str, name: str) -> None:
        self._api, self._namespace, self._node = api, namespace, name
        self._set = DaemonSet(api, namespace, NAME)
        self._pod = ""
        self._race = False

    async def deploy(self, image: str, *, race: bool = False) -> None:
        """Returns when it runs. `race`: it gets the right to make nft rules, which a fault of the DNS race needs."""
        for item in render("node", namespace=self._namespace, image=image, node=self._node, race=race):
            await self._api.apply(item)
        pods = await self._set.rolled_out({"loadgen/race": str(race).lower()})
        self._pod, self._race = pods[self._node].metadata.name, race

    def adopt(self, pod: Pod) -> None:
        """Use a helper that another run has deployed."""
        self._pod = pod.metadata.name

    async def facts(self) -> NodeFacts:
        return await self._ask("facts", NodeFacts)

    def fault(self, name: str, fault: Fault) -> ActiveFault:
        match fault:
            case CtFill():
                return RemoteFill(self, fault)
            case DnsRaceDrop():
                return RemoteRace(self, fault)
        raise ConfigError(f"faults.{name}: a cluster has no fault of this kind")

    async def probe(self, emit: Emit, *, agent: bool) -> None:
        """Look at the node until cancelled, and once more then. HarnessError when the probe ends by itself."""
        offset = await self._offset()
        spec = ProbeSpec(agent=agent, race=self._race, source=f"probe@{self._node}")
        stream = await self._stream("probe", spec)
        reading = asyncio.create_task(self._follow(stream, emit, offset))
        try:
            # The probe is always at work: its window is only there to be stopped.
            now_ns = time.monotonic_ns()
            stream.write(f"go {now_ns} {now_ns}\n".encode())
            await asyncio.shield(reading)
            raise await self._died(stream)
        except asyncio.CancelledError:
            stream.write(b"stop\n")
            await asyncio.wait({reading}, timeout=LAST_LOOK_S)
            raise
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await stream.close()

    async def _follow(self, stream: ExecStream, emit: Emit, offset: Offset) -> None:
        incoming = Incoming()
        while data := await stream.stdout.read(1 << 16):
            try:
                messages = incoming.feed(data)
            except BrokenStream as error:
                raise HarnessError(f"node {self._node}: probe: {error}") from None
            for message in messages:
                self._heard(message, emit, offset)

    def _heard(self, message: Message, emit: Emit, offset: Offset) -> None:
        if isinstance(message, Log):
            raise HarnessError(f"node {self._node}: probe: {message.error}")
        if isinstance(message, Tally) or (isinstance(message, Mark) and message.kind == "ready"):
            return  # a probe makes no load, and its beginning is no event of the run
        emit(clocks.to_ours(message, offset))

    async def _offset(self) -> Offset:
        """Of the node's clock; none at all on the machine that we run on."""
        if (await self.facts()).boot_id == clocks.boot_id():
            return clocks.SAME
        stream = await self._stream("clock")
        try:
            async with asyncio.timeout(COMMAND_LIMIT_S):
                trips = [await self._trip(stream) for _ in range(CLOCK_TRIPS)]
        except TimeoutError:
            raise HarnessError(f"node {self._node}: clock: no answer within {COMMAND_LIMIT_S:g} s") from None
        finally:
            stream.write_eof()
            await stream.close()
        return clocks.best(trips)

    async def _trip(self, stream: ExecStream) -> Offset:
        sent_ns = time.monotonic_ns()
        stream.write(b"\n")
        line = await stream.stdout.readline()
        if not line.strip().isdigit():
            raise await self._died(stream)
        return clocks.measured(sent_ns, int(line), time.monotonic_ns())

    # --- commands -----------------------------------------------------------------------------------------------

    async def run(self, command: str, spec: object = None, limit_s: float = COMMAND_LIMIT_S) -> bytes:
        """A command's stdout; HarnessError with its own words when it fails."""
        argv = _argv(command, spec)
        done = await self._api.exec(self._pod, CONTAINER, argv, namespace=self._namespace, limit_s=limit_s)
        if done.code:
            raise self._failed(command, done.code, done.stderr)
        return done.stdout

    async def _ask(self, command: str, kind: type[T]) -> T:
        return _decode(await self.run(command), kind, f"node {self._node}: {command}")

    async def start_fill(self, spec: FillSpec) -> ExecStream:
        return await self._stream("ct-fill", spec)

    async def _stream(self, command: str, spec: object = None) -> ExecStream:
        return await self._api.stream(self._pod, CONTAINER, _argv(command, spec), namespace=self._namespace)

    async def _died(self, stream: ExecStream, command: str = "probe") -> HarnessError:
        """Why a stream ended too early."""
        code = await stream.wait()
        return self._failed(command, code, bytes(stream.stderr))

    def _failed(self, command: str, code: int, said: bytes) -> HarnessError:
        lines = said.decode(errors="replace").strip().splitlines()
        why = lines[-1] if lines else f"exit code {code}"
        return HarnessError(f"node {self._node}: {command}: {why}")

    async def finished(self, stream: ExecStream, command: str) -> None:
        code = await stream.wait()
        if code:
            raise self._failed(command, code, bytes(stream.stderr))

    async def pod_addresses(self) -> tuple[str, ...]:
        """Of pods that run on the node and will go on to; without any, the last of the node's range.

        A table is as full as a storm of these very pods would have left it. Addresses that new pods may get are no
        good: the scrub of such a pod would take its share of the fill away.
        """
        pods = await self._api.get("/api/v1/pods", fieldSelector=f"spec.nodeName={self._node},status.phase=Running")
        found = sorted(filter(None, map(_lasting_address, pods["items"])))
        if found:
            return tuple(found[:FILL_PODS])
        item = await self._api.get(f"/api/v1/nodes/{self._node}")
        ranges = [cidr for cidr in item["spec"].get("podCIDRs", []) if "." in cidr]
        if not ranges:
            raise HarnessError(
                f"node {self._node}: no pod with an IPv4 address runs there, and it has no podCIDR to take one from"
            )
        return (str(IPv4Network(ranges[0])[-2]),)


def _lasting_address(item: dict[str, Any]) -> str | None:
    """IPv4 address of a pod that has one of its own and is not about to end."""
    metadata, address = item["metadata"], item["status"].get("podIP", "")
    owners = {owner["kind"] for owner in metadata.get("ownerReferences", [])}
    if item["spec"].get("hostNetwork") or "Job" in owners or metadata.get("deletionTimestamp"):
        return None
    try:
        return str(IPv4Address(address))
    except ValueError:
        return None


class RemoteFill:
    """ports.ActiveFault: CtFillFault on the node, with addresses of the node's own pods."""

    emulated = CtFillFault.emulated

    def __init__(self, helper: NodeHelper, fault: CtFill) -> None:
        self._helper, self._fault = helper, fault
        self.put = 0
        """Entries put in so far."""

    async def inject(self) -> str:
        """Cancelled, it waits until the node has stopped putting entries in."""
        pods = await self._helper.pod_addresses()
        spec = FillSpec(self._fault, pods, FILL_DATANODES, FILL_PORT, FILL_SEED)
        stream = await self._helper.start_fill(spec)
        try:
            said = await self._follow(stream)
            await self._helper.finished(stream, "ct-fill")
            return said
        except asyncio.CancelledError:
            stream.write(b"\n")
            await asyncio.wait({asyncio.ensure_future(_to_the_end(stream))}, timeout=COMMAND_LIMIT_S)
            raise
        finally:
            await stream.close()

    async def _follow(self, stream: ExecStream) -> str:
        said = ""
        while line := await stream.stdout.readline():
            progress = _decode(line, Progress, "ct-fill")
            self.put, said = progress.put, progress.said
        return said

    async def heal(self) -> None:
        await self._helper.run("ct-flush", limit_s=FLUSH_LIMIT_S)


async def _to_the_end(stream: ExecStream) -> None:
    while await stream.stdout.read(1 << 16):
        pass


class RemoteRace:
    """ports.ActiveFault: RaceDropFault in the node's network namespace."""

    def __init__(self, helper: NodeHelper, fault: DnsRaceDrop) -> None:
        self._helper, self._fault = helper, fault
        self.emulated = node.race(fault).emulated

    async def inject(self) -> str:
        return (await self._helper.run("race-drop", self._fault)).decode()

    async def heal(self) -> None:
        await self._helper.run("race-heal")


async def heal_all(api: KubeApi, namespace: str) -> list[str]:
    """Heal every node that has a helper; a sentence on each thing that there was to heal."""
    done: list[str] = []
    for pod in await daemonset.pods_of(api, namespace, NAME):
        if not pod.ready:
            continue
        name = pod.spec.node_name
        helper = NodeHelper(api, namespace, name)
        helper.adopt(pod)
        said = _decode(await helper.run("heal", limit_s=FLUSH_LIMIT_S), list[str], f"node {name}: heal")
        done += [f"node {name}: {line}" for line in said]
    return done


def _argv(command: str, spec: object) -> list[str]:
    argv = ["python3", "-m", "loadgen.kube.node", command]
    return argv if spec is None else [*argv, msgspec.json.encode(spec).decode()]


def _decode(data: bytes, kind: type[T], about: str) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise HarnessError(f"{about}: an answer that is none: {error}") from None
