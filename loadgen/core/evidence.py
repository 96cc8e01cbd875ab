"""What a node's own histograms counted of a run's sandboxes, beside the attempts that our watch knows of.

The histograms are a node's, not a pod's: they have other pods in them, and what ends at the edge of a window is known
here later than there. So the attempts that must be in a histogram are counted, and those that may be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from loadgen.core import histogram
from loadgen.core.histogram import Growth, Histogram
from loadgen.core.history import MetricSamples, RunData, Series
from loadgen.core.pages import STARTED, TOOK
from loadgen.core.samples import Outcome
from loadgen.core.units import NS_PER_S

SETUP, ATTEMPT = "sandbox.setup", "sandbox.attempt"
CONDITION, STAMP = "sandbox.condition", "sandbox.stamp"
KUBELET, CONTAINERD = "kubelet.run_podsandbox", "containerd.set_up_pod"
_ERRORS = {KUBELET: "kubelet.sandbox_errors", CONTAINERD: "containerd.cni_errors"}
_OTHERS = {KUBELET: "other_pods|all", CONTAINERD: "other_pods|cni"}

UNDER_WAY = "still under way"
"""Detail of an attempt that nobody waits for any longer: how and when it ends is not known."""

REPORT_S = 20.0
"""How much later than the kubelet we may know of an attempt's end, plus how much earlier we may have begun to count.
In between lie the kubelet's queue, the API, and, where no event told of it first, the start of the containers and the
kubelet's next status. Measured on two busy CPUs, in the mean: 1.1 s with 30 pods at once by events; by the condition
alone 0.8 s with 5, 3.8 s with 40 and 10.8 s with 90."""
OPEN_S = 300.0
"""An attempt that was given up may go on so long: the kubelet's own limit is 240 s."""
OTHERS_S = 120.0
"""A pod of others that came so long before a window may have got its sandbox within it."""


class Range(NamedTuple):
    """A count that is known within bounds."""

    least: int
    most: int

    def plus(self, other: Range) -> Range:
        return Range(self.least + other.least, self.most + other.most)

    @property
    def loose(self) -> int:
        return self.most - self.least


class Attempts(NamedTuple):
    """All attempts that the watch knows of, of all phases."""

    sent_ns: np.ndarray
    done_ns: np.ndarray
    ok: np.ndarray
    open: np.ndarray
    retry: np.ndarray
    """Not its pod's first: it counts from the end of the one before, and so holds the kubelet's pause."""


class Seen(NamedTuple):
    """What a histogram counted in the measured windows, beside the attempts it must and may have counted."""

    histogram: Histogram
    errors: int
    resets: int
    ok: Range
    failed: Range
    others: int | None
    """Pods of others that came to the node meanwhile; None: not known."""
    attempts: np.ndarray
    """Indices of the attempts that may be in it and have ended."""

    @property
    def slack(self) -> int:
        """How many observations may be in only one of `histogram` and `attempts`."""
        return self.ok.loose + self.failed.loose + abs(self.histogram.count - len(self.attempts))


def windows(data: RunData, phases: frozenset[str]) -> list[tuple[int, int]]:
    """Of these phases, each until its last sandbox has ended; those that overlap become one."""
    found = []
    for name, (start, end) in data.phase_windows().items():
        if name in phases:
            ends = [int(rows["done_ns"].max()) for rows in _of_phase(data, name) if len(rows)]
            found.append((start, max([end, *ends])))
    joined: list[tuple[int, int]] = []
    for start, end in sorted(found):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _of_phase(data: RunData, phase: str) -> list[np.ndarray]:
    some = (data.samples.get(metric) for metric in (SETUP, ATTEMPT))
    return [s.rows[s.within(frozenset({phase}))] for s in some if s is not None]


def attempts(found: MetricSamples | None) -> Attempts:
    """From the samples of sandbox.attempt."""
    if found is None or not len(found.rows):
        nothing, no = np.empty(0, dtype=np.int64), np.empty(0, dtype=bool)
        return Attempts(nothing, nothing, no, no, no)
    rows = found.rows
    open_detail = np.array([text == UNDER_WAY for text in found.details], dtype=bool)
    retry = np.zeros(len(rows), dtype=bool)
    if found.refs:
        refs = np.unique(np.array(found.refs), return_inverse=True)[1]
        order = np.lexsort((rows["sent_ns"], refs))
        retry[order[1:]] = refs[order[1:]] == refs[order[:-1]]
    ok = rows["outcome"] == Outcome.OK
    return Attempts(rows["sent_ns"], rows["done_ns"], ok, open_detail[rows["detail"]] & ~ok, retry)


def seen(data: RunData, series: str, of: Attempts, where: Sequence[tuple[int, int]]) -> Seen | None:
    """What histogram `series` says of these windows; None when it was not looked at twice for each."""
    source = series.partition(".")[0]
    looks = histogram.looks(data.readings, series, source + TOOK)
    if looks is None or not looks.edges or not where:
        return None
    started = data.readings.get(source + STARTED)
    grown = [g for window in where if (g := histogram.growth(looks, *window, started))]
    if len(grown) < len(where):
        return None
    ok, failed, in_it = Range(0, 0), Range(0, 0), np.zeros(len(of.done_ns), dtype=bool)
    for growth in grown:
        must, may = _edges(of, growth)
        ended = must & ~of.open
        ok = ok.plus(Range(int((ended & of.ok).sum()), int((may & (of.ok | of.open)).sum())))
        failed = failed.plus(Range(int((ended & ~of.ok).sum()), int((may & ~of.ok).sum())))
        in_it |= may & ~of.open
    total = grown[0].seen
    for more in grown[1:]:
        total = total.plus(more.seen)
    return Seen(
        histogram=total,
        errors=_count(data.readings, _ERRORS[series], grown, 0.0) or 0,
        resets=sum(g.resets for g in grown),
        ok=ok,
        failed=failed,
        others=_count(data.readings, _OTHERS[series], grown, OTHERS_S),
        attempts=np.flatnonzero(in_it),
    )


def _count(readings: Mapping[str, Series], series: str, grown: Sequence[Growth], before_s: float) -> int | None:
    """How far a counter went over the same looks, and in the time before them; None when it was not read."""
    if series not in readings:
        return None
    before = round(before_s * NS_PER_S)
    steps = [histogram.increase(readings[series], g.start_ns - before, g.last_ns) for g in grown]
    return None if None in steps else round(sum(step for step in steps if step is not None))


def _edges(of: Attempts, growth: Growth) -> tuple[np.ndarray, np.ndarray]:
    """Which attempts must have ended between the two looks, and which may have."""
    late = round(REPORT_S * NS_PER_S)
    must = ((of.sent_ns >= growth.start_ns) | (of.done_ns > growth.start_ns + late)) & (of.done_ns <= growth.end_ns)
    may = (of.done_ns > growth.start_ns) & (of.done_ns - late <= growth.last_ns) & (of.sent_ns <= growth.last_ns)
    # One that was given up ended some time after that, if it was one at all and not the pause before it.
    open_end = of.done_ns + round(OPEN_S * NS_PER_S)
    may |= of.open & (of.sent_ns <= growth.last_ns) & (open_end > growth.start_ns)
    return must, may
