"""Measures what a packet's state costs (core/cost.py) with programs run by the kernel; every number is on disk.

OUT/run.json   what was asked for and where it ran, written first
OUT/samples.parquet   a row a cell and repeat; while it runs, samples.jsonl, a line each as it is measured
OUT/costs.json
"""

from __future__ import annotations

import datetime
import errno
import os
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from loadgen import __version__, store
from loadgen.core import cost
from loadgen.core.cost import Cell, Costs, Measured
from loadgen.core.errors import ConfigError, NotSupported
from loadgen.kernel import support
from loadgen.kernel.costprogs import TABLES, CostProgram

KIND = "ct-cost"
PACKETS = 1_000_003
"""A measurement's packets: a prime, so that no count comes out right by being a multiple of something."""
FILLS = 2
"""Packets a flow before anything is measured: golden multiples have met every flow once by then."""
ENTRY_BYTES = 70
"""Key and value; the kernel's own share is measured, not assumed."""
SPARE = 0.25
"""Room above the flows: an LRU table gives out free entries in batches and evicts before it is quite full."""

Say = Callable[[str], None]


class Info(msgspec.Struct, frozen=True):
    """run.json. `cells`: plane, workload and CPUs of each, in the plan's order."""

    format: int
    kind: str
    flows: int
    many: int
    repeats: int
    packets: int
    seed: int
    notes: tuple[str, ...]
    environment: dict[str, str]
    argv: tuple[str, ...]
    started: str


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    flows: int = 1_000_000
    many: int = 5_000_000
    """Flows of the memory-bound workload; fewer where they do not fit, and it is said."""
    repeats: int = 5
    seed: int = 0
    packets: int = PACKETS


def measure(wanted: Wanted, out: Path, argv: Sequence[str], say: Say) -> Costs:
    """All cells, into `out`, which must be new. NotSupported when the kernel runs no programs for us."""
    cpus = sorted(os.sched_getaffinity(0))
    many, notes = fitting(wanted.many, len(cpus))
    cells = cost.plan(wanted.flows, many, len(cpus))
    if len(cpus) == 1:
        notes = (*notes, "one CPU: contention was not measured")
    info = Info(
        format=cost.FORMAT,
        kind=KIND,
        flows=wanted.flows,
        many=many,
        repeats=wanted.repeats,
        packets=wanted.packets,
        seed=wanted.seed,
        notes=notes,
        environment={
            "loadgen": __version__,
            "kernel": platform.release(),
            "cpu": support.cpu_model(),
            "cpus": str(len(cpus)),
        },
        argv=tuple(argv),
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    store.create(out, info)
    for note in notes:
        say(note)
    turns = cost.order(cells, wanted.repeats, wanted.seed)
    lines = out / "samples.jsonl"
    with store.writing(lines), lines.open("wb") as file:
        for number, (repeat, cell) in enumerate(turns, start=1):
            row = measure_cell(cell, repeat, cpus, wanted.packets)
            file.write(msgspec.json.encode(row) + b"\n")
            file.flush()
            where = f"{cell.plane}, {cell.workload.name}, {cell.cpus} CPU"
            say(f"{number}/{len(turns)}: {where}: {row.ns:.0f} ns a packet")
    _to_parquet(out)
    return analyse(out)


def fitting(many: int, cpus: int) -> tuple[int, tuple[str, ...]]:
    """As many flows as half of the free memory holds in the largest table, which has a value a CPU."""
    each = round((1 + SPARE) * cpus * (ENTRY_BYTES + 64))
    most = support.available_memory() // 2 // each
    if most >= many:
        return many, ()
    return most, (f"memory-bound: {most:,} flows in place of {many:,}; more do not fit into this machine's memory",)


def measure_cell(cell: Cell, repeat: int, cpus: Sequence[int], packets: int) -> Measured:
    """Fill the table, then measure, on each of the cell's CPUs at once."""
    flows = cell.workload.flows
    room = round(flows * (1 + SPARE)) + 1024
    # With a list a CPU each CPU can use its own part of the table only.
    capacity = (
        flows if cell.plane == "array" else room * (len(cpus) if cell.plane in ("lru_own", "lru_percpu") else 1)
    )
    try:
        program = CostProgram.load(cell.plane, flows=flows, capacity=capacity, loop=cell.workload.loop)
    except PermissionError as error:
        raise NotSupported("BPF", f"programs may not be loaded: {error.strerror}", "run as root") from None
    except OSError as error:
        if error.errno not in (errno.ENOMEM, errno.E2BIG):
            raise
        raise ConfigError(f"{cell.plane}: a table of {capacity:,} entries does not fit; choose fewer flows") from None
    used = list(cpus)[: cell.cpus]
    with program, ThreadPoolExecutor(len(used)) as threads:
        run = _pinned(program, cell.workload.size)
        fill = list(threads.map(lambda cpu: run(cpu, FILLS * flows), used)) if cell.plane in TABLES else []
        before = program.counts()
        taken = list(threads.map(lambda cpu: run(cpu, packets), used))
        counts, memory = program.counts(), program.memory()
    return Measured(
        plane=cell.plane,
        workload=cell.workload.name,
        cpus=cell.cpus,
        repeat=repeat,
        flows=flows,
        capacity=capacity,
        memory=memory,
        packets=packets,
        ns=sum(taken) / len(taken),
        fill_ns=sum(fill) / len(fill) if fill else None,
        inserted=counts.inserted,
        evicted=counts.inserted - before.inserted,
        failed=counts.failed,
    )


def _pinned(program: CostProgram, size: int) -> Callable[[int, int], int]:
    def run(cpu: int, packets: int) -> int:
        os.sched_setaffinity(0, {cpu})  # of this thread
        return program.run(packets, size)

    return run


# --- on disk --------------------------------------------------------------------------------------------------


def analyse(out: Path) -> Costs:
    """costs.json from the samples alone. ConfigError when `out` holds no such measurement."""
    info = read_info(out)
    found = cost.analyse(read(out), info.seed)
    store.write_json(out / "costs.json", found)
    return found


def read_info(out: Path) -> Info:
    try:
        info = msgspec.json.decode((out / "run.json").read_bytes(), type=Info)
    except FileNotFoundError:
        raise ConfigError(f"{out}: no run here: run.json is missing") from None
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{out}/run.json: not readable as a {KIND} run: {error}") from None
    if info.kind != KIND:
        raise ConfigError(f"{out}: a run of kind {info.kind}, not {KIND}")
    return info


def read(out: Path) -> list[Measured]:
    """The rows; of a run that was cut short those that were written."""
    whole, lines = out / "samples.parquet", out / "samples.jsonl"
    if whole.exists():
        return msgspec.convert(pq.read_table(whole).to_pylist(), list[Measured])
    try:
        return [msgspec.json.decode(line, type=Measured) for line in lines.read_bytes().splitlines()]
    except FileNotFoundError:
        raise ConfigError(f"{out}: nothing was measured") from None
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{lines}: a line is torn: {error}") from None


def _to_parquet(out: Path) -> None:
    rows = [msgspec.to_builtins(row) for row in read(out)]
    with store.writing(out / "samples.parquet"):
        pq.write_table(pa.Table.from_pylist(rows), out / "samples.part")
        (out / "samples.part").replace(out / "samples.parquet")
        (out / "samples.jsonl").unlink()
