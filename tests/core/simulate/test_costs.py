"""Costs read out of spans."""

from __future__ import annotations

import random

import pytest

from loadgen.core.errors import ConfigError
from loadgen.core.samples import Span
from loadgen.core.simulate.costs import Costs, calibrate, walk_ns
from loadgen.core.units import Duration

CAPACITIES = {"tcp": 1 << 20, "any": 1 << 16}


def spans(entry: float, slot: float, delete: float, noise: float = 0.0, walks: int = 40) -> list[Span]:
    draw, found, t = random.Random(1), [], 0
    for i in range(walks):
        seen, deleted = draw.randrange(50_000, 900_000), draw.randrange(40_000) if i % 3 == 0 else 0
        took = (entry * seen + slot * (1 << 20) + delete * deleted) * (1 + noise * draw.gauss(0, 1))
        found.append(Span("endpoint-create", f"c{i}", "walk tcp", t, t + round(took), n=seen, deleted=deleted))
        any_took = round(slot * (1 << 16))
        found.append(Span("endpoint-create", f"c{i}", "walk any", t, t + max(1, any_took), n=0))
        found.append(Span("endpoint-create", f"c{i}", "load", t, t + 5_000_000))
        found.append(Span("endpoint-create", f"c{i}", "total", t, t + round(took) + 6_000_000, outcome="201"))
        t += round(took) + 2_000_000_000
    return found


@pytest.mark.parametrize("batch", [False, True])
def test_measured_costs_are_found_again(batch: bool) -> None:
    found = calibrate(spans(1500.0, 2.0, 900.0), CAPACITIES, [], batch=batch)
    assert found.entry_ns == pytest.approx(1500, rel=0.02)
    assert found.slot_ns == pytest.approx(2.0, rel=0.01)
    assert found.delete_ns == pytest.approx(900, rel=0.1)
    assert found.load_ns == 5_000_000
    assert found.residual < 0.02
    costs = found.over(Costs())
    measured, other = (costs.per_entry_batch, costs.per_entry) if batch else (costs.per_entry, costs.per_entry_batch)
    usual = Costs().per_entry_batch / Costs().per_entry
    assert measured == pytest.approx(1500, rel=0.02)
    assert other / measured == pytest.approx(1 / usual if batch else usual, rel=0.02)


def test_noise_moves_the_fit_little() -> None:
    found = calibrate(spans(1500.0, 2.0, 0.0, noise=0.2, walks=200), CAPACITIES, [], batch=False)
    assert found.entry_ns == pytest.approx(1500, rel=0.05)
    assert 0.05 < found.residual < 0.3


def test_too_few_walks_are_refused() -> None:
    with pytest.raises(ConfigError, match="only 3 walks of at least 10,000 entries; 5 are needed"):
        calibrate(spans(1500.0, 2.0, 0.0, walks=3), CAPACITIES, [], batch=False)


def test_plugins_part_is_what_the_agent_did_not_take() -> None:
    found = spans(1000.0, 0.0, 0.0)
    totals = sorted(s.end_ns - s.start_ns for s in found if s.stage == "total")
    attempts = [t + 80_000_000 for t in totals]
    assert calibrate(found, CAPACITIES, attempts, batch=False).plugin_ns == pytest.approx(80_000_000)


def test_walk_counts_entries_places_and_deletions() -> None:
    costs = Costs(
        per_entry=Duration(1000), per_entry_batch=Duration(200), per_slot=Duration(2), per_delete=Duration(500)
    )
    assert walk_ns(costs, 1_000_000, 10_000, 100, batch=False) == 10_000_000 + 2 * (1 << 20) + 50_000
    assert walk_ns(costs, 1 << 20, 10_000, 0, batch=True) == 2_000_000 + 2 * (1 << 20)
