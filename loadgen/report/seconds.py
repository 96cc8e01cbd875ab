"""The node second by second, on clusters: what sandboxes took beside what the network's agent says it waited for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from loadgen.core.history import RunData, Series
from loadgen.core.meanwhile import (
    CNI,
    CT_CLEAN,
    LIMITER_PROCESSING,
    LIMITER_WAIT,
    REFUSED,
    REGENERATION,
    mean_by_look,
    rate_by_look,
)
from loadgen.core.model import Scenario
from loadgen.core.samples import Outcome
from loadgen.core.units import NS_PER_S, format_count, format_duration
from loadgen.report.charts import Source, bands, left_out, line, sources, time_axis
from loadgen.report.figure import Axis, Chart, Line, Panel, Points, rounded, thin_points
from loadgen.report.view import VariantView, gc_passes

MAX_POINTS = 4_000

_MEANS = {
    CNI: ("a CNI ADD, mean", "cni"),
    REGENERATION + CT_CLEAN: ("waiting for CT clean, mean", "ct-clean"),
}
_GAUGES = {
    LIMITER_WAIT: ("wait in the API limiter, mean", "limiter-wait"),
    LIMITER_PROCESSING: ("an endpoint create after it, mean", "limiter-processing"),
}


def latency_chart(scenario: Scenario, variants: Sequence[VariantView]) -> Chart | None:
    """Each sandbox at the second in which it ended, over the means that the node's metrics show."""
    found = [(s, lines) for s in sources(variants) if s.run.agreement and (lines := list(_lines(s.run.data)))]
    if not found:
        return None
    panels = [
        Panel(s.title, s.colour, bands(scenario, s.run.data), gc_passes(s.run.data), lines, list(_ends(s.run.data)))
        for s, lines in found
    ]
    top = max(max(part.y, default=0.0) for panel in panels for part in (*panel.lines, *panel.points))
    shown = {part.colour: part.name for panel in panels for part in panel.lines}
    return Chart(
        name="seconds",
        title="Where the node's seconds went",
        caption="Each sandbox at the second in which it ended; means by the node's metrics, read every 3 s or so.",
        alt=" ".join(_said(s, lines) for s, lines in found),
        x=time_axis([s for s, _ in found]),
        y=Axis("took", "s", 0.0, max(top, 0.1) * 1.08),
        panels=panels,
        key=[("dot", "a sandbox came up"), ("open", "given up"), *shown.items()],
        notes=left_out(variants),
    )


def _lines(data: RunData) -> Iterator[Line]:
    for series, (name, colour) in _MEANS.items():
        if found := mean_by_look(data.readings, series):
            yield line(name, found, data, "hold", colour)
    for series, (name, colour) in _GAUGES.items():
        if series in data.readings and len(data.readings[series].values):
            yield line(name, data.readings[series], data, "hold", colour)


def _ends(data: RunData) -> Iterator[Points]:
    rows = data.samples["sandbox.setup"].rows
    took = (rows["done_ns"] - rows["due_ns"]) / NS_PER_S
    keep = thin_points(took, rows["outcome"] != Outcome.OK, MAX_POINTS)
    for symbol, name, wanted in (("dot", "came up", True), ("open", "did not come up", False)):
        mine = keep[(rows["outcome"][keep] == Outcome.OK) == wanted]
        if len(mine):
            at = np.round((rows["done_ns"][mine] - data.info.start_ns) / NS_PER_S, 3)
            yield Points(name, symbol, at.tolist(), rounded(took[mine]))


def _said(source: Source, lines: Sequence[Line]) -> str:
    rows = source.run.data.samples["sandbox.setup"].rows
    longest = int((rows["done_ns"] - rows["due_ns"]).max()) / NS_PER_S
    peaks = [f"{part.name} at most {format_duration(max(part.y))}" for part in lines]
    return f"{source.title}: the longest sandbox {format_duration(longest)}; {', '.join(peaks)}."


def refusal_chart(scenario: Scenario, variants: Sequence[VariantView]) -> Chart | None:
    """How many creates a second the agent refused, and how many attempts failed."""
    found = [(s, lines) for s in sources(variants) if s.run.agreement and (lines := _refusals(s.run.data))]
    if not any(max(part.y) > 0 for _, lines in found for part in lines):
        return None
    panels = [Panel(s.title, s.colour, bands(scenario, s.run.data), [], lines) for s, lines in found]
    top = max(max(part.y) for panel in panels for part in panel.lines)
    shown = {part.colour: part.name for panel in panels for part in panel.lines}
    return Chart(
        name="refusals",
        title="Refused and failed, second by second",
        caption="429s that the agent counted, spread over the seconds between two looks, and attempts that failed.",
        alt=" ".join(f"{s.title}: {_refusals_said(s.run.data)}." for s, _ in found),
        x=time_axis([s for s, _ in found]),
        y=Axis("a second", "count", 0.0, top * 1.08),
        panels=panels,
        key=list(shown.items()),
        height=160,
        notes=left_out(variants),
    )


def _refusals(data: RunData) -> list[Line]:
    lines = []
    if REFUSED in data.readings and (rates := rate_by_look(data.readings[REFUSED])):
        lines.append(line("429s of the agent", rates, data, "hold", "refused"))
    failed = _failed_by_second(data)
    if len(failed.values):
        lines.append(line("failed attempts", failed, data, "hold", "failed"))
    return lines


def _failed_by_second(data: RunData) -> Series:
    """Attempts that ended badly, counted by the second of the run."""
    attempts = data.samples.get("sandbox.attempt")
    if attempts is None or not len(attempts.rows):
        return Series(np.empty(0, dtype=np.int64), np.empty(0))
    bad = attempts.rows["done_ns"][attempts.rows["outcome"] != Outcome.OK]
    seconds = np.maximum((bad - data.info.start_ns) // NS_PER_S, 0)
    last = int(max(attempts.rows["done_ns"].max() - data.info.start_ns, 0) // NS_PER_S)
    counts = np.bincount(seconds, minlength=last + 2)
    return Series(data.info.start_ns + np.arange(len(counts)) * NS_PER_S, counts.astype(float))


def _refusals_said(data: RunData) -> str:
    refused = data.readings.get(REFUSED)
    parts = [] if refused is None else [f"{format_count(refused.values[-1] - refused.values[0])} 429s"]
    return ", ".join([*parts, f"{format_count(_failed_by_second(data).values.sum())} failed attempts"])
