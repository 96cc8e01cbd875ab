"""What a packet's state costs: the plan of a measurement, and what its numbers say. Pure.

A cell is one program (a kind of state) under one workload on so many CPUs at once. Each is measured in every repeat,
in an order drawn from the seed; the cost of its state is what is left after the same workload without any (`pass`) is
taken away.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
import numpy as np

STATELESS = "pass"
PLANES = {
    "empty": "a program that does nothing: the floor",
    STATELESS: "no state: the flow is drawn and the packet passes",
    "array": "a per-CPU array, a slot a flow",
    "hash": "a hash table",
    "lru": "an LRU hash table, as Cilium's CT tables are",
    "lru_own": "the same with BPF_F_NO_COMMON_LRU: a list a CPU (Cilium's distributed LRU)",
    "lru_percpu": "an LRU hash table with a value a CPU",
}

SMALL_PACKET, LARGE_PACKET = 64, 256
LOOP = 200
"""Rounds of the compute-bound workload: about 0.3 µs of work, as much as the dearest state."""
CURVE = (1_000, 10_000, 100_000)
CURVE_PLANES = (STATELESS, "array", "hash", "lru")
CONTENDED = (STATELESS, "array", "hash", "lru", "lru_own")


class Workload(msgspec.Struct, frozen=True):
    """`size`: bytes of a packet; `loop`: rounds of work a packet."""

    name: str
    flows: int
    size: int = SMALL_PACKET
    loop: int = 0


class Cell(msgspec.Struct, frozen=True):
    plane: str
    workload: Workload
    cpus: int = 1

    @property
    def key(self) -> tuple[str, str, int]:
        return self.plane, self.workload.name, self.cpus


class Measured(msgspec.Struct, frozen=True):
    """One cell in one repeat: a row of samples.parquet. `ns`: a packet, on each CPU; `fill_ns`: a packet while the
    table fills, None without one. `evicted`: flows that were put in again because the table had dropped them."""

    plane: str
    workload: str
    cpus: int
    repeat: int
    flows: int
    capacity: int
    memory: int
    packets: int
    ns: float
    fill_ns: float | None
    inserted: int
    evicted: int
    failed: int


def workloads(flows: int, many: int) -> list[Workload]:
    """The three of the article, at `flows` and `many` flows."""
    return [
        Workload("network", flows),
        Workload("compute", flows, loop=LOOP),
        Workload("memory", many, size=LARGE_PACKET),
    ]


def plan(flows: int, many: int, cpus: int) -> list[Cell]:
    """Every cell, once. The curve and the two CPUs are measured where they tell something."""
    found = [Cell(plane, load) for load in workloads(flows, many) for plane in PLANES]
    curve = [Workload(f"network-{n}", n) for n in CURVE if n < flows]
    found += [Cell(plane, load) for load in curve for plane in CURVE_PLANES]
    if cpus > 1:
        found += [Cell(plane, Workload("network", flows), 2) for plane in CONTENDED]
    return found


def order(cells: Sequence[Cell], repeats: int, seed: int) -> list[tuple[int, Cell]]:
    """(repeat, cell) as measured: all cells in each repeat, shuffled, so that drift hits all alike."""
    draw = random.Random(seed)
    found: list[tuple[int, Cell]] = []
    for repeat in range(repeats):
        shuffled = list(cells)
        draw.shuffle(shuffled)
        found += [(repeat, cell) for cell in shuffled]
    return found


class Estimate(msgspec.Struct, frozen=True):
    """Median over the repeats with its 95 % bootstrap interval, in ns."""

    value: float
    low: float
    high: float


class CellCost(msgspec.Struct, frozen=True):
    """A row of the report. `state`: what the plane costs above `pass` under the same workload; None without any."""

    plane: str
    workload: str
    cpus: int
    flows: int
    memory: int
    repeats: int
    packet: Estimate
    state: Estimate | None
    fill: float | None
    evicted: int


class Claim(msgspec.Struct, frozen=True):
    text: str
    outcome: Literal["confirmed", "not confirmed", "inconclusive", "not measured"]
    why: str


class Costs(msgspec.Struct, frozen=True):
    """costs.json: fields are added, never renamed."""

    format: int
    cells: tuple[CellCost, ...]
    claims: tuple[Claim, ...]


FORMAT = 1
_ROUNDS = 2_000


def analyse(rows: Iterable[Measured], seed: int) -> Costs:
    """Cells in the order in which they first come, and what they say of the article's claims."""
    by: dict[tuple[str, str, int], list[Measured]] = {}
    for row in rows:
        by.setdefault((row.plane, row.workload, row.cpus), []).append(row)
    rng = np.random.default_rng(seed)
    cells = tuple(
        _cell(group, by.get((STATELESS, *key[1:]), []), rng) for key, group in sorted(by.items(), key=_place)
    )
    return Costs(FORMAT, cells, _claims({(c.plane, c.workload, c.cpus): c for c in cells}))


def _place(item: tuple[tuple[str, str, int], list[Measured]]) -> tuple[int, str, int, int]:
    plane, workload, cpus = item[0]
    return cpus, workload, item[1][0].flows, list(PLANES).index(plane)


def _cell(group: Sequence[Measured], stateless: Sequence[Measured], rng: np.random.Generator) -> CellCost:
    first = group[0]
    without = {row.repeat: row.ns for row in stateless}
    fills = [row.fill_ns for row in group if row.fill_ns is not None]
    net = [row.ns - without[row.repeat] for row in group if row.repeat in without]
    return CellCost(
        plane=first.plane,
        workload=first.workload,
        cpus=first.cpus,
        flows=first.flows,
        memory=first.memory,
        repeats=len(group),
        packet=_estimate([row.ns for row in group], rng),
        state=_estimate(net, rng) if net and first.plane not in ("empty", STATELESS) else None,
        fill=float(np.median(fills)) if fills else None,
        evicted=sum(row.evicted for row in group),
    )


def _estimate(values: Sequence[float], rng: np.random.Generator) -> Estimate:
    a = np.asarray(values, dtype=float)
    medians = np.median(rng.choice(a, (_ROUNDS, len(a))), axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    return Estimate(float(np.median(a)), float(low), float(high))


# --- the claims -----------------------------------------------------------------------------------------------

_Cells = dict[tuple[str, str, int], CellCost]
LEAST_REPEATS = 3


def _claims(cells: _Cells) -> tuple[Claim, ...]:
    return (
        _tracking_costs(cells),
        _percpu_is_not_free(cells),
        _percpu_does_not_contend(cells),
        _compute_hides_it(cells),
        Claim(
            "stateless is six times cheaper than nf_conntrack, and state in BPF costs as much as in nf_conntrack",
            "not measured",
            "nf_conntrack needs packets on a path; programs alone do not pass it",
        ),
    )


def _needs(cells: _Cells, *keys: tuple[str, str, int]) -> str:
    """What is missing for a claim; "" when nothing is."""
    missing = [key for key in keys if key not in cells]
    if missing:
        return f"{missing[0][0]} was not measured under {missing[0][1]} on {missing[0][2]} CPU(s)"
    fewest = min(cells[key].repeats for key in keys)
    return f"{fewest} repeats; {LEAST_REPEATS} are needed" if fewest < LEAST_REPEATS else ""


def _tracking_costs(cells: _Cells) -> Claim:
    text = "tracking a flow in BPF costs more than the rest of the program"
    if why := _needs(cells, ("lru", "network", 1), (STATELESS, "network", 1)):
        return Claim(text, "inconclusive", why)
    state, rest = cells["lru", "network", 1].state, cells[STATELESS, "network", 1].packet
    assert state is not None
    said = f"LRU hash {_ns(state)} above {_ns(rest)} without state"
    return Claim(text, _sided(state.low - rest.high, state.high - rest.low), said)


def _percpu_is_not_free(cells: _Cells) -> Claim:
    text = "a per-CPU array still costs"
    if why := _needs(cells, ("array", "network", 1), (STATELESS, "network", 1)):
        return Claim(text, "inconclusive", why)
    state = cells["array", "network", 1].state
    assert state is not None
    return Claim(text, _sided(state.low, state.high), f"{_ns(state)} above no state")


def _percpu_does_not_contend(cells: _Cells) -> Claim:
    text = "a per-CPU array removes the contention of two CPUs that an LRU hash has"
    keys = [(plane, "network", cpus) for plane in ("array", "lru") for cpus in (1, 2)]
    if why := _needs(cells, *keys):
        return Claim(text, "inconclusive", why)
    array, lru = (_growth(cells[p, "network", 1].packet, cells[p, "network", 2].packet) for p in ("array", "lru"))
    said = f"on two CPUs the LRU hash takes {_factor(lru)}, the array {_factor(array)}"
    return Claim(text, _sided(lru.low - array.high, lru.high - array.low), said)


def _compute_hides_it(cells: _Cells) -> Claim:
    text = "in a compute-bound program the state is less than 10 % of the cost"
    if why := _needs(cells, ("lru", "compute", 1), (STATELESS, "compute", 1)):
        return Claim(text, "inconclusive", why)
    cell = cells["lru", "compute", 1]
    assert cell.state is not None
    share = Estimate(*(100 * value / cell.packet.value for value in msgspec.structs.astuple(cell.state)))
    said = f"{share.value:.0f} % ({share.low:.0f} to {share.high:.0f}) of {cell.packet.value:.0f} ns"
    return Claim(text, _sided(10 - share.high, 10 - share.low), said)


def _growth(one: Estimate, two: Estimate) -> Estimate:
    return Estimate(two.value / one.value, two.low / one.high, two.high / one.low)


def _sided(low: float, high: float) -> Literal["confirmed", "not confirmed", "inconclusive"]:
    """Of a difference that the claim says is above zero."""
    return "confirmed" if low > 0 else "not confirmed" if high <= 0 else "inconclusive"


def _ns(e: Estimate) -> str:
    return f"{e.value:.0f} ns ({e.low:.0f} to {e.high:.0f})"


def _factor(e: Estimate) -> str:
    return f"{e.value:.2f} times as long ({e.low:.2f} to {e.high:.2f})"
