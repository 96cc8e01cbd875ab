"""Pictures of how latencies are distributed in the measured phases: histograms with their slow modes, and tails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from loadgen.core.model import Scenario
from loadgen.core.stats import Latencies
from loadgen.core.units import format_count, format_duration
from loadgen.report.charts import limits
from loadgen.report.figure import Axis, Bars, Chart, Label, Line, Panel, Points, log_ends, rounded, variant_colour
from loadgen.report.view import VariantView

TAIL_POINTS = 400
BINS_PER_DECADE = 10
SLOW_FACTOR = 10.0
SLOW_FLOOR_S = 0.5
MAX_MODES = 3
LABEL_ROOM = 10.0
"""A label begins at its group and goes on to the right, for about a decade."""
FASTEST_S = 1e-6
"""What is faster stands here, at the left end of a log axis."""


class Mode(NamedTuple):
    """A group of operations far slower than the median, apart from the others: e.g. those that took 5 s."""

    size: int
    centre: float
    """Median of the group, seconds."""
    peak: int
    """Count of its fullest bin."""


def histogram(seconds: np.ndarray) -> Bars:
    """Ten bins a decade, with 1 s, 5 s and 10 s well inside a bin: the edges lie between the round numbers."""
    place = np.log10(np.maximum(seconds, FASTEST_S)) * BINS_PER_DECADE
    first, last = int(np.floor(place.min() + 0.5)), int(np.floor(place.max() + 0.5))
    counts = np.bincount(np.floor(place + 0.5).astype(int) - first, minlength=last - first + 1)
    edges = 10.0 ** ((np.arange(first, last + 2) - 0.5) / BINS_PER_DECADE)
    return Bars(rounded(edges, 6), counts.tolist())


def slow_modes(seconds: np.ndarray) -> list[Mode]:
    """The largest groups of neighbouring bins beyond ten times the median and half a second, fastest first."""
    slow = np.sort(seconds[seconds >= max(SLOW_FACTOR * float(np.median(seconds)), SLOW_FLOOR_S)])
    if not len(slow):
        return []
    bins = np.floor(np.log10(slow) * BINS_PER_DECADE + 0.5).astype(int)
    groups = np.split(np.arange(len(slow)), np.flatnonzero(np.diff(bins) > 1) + 1)
    modes = [Mode(len(g), float(np.median(slow[g])), int(np.bincount(bins[g] - bins[g[0]]).max())) for g in groups]
    largest = sorted(modes, key=lambda mode: -mode.size)[:MAX_MODES]
    return sorted(largest, key=lambda mode: mode.centre)


def histogram_chart(scenario: Scenario, variants: Sequence[VariantView], metric: str, title: str) -> Chart | None:
    """Counts by latency, both on log scales, so that a few slow ones among thousands are seen."""
    found = [(v, v.pools[metric]) for v in variants if metric in v.pools]
    if not found:
        return None
    panels, said = [], []
    for variant, pool in found:
        seconds = pool.latencies.seconds
        modes = slow_modes(seconds)
        labels = [Label(m.centre, float(m.peak), f"{m.size:,} near {format_duration(m.centre)}") for m in modes]
        panels.append(
            Panel(
                variant.name,
                variant_colour(variant.number),
                bars=histogram(seconds),
                labels=labels,
                limits=limits(scenario, metric, "x"),
            )
        )
        slow = ", ".join(label.text for label in labels) or "no slow group"
        said.append(f"{variant.name}: {len(seconds):,} operations; {slow}.")
    edges = [edge for panel in panels if panel.bars for edge in panel.bars.edges]
    edges += [LABEL_ROOM * label.x for panel in panels for label in panel.labels]
    edges += [limit.value for limit in limits(scenario, metric, "x")]
    top = max(max(panel.bars.counts) for panel in panels if panel.bars)
    low, high = log_ends(min(edges), max(edges))
    return Chart(
        name=f"histogram-{metric}",
        title=title,
        caption="Counts by latency in the measured phases, both on log scales; groups far from the rest have labels.",
        alt=" ".join(said),
        x=Axis("latency", "s", low, high, log=True),
        y=Axis("operations", "count", 0.5, log_ends(1, top * 1.5)[1], log=True),
        panels=panels,
        key=[],
    )


def tail(latencies: Latencies) -> tuple[np.ndarray, np.ndarray, bool]:
    """Share of operations that took at least this long: x, share, and whether the last point is a bound.

    Drawn from measured operations; all count in the share. Where the slowest were given up, the curve ends at their
    limit, at the share of them: how it goes on nobody knows.
    """
    n = len(latencies.seconds)
    ranks = n - np.unique(np.round(np.logspace(0, np.log10(n), TAIL_POINTS)).astype(int))[::-1]
    ranks = ranks[~latencies.censored[ranks]]
    x, share = latencies.seconds[ranks], (n - ranks) / n
    measured = np.flatnonzero(~latencies.censored)
    beyond = n - 1 - int(measured[-1]) if len(measured) else n
    if beyond:
        x, share = np.append(x, latencies.seconds[-1]), np.append(share, beyond / n)
    return np.maximum(x, FASTEST_S), share, beyond > 0


def tail_chart(scenario: Scenario, variants: Sequence[VariantView], metric: str, title: str) -> Chart | None:
    """All variants in one panel, both axes logarithmic: how often an operation took at least this long."""
    found = [(v, v.pools[metric]) for v in variants if metric in v.pools]
    if not found:
        return None
    lines, points, said, lowest = [], [], [], 1.0
    for variant, pool in found:
        x, share, cut = tail(pool.latencies)
        colour = variant_colour(variant.number)
        lines.append(Line(variant.name, rounded(x), rounded(share), "drop", colour))
        if cut:
            points.append(Points(f"{variant.name}: given up", "open", rounded(x[-1:]), rounded(share[-1:]), colour))
        lowest = min(lowest, float(share.min()))
        values = [(q, pool.percentile(q)) for q in (50.0, 99.0)]
        told = [f"p{q:g} {'at least ' * v.at_least}{format_duration(v.value)}" for q, v in values if v]
        said.append(f"{variant.name}: {format_count(pool.summary.n)} operations, {', '.join(told)}.")
    ends = [x for line in lines for x in line.x] + [limit.value for limit in limits(scenario, metric, "x")]
    low, high = log_ends(min(ends), max(ends))
    return Chart(
        name=f"tail-{metric}",
        title=title,
        caption="Share of operations that took at least this long, in the measured phases, both on log scales.",
        alt=" ".join(said),
        x=Axis("latency", "s", low, high, log=True),
        y=Axis("share", "share", log_ends(lowest, 1.0)[0], 1.0, log=True),
        panels=[Panel("", "v0", lines=lines, points=points, limits=limits(scenario, metric, "x"))],
        key=[(f"line {variant_colour(v.number)}", v.name) for v, _ in found]
        + ([("open", "the rest was given up here")] if points else []),
    )
