"""Gates on the event loop: what the pure limiter decides happens to waiting coroutines."""

from __future__ import annotations

import asyncio

import pytest

from loadgen.core.cilium import PROFILES
from loadgen.core.limiter import LimiterParams
from loadgen.core.units import NS_PER_S
from loadgen.lab.agent.admission import Client, Gate, TooManyRequests
from loadgen.lab.agent.metrics import Metrics


def gate(**params: object) -> Gate:
    return Gate("endpoint-create", LimiterParams(**params), Metrics(PROFILES["1.16"]))  # type: ignore[arg-type]


def test_places_are_handed_on_as_they_are_left():
    async def scenario() -> list[int]:
        limited, order = gate(parallel=2), []

        async def call(number: int) -> None:
            ticket = await limited.enter(Client())
            order.append(number)
            await asyncio.sleep(0)
            limited.leave(ticket, 201)

        await asyncio.gather(*(call(i) for i in range(9)))
        assert limited.state().in_flight == limited.state().queued == 0
        return order

    assert asyncio.run(scenario()) == list(range(9))


def test_token_comes_with_time():
    async def scenario() -> float:
        limited, loop = gate(rate=20.0, burst=1), asyncio.get_running_loop()
        began = loop.time()
        for _ in range(3):
            limited.leave(await limited.enter(Client()), 201)
        return loop.time() - began

    assert asyncio.run(scenario()) >= 0.1


def test_both_refusals_and_a_client_that_leaves():
    async def scenario() -> None:
        slow = gate(rate=0.01, burst=1, max_wait_ns=NS_PER_S)
        await slow.enter(Client())
        with pytest.raises(TooManyRequests, match=r"too long to be served \(maximum wait duration: 1s\)"):
            await slow.enter(Client())

        narrow = gate(parallel=1, max_wait_ns=NS_PER_S // 20)
        await narrow.enter(Client())
        with pytest.raises(TooManyRequests, match="served with 1 parallel requests"):
            await narrow.enter(Client())

        patient, client = gate(parallel=1), Client()
        ticket = await patient.enter(Client())
        waiting = asyncio.create_task(patient.enter(client))
        await asyncio.sleep(0)
        assert patient.state().queued == 1
        client.hang_up()
        client.hang_up()
        with pytest.raises(TooManyRequests, match="request cancelled"):
            await waiting
        assert patient.state().queued == 0
        patient.leave(ticket, 500)

    asyncio.run(scenario())


def test_outcomes_are_counted_under_ciliums_labels():
    async def scenario() -> bytes:
        metrics = Metrics(PROFILES["1.16"])
        limited = Gate("endpoint-delete", LimiterParams(parallel=1, max_wait_ns=1), metrics)
        ticket = await limited.enter(Client())
        with pytest.raises(TooManyRequests):
            await limited.enter(Client())
        limited.leave(ticket, 404)
        return metrics.text()

    text = asyncio.run(scenario()).decode()
    for outcome, code in (("fail-parallel-wait", 429), ("fail", 404)):
        labels = f'api_call="endpoint-delete",outcome="{outcome}",return_code="{code}"'
        assert f"cilium_api_limiter_processed_requests_total{{{labels}}} 1.0" in text
