"""The HTML report of a simulation: one file that opens without a network, drawn by the same script as a run's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from loadgen.core.simulate.outcome import UP, Close, NodeOutcome, PolicyOutcome, Simulation
from loadgen.core.units import format_count, format_duration
from loadgen.report import html, simtables
from loadgen.report.figure import Axis, Chart, Limit, Line, Panel, log_ends, rounded, thin_line, variant_colour
from loadgen.report.html import Section

LINE_POINTS = 500
MANY_PASSES = 150
TAIL_POINTS = 300
FASTEST_S = 1e-3

MODELLED = (
    "everything: no packet was sent and no map was walked",
    "connections as constant flows, without Poisson noise; all entries of a flow live equally long",
    "the LRU as evicting its oldest entries once the table is full (a kernel's begins a little earlier)",
    "IPv4 tables only; NAT entries only as part of what a deletion costs",
    "signals that wake the GC early, agent restarts and policy work besides the scrub: not modelled",
)


def render(simulation: Simulation, calibrated: Sequence[str] = ()) -> str:
    """The whole page. Every number comes from `simulation`."""
    sections = _sections(simulation)
    pictures = {chart.name: chart for section in sections for chart in section.charts}
    return html.page(
        "simulation.html.j2",
        pictures,
        simulation=simulation,
        headline=simtables.alternatives([o.summary for o in simulation.policies]),
        ranking=simtables.ranking(simulation),
        policies=[(o.summary.policy, o.summary.describe) for o in simulation.policies],
        modelled=MODELLED,
        calibrated=calibrated,
        nodes=sum(simulation.counts),
        sections=sections,
    )


def _sections(simulation: Simulation) -> list[Section]:
    pods = [tail_chart(simulation)] if any(o.summary.pods for o in simulation.policies) else []
    found = [Section("pods", "Pods", "", pods, [], [])]
    for i, name in enumerate(simulation.types):
        number = simulation.policies[0].close[name][0]
        intro = (
            f"Node {number} of {simulation.counts[i]}, counted from 0: the one that fared worst as the settings are. "
            "The same node with the same luck under each policy."
        )
        charts = [table_chart(simulation, name), interval_chart(simulation, name)]
        if any(_close_of(o, name).waiting for o in simulation.policies):
            charts.insert(1, waiting_chart(simulation, name))
        if simulation.counts[i] > 1:
            charts.append(fleet_chart(simulation, name, i))
        found.append(
            Section(f"type-{i}", f"Nodes of type {name}", intro, charts, [simtables.by_type(simulation, name)], [])
        )
    found.append(Section("made", "How it was made", "", [], [simtables.fleet(simulation)], []))
    return [s for s in found if s.charts or s.tables]


def _close_of(outcome: PolicyOutcome, type_name: str) -> Close:
    node: NodeOutcome = outcome.close[type_name][1]
    assert node.close is not None, "the node was not looked at closely"
    return node.close


def _hours(simulation: Simulation) -> Axis:
    return Axis("since the simulation's start", "h", 0.0, simulation.hours)


def _line(name: str, t_s: np.ndarray, y: np.ndarray, style: str, colour: str) -> Line:
    x, y = thin_line(t_s / 3600, y, LINE_POINTS)
    return Line(name, rounded(x, 6), rounded(y, 5), style, colour)


def _courses(
    simulation: Simulation, course: Callable[[PolicyOutcome], tuple[list[Line], list[float]]]
) -> tuple[list[Panel], Axis, str]:
    """A panel a policy, of lines whose first is the highest, and ticks; an axis for all, and their peaks in words."""
    panels, said, top = [], [], 1.0
    for i, outcome in enumerate(simulation.policies):
        lines, ticks = course(outcome)
        panels.append(Panel(outcome.summary.policy, variant_colour(i), ticks=ticks, lines=lines))
        peak = max(lines[0].y)
        top = max(top, peak)
        said.append(f"{outcome.summary.policy}: at most {format_count(round(peak))}.")
    return panels, Axis("entries", "count", 0.0, top * 1.08), " ".join(said)


def table_chart(simulation: Simulation, type_name: str) -> Chart:
    """One node's TCP table under each policy."""

    def course(outcome: PolicyOutcome) -> tuple[list[Line], list[float]]:
        close = _close_of(outcome, type_name)
        t_s, entries, expired = np.array(close.table).T
        ticks = [p.end_s / 3600 for p in close.passes] if len(close.passes) <= MANY_PASSES else []
        lines = [
            _line("entries", t_s, entries, "area", "entries"),
            _line("of these expired", t_s, expired, "hold", "expired"),
        ]
        return lines, rounded(ticks, 6)

    panels, y, alt = _courses(simulation, course)
    return Chart(
        name=f"table-{type_name}",
        title="Entries in the TCP connection-tracking table",
        caption="Expired entries stay until a GC pass; every pod that comes or goes walks all of them.",
        alt=alt,
        x=_hours(simulation),
        y=y,
        panels=panels,
        key=[("area", "entries"), ("expired", "of these expired"), ("tick", f"a GC pass (up to {MANY_PASSES})")],
        height=200,
    )


def interval_chart(simulation: Simulation, type_name: str) -> Chart:
    """The GC interval of the node that is looked at, at regular times, all policies in one panel."""
    lines, said = [], []
    for i, outcome in enumerate(simulation.policies):
        node = outcome.close[type_name][1]
        t_s = np.linspace(0.0, simulation.hours * 3600, len(node.intervals))
        lines.append(_line(outcome.summary.policy, t_s, node.intervals.astype(float), "hold", variant_colour(i)))
        said.append(f"{outcome.summary.policy}: {format_duration(float(node.intervals[-1]))} at the end.")
    lows, highs = [min(line.y) for line in lines], [max(line.y) for line in lines]
    low, high = log_ends(max(1.0, min(lows)), max(highs))
    return Chart(
        name=f"interval-{type_name}",
        title="What the agent waits between two GC passes",
        caption="A pass that deletes less than 5 % of the table's places makes the next wait half as long again.",
        alt=" ".join(said),
        x=_hours(simulation),
        y=Axis("interval", "s", low, high, log=True),
        panels=[Panel("", "v0", lines=lines)],
        key=_policy_key(simulation),
        height=200,
    )


def waiting_chart(simulation: Simulation, type_name: str) -> Chart:
    """Sandboxes under way on the node that is looked at."""
    panels, said, top = [], [], 1
    for i, outcome in enumerate(simulation.policies):
        steps = np.array(
            [(0.0, 0), *_close_of(outcome, type_name).waiting, (simulation.hours * 3600, 0)], dtype=float
        )
        line = _line("sandboxes under way", steps[:, 0], steps[:, 1], "area", "sandbox-waiting")
        panels.append(Panel(outcome.summary.policy, variant_colour(i), lines=[line]))
        most = int(steps[:, 1].max())
        top = max(top, most)
        said.append(f"{outcome.summary.policy}: at most {most}.")
    return Chart(
        name=f"waiting-{type_name}",
        title="Sandboxes under way",
        caption="Pods that are due and not up yet, retries included.",
        alt=" ".join(said),
        x=_hours(simulation),
        y=Axis("pods", "count", 0.0, top * 1.08),
        panels=panels,
        key=[],
        height=160,
    )


def fleet_chart(simulation: Simulation, type_name: str, type_number: int) -> Chart:
    """The tables of all nodes of a type: the middle one and the largest at each time."""
    t_s = np.array(simulation.looks_s)

    def course(outcome: PolicyOutcome) -> tuple[list[Line], list[float]]:
        grid = outcome.nodes.of_type(type_number).grid.astype(float)
        largest = _line("largest", t_s, grid.max(axis=0), "area", "entries")
        return [largest, _line("middle", t_s, np.median(grid, axis=0), "hold", "expired")], []

    panels, y, alt = _courses(simulation, course)
    return Chart(
        name=f"fleet-{type_name}",
        title="The TCP tables of all nodes of this type",
        caption="At each quarter of an hour, the largest table and the middle one.",
        alt=alt,
        x=_hours(simulation),
        y=y,
        panels=panels,
        key=[("area", "largest"), ("expired", "middle")],
        height=160,
    )


def tail_chart(simulation: Simulation) -> Chart:
    """Share of all pods that took at least this long, all policies in one panel."""
    lines, said, lowest = [], [], 1.0
    for i, outcome in enumerate(simulation.policies):
        pods = outcome.nodes.pods
        took = np.sort(pods["took_s"].astype(float))
        if not len(took):
            continue
        ranks = len(took) - np.unique(np.round(np.logspace(0, np.log10(len(took)), TAIL_POINTS)).astype(int))[::-1]
        share = (len(took) - ranks) / len(took)
        x = np.maximum(took[ranks], FASTEST_S)
        lines.append(Line(outcome.summary.policy, rounded(x), rounded(share), "drop", variant_colour(i)))
        lowest = min(lowest, float(share.min()))
        never = int((pods["state"] != UP).sum())
        said.append(f"{outcome.summary.policy}: {len(took):,} pods, {never:,} never up.")
    low, high = log_ends(min(min(line.x) for line in lines), max(max(line.x) for line in lines))
    return Chart(
        name="tail",
        title="How many pods take how long to get their sandbox",
        caption="Share of all pods that took at least this long, both on log scales. Pods that were given up or "
        "never came up stand where that was decided: they would have taken longer.",
        alt=" ".join(said),
        x=Axis("from due to up", "s", low, high, log=True),
        y=Axis("share", "share", log_ends(lowest, 1.0)[0], 1.0, log=True),
        panels=[
            Panel(
                "",
                "v0",
                lines=lines,
                limits=[Limit("x", simulation.goal_s, f"goal {format_duration(simulation.goal_s)}")],
            )
        ],
        key=_policy_key(simulation),
    )


def _policy_key(simulation: Simulation) -> list[tuple[str, str]]:
    return [(f"line {variant_colour(i)}", o.summary.policy) for i, o in enumerate(simulation.policies)]
