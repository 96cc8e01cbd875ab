"""The agent's queues and refusals, and what hanging up does."""

from __future__ import annotations

from loadgen.core.cilium import profile
from loadgen.core.simulate.agent import FAILED, OK, REFUSED, UNKNOWN, Agent, Endpoint
from loadgen.core.simulate.events import Timeline
from loadgen.core.simulate.fleet import AgentSettings
from loadgen.core.simulate.flows import Table
from loadgen.core.units import NS_PER_S
from tests.core.simulate.worlds import node_type, settings

WALK_S = 1.0


class World:
    """An agent whose walks take one second each; answers as (second, who, code)."""

    def __init__(self, of: AgentSettings, permits: int = 2) -> None:
        self.timeline = Timeline(0)
        tcp, other = Table(1 << 21, 0), Table(1 << 16, 0)
        tcp.open_entries = 1_000_000.0
        self.agent = Agent(self.timeline, (tcp, other), profile("1.16"), of, permits, node_type(of).costs)
        self.answers: list[tuple[float, str, int]] = []

    def endpoint(self, name: str) -> Endpoint:
        return Endpoint(lambda code: self.note(name, code))

    def note(self, name: str, code: int) -> None:
        self.answers.append((round(self.timeline.now_ns / NS_PER_S, 3), name, code))

    def create(self, name: str) -> Endpoint:
        endpoint = self.endpoint(name)
        self.agent.create(endpoint)
        return endpoint

    def run(self, until_s: float) -> None:
        self.timeline.run(round(until_s * NS_PER_S))


def test_creates_queue_and_a_delete_queues_behind_them() -> None:
    world = World(settings())
    first = world.create("a")
    world.create("b")
    world.run(1.5)
    world.agent.delete(first, lambda code: world.note("a gone", code))
    world.run(10)
    assert world.answers == [(1.0, "a", OK), (2.0, "b", OK), (3.0, "a gone", 200)]
    assert world.agent.busy == 0


def test_client_that_leaves_while_its_endpoint_waits_for_a_permit() -> None:
    """The removal walks at once, and no create of it ever does."""
    world = World(settings(), permits=1)
    world.create("a")
    waiting = world.create("b")
    world.run(0.5)
    world.agent.hang_up(waiting)
    world.run(10)
    assert world.answers == [(1.0, "a", OK), (2.0, "b", FAILED)]
    assert world.agent.walks["scrub"] == 2 * 2


def test_client_that_leaves_while_its_endpoint_is_built() -> None:
    """The walk goes on, a second one removes it; a DEL meanwhile waits for the same removal."""
    world = World(settings())
    built = world.create("a")
    world.run(0.5)
    world.agent.hang_up(built)
    world.agent.delete(built, lambda code: world.note("a gone", code))
    world.run(10)
    assert sorted(world.answers) == [(2.0, "a", FAILED), (2.0, "a gone", 200)]
    assert world.agent.walks["scrub"] == 2 * 2


def test_unknown_endpoint_is_answered_at_once() -> None:
    world = World(settings())
    world.agent.delete(world.endpoint("x"), lambda code: world.note("x", code))
    world.run(1)
    assert world.answers == [(0.0, "x", UNKNOWN)]
    assert world.agent.busy == 0


def test_default_limits_refuse_what_would_wait_longer_than_a_minute() -> None:
    """Four at once, a burst of four, then one every two seconds: the 39th would wait for more than 60 s."""
    world = World(settings(api_rate_limit={}), permits=64)
    for number in range(50):
        world.create(str(number))
    refused = [name for _, name, code in world.answers if code == REFUSED]
    assert refused == [str(n) for n in range(38, 50)]
    world.run(600)
    codes = [code for _, _, code in world.answers]
    assert codes.count(OK) + codes.count(REFUSED) == 50
    assert world.agent.busy == 0


def test_client_that_leaves_the_limiters_queue_costs_nothing() -> None:
    world = World(settings(api_rate_limit={}), permits=64)
    endpoints = [world.create(str(number)) for number in range(20)]
    world.agent.hang_up(endpoints[-1])
    world.run(600)
    assert [code for _, _, code in world.answers] == [OK] * 19
    assert world.agent.walks["scrub"] == 2 * 19
