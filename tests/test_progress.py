import io

from rich.console import Console

from loadgen.core.history import Ending
from loadgen.core.model import Variant
from loadgen.core.samples import Mark, Reading
from loadgen.progress import Show


def told(*, quiet: bool = False, terminal: bool = False) -> str:
    out = io.StringIO()
    with Show(
        Console(file=out, force_terminal=terminal, width=60, color_system=None), "small: before", quiet=quiet
    ) as show:
        show.begin("01-before", Variant(name="before", describe="nothing [b]fixed[/b]"), 1, 3)
        show.message(Mark(1, "phase", "burst", "measured"))
        show.message(Mark(2, "ready", "worker"))
        show.message(Reading(3, "ct.tcp.entries", 5.0))
        show.end("01-before", Ending.COMPLETE)
    return out.getvalue()


def test_off_a_terminal_it_is_plain_lines() -> None:
    assert told().splitlines() == [
        "small: before",
        "01-before: nothing [b]fixed[/b] (run 2 of 3)",
        "01-before: phase burst: measured",
        "01-before: complete",
    ]


def test_on_a_terminal_the_line_lives() -> None:
    shown = told(terminal=True)
    assert "\x1b[" in shown
    assert "phase burst" in shown


def test_quiet_says_nothing() -> None:
    assert told(quiet=True) == ""
