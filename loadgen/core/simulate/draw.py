"""A node's own luck, from the fleet's seed, its type and its number: the same under every policy and in any order."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from loadgen.core.simulate.fleet import NodeType, Span, Workload


class Landing(NamedTuple):
    """A workload on this node, from when to when; `number`: its place in the file. `lands`: later, with a pod."""

    number: int
    workload: Workload
    start_ns: int
    end_ns: int
    lands: bool


class Arrival(NamedTuple):
    """One pod of a workload."""

    due_ns: int
    number: int
    lifetime_ns: int
    give_up_ns: int


class Plan(NamedTuple):
    """What will come to a node. Times count from the beginning of the simulation; `booted_ns` is not after it."""

    booted_ns: int
    rate: float
    """What its rates are multiplied by; `cost` the same for its walks."""
    cost: float
    landings: tuple[Landing, ...]
    arrivals: tuple[Arrival, ...]


def plan(
    seed: int, type_name: str, node: int, of: NodeType, workloads: Mapping[str, Workload], horizon_ns: int
) -> Plan:
    """Draw node number `node` of this type."""
    draw = random.Random(f"{seed} {type_name} {node}")
    booted_ns = -within(draw, of.uptime.span)
    rate, cost = _spread(draw, of.spread), _spread(draw, of.spread)
    names = list(workloads)
    landings: list[Landing] = []
    arrivals: list[Arrival] = []
    for name in of.workloads:
        workload = workloads[name]
        there = draw.random() < workload.share
        start_ns = booted_ns if workload.start is None else within(draw, workload.start.span)
        end_ns = horizon_ns if workload.duration is None else min(horizon_ns, start_ns + workload.duration)
        luck = random.Random(f"{seed} {type_name} {node} {name}")
        if there and start_ns < horizon_ns:
            lands = workload.start is not None and workload.connections is not None
            landing = Landing(names.index(name), workload, start_ns, end_ns, lands)
            landings.append(landing)
            arrivals += _arrivals(luck, landing)
    return Plan(booted_ns, rate, cost, tuple(landings), tuple(sorted(arrivals)))


def _arrivals(draw: random.Random, landing: Landing) -> Sequence[Arrival]:
    pods, found = landing.workload.pods, []
    if pods is None:
        return found
    due_ns = landing.start_ns
    if landing.workload.start is None:
        due_ns = round(draw.random() * within(draw, pods.every.span))
    while due_ns < landing.end_ns:
        found += [
            Arrival(due_ns, landing.number, within(draw, pods.lifetime.span), pods.give_up) for _ in range(pods.burst)
        ]
        due_ns += max(1, within(draw, pods.every.span))
    return found


def within(draw: random.Random, span: Span) -> int:
    return span.low_ns + round(draw.random() * (span.high_ns - span.low_ns))


def _spread(draw: random.Random, sigma: float) -> float:
    """A factor around 1: log-normal, cut at three sigma."""
    return math.exp(sigma * max(-3.0, min(3.0, draw.gauss(0.0, 1.0))))
