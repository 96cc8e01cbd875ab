"""One node from its agent's start to the horizon."""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec
import numpy as np

from loadgen.core.cilium import CLOSE_TIMEOUT_S, profile
from loadgen.core.simulate.agent import Agent
from loadgen.core.simulate.costs import Costs
from loadgen.core.simulate.draw import Arrival, Landing, Plan, plan
from loadgen.core.simulate.events import Timeline
from loadgen.core.simulate.fleet import NodeType, Workload
from loadgen.core.simulate.flows import Flow, Table, bends
from loadgen.core.simulate.gc import Collector
from loadgen.core.simulate.kubelet import Delays, Kubelet, Pod
from loadgen.core.simulate.outcome import GIVEN_UP, NODE_DTYPE, POD_DTYPE, UP, WAITING, Close, NodeOutcome, Pass
from loadgen.core.units import NS_PER_S, Duration

TCP_LIFETIME_S = 8000
TCP_LIFETIME_1_14_S = 21_600
"""bpf-ct-timeout-regular-tcp; shortened in 1.15 by 6f242b94df."""
ANY_LIFETIME_S = 60
LOOK_EVERY_S = 900.0
CLOSE_LOOK_EVERY_S = 60.0


class Look:
    """Notes the TCP table at regular times; gc.Looker. With `closely` each pass too, before and after."""

    def __init__(self, table: Table, from_ns: int, every_ns: int, until_ns: int, *, closely: bool) -> None:
        self._table, self._every_ns, self._until_ns, self._closely = table, every_ns, until_ns, closely
        self.next_ns = from_ns
        self._from_ns = from_ns
        self.grid: list[float] = []
        self.close: list[tuple[int, float, float]] = []
        self.passes: list[Pass] = []
        self.peak = 0.0
        self._interval_ns = 0
        self.intervals: list[float] = []

    def set_interval(self, wait_ns: int) -> None:
        self._interval_ns = wait_ns

    def upto(self, t_ns: int, seen: tuple[float, float] | None = None) -> None:
        while self.next_ns <= t_ns and self.next_ns <= self._until_ns:
            entries, expired = self._table.counts(self.next_ns)
            self._see(self.next_ns, entries, expired)
            self.grid.append(entries)
            self.intervals.append(self._interval_ns / NS_PER_S)
            self.next_ns += self._every_ns
        if self.next_ns > self._until_ns:
            self.next_ns = 1 << 62
        if t_ns >= self._from_ns:
            self._see(t_ns, *(seen or self._table.counts(t_ns)))

    def passed(self, start_ns: int, end_ns: int, garbage: float, ratio: float, wait_ns: int) -> None:
        self._interval_ns = wait_ns
        if self._closely and start_ns >= self._from_ns:
            self.passes.append(Pass(start_ns / NS_PER_S, end_ns / NS_PER_S, garbage, ratio, wait_ns / NS_PER_S))
            self.close.append((end_ns, *self._table.counts(end_ns)))

    def _see(self, t_ns: int, entries: float, expired: float) -> None:
        self.peak = max(self.peak, entries)
        if self._closely:
            self.close.append((t_ns, entries, expired))


class Node:
    """A node put together: its tables, agent, collector and kubelet on one clock."""

    def __init__(
        self,
        of: NodeType,
        what: Plan,
        retries: random.Random,
        horizon_ns: int,
        look_every_ns: int,
        delays: Delays,
        *,
        closely: bool,
    ) -> None:
        self.horizon_ns = horizon_ns
        self.timeline = timeline = Timeline(what.booted_ns)
        rules = profile(of.settings.profile)
        self.tables = tuple(Table(capacity, what.booted_ns) for capacity in of.capacities)
        tcp, other = self.tables
        self.agent = Agent(timeline, (tcp, other), rules, of.settings, of.permits, scaled(of.costs, what.cost))
        self.look = Look(tcp, 0, look_every_ns, horizon_ns, closely=closely)
        self.collector = Collector(self.agent, rules, of.settings, self.look, horizon_ns)
        self.look.set_interval(self.collector.interval_ns)
        self.pods: list[Pod] = []
        self.kubelet = Kubelet(self.agent, delays, retries, self._note_waiting)
        self.waiting: list[tuple[int, int]] = []
        self._closely = closely
        lifetime_s = TCP_LIFETIME_1_14_S if of.settings.profile == "1.14" else TCP_LIFETIME_S
        for landing in what.landings:
            self._land(landing, what.rate, lifetime_s)
        for arrival in what.arrivals:
            timeline.at(arrival.due_ns, self._arrive, arrival)

    def run(self) -> None:
        self.timeline.run(self.horizon_ns)
        self.look.upto(self.horizon_ns)

    # --- what comes -------------------------------------------------------------------------------------------

    def _land(self, landing: Landing, rate: float, lifetime_s: int) -> None:
        """The workload's flows, its bends on the clock, and the pod that its connections belong to."""
        tcp = tcp_flows(landing, rate, lifetime_s)
        other = other_flows(landing, rate)
        self.tables[0].flows += tcp
        self.tables[1].flows += other
        for bend_ns in {*bends(tcp), *bends(other)}:
            if self.timeline.now_ns < bend_ns < self.horizon_ns:
                self.timeline.at(bend_ns, self.collector.bend)
        connections = landing.workload.connections
        if connections is not None and connections.open:
            self.timeline.at(max(landing.start_ns, self.timeline.now_ns), self._open, connections.open)
            self.timeline.at(landing.end_ns, self._open, -connections.open)
        if not landing.lands:
            return
        scrubbed = None
        if landing.workload.leaves == "nothing":
            scrubbed = lambda: self._scrubbed(landing, tcp, other)  # noqa: E731 - one line says it
        pod = Pod(landing.number, landing.start_ns, self.horizon_ns, None, scrubbed)
        self.timeline.at(landing.start_ns, self._start, pod)
        self.timeline.at(landing.end_ns, self.kubelet.stop, pod)

    def _open(self, more: int) -> None:
        self.look.upto(self.timeline.now_ns)
        self.tables[0].open_entries += more
        self.collector.bend()

    def _scrubbed(self, landing: Landing, tcp: list[Flow], other: list[Flow]) -> None:
        """Only the removal at its end: the scrubs of failed attempts find nothing of these yet."""
        if self.timeline.now_ns < landing.end_ns:
            return
        self.look.upto(self.timeline.now_ns)
        self.tables[0].drop(tcp)
        self.tables[1].drop(other)
        self.collector.bend()

    def _arrive(self, arrival: Arrival) -> None:
        self._start(Pod(arrival.number, arrival.due_ns, arrival.give_up_ns, arrival.lifetime_ns))

    def _start(self, pod: Pod) -> None:
        self.pods.append(pod)
        self.kubelet.start(pod)
        self._note_waiting()

    def _note_waiting(self) -> None:
        if self._closely:
            self.waiting.append((self.timeline.now_ns, self.kubelet.waiting))

    # --- what is left -----------------------------------------------------------------------------------------

    def outcome(self, type_number: int, number: int) -> NodeOutcome:
        states = {"up": UP, "given up": GIVEN_UP, "pending": WAITING}
        rows = np.zeros(len(self.pods), POD_DTYPE)
        for i, pod in enumerate(self.pods):
            end_ns = pod.done_ns if pod.state != "pending" else self.horizon_ns
            rows[i] = (
                type_number, number, pod.workload, pod.due_ns / NS_PER_S, (end_ns - pod.due_ns) / NS_PER_S,
                pod.add_ns / NS_PER_S, states[pod.state],
                *(min(n, 65_535) for n in (pod.attempts, pod.timeouts, pod.refused)),
            )  # fmt: skip
        agent, look = self.agent, self.look
        row = np.array(
            [(
                type_number, number, self.tables[0].capacity, look.peak, self.tables[0].evicted_live,
                self.collector.passes, agent.walks["scrub"] + agent.walks["gc"],
                agent.walked_ns["scrub"] / NS_PER_S, agent.walked_ns["gc"] / NS_PER_S,
                max(lock.longest for lock in agent.locks), self.kubelet.most_waiting,
                self.collector.interval_ns / NS_PER_S, self.timeline.processed,
            )],
            NODE_DTYPE,
        )  # fmt: skip
        close = None
        if self._closely:
            course = [(t_ns / NS_PER_S, entries, expired) for t_ns, entries, expired in look.close]
            close = Close(course, look.passes, [(t_ns / NS_PER_S, n) for t_ns, n in self.waiting])
        return NodeOutcome(rows, row, np.array(look.grid, np.float32), np.array(look.intervals, np.float32), close)


def simulate_node(
    seed: int,
    type_name: str,
    type_number: int,
    number: int,
    of: NodeType,
    workloads: Mapping[str, Workload],
    horizon_s: float,
    *,
    look_every_s: float = LOOK_EVERY_S,
    delays: Delays | None = None,
    closely: bool = False,
) -> NodeOutcome:
    """Node `number` of this type, from its agent's start to the horizon. `closely`: with its table's whole course."""
    horizon_ns = round(horizon_s * NS_PER_S)
    what = plan(seed, type_name, number, of, workloads, horizon_ns)
    retries = random.Random(f"{seed} {type_name} {number} retries")
    every_ns = round(look_every_s * NS_PER_S)
    node = Node(of, what, retries, horizon_ns, every_ns, delays or Delays(), closely=closely)
    node.run()
    return node.outcome(type_number, number)


def tcp_flows(landing: Landing, rate: float, lifetime_s: int) -> list[Flow]:
    """A workload's connections as flows into the TCP table: those that both sides close, those that one does not."""
    connections = landing.workload.connections
    if connections is None:
        return []
    entries = connections.rate * rate * (1 + connections.same_node)
    kinds = (
        (entries * (1 - connections.half_closed), connections.life + CLOSE_TIMEOUT_S * NS_PER_S),
        (entries * connections.half_closed, connections.life + lifetime_s * NS_PER_S),
    )
    return [Flow(per_s, ttl_ns, landing.start_ns, landing.end_ns) for per_s, ttl_ns in kinds if per_s]


def other_flows(landing: Landing, rate: float) -> list[Flow]:
    lookups = landing.workload.lookups * rate
    return [Flow(lookups, ANY_LIFETIME_S * NS_PER_S, landing.start_ns, landing.end_ns)] if lookups else []


def scaled(costs: Costs, factor: float) -> Costs:
    """A machine that is slower or faster by this factor, walks and all."""
    fields = {name: Duration(round(getattr(costs, name) * factor)) for name in costs.__struct_fields__}
    return msgspec.structs.replace(costs, **fields)
