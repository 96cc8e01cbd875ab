import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.core.samples import SAMPLE_DTYPE, Outcome
from loadgen.core.stats import (
    Latencies,
    bootstrap_ratio,
    mann_whitney,
    percentile,
    samples_needed,
    summarise,
)
from loadgen.core.units import NS_PER_S


def rows(*samples: tuple[float, Outcome]) -> np.ndarray:
    """SAMPLE_DTYPE rows, one a second, with these latencies in seconds."""
    found = np.zeros(len(samples), dtype=SAMPLE_DTYPE)
    for i, (seconds, outcome) in enumerate(samples):
        due = i * NS_PER_S
        found[i] = (i, due, due, due + round(seconds * NS_PER_S), outcome, 1, 0, 0)
    return found


@pytest.mark.parametrize(
    ("n", "q", "rank"),
    [(1, 50, 1), (2, 50, 1), (3, 50, 2), (100, 99, 99), (1000, 99.9, 999), (50, 99, 50), (10, 100, 10), (7, 1, 1)],
)
def test_a_percentile_is_the_nearest_rank(n: int, q: float, rank: int) -> None:
    latencies = Latencies.of(rows(*((float(i), Outcome.OK) for i in range(n, 0, -1))))
    assert percentile(latencies, q) == (rank, False)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=200), st.floats(0.1, 100))
def test_it_agrees_with_the_definition(values: list[int], q: float) -> None:
    latencies = Latencies.of(rows(*((v / 1000, Outcome.OK) for v in values)))
    found = percentile(latencies, q).value
    ordered = sorted(values)
    smallest = next(v for i, v in enumerate(ordered, start=1) if i >= round(q / 100 * len(values), 9))
    assert found == pytest.approx(smallest / 1000)


def test_a_censored_sample_makes_every_rank_from_it_on_a_lower_bound() -> None:
    latencies = Latencies.of(rows((1, Outcome.OK), (2, Outcome.OK), (2, Outcome.UNKNOWN), (3, Outcome.OK)))
    assert percentile(latencies, 50) == (2, False)
    assert percentile(latencies, 75) == (2, True)
    assert percentile(latencies, 100) == (3, True)


def test_no_samples_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no samples"):
        percentile(Latencies.of(rows()), 50)


@pytest.mark.parametrize(("q", "n"), [(50, 1), (90, 5), (99, 50), (99.9, 500), (99.99, 5000), (100, 1)])
def test_a_percentile_needs_samples(q: float, n: int) -> None:
    assert samples_needed(q) == n


def test_a_summary_counts_everything_once() -> None:
    some = rows((1, Outcome.OK), (5, Outcome.OK), (2, Outcome.FAIL), (90, Outcome.UNKNOWN))
    some["tries"] = [1, 2, 1, 3]
    some["lost"] = [0, 1, 0, 4]
    some["detail"] = [0, 1, 2, 2]
    some["sent_ns"][1] += 2 * NS_PER_S
    found = summarise(some, ("", "AAAA lost", "timeout"))
    assert (found.n, found.ok, found.failed, found.censored) == (4, 2, 1, 1)
    assert (found.retries, found.lost) == (3, 5)
    assert found.reasons == {"AAAA lost": 1, "timeout": 2}
    assert found.achieved == 0.75
    assert found.lag_p99 == 2
    assert found.due_rate == 1
    assert (found.min, found.max, found.mean) == (1, 90, 24.5)
    assert found.percentiles["p50"] == 2


def test_mann_whitney_matches_a_worked_example() -> None:
    # Two groups of five without ties; U = 23 of 25, sigma = sqrt(25 * 11 / 12).
    found = mann_whitney(np.array([1, 2, 3, 4, 7.0]), np.array([5, 6, 8, 9, 10.0]))
    z = (23 - 12.5 - 0.5) / math.sqrt(25 * 11 / 12)
    assert found.superiority == pytest.approx(23 / 25)
    assert found.p == pytest.approx(math.erfc(z / math.sqrt(2)))


def test_equal_samples_and_too_few_samples_are_no_difference() -> None:
    assert mann_whitney(np.ones(50), np.ones(50)).p == 1
    assert mann_whitney(np.array([1.0, 2.0]), np.array([9.0, 9.5])).p == 1


def test_the_bootstrap_holds_the_true_ratio_and_repeats_with_its_seed() -> None:
    rng = np.random.default_rng(3)
    before, after = rng.exponential(10, 3000), rng.exponential(1, 3000)
    first = bootstrap_ratio(before, after, 50, np.random.default_rng(1), rounds=200)
    assert first == bootstrap_ratio(before, after, 50, np.random.default_rng(1), rounds=200)
    assert first.low < 10 < first.high
    assert first.high - first.low < 3
