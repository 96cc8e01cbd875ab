"""The comparison of two settings: what it says of equal ones, of different ones, and of what it cannot know."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from loadgen.core import versus
from loadgen.core.stats import Latencies
from loadgen.core.versus import Comparison, Outcome, Run, compare, narrow, quantile

MARGIN = 0.1
NAMES = ("current", "candidate")


def a_run(rng: np.random.Generator, *, noise: float, factor: float = 1.0, n: int = 50, failing: float = 0.0) -> Run:
    """One run: its own luck, common to all its samples, and the samples' spread."""
    luck = math.exp(rng.normal(0, noise))
    seconds = factor * luck * rng.lognormal(0, 0.3, n)
    return Run(Latencies(np.sort(seconds), np.zeros(n, dtype=bool)), int(rng.binomial(n, failing)))


def simulated(
    seed: int, *, factor: float = 1.0, noise: float = 0.15, n: int = 50, failing: tuple[float, float] = (0.0, 0.0)
) -> Comparison:
    """As `loadgen compare` does it: pairs of runs until the intervals are narrow, or the limit."""
    rng = np.random.default_rng(seed)
    current: dict[str, list[Run]] = {"sandbox.setup": [], "dns.lookup": []}
    candidate: dict[str, list[Run]] = {"sandbox.setup": [], "dns.lookup": []}
    found = None
    for _ in range(10):
        for metric in current:
            current[metric].append(a_run(rng, noise=noise, n=n, failing=failing[0]))
            candidate[metric].append(a_run(rng, noise=noise, factor=factor, n=n, failing=failing[1]))
        found = compare(current, candidate, margin=MARGIN, paired=True, seed=seed, names=NAMES)
        if narrow(found):
            break
    assert found is not None
    return found


@pytest.mark.parametrize("noise", [0.02, 0.5])
@pytest.mark.parametrize("failing", [0.0, 0.1])
def test_equal_settings_are_called_different_in_at_most_one_of_twenty(noise: float, failing: float) -> None:
    outcomes = [simulated(seed, noise=noise, failing=(failing, failing)).outcome for seed in range(200)]
    assert sum(outcome in (Outcome.BETTER, Outcome.WORSE) for outcome in outcomes) <= 10


@pytest.mark.parametrize(("factor", "outcome"), [(2.0, Outcome.WORSE), (0.5, Outcome.BETTER)])
def test_a_factor_of_two_is_found_and_needs_few_runs(factor: float, outcome: Outcome) -> None:
    found = [simulated(seed, factor=factor) for seed in range(50)]
    assert sum(one.outcome is outcome for one in found) >= 48
    assert not any(one.outcome in {Outcome.WORSE, Outcome.BETTER} - {outcome} for one in found)
    assert np.median([one.rows[0].runs[0] for one in found]) < 10


def test_equal_settings_with_little_noise_are_found_equal_within_the_margin() -> None:
    found = [simulated(seed, noise=0.005, n=2_000) for seed in range(10)]
    assert sum(one.outcome is Outcome.SAME for one in found) >= 8
    assert all(one.why == "nothing differs by more than 10%" for one in found if one.outcome is Outcome.SAME)


def test_the_detectable_ratio_is_detected_in_four_of_five() -> None:
    """Of a single row, so that no other one speaks; noise as known to the simulation."""
    typical = np.median([fixed(seed, 1.0).rows[0].detectable or 0 for seed in range(200)])
    hits = sum(fixed(seed, float(typical)).rows[0].outcome is Outcome.WORSE for seed in range(1000, 1200))
    assert 0.65 < hits / 200 < 0.95


def fixed(seed: int, factor: float) -> Comparison:
    rng = np.random.default_rng(seed)
    a, b = ([a_run(rng, noise=0.2, factor=f) for _ in range(8)] for f in (1.0, factor))
    return compare({"m": a}, {"m": b}, margin=MARGIN, paired=False, seed=seed, names=NAMES)


def runs(values: Sequence[float], *, censored: bool = False, failed: int = 0, n: int = 100) -> list[Run]:
    return [Run(Latencies(np.full(n, value), np.full(n, censored)), failed) for value in values]


def of(current: list[Run], candidate: list[Run], *, paired: bool = True) -> Comparison:
    return compare({"m": current}, {"m": candidate}, margin=MARGIN, paired=paired, seed=1, names=NAMES)


FOUR = [1.0, 1.02, 0.99, 1.01]


def test_few_runs_prove_nothing_however_many_samples_they_have() -> None:
    found = of(runs([1.0], n=100_000), runs([50.0], n=100_000))
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "1 run a side; the noise between runs needs 3" in found.why
    assert (found.rows[0].low, found.rows[0].high, found.rows[0].detectable) == (None, None, None)
    assert not narrow(found)


def test_operations_given_up_bound_the_ratio_on_one_side_only() -> None:
    slow = [30 * value for value in FOUR]
    worse = of(runs(FOUR), runs(slow, censored=True)).rows[0]
    assert worse.outcome is Outcome.WORSE
    assert worse.why.endswith("times, at least")
    better = of(runs(slow, censored=True), runs(FOUR)).rows[0]
    assert (better.outcome, better.why.endswith("times, at most")) == (Outcome.BETTER, True)
    # The candidate's true value may be anything above its limit, also above the current one's.
    assert of(runs(slow), runs(FOUR, censored=True)).rows[0].outcome is Outcome.INCONCLUSIVE
    assert of(runs(FOUR, censored=True), runs(slow)).rows[0].outcome is Outcome.INCONCLUSIVE
    both = of(runs(FOUR, censored=True), runs(slow, censored=True)).rows[0]
    assert both.why == "both sides rest on operations that were given up"


def test_failures_are_compared_as_shares() -> None:
    found = of(runs(FOUR, failed=1), runs(FOUR, failed=40))
    (row,) = (row for row in found.rows if row.aggregate == "failed")
    assert (row.current, row.candidate, row.outcome) == (0.01, 0.4, Outcome.WORSE)
    none = of(runs(FOUR), runs(FOUR))
    assert none.outcome is Outcome.SAME
    assert none.rows[-1].why == "none failed on either side"


def test_one_worse_row_outweighs_better_ones() -> None:
    slower, faster = [2 * value for value in FOUR], [value / 2 for value in FOUR]
    current = {"a": runs(FOUR), "b": runs(FOUR), "only here": runs(FOUR)}
    candidate = {"a": runs(faster), "b": runs(slower)}
    found = compare(current, candidate, margin=MARGIN, paired=True, seed=1, names=NAMES)
    assert (found.outcome, {row.metric for row in found.rows}) == (Outcome.WORSE, {"a", "b"})
    assert "b p50" in found.why
    nothing = compare({}, candidate, margin=MARGIN, paired=True, seed=1, names=NAMES)
    assert (nothing.outcome, nothing.why) == (
        Outcome.INCONCLUSIVE,
        "there is nothing that both sides have measured",
    )


def test_pairs_take_out_what_hits_both() -> None:
    drift = [1.0, 2.0, 4.0, 8.0, 16.0]
    current, candidate = runs(drift), runs([value * 1.5 for value in drift])
    assert of(current, candidate).rows[0].outcome is Outcome.WORSE
    assert of(current, candidate, paired=False).rows[0].outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(
    ("p", "freedom", "t"),
    [(0.975, 1, 12.706), (0.975, 2, 4.303), (0.995, 4, 4.604), (0.8, 9, 0.883), (0.975, 1000, 1.962)],
)
def test_students_quantiles_are_those_of_the_tables(p: float, freedom: float, t: float) -> None:
    assert quantile(p, freedom) == pytest.approx(t, abs=0.001)


def test_each_rows_confidence_pays_for_the_number_of_rows() -> None:
    assert of(runs(FOUR), runs(FOUR)).confidence == pytest.approx(1 - versus.ERROR / 3)
