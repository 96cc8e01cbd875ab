from __future__ import annotations

from io import StringIO

from rich.console import Console

from loadgen.core import cost
from loadgen.report import costs
from tests.core.test_cost import analysed


def told(found: cost.Costs, notes: tuple[str, ...] = ()) -> str:
    out = StringIO()
    Console(file=out, width=100, color_system=None).print(costs.costs(found, notes))
    return out.getvalue()


def test_a_row_says_what_a_packet_costs_and_what_of_it_its_state() -> None:
    lines = [line.split() for line in told(analysed(noise=0.0)).splitlines()]
    assert ["network", "lru", "1", "1,000", "170", "(170-170)", "140", "(140-140)", "340", "0", "-"] in lines
    assert ["network", "pass", "1", "1,000", "30", "(30-30)", "-", "-", "0", "-"] in lines


def test_planes_notes_and_claims_are_told_in_words() -> None:
    text = told(analysed(), ("memory-bound: fewer flows",))
    assert "lru: an LRU hash table, as Cilium's CT tables are" in text
    assert "  memory-bound: fewer flows" in text
    assert "confirmed  a per-CPU array still costs: 40 ns (40 to 40) above no state" in text
