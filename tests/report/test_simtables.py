"""The ranking as a table."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from loadgen.report import simtables
from tests.simulation.simulations import simulation


def test_ranking_has_the_best_policy_first_and_says_what_is_late() -> None:
    table = simtables.ranking(simulation())
    assert [row[1].text for row in table.rows] == ["fixed", "current"]
    assert table.rows[0][2].text == "0 of 40"
    assert {len(row) for row in table.rows} == {len(table.columns)}
    assert "not up within 10s" in table.note


def test_by_type_keeps_the_order_of_the_file_and_shows_types_without_pods() -> None:
    table = simtables.by_type(simulation(), "alone")
    assert [row[0].text for row in table.rows] == ["current", "fixed"]
    assert [cell.text for cell in table.rows[0][1:6]] == ["0 of 0", "0 + 0", "–", "–", "–"]


def test_terminal_shows_every_policy() -> None:
    out = StringIO()
    simtables.show(Console(file=out, width=100, color_system=None), simulation())
    text = out.getvalue()
    assert text.index("fixed") < text.index("current")
    assert "one minute <now>" in text
    assert max(map(len, text.splitlines())) <= 100
