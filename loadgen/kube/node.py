"""`python -m loadgen.kube.node COMMAND [JSON]`: what is done on a node under test, in the node helper's pod.

The controller runs it by exec; nothing listens. Answers go to stdout; an error is one line on stderr, exit code 3
or 4.

facts      what the node is                       ct-fill    leaves the CT table as a past storm would have
clock      its clock, once a line of stdin        ct-flush   empties the table (idempotent)
probe      a NodeProbe: the worker protocol       race-drop  drops the racing second query of a pair
idle       waits for SIGTERM: the pod's own       race-heal  stops that (idempotent)
                                                  heal       both, as far as a run has left something to heal
"""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine
from ipaddress import IPv4Address
from pathlib import Path

import msgspec

from loadgen.core.errors import ConfigError, HarnessError
from loadgen.core.model import CtFill, DnsRaceDrop
from loadgen.core.ports import Driver
from loadgen.drivers import host
from loadgen.faults.ct_fill import CtFillFault
from loadgen.faults.race_drop import RaceDropFault
from loadgen.kernel import bpf, nft, support
from loadgen.kube import clocks
from loadgen.lab import rules
from loadgen.probes import node

DNS_PORT = 53


class Place(msgspec.Struct, frozen=True):
    """Where the node's things are in the helper's pod (manifests/node.yaml)."""

    pins: Path = Path("/host/sys/fs/bpf/tc/globals")
    run: Path = Path("/run/loadgen")

    @property
    def agent(self) -> Path:
        return self.run / "cilium.sock"

    @property
    def filled(self) -> Path:
        """There while a fill of ours may be in the table: what `heal` goes by."""
        return self.run / "filled"


class TableFacts(msgspec.Struct, frozen=True):
    id: int
    capacity: int


class NodeFacts(msgspec.Struct, frozen=True):
    """What a node says of itself. Two runs are comparable when `kernel`, `cpu` and `cpus` are equal."""

    boot_id: str
    kernel: str
    machine: str
    cpu: str
    cpus: int
    memory: int
    """Bytes of RAM; in kind that of the host."""
    tables: dict[str, TableFacts]
    """The pinned CT tables; none without Cilium or its model."""
    agent: bool
    """The agent model's socket is there."""


class FillSpec(msgspec.Struct, frozen=True):
    """`pods` are whose connections these were, `datanodes` and `port` whom they went to."""

    fault: CtFill
    pods: tuple[str, ...]
    datanodes: tuple[str, ...]
    port: int
    seed: int


class Progress(msgspec.Struct, frozen=True):
    """One line of ct-fill. `said` comes with the last: what was done."""

    put: int
    said: str = ""


class ProbeSpec(msgspec.Struct, frozen=True):
    agent: bool
    """There has to be an agent model."""
    race: bool
    phase: str = ""
    source: str = "probe"
    seed: int = 0


def facts(place: Place) -> NodeFacts:
    return NodeFacts(
        boot_id=clocks.boot_id(),
        kernel=platform.release(),
        machine=platform.machine(),
        cpu=support.cpu_model(),
        cpus=os.cpu_count() or 1,
        memory=support.total_memory(),
        tables={name: found for name, pin in node.TABLES.items() if (found := _table(place.pins / pin))},
        agent=place.agent.exists(),
    )


def _table(pin: Path) -> TableFacts | None:
    try:
        fd = bpf.obj_get(pin)
    except FileNotFoundError:
        return None
    try:
        info = bpf.map_info(fd)
        return TableFacts(info.id, info.max_entries)
    finally:
        os.close(fd)


# --- faults -----------------------------------------------------------------------------------------------------


async def fill(place: Place, spec: FillSpec, say: Callable[[Progress], None]) -> None:
    """Cancelled, the table keeps what has been put in so far, and its mark."""
    table = place.pins / bpf.TCP_MAP
    if _table(table) is None:
        raise ConfigError(f"{bpf.TCP_MAP} is not pinned on this node: neither Cilium nor its model runs here")
    fault = CtFillFault(
        spec.fault,
        table,
        [IPv4Address(address) for address in spec.pods],
        [IPv4Address(address) for address in spec.datanodes],
        spec.port,
        spec.seed,
        lambda put: say(Progress(put)),
    )
    place.filled.touch()
    say(Progress(spec.fault.entries, await fault.inject()))


async def flush(place: Place) -> None:
    """Empties the table, whoever filled it: as `cilium-dbg bpf ct flush global` does."""
    await CtFillFault(CtFill(), place.pins / bpf.TCP_MAP, [], [], 0, 0).heal()
    place.filled.unlink(missing_ok=True)


def race(fault: DnsRaceDrop) -> RaceDropFault:
    return RaceDropFault(fault, None, rules.RACE, rules.race_drop(fault.probability, DNS_PORT))


async def heal(place: Place) -> list[str]:
    """Take away what a run has left; a sentence on each thing that there was."""
    done = []
    if place.filled.exists():
        await flush(place)
        done.append("the CT table was emptied: a fill was in it")
    if _race_is_on():
        await race(DnsRaceDrop()).heal()
        done.append("the rule that dropped DNS queries was removed")
    return done


def _race_is_on() -> bool:
    try:
        nft.counters(None, rules.RACE)
    except HarnessError:
        return False  # no such table; or no right to look, and then there was none to make one either
    return True


# --- commands ---------------------------------------------------------------------------------------------------


def probe_driver(place: Place, spec: ProbeSpec) -> Driver:
    """Looks at what this node has."""
    looks: list[node.Look] = [node.AgentLook(place.agent)] if spec.agent else []
    looks.append(node.NetfilterLook((rules.RACE, rules.RACE_COUNTER) if spec.race else None))
    looks.append(node.TablesLook(place.pins))
    return node.NodeProbe(looks)


def _probe(place: Place, text: str) -> int:
    """host.run reads its spec from the file that argv names."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(text.encode())
        file.flush()
        sys.argv = [sys.argv[0], file.name]
        return host.run(ProbeSpec, lambda spec: probe_driver(place, spec))


def _facts(place: Place, _: str) -> None:
    _print(facts(place))


def _clock(_: Place, __: str) -> None:
    for _line in iter(sys.stdin.readline, ""):
        sys.stdout.write(f"{time.monotonic_ns()}\n")
        sys.stdout.flush()


def _fill(place: Place, text: str) -> None:
    spec = msgspec.json.decode(text, type=FillSpec)
    asyncio.run(_unless_told_to_stop(lambda: fill(place, spec, _print)))


async def _unless_told_to_stop(work: Callable[[], Coroutine[None, None, None]]) -> None:
    """A line on stdin, or its end, is what is left of a controller that has gone: the work is cancelled."""
    loop, told = asyncio.get_running_loop(), asyncio.Event()

    def listen() -> None:
        os.read(0, 1)
        loop.call_soon_threadsafe(told.set)

    threading.Thread(target=listen, daemon=True).start()
    working, stopping = asyncio.ensure_future(work()), asyncio.ensure_future(told.wait())
    await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if working.done():
        return working.result()
    working.cancel()
    await asyncio.wait({working})
    raise HarnessError("stopped before it was done")


def _flush(place: Place, _: str) -> None:
    asyncio.run(flush(place))


def _race_drop(_: Place, text: str) -> None:
    sys.stdout.write(asyncio.run(race(msgspec.json.decode(text, type=DnsRaceDrop)).inject()))


def _race_heal(_: Place, __: str) -> None:
    asyncio.run(race(DnsRaceDrop()).heal())


def _heal(place: Place, _: str) -> None:
    _print(asyncio.run(heal(place)))


def _idle(_: Place, __: str) -> None:
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    signal.sigwait(ends)


def _print(value: object) -> None:
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


COMMANDS: dict[str, Callable[[Place, str], int | None]] = {
    "facts": _facts,
    "clock": _clock,
    "probe": _probe,
    "idle": _idle,
    "ct-fill": _fill,
    "ct-flush": _flush,
    "race-drop": _race_drop,
    "race-heal": _race_heal,
    "heal": _heal,
}


def main(argv: list[str], place: Place | None = None) -> int:
    try:
        if len(argv) not in (2, 3) or argv[1] not in COMMANDS:
            raise ConfigError(f"usage: python -m loadgen.kube.node {'|'.join(COMMANDS)} [JSON]")
        return COMMANDS[argv[1]](place or Place(), argv[2] if len(argv) == 3 else "{}") or 0
    except (ConfigError, msgspec.MsgspecError) as error:
        sys.stderr.write(f"{error}\n")
        return 4
    except (HarnessError, OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 3


if __name__ == "__main__":
    code = main(sys.argv)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a thread may still wait for stdin
