from __future__ import annotations

import pytest

from loadgen.core.units import NS_PER_S
from loadgen.kube.throttle import TokenBucket

MS = NS_PER_S // 1000


def test_a_burst_goes_at_once_and_the_rest_at_the_rate() -> None:
    bucket = TokenBucket(20.0, 5)
    assert [bucket.take(NS_PER_S) - NS_PER_S for _ in range(9)] == [0] * 5 + [50 * MS, 100 * MS, 150 * MS, 200 * MS]


def test_a_pause_saves_up_no_more_than_the_burst() -> None:
    bucket = TokenBucket(10.0, 2)
    first = [bucket.take(0) for _ in range(3)]
    assert first == [0, 0, 100 * MS]
    hour = 3600 * NS_PER_S
    assert [bucket.take(hour) - hour for _ in range(4)] == [0, 0, 100 * MS, 200 * MS]


def test_a_steady_taker_at_the_rate_never_waits() -> None:
    bucket = TokenBucket(100.0, 1)
    assert [bucket.take(n * 10 * MS) for n in range(50)] == [n * 10 * MS for n in range(50)]


@pytest.mark.parametrize(("qps", "burst"), [(0.0, 5), (-1.0, 5), (5.0, 0)])
def test_a_limit_that_lets_nothing_through_is_a_mistake(qps: float, burst: int) -> None:
    with pytest.raises(ValueError, match="lets nothing through"):
        TokenBucket(qps, burst)
