"""The threshold language: `sandbox.setup p99 < 30s`.

    threshold = metric aggregate operator limit
    metric    = a name from core/metrics.py
    aggregate = "p" number | "min" | "mean" | "max" | "count" | "failed" | "censored" | "retries" | "lost"
              | "achieved" | "last"
    operator  = "<" | "<=" | ">" | ">=" | "=="
    limit     = duration (metrics in seconds) | number

`failed` counts every operation that did not end well: errors and those given up. Parsing checks the metric, that
it has the aggregate, and the unit of the limit, so that a bad threshold is known before anything runs.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

import msgspec
import numpy as np

from loadgen.core.errors import ConfigError
from loadgen.core.metrics import (
    COUNT_AGGREGATES,
    GAUGE_AGGREGATES,
    LATENCY_AGGREGATES,
    METRICS,
    RATIO_AGGREGATES,
    Metric,
    aggregates_of,
)
from loadgen.core.stats import Latencies, LatencySummary, Value, percentile, samples_needed
from loadgen.core.units import Duration, format_count, format_duration
from loadgen.core.verdict import Finding, Verdict

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
}
_EXPRESSION = re.compile(r"\s*(\S+)\s+(\S+)\s*(<=|>=|==|<|>)\s*(\S+)\s*")
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?)")

MAX_LAG_SHARE = 0.1
"""A latency is not judged when the generator itself was later than this share of the limit at its p99."""
MIN_ACHIEVED = 0.95
"""Nor when fewer than this share of the operations were started in time: the load was not the one asked for."""


class Threshold(msgspec.Struct, frozen=True):
    """A parsed threshold; `limit` in seconds for durations."""

    text: str
    metric: Metric
    aggregate: str
    op: str
    limit: float
    unit: str

    def holds(self, observed: float) -> bool:
        return _OPERATORS[self.op](observed, self.limit)

    def show(self, value: float) -> str:
        return format_duration(value) if self.unit == "s" else format_count(value)


def parse(text: str) -> Threshold:
    """Read one threshold; ConfigError says what is wrong with it and what would be allowed."""
    match = _EXPRESSION.fullmatch(text)
    if match is None:
        raise ConfigError(f"threshold {text!r}: write METRIC AGGREGATE OPERATOR LIMIT, e.g. 'dns.lookup p99 < 2.5s'")
    name, aggregate, op, limit = match.groups()
    metric = METRICS.get(name)
    if metric is None:
        raise ConfigError(f"threshold {text!r}: unknown metric {name!r}; known: {', '.join(METRICS)}")
    unit = _unit(text, metric, aggregate)
    return Threshold(text, metric, aggregate, op, _limit(text, limit, unit), unit)


def _unit(text: str, metric: Metric, aggregate: str) -> str:
    """The unit of this aggregate of this metric, which the limit must have."""
    if metric.kind == "gauge" and aggregate in GAUGE_AGGREGATES:
        return metric.unit
    if metric.kind == "latency":
        found = _PERCENTILE.fullmatch(aggregate)
        if aggregate in LATENCY_AGGREGATES or (found and float(found[1]) > 0):
            return metric.unit
        if aggregate in COUNT_AGGREGATES or aggregate in RATIO_AGGREGATES:
            return ""
    raise ConfigError(
        f"threshold {text!r}: {metric.name} has no aggregate {aggregate!r}; it has {aggregates_of(metric)}"
    )


def _limit(text: str, limit: str, unit: str) -> float:
    if unit == "s":
        try:
            return Duration.parse(limit).seconds
        except ValueError as error:
            raise ConfigError(f"threshold {text!r}: {error}") from None
    try:
        return float(limit.replace("_", "").replace(",", ""))
    except ValueError:
        raise ConfigError(
            f"threshold {text!r}: the limit of this aggregate is a plain number, not {limit!r}"
        ) from None


def evaluate_samples(threshold: Threshold, rows: np.ndarray, summary: LatencySummary | None) -> Finding:
    """Hold `threshold` against the samples of its metric (SAMPLE_DTYPE rows of the measured phases)."""
    if summary is None:
        return _finding(threshold, None, 0, 0, Verdict.INCONCLUSIVE, "no samples")
    n, censored = summary.n, summary.censored
    counts = {
        "count": n,
        "failed": summary.failed + censored,
        "censored": censored,
        "retries": summary.retries,
        "lost": summary.lost,
        "achieved": summary.achieved,
    }
    if threshold.aggregate in counts:
        observed = float(counts[threshold.aggregate])
        return _finding(threshold, Value(observed, False), n, censored, *_judge(threshold, Value(observed, False)))
    value, few = _latency_value(threshold.aggregate, rows)
    if few is not None:
        return _finding(threshold, value, n, censored, Verdict.INCONCLUSIVE, few)
    status, why = _judge(threshold, value)
    if threshold.op in ("<", "<=") and (late := _generator_was_late(threshold, summary)):
        status, why = Verdict.INCONCLUSIVE, late
    return _finding(threshold, value, n, censored, status, why)


def evaluate_readings(threshold: Threshold, values: np.ndarray) -> Finding:
    """Hold `threshold` against the readings of its gauge in the measured phases, in order of time."""
    if len(values) == 0:
        return _finding(threshold, None, 0, 0, Verdict.INCONCLUSIVE, "no readings")
    pick = {"min": np.min, "max": np.max, "mean": np.mean, "last": lambda v: v[-1]}[threshold.aggregate]
    value = Value(float(pick(values)), False)
    return _finding(threshold, value, len(values), 0, *_judge(threshold, value))


def _latency_value(aggregate: str, rows: np.ndarray) -> tuple[Value, str | None]:
    """The statistic, and why there are too few samples for it (None: there are enough)."""
    latencies = Latencies.of(rows)
    n = len(rows)
    if aggregate == "mean":
        return Value(float(latencies.seconds.mean()), bool(latencies.censored.any())), None
    if aggregate == "min":
        return Value(float(latencies.seconds[0]), bool(latencies.censored[0])), None
    q = 100.0 if aggregate == "max" else float(aggregate[1:])
    needed = samples_needed(q)
    few = f"{n} samples are too few for {aggregate}: it needs {needed}" if n < needed else None
    return percentile(latencies, q), few


def _judge(threshold: Threshold, value: Value) -> tuple[Verdict, str]:
    """A lower bound that already breaks an upper limit is a FAIL; one that does not break it proves nothing."""
    shown = ("at least " if value.at_least else "") + threshold.show(value.value)
    holds = threshold.holds(value.value)
    if value.at_least and threshold.op in ("<", "<=") and holds:
        return Verdict.INCONCLUSIVE, f"{shown}: operations given up below the limit leave it open"
    if value.at_least and threshold.op == "==":
        return Verdict.INCONCLUSIVE, f"{shown}: operations that were given up leave it open"
    relation = "holds" if holds else "does not hold"
    why = f"{shown} {threshold.op} {threshold.show(threshold.limit)} {relation}"
    return (Verdict.PASS if holds else Verdict.FAIL), why


def _generator_was_late(threshold: Threshold, summary: LatencySummary) -> str | None:
    if summary.achieved < MIN_ACHIEVED:
        return f"the generator started only {summary.achieved:.1%} of the operations in time"
    if summary.lag_p99 > MAX_LAG_SHARE * threshold.limit:
        return f"the generator itself was {format_duration(summary.lag_p99)} late (p99), too much for this limit"
    return None


def _finding(threshold: Threshold, value: Value | None, n: int, censored: int, status: Verdict, why: str) -> Finding:
    return Finding(
        metric=threshold.metric.name,
        aggregate=threshold.aggregate,
        op=threshold.op,
        limit=threshold.limit,
        unit=threshold.unit,
        observed=value.value if value else None,
        n=n,
        censored=censored,
        status=status,
        why=why,
        at_least=bool(value and value.at_least),
    )
