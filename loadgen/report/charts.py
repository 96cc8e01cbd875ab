"""Pictures on the run's clock: the table's size, who waits, and single operations.

Times on an x axis are seconds since the run's start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from loadgen.core import thresholds
from loadgen.core.history import MetricSamples, RunData, Series
from loadgen.core.judge import measured_phases
from loadgen.core.model import Scenario
from loadgen.core.results import RunResult
from loadgen.core.samples import Outcome
from loadgen.core.units import NS_PER_S, format_count, format_duration
from loadgen.report.figure import (
    Axis,
    Band,
    Chart,
    Lane,
    Limit,
    Line,
    Panel,
    Points,
    log_ends,
    rounded,
    thin_line,
    thin_points,
    variant_colour,
)
from loadgen.report.view import VariantView, duration_s, expired_entries, gc_passes, table_entries

LINE_POINTS = 600
CHART_POINTS = 24_000
"""All panels of one picture share them."""
MAX_LANES = 400
AT_THE_END_S = 0.5
"""An attempt that ends so close to its sandbox's end was given up with it, and did not fail on the way."""
MAX_REPEATS = 3
"""Runs of a variant that get a panel of their own; the tables pool all of them."""


def _seconds(t_ns: np.ndarray, data: RunData) -> np.ndarray:
    return np.round((t_ns - data.info.start_ns) / NS_PER_S, 3)


# --- parts of panels -------------------------------------------------------------------------------------------


class Source(NamedTuple):
    """A run that gets a panel of its own: its variant, its title, its colour."""

    variant: VariantView
    run: RunResult
    title: str
    colour: str


def sources(variants: Sequence[VariantView]) -> list[Source]:
    """One a run, repeat by repeat, so that variants stand beside each other."""
    rows = range(max((len(v.runs) for v in variants), default=0))
    return [
        Source(v, v.runs[i], v.name if len(v.runs) == 1 else f"{v.name}, run {i + 1}", variant_colour(v.number))
        for i in rows[:MAX_REPEATS]
        for v in variants
        if i < len(v.runs)
    ]


def left_out(variants: Sequence[VariantView]) -> list[str]:
    more = sum(max(0, len(v.runs) - MAX_REPEATS) for v in variants)
    return [f"{more} more runs have no panel here; the tables pool all runs."] if more else []


def bands(scenario: Scenario, data: RunData) -> list[Band]:
    measured, origin = measured_phases(scenario), data.info.start_ns
    return [
        Band(name, round((start - origin) / NS_PER_S, 3), round((end - origin) / NS_PER_S, 3), name in measured)
        for name, (start, end) in data.phase_windows().items()
    ]


def limits(scenario: Scenario, metric: str, axis: str) -> list[Limit]:
    """Upper limits in seconds that thresholds put on this metric."""
    parsed = [thresholds.parse(text) for text in scenario.thresholds]
    return [
        Limit(axis, t.limit, f"{t.aggregate} {t.op} {t.show(t.limit)}")
        for t in parsed
        if t.metric.name == metric and t.unit == "s" and t.op in ("<", "<=")
    ]


def time_axis(found: Sequence[Source]) -> Axis:
    ends = [duration_s(s.run.data) for s in found]
    return Axis("since the run's start", "s", 0.0, 1.02 * max([1.0, *ends]))


# --- gauges over time ------------------------------------------------------------------------------------------


def _read(data: RunData, series: str) -> bool:
    return series in data.readings and len(data.readings[series].values) > 0


def line(name: str, found: Series, data: RunData, style: str, colour: str) -> Line:
    x, y = thin_line(_seconds(found.t_ns, data), found.values, LINE_POINTS)
    return Line(name, x.tolist(), rounded(y, 7), style, colour)


def ct_chart(scenario: Scenario, variants: Sequence[VariantView]) -> Chart | None:
    """Size of the TCP table over time, what of it is expired, and the GC passes."""
    panels = []
    found = [s for s in sources(variants) if len(table_entries(s.run.data).values)]
    for s in found:
        data = s.run.data
        lines = [line("entries", table_entries(data), data, "area", "entries")]
        expired = expired_entries(data)
        if len(expired.values):
            lines.append(line("of these expired", expired, data, "hold", "expired"))
        panels.append(Panel(s.title, s.colour, bands(scenario, data), gc_passes(data), lines))
    if not panels:
        return None
    top = max(max(line.y, default=0.0) for panel in panels for line in panel.lines)
    return Chart(
        name="ct",
        title="Entries in the TCP connection-tracking table",
        caption="cilium_ct4_global as the probe and the agent's walks saw it. Expired entries stay until a GC pass.",
        alt=_table_alt(found),
        x=time_axis(found),
        y=Axis("entries", "count", 0.0, max(top, 1.0) * 1.08),
        panels=panels,
        key=[("area", "entries"), ("expired", "of these expired"), ("tick", "a GC pass ended")],
        notes=left_out(variants),
    )


def _table_alt(found: Sequence[Source]) -> str:
    said = []
    for s in found:
        values = table_entries(s.run.data).values
        passes = len(gc_passes(s.run.data))
        said.append(
            f"{s.title}: {format_count(values[0])} entries at first, at most {format_count(values.max())}, "
            f"{format_count(values[-1])} at the end, {passes} GC passes."
        )
    return " ".join(said)


QUEUES = {
    "sandbox.waiting": ("sandboxes under way", "area"),
    "agent.build.waiters": ("waiting for a build permit", "hold"),
    "agent.lock.waiters": ("waiting for a CT table's delete lock", "hold"),
}


def queue_chart(scenario: Scenario, variants: Sequence[VariantView]) -> Chart | None:
    """Who waits in the agent, over time."""
    panels, said, found = [], [], []
    for s in sources(variants):
        data = s.run.data
        there = {series: shown for series, shown in QUEUES.items() if _read(data, series)}
        if not there:
            continue
        lines = [
            line(name, data.readings[series], data, style, series.replace(".", "-"))
            for series, (name, style) in there.items()
        ]
        found.append(s)
        panels.append(Panel(s.title, s.colour, bands(scenario, data), [], lines))
        peaks = (f"at most {format_count(data.readings[k].values.max())} {name}" for k, (name, _) in there.items())
        said.append(f"{s.title}: {', '.join(peaks)}.")
    if not panels:
        return None
    top = max(max(line.y, default=0.0) for panel in panels for line in panel.lines)
    shown = {line.name for panel in panels for line in panel.lines}
    return Chart(
        name="queues",
        title="Waiting in the agent",
        caption="Creates and deletes walk the whole table under one lock: the longer the walk, the longer the queue.",
        alt=" ".join(said),
        x=time_axis(found),
        y=Axis("waiting", "count", 0.0, max(top, 1.0) * 1.08),
        panels=panels,
        key=[(k.replace(".", "-"), name) for k, (name, _) in QUEUES.items() if name in shown],
        height=180,
        notes=left_out(variants),
    )


# --- single operations -----------------------------------------------------------------------------------------

SYMBOLS = {Outcome.OK: "dot", Outcome.FAIL: "cross", Outcome.UNKNOWN: "open"}


def lanes_chart(scenario: Scenario, variants: Sequence[VariantView]) -> Chart | None:
    """One line a sandbox, from due until up or given up, sorted by length: what a burst of pods looks like."""
    found = [s for s in sources(variants) if len(s.run.data.samples.get("sandbox.setup", _NONE).rows)]
    if not found:
        return None
    panels, notes = [], left_out(variants)
    for s in found:
        samples = s.run.data.samples["sandbox.setup"]
        lanes = _lanes(samples, s.run.data)
        if len(lanes) < len(samples.rows):
            notes.append(_thinned(s, len(lanes), samples.rows, "sandboxes"))
        panels.append(Panel(s.title, s.colour, bands(scenario, s.run.data), lanes=lanes))
    return Chart(
        name="lanes",
        title="Each sandbox, from due to up",
        caption="One line a sandbox, the longest on top, on the run's clock.",
        alt=" ".join(f"{s.title}: {_outcomes_said(s.run.data.samples['sandbox.setup'].rows)}." for s in found),
        x=time_axis(found),
        y=Axis("sandboxes", "count", 0.0, float(max(len(p.lanes) for p in panels)) + 1),
        panels=panels,
        key=[("lane-dot", "up"), ("lane-open", "given up"), ("cross", "an attempt failed")],
        height=260,
        notes=notes,
    )


_NONE = MetricSamples(np.empty(0), (), np.empty(0, dtype=int), (), np.empty(0, dtype=int), (), ())


def _lanes(samples: MetricSamples, data: RunData) -> list[Lane]:
    rows = samples.rows
    took = (rows["done_ns"] - rows["due_ns"]) / NS_PER_S
    keep = thin_points(took, rows["outcome"] != Outcome.OK, MAX_LANES)
    keep = keep[np.lexsort((rows["outcome"][keep], took[keep]))]
    failures = _failed_attempts(data)
    refs = {i: samples.refs[i].split() if samples.refs else [] for i in keep}
    start, end = _seconds(rows["due_ns"], data), _seconds(rows["done_ns"], data)
    return [
        Lane(
            float(start[i]),
            float(end[i]),
            SYMBOLS[Outcome(rows["outcome"][i])],
            [t for ref in dict.fromkeys(refs[i]) for t in failures.get(ref, ()) if t < end[i] - AT_THE_END_S],
        )
        for i in keep
    ]


def _thinned(source: Source, shown: int, rows: np.ndarray, what: str) -> str:
    bad = int((rows["outcome"] != Outcome.OK).sum())
    which = "the slowest and those that did not end well all stay" if bad < shown else "all of those did not end well"
    return f"{source.title}: thinned to {shown:,} of {len(rows):,} {what}; {which}."


def _failed_attempts(data: RunData) -> dict[str, list[float]]:
    """End of each failed CNI ADD, by the container id or the pod it was for."""
    attempts = data.samples.get("sandbox.attempt")
    found: dict[str, list[float]] = {}
    if attempts is not None and attempts.refs:
        ends = _seconds(attempts.rows["done_ns"], data)
        for i in np.flatnonzero(attempts.rows["outcome"] != Outcome.OK):
            found.setdefault(attempts.refs[i], []).append(float(ends[i]))
    return found


def _outcomes_said(rows: np.ndarray) -> str:
    longest = int((rows["done_ns"] - rows["due_ns"]).max()) / NS_PER_S
    given_up = int((rows["outcome"] == Outcome.UNKNOWN).sum())
    failed = int((rows["outcome"] == Outcome.FAIL).sum())
    parts = [f"{len(rows):,} operations, the longest {format_duration(longest)}"]
    parts += [f"{given_up:,} given up"] if given_up else []
    parts += [f"{failed:,} failed"] if failed else []
    return ", ".join(parts)


def spread(variants: Sequence[VariantView], metric: str) -> bool:
    """Whether its operations are due at many instants: a burst would be one column of points."""
    runs = [r.data.samples[metric].rows for v in variants for r in v.runs if metric in r.data.samples]
    return any(np.count_nonzero(np.diff(np.sort(rows["due_ns"]))) >= max(20, len(rows) // 4) for rows in runs)


def points_chart(scenario: Scenario, variants: Sequence[VariantView], metric: str, title: str) -> Chart | None:
    """Latency of each operation over its due time, seconds on a log scale. Needs `spread`."""
    found = [s for s in sources(variants) if len(s.run.data.samples.get(metric, _NONE).rows)]
    if not found or not spread(variants, metric):
        return None
    panels, notes, lows, highs = [], left_out(variants), [], []
    for s in found:
        rows = s.run.data.samples[metric].rows
        took = (rows["done_ns"] - rows["due_ns"]) / NS_PER_S
        lows.append(took.min())
        highs.append(took.max())
        keep = thin_points(took, rows["outcome"] != Outcome.OK, CHART_POINTS // len(found))
        if len(keep) < len(rows):
            notes.append(_thinned(s, len(keep), rows, "points"))
        points = list(_points(rows[keep], took[keep], s.run.data))
        panels.append(
            Panel(s.title, s.colour, bands(scenario, s.run.data), points=points, limits=limits(scenario, metric, "y"))
        )
    highs += [limit.value for limit in limits(scenario, metric, "y")]
    low, high = log_ends(max(min(lows), 1e-6), max(highs))
    return Chart(
        name=f"points-{metric}",
        title=title,
        caption="Each operation at the instant it was due; how long it took from then, on a log scale.",
        alt=" ".join(f"{s.title}: {_outcomes_said(s.run.data.samples[metric].rows)}." for s in found),
        x=time_axis(found),
        y=Axis("latency", "s", low, high, log=True),
        panels=panels,
        key=_symbol_key(panels),
        notes=notes,
    )


def _points(rows: np.ndarray, took: np.ndarray, data: RunData) -> Iterator[Points]:
    names = {Outcome.OK: "ended well", Outcome.FAIL: "failed", Outcome.UNKNOWN: "given up there"}
    due = _seconds(rows["due_ns"], data)
    for outcome, symbol in SYMBOLS.items():
        mine = rows["outcome"] == outcome
        if mine.any():
            yield Points(names[outcome], symbol, due[mine].tolist(), rounded(np.maximum(took[mine], 1e-6)))


def _symbol_key(panels: Sequence[Panel]) -> list[tuple[str, str]]:
    """Nothing to explain where everything ended well."""
    found = dict.fromkeys((points.symbol, points.name) for panel in panels for points in panel.points)
    return list(found) if len(found) > 1 else []
