"""The numbers of a simulation as tables: for a terminal and for the HTML report."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from loadgen.core.simulate.outcome import PolicySummary, Simulation, ranked
from loadgen.core.units import format_count, format_duration
from loadgen.report.tables import NONE, Cell, Table

_COLUMNS = [
    "policy", "late", "failed ADDs", "p50", "p99", "max", "nodes failing", "of these spiral", "largest table",
    "walks, s per node hour",
]  # fmt: skip


def ranking(simulation: Simulation) -> Table:
    """Policies over the whole fleet, best first."""
    goal = format_duration(simulation.goal_s)
    return Table(
        "Policies, best first",
        ["", *_COLUMNS],
        [
            [Cell(str(place), "text"), *_row(outcome.summary)]
            for place, outcome in enumerate(ranked(simulation.policies), 1)
        ],
        note=(
            f"Late: not up within {goal} of being due. Failed ADDs: given up by the plugin after 90 s + refused by "
            "the agent, mostly 429. A node spirals when a pod of it needs three attempts or more. >= marks a lower "
            "bound: pods that were never up decide it. Ranked by late pods, then p99, then the time spent walking."
        ),
    )


def by_type(simulation: Simulation, name: str) -> Table:
    """The same over the nodes of one type, in the order of the file."""
    outcomes = simulation.policies
    return Table(f"Nodes of type {name}", _COLUMNS, [_row(o.by_type[name]) for o in outcomes])


def _row(s: PolicySummary) -> list[Cell]:
    return [
        Cell(s.policy, "text", title=s.describe),
        Cell(f"{format_count(s.late)} of {format_count(s.pods)}", small=f"{s.unknown} unknown" if s.unknown else ""),
        Cell(f"{format_count(s.timeouts)} + {format_count(s.refused)}"),
        _seconds(s.p50_s, bounded=False),
        _seconds(s.p99_s, bounded=s.p99_bounded),
        _seconds(s.max_s, bounded=s.max_bounded),
        Cell(f"{format_count(s.failing_nodes)} of {format_count(s.nodes)}"),
        Cell(format_count(s.spiralling_nodes)),
        Cell(format_count(round(s.peak_entries)), small=_evicted(s)),
        Cell(f"{s.walk_s_per_node_hour:.3g}"),
    ]


def _evicted(s: PolicySummary) -> str:
    return f"{format_count(round(s.evicted_live))} live ones evicted" if s.evicted_live >= 1 else ""


def _seconds(value: float | None, *, bounded: bool) -> Cell:
    return Cell(NONE) if value is None else Cell(">= " * bounded + format_duration(value))


def fleet(simulation: Simulation) -> Table:
    """What was simulated."""
    rows = [
        [Cell(name, "text"), Cell(format_count(count)), Cell(costs, "text")]
        for name, count, costs in zip(simulation.types, simulation.counts, simulation.costs, strict=True)
    ]
    return Table("Nodes", ["type", "nodes", "walks"], rows)


def show(console: Console, simulation: Simulation) -> None:
    """The ranking, and what each policy is."""
    table = ranking(simulation)
    console.print(_rich(table))
    console.print(Text(table.note, style="dim"))
    console.print(Text(""))
    for outcome in ranked(simulation.policies):
        console.print(Text(f"{outcome.summary.policy}: {outcome.summary.describe}"))


def _rich(table: Table) -> RichTable:
    shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False, title=None)
    kinds = [cell.kind for cell in table.rows[0]] if table.rows else ["text"] * len(table.columns)
    for name, kind in zip(table.columns, kinds, strict=True):
        shown.add_column(name, justify="right" if kind == "num" else "left", overflow="fold")
    for row in table.rows:
        shown.add_row(*(_cell(cell) for cell in row))
    return shown


def _cell(cell: Cell) -> Text:
    return Text("\n".join(part for part in (cell.text, cell.small) if part))


def alternatives(summaries: Sequence[PolicySummary]) -> str:
    """One sentence: what the best policy changes."""
    best = min(summaries, key=lambda s: s.key)
    now = summaries[0]
    if best is now:
        return f"No policy does better than the settings as they are: {_late(now)}."
    return f"{best.policy} does best: {_late(best)}; as the settings are: {_late(now)}."


def _late(s: PolicySummary) -> str:
    return f"{s.late:,} of {s.pods:,} pods late"
