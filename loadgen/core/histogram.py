"""Cumulative histograms of Prometheus: as readings of a run, their growth over a window, and what they say of it.

A bucket tells between which two edges an observation lies and nothing more. So a quantile is a pair of bounds here,
never a number interpolated between them; count and mean are exact.

A look at a histogram is stored as readings of one instant: `NAME|le=0.195`, …, `NAME|sum`, `NAME|count`. A
histogram that has seen nothing yet is not on its page: its look is `NAME|count` 0 and no bucket.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from loadgen.core.history import Series
from loadgen.core.promtext import Sample
from loadgen.core.samples import Reading
from loadgen.core.units import NS_PER_S

BUCKET, SUM, COUNT = "|le=", "|sum", "|count"


class Bounds(NamedTuple):
    """A value is above `low` and at most `high`; equal ones are exact, an infinite `high` is open."""

    low: float
    high: float


class Histogram(msgspec.Struct, frozen=True):
    """`cumulative[i]` observations were at most `edges[i]`; the last edge is infinite."""

    edges: tuple[float, ...]
    cumulative: tuple[float, ...]
    sum: float
    count: int

    @property
    def mean(self) -> float | None:
        return self.sum / self.count if self.count else None

    def rank(self, rank: int, slack: int = 0) -> Bounds:
        """Where the observation of that rank (from 1) lies, when up to `slack` observations more or less count."""
        low = self._bucket(max(1, rank - slack))
        high = self._bucket(min(self.count, rank + slack))
        return Bounds(0.0 if low == 0 else self.edges[low - 1], self.edges[high])

    def _bucket(self, rank: int) -> int:
        return next(i for i, seen in enumerate(self.cumulative) if seen >= rank)

    def quantile(self, q: float, slack: int = 0) -> Bounds | None:
        """The nearest rank of percentile `q`, as core.stats.percentile has it; None without observations."""
        return self.rank(nearest_rank(q, self.count), slack) if self.count else None

    def above(self, value: float) -> Bounds:
        """How many observations exceed `value`: at least, and at most."""
        pairs = [(0.0, 0.0), *zip(self.edges, self.cumulative, strict=True)]  # nothing takes no time at all
        under = max((seen for edge, seen in pairs if edge <= value), default=0.0)
        over = min(seen for edge, seen in pairs if edge >= value)
        return Bounds(self.count - over, self.count - under)

    def plus(self, other: Histogram) -> Histogram:
        """Both together; they have the same edges."""
        if self.edges != other.edges:
            raise ValueError("histograms with different buckets cannot be added")
        both = tuple(a + b for a, b in zip(self.cumulative, other.cumulative, strict=True))
        return Histogram(self.edges, both, self.sum + other.sum, self.count + other.count)


def nearest_rank(q: float, n: int) -> int:
    """As in core.stats: the smallest rank with at least q % of `n` at or below it."""
    return max(1, math.ceil(round(q / 100 * n, 9)))


# --- from a page to readings -----------------------------------------------------------------------------------


def readings(series: str, metric: str, found: Iterable[Sample], t_ns: int) -> list[Reading]:
    """One look at histogram `metric`, whose samples are among `found`; those of several label sets are added up."""
    buckets: dict[str, float] = {}
    total = count = 0.0
    for sample in found:
        if sample.name == f"{metric}_bucket":
            edge = sample.labels["le"]
            buckets[edge] = buckets.get(edge, 0.0) + sample.value
        elif sample.name == f"{metric}_sum":
            total += sample.value
        elif sample.name == f"{metric}_count":
            count += sample.value
    cells = [Reading(t_ns, f"{series}{BUCKET}{edge}", value) for edge, value in buckets.items()]
    return [*cells, Reading(t_ns, series + SUM, total), Reading(t_ns, series + COUNT, count)]


# --- from readings to what happened in a window ----------------------------------------------------------------


class Looks(NamedTuple):
    """All looks at one histogram in order of time: a row each, a column for every edge.

    What a page shows was so at some instant between `asked_ns` and `t_ns`, when it had arrived.
    """

    t_ns: np.ndarray
    asked_ns: np.ndarray
    edges: tuple[float, ...]
    buckets: np.ndarray
    sums: np.ndarray
    counts: np.ndarray


def looks(found: Mapping[str, Series], series: str, took: str = "") -> Looks | None:
    """None when it was never looked at. A look without all its buckets is left out.

    `took`: the series of how long each look took, in seconds.
    """
    if series + COUNT not in found or not len(found[series + COUNT].t_ns):
        return None
    t_ns, counts = found[series + COUNT]
    named = {name.partition(BUCKET)[2]: s for name, s in found.items() if name.startswith(series + BUCKET)}
    order = sorted(named, key=float)
    columns = [_at(named[edge], t_ns) for edge in order]
    buckets = np.stack(columns, axis=1) if columns else np.empty((len(t_ns), 0))
    empty = counts == 0
    buckets[empty] = 0.0
    whole = ~np.isnan(buckets).any(axis=1)
    sums = _at(found.get(series + SUM, Series(t_ns[:0], counts[:0])), t_ns)
    asked_ns = t_ns
    if took in found:
        asked_ns = t_ns - np.round(np.nan_to_num(_at(found[took], t_ns)) * NS_PER_S).astype(np.int64)
    return Looks(t_ns[whole], asked_ns[whole], tuple(map(float, order)), buckets[whole], sums[whole], counts[whole])


def _at(series: Series, t_ns: np.ndarray) -> np.ndarray:
    """Its values at exactly these instants; NaN where there is none."""
    found = np.full(len(t_ns), np.nan)
    if len(series.t_ns):
        place = np.minimum(np.searchsorted(series.t_ns, t_ns), len(series.t_ns) - 1)
        there = series.t_ns[place] == t_ns
        found[there] = series.values[place[there]]
    return found


class Growth(NamedTuple):
    """What was observed between two looks, the first of which had arrived at `start_ns` and the last was asked for
    at `end_ns`: what began and ended between these is in it, whatever else is.

    `resets`: the counters began anew so often, and what they had counted since the look before is lost: the
    histogram then holds fewer than there were.
    """

    start_ns: int
    end_ns: int
    last_ns: int
    """When the last look had arrived."""
    resets: int
    seen: Histogram


def growth(of: Looks, start_ns: int, end_ns: int, started: Series | None = None) -> Growth | None:
    """From the last look before `start_ns` to the first that was asked for after `end_ns`, or the nearest there is.

    `started`: when the process that counts began, by its own page; without it a restart shows only where a count
    fell. None with fewer than two looks.
    """
    first, last = _span(of.t_ns, of.asked_ns, start_ns, end_ns)
    if last <= first:
        return None
    rows = np.column_stack([of.buckets, of.counts])[first : last + 1]
    steps, sums = np.diff(rows, axis=0), np.diff(of.sums[first : last + 1])
    anew = (steps < 0).any(axis=1) | _restarts(started, of.t_ns[first : last + 1])
    # Whoever began anew began at 0: what he shows now is all since then.
    steps[anew] = rows[1:][anew]
    sums[anew] = of.sums[first + 1 : last + 1][anew]
    total = steps.sum(axis=0)
    seen = Histogram(of.edges, tuple(map(float, total[:-1])), float(sums.sum()), round(float(total[-1])))
    return Growth(int(of.t_ns[first]), int(of.asked_ns[last]), int(of.t_ns[last]), int(anew.sum()), seen)


def _span(t_ns: np.ndarray, asked_ns: np.ndarray, start_ns: int, end_ns: int) -> tuple[int, int]:
    """First and last look of a window."""
    first = max(int(np.searchsorted(t_ns, start_ns, side="right")) - 1, 0)
    return first, min(int(np.searchsorted(asked_ns, end_ns, side="left")), len(t_ns) - 1)


def _restarts(started: Series | None, t_ns: np.ndarray) -> np.ndarray:
    """Of each step between these looks: whether the process is another one at its end."""
    if started is None or not len(started.t_ns):
        return np.zeros(len(t_ns) - 1, dtype=bool)
    place = np.maximum(np.searchsorted(started.t_ns, t_ns, side="right") - 1, 0)
    return np.diff(started.values[place]) != 0


def increase(series: Series, start_ns: int, end_ns: int) -> float | None:
    """How far a counter grew between two such looks; where it fell it began anew. None with fewer than two."""
    first, last = _span(series.t_ns, series.t_ns, start_ns, end_ns)
    if last <= first:
        return None
    values = series.values[first : last + 1]
    steps = np.diff(values)
    return float(np.where(steps < 0, values[1:], steps).sum())
