"""Runs a fleet under its policies, on several processes; the same outcome with any number of them."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import msgspec

from loadgen.core.errors import HarnessError
from loadgen.core.simulate.fleet import CURRENT, Fleet, dec_hook, enc_hook
from loadgen.core.simulate.node import CLOSE_LOOK_EVERY_S, LOOK_EVERY_S, simulate_node
from loadgen.core.simulate.outcome import NodeOutcome, Nodes, PolicyOutcome, Simulation, summarise, worst_node
from loadgen.core.units import Duration
from loadgen.kernel.process import die_with_parent

CHUNK = 100
"""Nodes that a process simulates before it hands them over: enough that the handing costs nothing."""
SMALL = 20
"""Up to so many nodes no processes are started."""

Told = Callable[[str], None]
_Chunk = tuple[str, int, int, int]
"""(type, its number, first node, end)"""


def run(fleets: Mapping[str, Fleet], *, seed: int, hours: float, jobs: int | None, told: Told) -> Simulation:
    """`fleets`: the fleet under each policy, `current` among them. `told` hears of every policy that is done.

    HarnessError when a process was killed.
    """
    jobs = jobs or os.cpu_count() or 1
    fleet = fleets[CURRENT]
    total = sum(of.count for of in fleet.nodes.values())
    closest: dict[str, int] = {}
    outcomes = []
    with _processes(jobs if total > SMALL else 1) as spread:
        for name, changed in fleets.items():
            nodes = Nodes.joined(list(spread(changed, seed, hours)))
            if not closest:
                closest = {type_name: worst_node(nodes, i) for i, type_name in enumerate(fleet.nodes)}
            describe = fleet.policies[name].describe if name in fleet.policies else "the settings as they are written"
            outcome = _outcome(name, describe, changed, nodes, closest, seed, hours)
            outcomes.append(outcome)
            told(f"{name}: {outcome.summary.pods:,} pods, {outcome.summary.late:,} late")
    return Simulation(
        name=fleet.name,
        describe=fleet.describe,
        hours=hours,
        seed=seed,
        goal_s=fleet.goal.seconds,
        types=tuple(fleet.nodes),
        counts=tuple(of.count for of in fleet.nodes.values()),
        workloads=tuple(fleet.workloads),
        costs=tuple(_costs(of.costs.per_entry, of.costs.per_entry_batch) for of in fleet.nodes.values()),
        looks_s=tuple(i * LOOK_EVERY_S for i in range(outcomes[0].nodes.grid.shape[1])),
        policies=tuple(outcomes),
    )


def _costs(key: Duration, batch: Duration) -> str:
    return f"{key / 1000:.3g} µs an entry, {batch / 1000:.3g} µs in batches"


def _outcome(
    name: str, describe: str, fleet: Fleet, nodes: Nodes, closest: Mapping[str, int], seed: int, hours: float
) -> PolicyOutcome:
    goal_s = fleet.goal.seconds
    by_type = {
        type_name: summarise(name, describe, nodes.of_type(i), goal_s, hours)
        for i, type_name in enumerate(fleet.nodes)
    }
    close = {
        type_name: (closest[type_name], _node(fleet, type_name, i, closest[type_name], seed, hours, closely=True))
        for i, type_name in enumerate(fleet.nodes)
    }
    return PolicyOutcome(summarise(name, describe, nodes, goal_s, hours), by_type, nodes, close)


def _node(
    fleet: Fleet, type_name: str, type_number: int, number: int, seed: int, hours: float, *, closely: bool = False
) -> NodeOutcome:
    return simulate_node(
        seed,
        type_name,
        type_number,
        number,
        fleet.nodes[type_name],
        fleet.workloads,
        hours * 3600,
        look_every_s=CLOSE_LOOK_EVERY_S if closely else LOOK_EVERY_S,
        closely=closely,
    )


# --- processes ------------------------------------------------------------------------------------------------


class _processes:
    """`spread(fleet, seed, hours)` gives the parts of a fleet in order, made by that many processes."""

    def __init__(self, jobs: int) -> None:
        self._pool: ProcessPoolExecutor | None = None
        if jobs > 1:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(jobs, context, initializer=die_with_parent, initargs=(os.getpid(),))

    def __enter__(self) -> Callable[[Fleet, int, float], Iterator[Nodes]]:
        return self._spread

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _spread(self, fleet: Fleet, seed: int, hours: float) -> Iterator[Nodes]:
        text = msgspec.json.encode(fleet, enc_hook=enc_hook)
        chunks = [(text, chunk, seed, hours) for chunk in _chunks(fleet)]
        if self._pool is None:
            yield from map(_part, chunks)
            return
        try:
            yield from self._pool.map(_part, chunks)
        except BrokenProcessPool:
            raise HarnessError("a process of the simulation was killed; with less memory, use fewer --jobs") from None


def _chunks(fleet: Fleet) -> Iterator[_Chunk]:
    for i, (name, of) in enumerate(fleet.nodes.items()):
        for first in range(0, of.count, CHUNK):
            yield name, i, first, min(of.count, first + CHUNK)


def _part(asked: tuple[bytes, _Chunk, int, float]) -> Nodes:
    text, (type_name, type_number, first, end), seed, hours = asked
    fleet = msgspec.json.decode(text, type=Fleet, dec_hook=dec_hook)
    return Nodes.of([_node(fleet, type_name, type_number, n, seed, hours) for n in range(first, end)])
