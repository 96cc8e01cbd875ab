from __future__ import annotations

from io import StringIO
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from loadgen.core.results import Results
from loadgen.report import terminal
from tests import factories
from tests.golden import assert_golden

GOLDEN = Path(__file__).parent / "golden"


def shown(results: Results, **options: object) -> str:
    out = StringIO()
    Console(file=out, width=100, **options).print(terminal.findings_table(results))  # type: ignore[arg-type]
    return out.getvalue()


@pytest.mark.parametrize("variants", [("before", "after"), ("before", "gc-only", "dns-only", "after")])
def test_the_whole_of_it(variants: tuple[str, ...]) -> None:
    assert_golden(GOLDEN / f"terminal-{len(variants)}.txt", terminal.plain(factories.spiral(variants)))


def test_a_hundred_columns_are_enough_and_nothing_is_cut() -> None:
    text = terminal.plain(factories.spiral(("before", "gc-only", "dns-only", "after")))
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text


def test_the_verdict_is_the_last_line() -> None:
    last = terminal.plain(factories.spiral(), width=200).splitlines()[-1]
    assert last == "PASS  chaos: before broke its thresholds, as it must; after held every one"


def test_without_a_terminal_there_is_no_colour_and_with_one_the_words_are_the_same() -> None:
    results = factories.spiral()
    assert "\x1b" not in shown(results)
    coloured = shown(results, force_terminal=True, color_system="standard")
    assert "\x1b[1;31m" in coloured
    assert "FAIL" in coloured


def test_an_ascii_terminal_can_show_it() -> None:
    class Ascii(StringIO):
        encoding = "ascii"

    out = Ascii()
    Console(file=out, width=100, color_system=None).print(terminal.findings_table(factories.spiral()))
    assert out.getvalue().isascii()


def test_names_are_text_and_not_markup() -> None:
    results = factories.spiral()
    odd = "[red]not red[/red] :smile:"
    before, after = results.verdict.variants
    named = msgspec.structs.replace(before, name=odd, why=odd, emulated=(odd,))
    verdict = msgspec.structs.replace(results.verdict, why=odd, variants=(named, after))
    text = terminal.plain(results._replace(verdict=verdict))
    assert text.count(odd) == 3  # the heading, what is emulated, the verdict


def test_a_run_that_was_cut_short_says_so_and_is_inconclusive() -> None:
    plan = factories.scenario()
    runs = [factories.spiral_run(plan, "before"), factories.spiral_run(plan, "after", ending="interrupted")]
    text = terminal.plain(factories.results(plan, runs))
    assert "02-after: the run was cut short (interrupted)" in text
    assert "INCONCLUSIVE  chaos: after: sandbox.setup p99: 6.375s < 30s holds, but the run was cut short" in text


def test_a_baseline_that_did_not_reproduce_says_so() -> None:
    plan = factories.scenario()
    quick = factories.spiral_run(plan, "after")
    lame = quick._replace(info=msgspec.structs.replace(quick.info, variant="before", baseline=True))
    text = terminal.plain(factories.results(plan, [lame, quick]))
    assert "before (baseline, 1 run): PASS: it did not reproduce the failure" in text
    assert "INCONCLUSIVE  chaos: before did not reproduce the failure" in text


def test_the_order_is_the_scenario_s_whatever_was_run_first() -> None:
    plan = factories.scenario()
    runs = [factories.spiral_run(plan, name) for name in ("after", "before")]
    text = terminal.plain(factories.results(plan, runs))
    assert text.index("before (baseline") < text.index("after (1 run)")
