"""Numbers that several hypotheses read out of the evidence: rates between two pages, sizes, intervals, log events."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TypeVar

from loadgen.core import ctlist
from loadgen.core.ctlist import CtView
from loadgen.core.incident import Conntrack, Evidence, MetricsPage

P = TypeVar("P")
GC_INTERVAL = "cilium_datapath_conntrack_gc_interval_seconds"
STARTED = "process_start_time_seconds"
TCP_SIZE = "TCP connection tracking"


class Metric:
    """A metric's name and the label values that are asked for; labels not named may be anything."""

    def __init__(self, name: str, **labels: tuple[str, ...]) -> None:
        self.name, self.labels = name, labels

    def of(self, page: MetricsPage) -> list[float]:
        return [value for (name, labels), value in page.samples.items() if self._fits(name, dict(labels))]

    def _fits(self, name: str, labels: dict[str, str]) -> bool:
        return name == self.name and all(labels.get(key) in wanted for key, wanted in self.labels.items())


def views(evidence: Evidence) -> tuple[CtView, ...]:
    return tuple(ctlist.view(table, evidence.uptime_s) for table in evidence.tables)


def metric_growth(evidence: Evidence, metric: Metric) -> tuple[float, str] | None:
    """How much the sum of a counter rose from page to page of one process, a reset counted from zero; and where.

    Pages with different start times are of different agents and are not compared. None when no two can be, or when
    no page has the metric's name: nothing is known then.
    """
    agents: dict[tuple[float, ...], list[MetricsPage]] = {}
    for page in evidence.metrics:
        agents.setdefault(tuple(Metric(STARTED).of(page)), []).append(page)
    pairs = [pair for pages in agents.values() for pair in pairwise(pages)]
    if not pairs or not any(name == metric.name for pair in pairs for page in pair for name, _ in page.samples):
        return None
    rises = [_rise(sum(metric.of(before)), sum(metric.of(after))) for before, after in pairs]
    return sum(rises), f"{pairs[0][0].file} to {pairs[-1][1].file}"


def _rise(before: float, after: float) -> float:
    return after - before if after >= before else after


def metric_last(evidence: Evidence, metric: Metric) -> tuple[float, str] | None:
    """The largest value in the last page that has it, and that page."""
    for page in reversed(evidence.metrics):
        if found := metric.of(page):
            return max(found), page.file
    return None


def gc_interval(evidence: Evidence) -> tuple[float | None, str]:
    """The longest GC interval that a metrics page (from 1.18) or a log tells, in seconds, and where."""
    found = [(value, page.file) for page in evidence.metrics for value in Metric(GC_INTERVAL).of(page)]
    found += [(interval, log.file) for log in evidence.logs for interval in log.intervals_s]
    return max(found, default=(None, ""), key=lambda pair: pair[0] or 0.0)


def table_capacity(evidence: Evidence) -> int | None:
    """Entries of the TCP table, by cilium status --verbose."""
    return max((s.sizes[TCP_SIZE] for s in evidence.statuses if TCP_SIZE in s.sizes), default=None)


def conntrack_growth(evidence: Evidence) -> tuple[dict[str, int], str] | None:
    """By counter: how much it rose from the first to the last `conntrack -S`. None with fewer than two.

    Files in an archive may be of different nodes: only snapshots in one such file are compared.
    """
    nodes: dict[str, list[Conntrack]] = {}
    for snapshot in evidence.conntrack:
        nodes.setdefault(snapshot.archived, []).append(snapshot)
    for pages in nodes.values():
        if len(pages) > 1:
            first, last = pages[0], pages[-1]
            rises = {name: max(value - first.counters.get(name, 0), 0) for name, value in last.counters.items()}
            return rises, f"{first.file} to {last.file}"
    return None


def events_of(evidence: Evidence, name: str, point: Callable[..., P], *, decisive: bool = False) -> list[P]:
    """One point for each log that has the event, with its first line."""
    found = [(log, log.events[name]) for log in evidence.logs if name in log.events]
    return [
        point(f"{e.count}x, first in line {e.first}: {e.sample}", log.file, decisive=decisive) for log, e in found
    ]
