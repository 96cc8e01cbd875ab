"""Two settings held against each other: is the candidate better or worse than the current one, or is nothing known?

The unit is the run, not the sample: operations of one run share its noise. Each run gives one value of a metric's
aggregate; the ratio candidate ÷ current is the mean difference of their logarithms, its interval is Student's (paired
when the runs alternated in one experiment, Welch's otherwise). A bootstrap of three to ten runs would be too narrow;
one over samples would not see the noise between runs. Where a percentile within a run is itself less certain than
the runs differ, that uncertainty is used: the bootstrap's own distribution of a percentile, which is known in closed
form (a binomial choice of the rank).

The error of 5 % is shared among all rows (Bonferroni), so that two equal settings are called different in at most one
of twenty comparisons, however many rows a comparison has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from typing import NamedTuple

import msgspec
import numpy as np

from loadgen.core.stats import Latencies, mann_whitney, percentile, percentile_name, samples_needed

ERROR = 0.05
POWER = 0.8
LEAST_RUNS = 3
PERCENTILES = (50.0, 99.0)
FAILED = "failed"
_MOST_RANKED = 5_000
"""Samples a side that the rank test looks at; more change nothing but its time."""


class Outcome(Enum):
    BETTER = "better"
    WORSE = "worse"
    SAME = "no difference"
    INCONCLUSIVE = "inconclusive"


class Run(NamedTuple):
    """One run's samples of one metric in its measured phases."""

    latencies: Latencies
    failed: int


class Row(msgspec.Struct, frozen=True):
    """One aggregate of one metric. Values in seconds (their geometric mean over the runs), or shares for `failed`.

    `low` and `high` hold the ratio candidate ÷ current at the comparison's confidence; None: nothing bounds it.
    `detectable`: the smallest ratio that as many runs with this noise would tell in four of five comparisons.
    """

    metric: str
    aggregate: str
    current: float
    candidate: float
    ratio: float
    low: float | None
    high: float | None
    detectable: float | None
    runs: tuple[int, int]
    samples: tuple[int, int]
    p: float
    """Mann–Whitney over all samples; it does not see the noise between runs and decides nothing."""
    outcome: Outcome
    why: str


class Comparison(msgspec.Struct, frozen=True):
    """compare.json: fields are added, never renamed."""

    format: int
    current: str
    candidate: str
    margin: float
    confidence: float
    """Of each row's interval."""
    outcome: Outcome
    why: str
    rows: tuple[Row, ...]


FORMAT = 1

Runs = Mapping[str, Sequence[Run]]
"""Metric → its runs, in order."""


def compare(
    current: Runs, candidate: Runs, *, margin: float, paired: bool, seed: int, names: tuple[str, str]
) -> Comparison:
    """Every metric that both sides have. `margin` 0.1: a candidate up to 10 % slower counts as no worse.

    `paired`: run i of one side alternated with run i of the other.
    """
    asked = [(m, a) for m in current if m in candidate for a in _aggregates([*current[m], *candidate[m]])]
    confidence = 1 - ERROR / max(1, len(asked))
    rng = np.random.default_rng(seed)
    rows = tuple(
        _row(metric, aggregate, current[metric], candidate[metric], margin, confidence, rng, paired=paired)
        for metric, aggregate in asked
    )
    outcome, why = overall(rows, margin)
    return Comparison(FORMAT, *names, margin, confidence, outcome, why, rows)


def _aggregates(runs: Sequence[Run]) -> list[str]:
    """Percentiles that every run has the samples for, and the failures."""
    least = min(len(run.latencies.seconds) for run in runs)
    return [*(percentile_name(q) for q in PERCENTILES if least >= samples_needed(q)), FAILED]


def overall(rows: Sequence[Row], margin: float) -> tuple[Outcome, str]:
    """Worse in one row is worse. Better needs that nothing may be worse by more than the margin."""
    by = {outcome: [row for row in rows if row.outcome is outcome] for outcome in Outcome}
    if not rows:
        return Outcome.INCONCLUSIVE, "there is nothing that both sides have measured"
    if by[Outcome.WORSE]:
        return Outcome.WORSE, "; ".join(_told(row) for row in by[Outcome.WORSE])
    if by[Outcome.INCONCLUSIVE]:
        return Outcome.INCONCLUSIVE, "; ".join(_told(row) for row in by[Outcome.INCONCLUSIVE])
    if by[Outcome.BETTER]:
        return Outcome.BETTER, "; ".join(_told(row) for row in by[Outcome.BETTER])
    return Outcome.SAME, f"nothing differs by more than {margin:.0%}"


def _told(row: Row) -> str:
    return f"{row.metric} {row.aggregate}: {row.why}"


def narrow(comparison: Comparison) -> bool:
    """More runs would tell nothing new: each interval is half as wide as the margins' zone, or wholly beyond it.

    It does not stop where an interval has just left 1: looking again and again until it does would find differences
    between equal settings.
    """
    margin = math.log1p(comparison.margin)

    def settled(row: Row) -> bool:
        if row.low is None or row.high is None or min(row.runs) < LEAST_RUNS:
            return False
        low, high = math.log(row.low), math.log(row.high)
        return high - low <= margin or low > margin or high < -margin

    return bool(comparison.rows) and all(settled(row) for row in comparison.rows)


# --- one row --------------------------------------------------------------------------------------------------


class _Side(NamedTuple):
    """Logarithms of the runs' values, and the variance of each in itself. `at_least`: true values may be more."""

    logs: np.ndarray
    variances: np.ndarray
    at_least: bool

    @property
    def mean(self) -> float:
        return float(self.logs.mean())


def _row(
    metric: str, aggregate: str, current: Sequence[Run], candidate: Sequence[Run], margin: float, confidence: float,
    rng: np.random.Generator, *, paired: bool,
) -> Row:  # fmt: skip
    a, b = (_side(aggregate, runs) for runs in (current, candidate))
    difference = b.mean - a.mean
    error, freedom = _error(a, b, paired=paired)
    half = quantile(1 - (1 - confidence) / 2, freedom) * error if freedom > 0 else math.inf
    known = math.isfinite(half)
    low, high = (math.exp(difference - half), math.exp(difference + half)) if known else (None, None)
    detectable = math.exp(half + quantile(POWER, freedom) * error) if known else None
    outcome, why = _judge(a, b, low, high, margin, (len(current), len(candidate)))
    if aggregate == FAILED and not any(run.failed for run in (*current, *candidate)):
        outcome, why = Outcome.SAME, "none failed on either side"
        difference, low, high, detectable = 0.0, 1.0, 1.0, None
    pooled = [_some(np.concatenate([run.latencies.seconds for run in runs]), rng) for runs in (current, candidate)]
    return Row(
        metric=metric,
        aggregate=aggregate,
        current=_shown(aggregate, current, a),
        candidate=_shown(aggregate, candidate, b),
        ratio=math.exp(difference),
        low=low,
        high=high,
        detectable=detectable,
        runs=(len(current), len(candidate)),
        samples=(_count(current), _count(candidate)),
        p=mann_whitney(*pooled).p,
        outcome=outcome,
        why=why,
    )


def _judge(
    a: _Side, b: _Side, low: float | None, high: float | None, margin: float, runs: tuple[int, int]
) -> tuple[Outcome, str]:
    """`a.at_least`: the true ratio may be lower; `b.at_least`: it may be higher."""
    if low is None or high is None or min(runs) < LEAST_RUNS:
        return (
            Outcome.INCONCLUSIVE,
            f"{min(runs)} run{'s' if min(runs) != 1 else ''} a side; the noise between runs needs {LEAST_RUNS}",
        )
    span = f"{low:.3g} to {high:.3g} times"
    if a.at_least and b.at_least:
        return Outcome.INCONCLUSIVE, "both sides rest on operations that were given up"
    same = low >= 1 / (1 + margin) and high <= 1 + margin
    if same and not (a.at_least or b.at_least):
        return Outcome.SAME, f"{span}: within {margin:.0%}"
    if low > 1 and not a.at_least and not same:
        return Outcome.WORSE, f"{span}{', at least' if b.at_least else ''}"
    if high < 1 and not b.at_least and not same:
        return Outcome.BETTER, f"{span}{', at most' if a.at_least else ''}"
    return Outcome.INCONCLUSIVE, f"{span}: more runs would tell"


def _side(aggregate: str, runs: Sequence[Run]) -> _Side:
    if aggregate == FAILED:
        counts = np.array([[run.failed, len(run.latencies.seconds)] for run in runs], dtype=float)
        # Half a failure and half a success more (Haldane, Anscombe): a share of 0 has a logarithm then.
        failed, n = counts[:, 0] + 0.5, counts[:, 1] + 1
        return _Side(np.log(failed / n), 1 / failed - 1 / n, at_least=False)
    q = float(aggregate[1:])
    found = [percentile(run.latencies, q) for run in runs]
    logs = np.log([max(value.value, 1e-9) for value in found])
    return _Side(logs, np.array([_own(run.latencies, q) for run in runs]), any(value.at_least for value in found))


def _own(latencies: Latencies, q: float) -> float:
    """Variance of a percentile's logarithm within one run, from the ranks one deviation to either side."""
    n = len(latencies.seconds)
    step = math.sqrt(n * q / 100 * (1 - q / 100))
    rank = math.ceil(q / 100 * n)
    low, high = (min(n, max(1, round(rank + sign * step))) for sign in (-1, 1))
    bounds = np.log(np.maximum(latencies.seconds[[low - 1, high - 1]], 1e-9))
    return float((bounds[1] - bounds[0]) / 2) ** 2


def _error(a: _Side, b: _Side, *, paired: bool) -> tuple[float, float]:
    """Standard error of the difference of the means, and its degrees of freedom; 0 of them: not known."""
    own = math.sqrt(a.variances.sum() / len(a.logs) ** 2 + b.variances.sum() / len(b.logs) ** 2)
    if min(len(a.logs), len(b.logs)) < 2:
        return own, 0.0
    if paired and len(a.logs) == len(b.logs):
        between = float((b.logs - a.logs).std(ddof=1)) / math.sqrt(len(a.logs))
        return max(own, between), len(a.logs) - 1
    parts = [side.logs.var(ddof=1) / len(side.logs) for side in (a, b)]
    total = sum(parts)
    if total <= 0:
        return own, min(len(a.logs), len(b.logs)) - 1
    freedom = total**2 / sum(p**2 / (len(side.logs) - 1) for p, side in zip(parts, (a, b), strict=True))
    return max(own, math.sqrt(total)), freedom


def _shown(aggregate: str, runs: Sequence[Run], side: _Side) -> float:
    if aggregate == FAILED:
        return sum(run.failed for run in runs) / max(1, _count(runs))
    return math.exp(side.mean)


def _count(runs: Sequence[Run]) -> int:
    return sum(len(run.latencies.seconds) for run in runs)


def _some(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.choice(values, _MOST_RANKED, replace=False) if len(values) > _MOST_RANKED else values


# --- Student's t ----------------------------------------------------------------------------------------------


@cache
def quantile(p: float, freedom: float) -> float:
    """The p quantile, p ≥ ½, of Student's t: its distribution function turned round by bisection."""
    low, high = 0.0, 1.0
    while _below(high, freedom) < p:
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _below(middle, freedom) < p else (low, middle)
    return high


def _below(t: float, freedom: float) -> float:
    """Chance of a value below t ≥ 0: 1 − I(v/(v+t²); v/2, ½) / 2 (Abramowitz and Stegun 26.7.1, 26.5.27)."""
    return 1 - _beta(freedom / (freedom + t * t), freedom / 2, 0.5) / 2


def _beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Abramowitz and Stegun 26.5.8)."""
    if x in (0.0, 1.0):
        return x
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    fraction = 1.0
    for i in range(100, 0, -1):
        m = i // 2
        if i % 2:
            step = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            step = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        fraction = 1 + step / fraction
    return front / fraction
