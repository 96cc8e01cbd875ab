"""How long c-ares waits for a server: five times its mean latency, once known (c-ares 1.34, ares_metrics.c)."""

from __future__ import annotations

import msgspec

from loadgen.core.units import NS_PER_S

MIN_MS, MAX_MS = 250, 5000
MULTIPLIER = 5
LEAST_COUNT = 3
"""Answers that make a mean."""
PERIODS_S = (60, 15 * 60, 60 * 60, 24 * 60 * 60, 0)
"""The newest period with a mean counts; 0 is since the beginning."""


class _Bucket(msgspec.Struct):
    number: int = -1
    total_ms: int = 0
    count: int = 0


class _Period(msgspec.Struct):
    now: _Bucket = msgspec.field(default_factory=_Bucket)
    before: _Bucket = msgspec.field(default_factory=_Bucket)


class ServerHealth(msgspec.Struct):
    """What a channel remembers of one server. Times are nanoseconds of a monotonic clock."""

    failures: int = 0
    """In a row."""
    periods: list[_Period] = msgspec.field(default_factory=lambda: [_Period() for _ in PERIODS_S])

    def record(self, now_ns: int, took_ns: int) -> None:
        """An answer came after `took_ns`. Whole milliseconds, at least one."""
        ms = max(1, took_ns // 1_000_000)
        for seconds, period in zip(PERIODS_S, self.periods, strict=True):
            number = _number(now_ns, seconds)
            if period.now.number != number:
                period.before, period.now = period.now, _Bucket(number)
            period.now.total_ms += ms
            period.now.count += 1

    def timeout_ms(self, now_ns: int, initial_ms: int) -> int:
        """ares_metrics_server_timeout: the first try's."""
        found = initial_ms
        for seconds, period in zip(PERIODS_S, self.periods, strict=True):
            number = _number(now_ns, seconds)
            known = [(period.now, number), (period.before, number - 1 if seconds else -2)]
            bucket = next((b for b, wanted in known if b.number == wanted and b.count >= LEAST_COUNT), None)
            if bucket is not None:
                found = bucket.total_ms // bucket.count * MULTIPLIER or initial_ms
                break
        return min(max(found, MIN_MS), MAX_MS)


def _number(now_ns: int, seconds: int) -> int:
    return now_ns // (seconds * NS_PER_S) if seconds else 1
