import numpy as np
import pytest

from loadgen.core.errors import ConfigError
from loadgen.core.samples import SAMPLE_DTYPE, Outcome
from loadgen.core.stats import summarise
from loadgen.core.thresholds import evaluate_readings, evaluate_samples, parse
from loadgen.core.units import NS_PER_S
from loadgen.core.verdict import Finding, Verdict


def judge(text: str, latencies: list[float], outcome: Outcome = Outcome.OK, lag_s: float = 0.0) -> Finding:
    rows = np.zeros(len(latencies), dtype=SAMPLE_DTYPE)
    rows["due_ns"] = np.arange(len(latencies)) * NS_PER_S
    rows["sent_ns"] = rows["due_ns"] + round(lag_s * NS_PER_S)
    rows["done_ns"] = rows["due_ns"] + (np.array(latencies) * NS_PER_S).astype(np.int64)
    rows["outcome"] = outcome
    return evaluate_samples(parse(text), rows, summarise(rows, ("",)) if latencies else None)


@pytest.mark.parametrize(
    ("text", "metric", "aggregate", "op", "limit", "unit"),
    [
        ("sandbox.setup p99 < 30s", "sandbox.setup", "p99", "<", 30.0, "s"),
        ("dns.lookup max < 2.5s", "dns.lookup", "max", "<", 2.5, "s"),
        ("sandbox.setup failed == 0", "sandbox.setup", "failed", "==", 0.0, ""),
        ("storm.connect achieved >= 0.95", "storm.connect", "achieved", ">=", 0.95, ""),
        ("dns.lookup p99.99<=500ms", "dns.lookup", "p99.99", "<=", 0.5, "s"),
        ("ct.tcp.entries max < 500_000", "ct.tcp.entries", "max", "<", 500000.0, ""),
        ("agent.gc.interval last <= 60s", "agent.gc.interval", "last", "<=", 60.0, "s"),
    ],
)
def test_a_threshold_is_read(text: str, metric: str, aggregate: str, op: str, limit: float, unit: str) -> None:
    found = parse(text)
    assert (found.metric.name, found.aggregate, found.op, found.limit, found.unit) == (
        metric,
        aggregate,
        op,
        limit,
        unit,
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sandbox.setup p99", "write METRIC AGGREGATE OPERATOR LIMIT"),
        ("sandbox.setup p99 != 3s", "write METRIC AGGREGATE OPERATOR LIMIT"),
        ("sandbox.stup p99 < 3s", "unknown metric 'sandbox.stup'; known: sandbox.setup"),
        ("sandbox.setup p100 < 3s", "no aggregate 'p100'; it has pNN"),
        ("sandbox.setup p0 < 3s", "no aggregate 'p0'"),
        ("sandbox.setup last < 3s", "no aggregate 'last'"),
        ("ct.tcp.entries p99 < 3", "it has min, mean, max, last"),
        ("sandbox.setup p99 < 30", "it has no unit; write e.g. 60s"),
        ("sandbox.setup failed == 0s", "plain number"),
    ],
)
def test_a_bad_threshold_says_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert says in str(caught.value)
    assert repr(text) in str(caught.value)


def test_no_samples_are_never_a_pass() -> None:
    found = judge("dns.lookup failed == 0", [])
    assert (found.status, found.observed, found.why) == (Verdict.INCONCLUSIVE, None, "no samples")


def test_too_few_samples_for_a_percentile_are_inconclusive() -> None:
    assert judge("dns.lookup p99 < 1s", [0.1] * 49).status is Verdict.INCONCLUSIVE
    assert judge("dns.lookup p99 < 1s", [0.1] * 50).status is Verdict.PASS


def test_a_latency_is_held_against_its_limit() -> None:
    assert judge("dns.lookup max < 2.5s", [0.1, 2.4]).status is Verdict.PASS
    broken = judge("dns.lookup max < 2.5s", [0.1, 5.01])
    assert (broken.status, broken.observed, broken.n) == (Verdict.FAIL, 5.01, 2)


def test_a_lower_bound_fails_above_the_limit_and_proves_nothing_below() -> None:
    above = judge("sandbox.setup max < 30s", [90.0], Outcome.UNKNOWN)
    assert (above.status, above.at_least, above.censored) == (Verdict.FAIL, True, 1)
    below = judge("sandbox.setup max < 30s", [10.0], Outcome.UNKNOWN)
    assert below.status is Verdict.INCONCLUSIVE


def test_what_was_given_up_has_failed() -> None:
    found = judge("sandbox.setup failed == 0", [90.0, 90.0], Outcome.UNKNOWN)
    assert (found.status, found.observed) == (Verdict.FAIL, 2)


def test_a_late_generator_makes_a_latency_inconclusive() -> None:
    found = judge("dns.lookup max < 2.5s", [0.4] * 100, lag_s=0.3)
    assert found.status is Verdict.INCONCLUSIVE
    assert "generator" in found.why
    assert judge("dns.lookup max < 2.5s", [0.4] * 100, lag_s=0.2).status is Verdict.PASS


def test_a_generator_that_started_too_little_in_time_makes_it_inconclusive() -> None:
    found = judge("sandbox.setup max < 30s", [2.0] * 100, lag_s=1.5)
    assert found.status is Verdict.INCONCLUSIVE
    assert judge("sandbox.setup achieved >= 0.95", [2.0] * 100, lag_s=1.5).status is Verdict.FAIL


def test_readings_are_held_against_their_limit() -> None:
    values = np.array([5.0, 9.0, 7.0])
    assert evaluate_readings(parse("agent.lock.waiters max < 9"), values).status is Verdict.FAIL
    assert evaluate_readings(parse("agent.lock.waiters last < 9"), values).status is Verdict.PASS
    assert evaluate_readings(parse("agent.lock.waiters mean == 7"), values).status is Verdict.PASS
    assert evaluate_readings(parse("agent.lock.waiters max < 9"), np.empty(0)).status is Verdict.INCONCLUSIVE
