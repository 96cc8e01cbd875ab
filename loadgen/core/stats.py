"""Exact statistics: every percentile comes from all samples; a timeout counts at its limit as a lower bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from loadgen.core.samples import Outcome
from loadgen.core.units import NS_PER_S

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9, 99.99)


class Value(NamedTuple):
    """A statistic. `at_least` is True when censored samples decide it: the true value is this or more."""

    value: float
    at_least: bool


class Latencies(NamedTuple):
    """Latencies in seconds, ascending, each with whether it is censored. Equal values: measured ones first."""

    seconds: np.ndarray
    censored: np.ndarray

    @classmethod
    def of(cls, rows: np.ndarray) -> Latencies:
        """From SAMPLE_DTYPE rows; latency counts from `due_ns`, whatever the generator's own delay was."""
        seconds = (rows["done_ns"] - rows["due_ns"]) / NS_PER_S
        censored = rows["outcome"] == Outcome.UNKNOWN
        order = np.lexsort((censored, seconds))
        return cls(seconds[order], censored[order])


def percentile(latencies: Latencies, q: float) -> Value:
    """Nearest rank: the smallest sample with at least q % of all samples at or below it. Needs a sample.

    A censored sample's true value may lie anywhere above its limit, so the answer is a lower bound as soon as a
    censored sample stands at or below the rank.
    """
    n = len(latencies.seconds)
    if n == 0:
        raise ValueError("no samples")
    # The rounding keeps e.g. 99.9 % of 1,000 at rank 999: 0.999 * 1000 is 999.0000000000001 in binary.
    rank = max(1, math.ceil(round(q / 100 * n, 9)))
    return Value(float(latencies.seconds[rank - 1]), bool(latencies.censored[:rank].any()))


def samples_needed(q: float) -> int:
    """Fewest samples for which the nearest rank of percentile `q` says something: n·(1 − q) ≥ ½.

    Below that, the maximum would be reported as e.g. p99.9 of a handful of samples.
    """
    return max(1, math.ceil(round(0.5 / (1 - q / 100), 9))) if q < 100 else 1


class LatencySummary(msgspec.Struct, frozen=True):
    """What one metric did in the measured phases of one run. Times in seconds; see `describe`."""

    n: int
    ok: int
    failed: int
    censored: int
    retries: int
    lost: int
    due_rate: float
    """Operations due per second of the span between the first and the last due time."""
    achieved: float
    """Share of the operations due that were started within `LATE_S` of their due time."""
    lag_p99: float
    mean: float
    min: float
    max: float
    percentiles: dict[str, float]
    reasons: dict[str, int]
    """Count of samples by detail text, the empty text (nothing to say) left out."""


LATE_S = 1.0
"""An operation started later than this after its due time was not offered at the rate that was asked for."""


def percentile_name(q: float) -> str:
    return f"p{q:g}"


def summarise(rows: np.ndarray, details: Sequence[str]) -> LatencySummary:
    """Summary of SAMPLE_DTYPE `rows`, whose `detail` indexes `details`. Needs at least one row."""
    latencies = Latencies.of(rows)
    lag = np.sort((rows["sent_ns"] - rows["due_ns"]) / NS_PER_S)
    span = (int(rows["due_ns"].max()) - int(rows["due_ns"].min())) / NS_PER_S
    counts = np.bincount(rows["detail"], minlength=len(details))
    outcome = rows["outcome"]
    return LatencySummary(
        n=len(rows),
        ok=int((outcome == Outcome.OK).sum()),
        failed=int((outcome == Outcome.FAIL).sum()),
        censored=int((outcome == Outcome.UNKNOWN).sum()),
        retries=int(np.maximum(rows["tries"].astype(np.int64) - 1, 0).sum()),
        lost=int(rows["lost"].astype(np.int64).sum()),
        due_rate=(len(rows) - 1) / span if span > 0 else 0.0,
        achieved=float((lag <= LATE_S).mean()),
        lag_p99=float(lag[max(1, math.ceil(0.99 * len(lag))) - 1]),
        mean=float(latencies.seconds.mean()),
        min=float(latencies.seconds[0]),
        max=float(latencies.seconds[-1]),
        percentiles={percentile_name(q): percentile(latencies, q).value for q in PERCENTILES},
        reasons={t: int(c) for t, c in zip(details, counts, strict=True) if t and c},
    )


class RankTest(NamedTuple):
    """Mann–Whitney: `p` is two-sided; `superiority` is the chance that a value of `b` exceeds one of `a`."""

    p: float
    superiority: float


def mann_whitney(a: np.ndarray, b: np.ndarray) -> RankTest:
    """Two-sided Mann–Whitney U test with the normal approximation and tie correction.

    Refuses to call a difference (p = 1) where so few values cannot reach p < 0.05 whatever they are.
    """
    n1, n2 = len(a), len(b)
    if n1 == 0 or n2 == 0:
        raise ValueError("no samples")
    both = np.concatenate([a, b])
    _, inverse, counts = np.unique(both, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2)[inverse]
    u = float(ranks[n1:].sum() - n2 * (n2 + 1) / 2)
    superiority = u / (n1 * n2)
    n = n1 + n2
    ties = float((counts.astype(float) ** 3 - counts).sum())
    variance = n1 * n2 / 12 * ((n + 1) - ties / (n * (n - 1)) if n > 1 else 0.0)
    if variance <= 0 or 2 / math.comb(n, n1) > 0.05:
        return RankTest(1.0, superiority)
    z = (abs(u - n1 * n2 / 2) - 0.5) / math.sqrt(variance)
    return RankTest(min(1.0, math.erfc(max(z, 0.0) / math.sqrt(2))), superiority)


class Interval(NamedTuple):
    low: float
    high: float


def bootstrap_ratio(
    before: np.ndarray, after: np.ndarray, q: float, rng: np.random.Generator, rounds: int = 1000
) -> Interval:
    """95 % bootstrap interval of percentile q of `before` ÷ percentile q of `after` (both > 0, seconds)."""
    ratios = np.empty(rounds)
    for i in range(rounds):
        x = np.percentile(rng.choice(before, len(before)), q, method="inverted_cdf")
        y = np.percentile(rng.choice(after, len(after)), q, method="inverted_cdf")
        ratios[i] = x / max(float(y), 1e-9)
    low, high = np.percentile(ratios, [2.5, 97.5])
    return Interval(float(low), float(high))
