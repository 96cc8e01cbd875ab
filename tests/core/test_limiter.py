"""The API rate limiter in virtual time: token bucket, places, the two kinds of 429, and the adjustment numbers."""

from __future__ import annotations

import random

import pytest

from loadgen.core.cilium import PROFILES
from loadgen.core.limiter import ApiLimiter, LimiterParams, Refusal, Request, State, TokenBucket
from loadgen.core.units import NS_PER_S

CREATE = PROFILES["1.16"].limits["endpoint-create"]
DELETE = PROFILES["1.16"].limits["endpoint-delete"]


def s(seconds: float) -> int:
    return round(seconds * NS_PER_S)


def drive(limiter: ApiLimiter, arrivals: list[float], work_s: float) -> dict[Request, float]:
    """Let requests of `work_s` each arrive; returns each request with the second in which it left the limiter."""
    left: dict[Request, float] = {}
    due, running, open_ = [s(a) for a in arrivals], [], []
    while due or running or open_:
        now = min([*due[:1], *(end for end, _ in running), *(t for t in [limiter.wake_ns()] if t is not None)])
        limiter.advance(now)
        for end, request in [r for r in running if r[0] <= now]:
            running.remove((end, request))
            limiter.finish(request, now)
        while due and due[0] <= now:
            due.pop(0)
            open_.append(limiter.submit(now))
        for request in [r for r in open_ if not r.waiting]:
            open_.remove(request)
            left[request] = now / NS_PER_S
            if request.state is State.RUNNING:
                running.append((now + s(work_s), request))
    return left


def test_no_limits_at_all():
    limiter = ApiLimiter(LimiterParams())
    requests = [limiter.submit(0) for _ in range(1000)]
    assert {r.state for r in requests} == {State.RUNNING}
    assert limiter.in_flight == 1000
    assert limiter.wake_ns() is None


def test_bucket_gives_the_burst_then_one_per_interval():
    bucket = TokenBucket(rate=2.0, burst=3)
    assert [bucket.reserve(0) for _ in range(5)] == [0, 0, 0, s(0.5), s(1.0)]
    assert bucket.reserve(s(10)) == s(10)


def test_bucket_takes_back_only_the_last_reservations_whole():
    bucket = TokenBucket(rate=1.0, burst=1)
    first, second = [bucket.reserve(0) for _ in range(3)][1:]
    bucket.give_back(first, 0)  # a later one counts on it: nothing comes back
    assert bucket.reserve(0) == s(3)
    bucket.give_back(s(3), 0)
    assert bucket.reserve(0) == s(3)
    bucket.give_back(second, s(2.5))  # its time is over
    assert bucket.reserve(s(2.5)) == s(4)


def test_rate_without_adjustment():
    left = drive(ApiLimiter(LimiterParams(rate=0.5, burst=4)), [0.0] * 8, work_s=0.0)
    assert list(left.values()) == [0, 0, 0, 0, 2, 4, 6, 8]


def test_parallel_places_are_first_come_first_served():
    limiter = ApiLimiter(LimiterParams(parallel=2))
    left = drive(limiter, [0.0, 0.1, 0.2, 0.3, 0.4], work_s=1.0)
    assert list(left.values()) == [0, 0.1, 1.0, 1.1, 2.0]
    assert limiter.in_flight == limiter.queued == 0


def test_foreseen_wait_too_long_is_refused_at_once_and_costs_no_token():
    limiter = ApiLimiter(LimiterParams(rate=0.1, burst=1, max_wait_ns=s(25)))
    states = [limiter.submit(0) for _ in range(6)]
    assert [r.refusal for r in states] == [None, None, None, *[Refusal.LIMIT_WAIT] * 3]
    assert [r.ready_ns for r in states[:3]] == [0, s(10), s(20)]
    assert limiter.wake_ns() == s(10)
    assert limiter.submit(s(6)).ready_ns == s(30)  # the refused ones gave their tokens back


def test_wait_for_a_place_is_refused_at_the_limit():
    limiter = ApiLimiter(LimiterParams(parallel=1, max_wait_ns=s(60)))
    running, waiting = limiter.submit(0), limiter.submit(s(5))
    limiter.advance(s(64.9))
    assert waiting.state is State.PARALLEL
    assert limiter.wake_ns() == s(65)
    limiter.advance(s(65))
    assert (waiting.state, waiting.refusal) == (State.REFUSED, Refusal.PARALLEL_WAIT)
    limiter.finish(running, s(66))
    assert limiter.submit(s(66)).state is State.RUNNING


def test_rate_wait_counts_against_the_wait_for_a_place():
    limiter = ApiLimiter(LimiterParams(rate=0.1, burst=1, parallel=1, max_wait_ns=s(25)))
    limiter.submit(0)
    second = limiter.submit(0)
    limiter.advance(s(10))
    assert (second.state, second.deadline_ns) == (State.PARALLEL, s(25))


def test_client_that_leaves_frees_its_place_in_the_queue():
    limiter = ApiLimiter(LimiterParams(rate=1.0, burst=1, parallel=1))
    running, in_rate = limiter.submit(0), limiter.submit(0)
    limiter.cancel(in_rate, s(0.5))
    assert in_rate.refusal is Refusal.CANCELLED
    in_parallel = limiter.submit(s(0.5))
    limiter.advance(s(1))
    limiter.cancel(in_parallel, s(2))
    limiter.cancel(running, s(2))  # too late for one that runs
    assert (running.state, limiter.queued) == (State.RUNNING, 0)


def test_heavy_request_at_the_head_holds_up_lighter_ones():
    limiter = ApiLimiter(LimiterParams(parallel=2, auto_adjust=True, estimate_ns=s(1)))
    first, second = limiter.submit(0), limiter.submit(0)
    heavy = limiter.submit(0)  # still weighed for 2 places
    limiter.finish(first, s(0.1))  # ten times faster than estimated: 11 places from now on
    assert limiter.parallel == 11
    assert heavy.state is State.RUNNING
    queued_heavy = limiter.submit(s(0.1))
    assert queued_heavy.state is State.PARALLEL
    limiter.finish(second, s(0.2))
    assert queued_heavy.state is State.RUNNING


@pytest.mark.parametrize(
    ("mean_s", "factor", "rate", "burst", "parallel"),
    [
        (2.0, 1.0, 0.5, 4, 4),
        (30.0, 0.0667, 0.0333, 2, 2),  # slow scrubs throttle creates to one in 30 s
        (19.05, 0.105, 0.0525, 2, 2),  # the factor seen live with 16 M entries
        (0.606, 3.3, 1.65, 9, 8),  # ×3.3 seen live with an empty table
        (0.001, 100.0, 50.0, 202, 202),  # the factor's bound
        (1000.0, 0.01, 0.005, 2, 2),
    ],
)
def test_adjustment_of_endpoint_create(mean_s, factor, rate, burst, parallel):
    limiter = ApiLimiter(CREATE)
    limiter.finish(limiter.submit(0), s(mean_s))
    assert limiter.factor == pytest.approx(factor, rel=2e-3)
    assert limiter.rate == pytest.approx(rate, rel=2e-3)
    assert (limiter.burst, limiter.parallel) == (burst, parallel)


def test_mean_is_over_the_last_ten():
    limiter = ApiLimiter(LimiterParams(auto_adjust=True, estimate_ns=s(1)))
    for _ in range(5):
        limiter.finish(limiter.submit(0), s(9))
    for _ in range(10):
        limiter.finish(limiter.submit(s(9)), s(10))
    assert limiter.mean_processing_s == 1.0
    assert limiter.factor == 1.0


def test_deletes_never_wait_in_vain_and_never_fall_below_four():
    limiter = ApiLimiter(DELETE)
    left = drive(limiter, [0.0] * 40, work_s=20.0)
    assert all(r.refusal is None for r in left)
    assert limiter.parallel == 4
    assert max(left.values()) == 180.0


def test_burst_of_fifty_with_quick_creates_speeds_up_and_refuses_nobody():
    limiter = ApiLimiter(CREATE)
    left = drive(limiter, [i * 0.01 for i in range(50)], work_s=0.2)
    assert all(r.refusal is None for r in left)
    assert limiter.factor == pytest.approx(10.0)
    # Reservations made before the adjustment keep their time, so the burst is served as the first rate foresaw it
    # until requests come that know the new one.
    assert max(left.values()) < 60


def test_burst_of_fifty_with_walks_of_two_seconds_is_refused_in_both_ways():
    left = drive(ApiLimiter(CREATE), [i * 0.01 for i in range(50)], work_s=18.0)
    refused = [r.refusal for r in left]
    assert refused.count(Refusal.LIMIT_WAIT) > 5
    assert refused.count(Refusal.PARALLEL_WAIT) > 5
    assert all(t < 1 for r, t in left.items() if r.refusal is Refusal.LIMIT_WAIT)
    assert all(t < 61 for t in left.values())


def test_places_are_never_oversold_whatever_happens():
    rng = random.Random(7)
    params = LimiterParams(
        rate=5.0, burst=3, parallel=3, min_parallel=2, max_wait_ns=s(4), auto_adjust=True, estimate_ns=s(1)
    )
    limiter, now, open_ = ApiLimiter(params), 0, []
    for _ in range(3000):
        now += rng.randrange(s(0.4))
        limiter.advance(now)
        action = rng.random()
        if action < 0.5:
            open_.append(limiter.submit(now))
        elif open_:
            request = open_.pop(rng.randrange(len(open_)))
            limiter.cancel(request, now)
            limiter.finish(request, now)
        running = [r for r in open_ if r.state is State.RUNNING]
        assert limiter.in_flight == len(running)
        assert sum(r.weight for r in running) <= 10_000_000
        assert limiter.queued == sum(r.waiting for r in open_)
        assert all(r.ready_ns > now for r in open_ if r.state is State.RATE)
