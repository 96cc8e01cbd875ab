"""Creates and deletes of endpoints over real tables: what they walk, whom they wait for, what they answer."""

from __future__ import annotations

from collections import Counter
from ipaddress import IPv4Address
from itertools import pairwise

import pytest

from tests.lab.agents import LIMITS_LIFTED

pytestmark = pytest.mark.kernel

N = 50_000


def address(number: int) -> int:
    return int(IPv4Address(f"10.244.0.{number}"))


def test_create_and_delete_walk_both_tables_and_take_exactly_the_pods_entries(start_agent):
    agent = start_agent()
    agent.fill(N)
    agent.fill(23, pod=address(7))
    agent.fill(5, pod=address(7), table="any")
    assert agent.create(7) == 201
    assert agent.entries("tcp") == N
    assert agent.entries("any") == 0
    (tcp,), (other,) = agent.walks("endpoint-create", "c7"), agent.walks("endpoint-create", "c7", "any")
    assert (tcp.n, tcp.deleted) == (N + 23, 23)
    assert (other.n, other.deleted) == (5, 5)
    assert tcp.end_ns <= other.start_ns
    agent.fill(11, pod=address(7))
    assert agent.delete(7) == 200
    (walk,) = agent.walks("endpoint-delete", "c7")
    assert (walk.n, walk.deleted) == (N + 11, 11)
    assert agent.delete(7) == 404
    assert agent.state().endpoints == {}


def test_stages_of_a_create_follow_each_other(agent):
    assert agent.create(8) == 201
    spans = [s for s in agent.spans() if s.op == "endpoint-create" and s.ref == "c8"]
    names = ["limiter-wait", "build-wait", "lock-wait tcp", "walk tcp", "lock-wait any", "walk any", "load", "total"]
    assert [s.stage for s in spans] == names
    assert all(a.end_ns <= b.start_ns for a, b in pairwise(spans[:-1]))
    assert spans[-1].outcome == "201"
    assert spans[-1].start_ns <= spans[0].start_ns
    assert agent.delete(8) == 200


@pytest.mark.parametrize("permits", [2, 8])
def test_the_lock_serialises_creates_however_many_build(start_agent, permits):
    agent = start_agent(apiRateLimit=LIMITS_LIFTED, buildPermits=permits)
    agent.fill(N)
    assert set(agent.pool.map(agent.create, range(2, 10))) == {201}
    for table in ("tcp", "any"):
        walks = sorted(agent.walks("endpoint-create", table=table), key=lambda s: s.start_ns)
        assert len(walks) == 8
        assert all(a.end_ns <= b.start_ns for a, b in pairwise(walks))
    # Build permits decide how many can stand on the lock; the others wait for a permit.
    first, *_ = sorted(agent.walks("endpoint-create"), key=lambda s: s.start_ns)
    waits = [s for s in agent.spans() if s.stage == "lock-wait tcp" and s.op == "endpoint-create"]
    assert sum(s.start_ns < first.end_ns for s in waits) <= permits


def test_clients_that_leave_cost_a_second_walk(start_agent):
    agent = start_agent(apiRateLimit=LIMITS_LIFTED, buildPermits=2)
    agent.fill(100_000)
    clients = [agent.send("PUT", *agent.spec(number)) for number in range(2, 8)]
    agent.until(lambda state: state.building + state.build_waiters == 6)
    for client in clients:
        client.close()
    agent.until(lambda state: not state.endpoints)
    outcomes = {s.ref: s.outcome for s in agent.spans() if s.op == "endpoint-create" and s.stage == "total"}
    assert set(outcomes.values()) == {"500"}
    assert len(outcomes) == 6
    walked = Counter(
        (len(agent.walks("endpoint-create", ref)), len(agent.walks("endpoint-delete", ref))) for ref in outcomes
    )
    # Those that waited for a permit were skipped and only removed; those under regeneration finished it first.
    assert set(walked) == {(0, 1), (1, 1)}
    assert walked[1, 1] == 2
    assert {agent.delete(number) for number in range(2, 8)} == {404}
    # The address is free again for whoever comes next.
    assert agent.create(2) == 201


def test_delete_of_an_endpoint_under_regeneration_waits_for_it(start_agent):
    agent = start_agent(apiRateLimit=LIMITS_LIFTED)
    agent.fill(100_000)
    create = agent.pool.submit(agent.create, 2)
    agent.until(lambda state: state.endpoints.get("regenerating") == 1)
    assert agent.delete(2) == 200
    assert create.result() == 201
    assert (len(agent.walks("endpoint-create", "c2")), len(agent.walks("endpoint-delete", "c2"))) == (1, 1)
    assert agent.state().endpoints == {}


def test_delete_of_a_queued_endpoint_ends_its_create(start_agent):
    agent = start_agent(apiRateLimit=LIMITS_LIFTED, buildPermits=1)
    agent.fill(100_000)
    first = agent.pool.submit(agent.create, 2)
    agent.until(lambda state: state.building == 1)
    second = agent.pool.submit(agent.create, 3)
    agent.until(lambda state: state.build_waiters == 1)
    assert agent.delete(3) == 200
    assert second.result() == 500
    assert first.result() == 201
    assert (len(agent.walks("endpoint-create", "c3")), len(agent.walks("endpoint-delete", "c3"))) == (0, 1)


def test_what_is_in_use_is_refused_without_a_walk(agent):
    assert agent.create(2) == 201
    path, body = agent.spec(2)
    status, why = agent.request("PUT", path, body)
    assert (status, why) == (400, "endpoint for CNI attachment ID cni-attachment-id:c2:eth0 already exists")
    status, why = agent.request("PUT", path.replace("c2", "other"), body)
    assert (status, why) == (400, "IP ipv4:10.244.0.2 is already in use")
    assert len(agent.walks("endpoint-create", "c2")) == 1
    assert agent.delete(2) == 200


def test_interface_that_has_gone_fails_the_build_and_removes_the_endpoint(start_agent):
    agent = start_agent(attach=True)
    assert agent.create(2) == 500
    assert "Link not found" in agent.log()
    assert len(agent.walks("endpoint-delete", "c2")) == 1
    assert agent.state().endpoints == {}
