"""What a packet's state costs, on a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loadgen.core.cost import PLANES, Costs, Estimate
from loadgen.core.units import format_count

_STYLES = {
    "confirmed": "bold green",
    "not confirmed": "bold red",
    "inconclusive": "bold yellow",
    "not measured": "bold",
}


def costs(found: Costs, notes: tuple[str, ...] = ()) -> RenderableType:
    """A row a cell, what the planes are, and a line a claim."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False, expand=False)
    words = ("workload", "plane")
    for name in (*words, "CPUs", "flows", "ns a packet", "of it state", "fill", "MiB", "again"):
        table.add_column(name, justify="left" if name in words else "right", no_wrap=True)
    for cell in found.cells:
        table.add_row(
            cell.workload,
            cell.plane,
            str(cell.cpus),
            format_count(cell.flows),
            _estimate(cell.packet),
            _estimate(cell.state),
            "-" if cell.fill is None else f"{cell.fill:.0f}",
            f"{cell.memory / 2**20:,.0f}" if cell.memory else "-",
            format_count(cell.evicted) if cell.evicted else "-",
        )
    lines = [Text(f"  {name}: {what}") for name, what in PLANES.items()]
    claims = [
        Text.assemble((claim.outcome, _STYLES[claim.outcome]), f"  {claim.text}: {claim.why}")
        for claim in found.claims
    ]
    told = [Text(f"  {note}", style="yellow") for note in notes]
    return Group(
        table,
        Text(""),
        *lines,
        Text("  Medians with 95 % bootstrap intervals over the repeats; the kernel gives whole nanoseconds."),
        Text("  fill: ns a packet while the table fills. again: flows put in twice, as the table had dropped them."),
        *told,
        Text(""),
        *claims,
    )


def _estimate(found: Estimate | None) -> str:
    return "-" if found is None else f"{found.value:.0f} ({found.low:.0f}-{found.high:.0f})"
