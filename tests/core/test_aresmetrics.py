"""How long c-ares waits for a server it knows."""

from __future__ import annotations

import pytest

from loadgen.core.aresmetrics import ServerHealth
from loadgen.core.units import NS_PER_S

MS = 1_000_000
NOW = 1_000_000 * NS_PER_S

# Latencies of answers in milliseconds, seconds since, and the timeout with 2000 ms to begin with.
TIMEOUTS = {
    "nothing known": ([], 0, 2000),
    "two answers are no mean": ([100, 100], 0, 2000),
    "five times the mean": ([100, 100, 130], 0, 550),
    "never less than a quarter of a second": ([3] * 9, 0, 250),
    "never more than five seconds": ([4000] * 3, 0, 5000),
    "under a millisecond counts as one": ([0.2] * 3, 0, 250),
    "the last minute still counts": ([100] * 3, 60, 500),
    "older ones count by longer periods": ([100] * 3, 3600, 500),
    "for ever": ([100] * 3, 10 * 86400, 500),
}


@pytest.mark.parametrize(("took_ms", "later_s", "timeout_ms"), TIMEOUTS.values(), ids=TIMEOUTS)
def test_the_timeout_follows_the_latency(took_ms: list[float], later_s: int, timeout_ms: int) -> None:
    health = ServerHealth()
    for took in took_ms:
        health.record(NOW, int(took * MS))
    assert health.timeout_ms(NOW + later_s * NS_PER_S, 2000) == timeout_ms


def test_the_newest_period_with_a_mean_counts() -> None:
    health = ServerHealth()
    for _ in range(3):
        health.record(NOW, 100 * MS)
    for _ in range(3):
        health.record(NOW + 120 * NS_PER_S, 300 * MS)
    assert health.timeout_ms(NOW + 120 * NS_PER_S, 2000) == 1500
