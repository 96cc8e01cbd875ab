from __future__ import annotations

from collections import Counter

import pytest

from loadgen.core import cost
from loadgen.core.cost import Costs, Measured

NS = {"empty": 28, "pass": 30, "array": 70, "hash": 160, "lru": 170, "lru_own": 165, "lru_percpu": 180}


def row(plane: str, ns: float, *, workload: str = "network", cpus: int = 1, repeat: int = 0) -> Measured:
    return Measured(
        plane, workload, cpus, repeat, flows=1000, capacity=2000, memory=4096, packets=1_000_003, ns=ns,
        fill_ns=None if plane in ("empty", "pass") else 2 * ns, inserted=1000, evicted=0, failed=0,
    )  # fmt: skip


def analysed(*, compute: float = 0.0, contended: float = 1.5, repeats: int = 5, noise: float = 1.0) -> Costs:
    """`compute`: ns of work in the compute-bound workload. `contended`: what the tables take longer on two CPUs."""
    rows = []
    for repeat in range(repeats):
        jitter = noise * (repeat - repeats // 2)
        rows += [row(plane, ns + jitter, repeat=repeat) for plane, ns in NS.items()]
        rows += [row(plane, ns + compute + jitter, workload="compute", repeat=repeat) for plane, ns in NS.items()]
        for plane in cost.CONTENDED:
            factor = 1.0 if plane in ("pass", "array") else contended
            rows.append(row(plane, NS[plane] * factor + jitter, cpus=2, repeat=repeat))
    return cost.analyse(rows, seed=1)


def outcomes(found: Costs) -> list[str]:
    return [claim.outcome for claim in found.claims]


def test_each_cell_is_measured_once_in_every_repeat_in_an_order_of_its_own() -> None:
    cells = cost.plan(1_000_000, 5_000_000, cpus=2)
    assert len({cell.key for cell in cells}) == len(cells)
    assert {cell.workload.name for cell in cells} == {
        "network", "compute", "memory", "network-1000", "network-10000", "network-100000"
    }  # fmt: skip
    turns = cost.order(cells, 3, seed=7)
    assert set(Counter(cell.key for _, cell in turns).values()) == {3}
    first, second = ([cell.key for repeat, cell in turns if repeat == n] for n in (0, 1))
    assert first != second
    assert turns == cost.order(cells, 3, seed=7) != cost.order(cells, 3, seed=8)
    assert {cell.cpus for cell in cost.plan(1000, 2000, cpus=1)} == {1}


def test_the_cost_of_the_state_is_what_is_above_no_state_in_the_same_repeat() -> None:
    found = {(c.plane, c.workload, c.cpus): c for c in analysed(noise=10.0).cells}
    lru = found["lru", "network", 1]
    assert (lru.packet.value, lru.packet.low < 170 < lru.packet.high) == (170, True)
    assert lru.state is not None
    assert (lru.state.value, lru.state.low, lru.state.high) == (140, 140, 140)  # what hits both goes away
    assert (lru.fill, lru.repeats) == (340, 5)
    for plane in ("empty", "pass"):
        assert (found[plane, "network", 1].state, found[plane, "network", 1].fill) == (None, None)
    assert found["lru", "network", 2].state is not None


def test_claims_follow_from_the_numbers() -> None:
    assert outcomes(analysed()) == ["confirmed", "confirmed", "confirmed", "not confirmed", "not measured"]
    assert outcomes(analysed(compute=3000))[3] == "confirmed"
    assert outcomes(analysed(contended=1.0))[2] in ("inconclusive", "not confirmed")
    assert "LRU hash 140 ns (140 to 140) above 30 ns" in analysed().claims[0].why


@pytest.mark.parametrize("repeats", [1, 2])
def test_too_few_repeats_prove_nothing(repeats: int) -> None:
    assert set(outcomes(analysed(repeats=repeats))) == {"inconclusive", "not measured"}
    assert analysed(repeats=repeats).claims[0].why == f"{repeats} repeats; 3 are needed"


def test_noise_larger_than_the_difference_is_inconclusive() -> None:
    assert outcomes(analysed(contended=1.02, noise=20.0))[2] == "inconclusive"


def test_what_was_not_measured_is_named() -> None:
    found = cost.analyse([row("pass", 30.0, repeat=r) for r in range(3)], seed=1)
    assert found.claims[0].why == "lru was not measured under network on 1 CPU(s)"
    assert cost.analyse([], seed=1).cells == ()
