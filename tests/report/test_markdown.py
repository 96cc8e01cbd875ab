from __future__ import annotations

from pathlib import Path

import msgspec

from loadgen.report import markdown
from tests import factories
from tests.golden import assert_golden

GOLDEN = Path(__file__).parent / "golden"


def test_the_whole_of_it() -> None:
    assert_golden(GOLDEN / "summary.md", markdown.render(factories.spiral()))


def test_what_a_scenario_brings_along_cannot_break_a_table() -> None:
    results = factories.spiral()
    before, after = results.verdict.variants
    finding = msgspec.structs.replace(after.findings[0], why="a | b\n<script> *x*")
    odd = msgspec.structs.replace(after, findings=(finding,))
    verdict = msgspec.structs.replace(results.verdict, variants=(before, odd))
    told = markdown.render(results._replace(verdict=verdict))
    assert r"a \| b \<script\> \*x\* |" in told
    rows = [line for line in told.splitlines() if line.startswith("|")]
    assert {line.replace(r"\|", "").count("|") for line in rows} == {8}
