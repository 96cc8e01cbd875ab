"""The collector beside creates: it stands in the same queue, and its passes follow Cilium's rule."""

from __future__ import annotations

from loadgen.core.cilium import profile, trajectory
from loadgen.core.simulate.agent import Agent, Endpoint
from loadgen.core.simulate.events import Timeline
from loadgen.core.simulate.flows import Flow, Table
from loadgen.core.simulate.gc import Collector
from loadgen.core.units import NS_PER_S, Duration
from tests.core.simulate.worlds import node_type, settings


class Notes:
    """A looker that keeps passes as (start, garbage, next)."""

    next_ns = 1 << 62

    def __init__(self) -> None:
        self.passes: list[tuple[float, float, float]] = []

    def upto(self, t_ns: int, seen: tuple[float, float] | None = None) -> None:
        pass

    def passed(self, start_ns: int, end_ns: int, garbage: float, ratio: float, wait_ns: int) -> None:
        self.passes.append((start_ns / NS_PER_S, round(garbage), wait_ns / NS_PER_S))


def world(rate: float, interval: str | None, entry_ns: int = 0) -> tuple[Timeline, Agent, Notes]:
    of = settings(gc_interval=Duration.parse(interval) if interval else None)
    timeline, notes = Timeline(0), Notes()
    tcp, other = Table(1 << 20, 0), Table(1 << 16, 0)
    tcp.flows = [Flow(rate, 10 * NS_PER_S, 0, 1 << 62)]
    costs = node_type(of).costs
    agent = Agent(timeline, (tcp, other), profile("1.16"), of, 2, costs)
    Collector(agent, profile("1.16"), of, notes, 1 << 60)
    return timeline, agent, notes


def test_passes_are_those_of_the_rule_as_core_cilium_draws_it() -> None:
    timeline, agent, notes = world(300.0, None)
    agent.costs = node_type(settings()).costs
    hours = 12
    timeline.run(hours * 3600 * NS_PER_S)
    expected = trajectory(profile("1.16"), 1 << 20, [(0.0, 300.0)], hours * 3600 * NS_PER_S)
    first = expected[0]
    assert notes.passes[0] == (first.t_ns / NS_PER_S, first.garbage, first.next_ns / NS_PER_S)
    assert [p[2] for p in notes.passes[:3]] == [e.next_ns / NS_PER_S for e in expected[:3]]


def test_pass_waits_for_the_walks_before_it_and_creates_for_the_pass() -> None:
    timeline, agent, notes = world(100_000.0, "10s")
    answers: list[float] = []
    timeline.run(9_500_000_000)
    for _ in range(2):
        agent.create(Endpoint(lambda _: answers.append(timeline.now_ns / NS_PER_S)))
    timeline.run(12 * NS_PER_S)
    # About 950,000 entries: the creates walk until 10.45 and 11.4 s, the pass, due at 10 s, after them.
    assert [round(a, 1) for a in answers] == [10.4, 11.5]
    assert notes.passes == []
    timeline.run(13 * NS_PER_S)
    assert [round(p[0], 1) for p in notes.passes] == [10.0]
    assert agent.busy == 0
