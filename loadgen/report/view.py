"""What the reports look at: the results variant by variant, in the scenario's order, repeats pooled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from loadgen.core.attribute import Attribution, WalkStats, walk_stats
from loadgen.core.compare import not_reproduced
from loadgen.core.history import MetricSamples, RunData, Series
from loadgen.core.judge import measured_phases
from loadgen.core.model import Scenario
from loadgen.core.results import Results, RunResult
from loadgen.core.samples import SAMPLE_DTYPE
from loadgen.core.stats import Latencies, LatencySummary, Value, percentile, samples_needed, summarise
from loadgen.core.units import NS_PER_S
from loadgen.core.verdict import VariantVerdict

SLOWEST = 5


class Pool(NamedTuple):
    """All samples of one metric in the measured phases of all runs of a variant."""

    latencies: Latencies
    summary: LatencySummary

    def percentile(self, q: float) -> Value | None:
        """None when there are too few samples for `q` to say anything."""
        return percentile(self.latencies, q) if len(self.latencies.seconds) >= samples_needed(q) else None


class VariantView(NamedTuple):
    """One variant with its runs. `pools` holds the metrics that have samples, by name."""

    name: str
    number: int
    """0 the baseline, then the fixes, then the partial ones: what a variant is known by in pictures (its colour)."""
    describe: str
    partial: bool
    verdict: VariantVerdict
    missing: str
    """What the baseline was to break and did not; empty when it did, and for every other variant."""
    runs: Sequence[RunResult]
    pools: dict[str, Pool]
    walks: WalkStats
    slowest: Sequence[Attribution]

    @property
    def baseline(self) -> bool:
        return self.verdict.baseline

    def total(self, series: str) -> float | None:
        """Last reading minus first of a counter, over all runs; None when it was never read."""
        found = [r.data.readings[series].values for r in self.runs if series in r.data.readings]
        return float(sum(v[-1] - v[0] for v in found if len(v))) if found else None

    def values(self, series: str) -> np.ndarray:
        """All readings of a gauge, run after run."""
        found = [r.data.readings[series].values for r in self.runs if series in r.data.readings]
        return np.concatenate(found) if found else np.empty(0)


def variants(results: Results) -> list[VariantView]:
    """The variants that were run, in the order in which the scenario names them: the runs' order is drawn by lot."""
    order = {name: i for i, name in enumerate(results.scenario.variants)}
    verdicts = sorted(results.verdict.variants, key=lambda v: (order.get(v.name, len(order)), v.name))
    by_role = sorted(verdicts, key=lambda v: (not v.baseline, _partial(results.scenario, v)))
    return [_variant(results, verdict, by_role.index(verdict)) for verdict in verdicts]


def _partial(scenario: Scenario, verdict: VariantVerdict) -> bool:
    return verdict.name in scenario.variants and scenario.variants[verdict.name].partial


def _variant(results: Results, verdict: VariantVerdict, number: int) -> VariantView:
    runs = [r for r in results.runs if r.data.info.variant == verdict.name]
    metrics = sorted({metric for r in runs for metric in r.data.samples})
    pools = {metric: pool for metric in metrics if (pool := _pool(results.scenario, runs, metric))}
    slowest = sorted((a for r in runs for a in r.slowest), key=lambda a: -a.seconds)[:SLOWEST]
    known = results.scenario.variants.get(verdict.name)
    return VariantView(
        name=verdict.name,
        number=number,
        describe=known.describe if known else "",
        partial=_partial(results.scenario, verdict),
        verdict=verdict,
        missing=not_reproduced(verdict, results.scenario.reproduces) if verdict.baseline else "",
        runs=runs,
        pools=pools,
        walks=walk_stats([span for r in runs for span in r.data.spans]),
        slowest=slowest,
    )


def _pool(scenario: Scenario, runs: Sequence[RunResult], metric: str) -> Pool | None:
    """Rows of all runs, their details renumbered into one list of texts."""
    numbers: dict[str, int] = {}
    parts = [np.empty(0, dtype=SAMPLE_DTYPE)]
    for run in runs:
        samples = run.data.samples.get(metric)
        if samples is not None:
            rows = measured(scenario, samples).copy()
            renumbered = np.array([numbers.setdefault(text, len(numbers)) for text in samples.details])
            rows["detail"] = renumbered[rows["detail"]]
            parts.append(rows)
    rows = np.concatenate(parts)
    return Pool(Latencies.of(rows), summarise(rows, list(numbers))) if len(rows) else None


def measured(scenario: Scenario, samples: MetricSamples) -> np.ndarray:
    """The samples whose operation was due in a measured phase."""
    return samples.rows[samples.within(measured_phases(scenario))]


def duration_s(data: RunData) -> float:
    """Seconds from the run's start to the last thing it noted. Marks arrive late: they are not in order of time."""
    return max((mark.t_ns - data.info.start_ns for mark in data.marks), default=0) / NS_PER_S


def gc_passes(data: RunData) -> list[float]:
    """When periodic GC passes ended, seconds since the run's start; the agent's first, before it, is left out."""
    ends = [(mark.t_ns - data.info.start_ns) / NS_PER_S for mark in data.marks if mark.kind == "gc"]
    return sorted(round(end, 3) for end in ends if end >= 0)


def table_entries(data: RunData) -> Series:
    """Entries in the TCP table: what the probe read, and what each walk of the agent saw and left behind.

    Counting a large table takes seconds, so the probe does it rarely; a GC pass between two of its readings would
    not be seen for half a minute.
    """
    # Where nobody counts the table there is what the agent says of its last walk.
    found = data.readings.get("ct.tcp.entries", data.readings.get("cilium.ct.alive", _NOTHING))
    walks = [s for s in data.spans if s.stage == "walk tcp" and s.end_ns >= data.info.start_ns]
    return _merged(found, [(s.end_ns, s.n - s.deleted) for s in walks])


def expired_entries(data: RunData) -> Series:
    """Expired entries in the TCP table: the share of the entries last counted, and none at the end of a GC pass."""
    entries, share = table_entries(data), data.readings.get("ct.tcp.expired_share", _NOTHING)
    if not len(entries.t_ns) or not len(share.t_ns):
        return _NOTHING
    last = np.maximum(np.searchsorted(entries.t_ns, share.t_ns, side="right") - 1, 0)
    passes = [s for s in data.spans if s.op == "gc" and s.stage == "walk tcp" and s.end_ns >= data.info.start_ns]
    return _merged(Series(share.t_ns, entries.values[last] * share.values), [(s.end_ns, 0) for s in passes])


_NOTHING = Series(np.empty(0, dtype=np.int64), np.empty(0))


def _merged(found: Series, more: Sequence[tuple[int, float]]) -> Series:
    t_ns = np.concatenate([found.t_ns, np.array([t for t, _ in more], dtype=np.int64)])
    values = np.concatenate([found.values, np.array([v for _, v in more], dtype=float)])
    order = np.argsort(t_ns, kind="stable")
    return Series(t_ns[order], values[order])
