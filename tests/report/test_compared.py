from __future__ import annotations

from io import StringIO

import msgspec
from rich.console import Console

from loadgen.core.versus import Comparison, Outcome, Row
from loadgen.report import compared

SLOWER = Row(
    metric="sandbox.setup", aggregate="p99", current=4.1, candidate=123.0, ratio=30.0, low=28.2, high=31.9,
    detectable=1.21, runs=(5, 5), samples=(250, 250), p=1e-9, outcome=Outcome.WORSE, why="28.2 to 31.9 times",
)  # fmt: skip
UNKNOWN = msgspec.structs.replace(
    SLOWER, aggregate="failed", current=0.0, candidate=0.4, low=None, high=None, detectable=None,
    outcome=Outcome.INCONCLUSIVE,
)  # fmt: skip


def told(*rows: Row) -> str:
    out = StringIO()
    found = Comparison(1, "a (before)", "b (after)", 0.1, 0.975, Outcome.WORSE, "sandbox.setup p99: slower", rows)
    Console(file=out, width=120, color_system=None).print(compared.comparison(found))
    return out.getvalue()


def test_a_row_says_what_moved_how_surely_and_what_could_have_been_seen() -> None:
    text = told(SLOWER)
    (line,) = (line for line in text.splitlines() if line.startswith("sandbox.setup"))
    assert line.split() == ["sandbox.setup", "p99", "4.1s", "2m3s", "30", "28.2", "to", "31.9", "1.21", "worse"]
    assert text.splitlines()[-1] == "WORSE  sandbox.setup p99: slower"
    assert text.startswith("current    a (before)\ncandidate  b (after)\n")


def test_what_is_not_known_is_a_dash_and_the_rest_says_what_it_rests_on() -> None:
    text = told(UNKNOWN)
    (line,) = (line for line in text.splitlines() if line.startswith("sandbox.setup"))
    assert line.split() == ["sandbox.setup", "failed", "0.000%", "40.000%", "30", "-", "-", "inconclusive"]
    assert "sandbox.setup: 5 and 5 runs, 250 and 250 operations; Mann-Whitney p = 1e-09" in text
    assert "interval: 97.50%" in text
