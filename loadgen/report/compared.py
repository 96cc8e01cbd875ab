"""A comparison of two settings on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from loadgen.core.units import format_count, format_duration
from loadgen.core.versus import FAILED, Comparison, Outcome, Row

_STYLES = {
    Outcome.BETTER: "bold green",
    Outcome.SAME: "bold green",
    Outcome.INCONCLUSIVE: "bold yellow",
    Outcome.WORSE: "bold red",
}


def comparison(found: Comparison) -> RenderableType:
    """What was compared, a row an aggregate, what they rest on, and the outcome as the last line. ASCII only."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False, expand=False)
    for name in ("metric", "aggregate", "current", "candidate", "ratio", "interval", "detectable", "outcome"):
        words = name in ("metric", "aggregate", "outcome")
        table.add_column(name, justify="left" if words else "right", no_wrap=True)
    for row in found.rows:
        table.add_row(*_cells(row), Text(row.outcome.value, style=_STYLES[row.outcome]))
    outcome = Text(found.outcome.value.upper(), style=_STYLES[found.outcome])
    outcome.append(f"  {found.why}", style="not bold default")
    return Group(
        Text(f"current    {found.current}"),
        Text(f"candidate  {found.candidate}"),
        Text(""),
        table,
        Text(""),
        *(Padding(Text(line), (0, 0, 0, 2)) for line in _rests_on(found)),
        Text(""),
        outcome,
    )


def _cells(row: Row) -> tuple[str, ...]:
    interval = "-" if row.low is None or row.high is None else f"{_times(row.low)} to {_times(row.high)}"
    return (
        row.metric,
        row.aggregate,
        _value(row, row.current),
        _value(row, row.candidate),
        _times(row.ratio),
        interval,
        "-" if row.detectable is None else _times(row.detectable),
    )


def _value(row: Row, value: float) -> str:
    return f"{value:.3%}" if row.aggregate == FAILED else format_duration(value)


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"


def _rests_on(found: Comparison) -> Iterator[str]:
    for row in found.rows:
        if row.aggregate == FAILED:
            samples = f"{format_count(row.samples[0])} and {format_count(row.samples[1])} operations"
            yield f"{row.metric}: {row.runs[0]} and {row.runs[1]} runs, {samples}; Mann-Whitney p = {row.p:.3g}"
    if found.rows:
        yield (
            f"ratio: candidate / current. interval: {found.confidence:.2%}, so that all rows together err in at most "
            f"5 of 100 comparisons. detectable: what as many runs tell in 4 of 5. margin: {found.margin:.0%}"
        )
