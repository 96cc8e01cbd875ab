"""The client's own rate limit: a token bucket, as client-go has one, with no clock of its own."""

from __future__ import annotations

from loadgen.core.units import NS_PER_S


class TokenBucket:
    """`qps` tokens a second, at most `burst` saved up; full at the start. Who takes a token first goes first."""

    def __init__(self, qps: float, burst: int) -> None:
        if qps <= 0 or burst < 1:
            raise ValueError(f"a limit of {qps:g}/s with a burst of {burst} lets nothing through")
        self._interval_ns = NS_PER_S / qps
        self._span_ns = (burst - 1) * self._interval_ns
        self._next_ns = float("-inf")
        """When the next token would be due if none were saved up."""

    def take(self, now_ns: int) -> int:
        """Take the next token: when it is there, at or after `now_ns`."""
        at = max(self._next_ns, now_ns - self._span_ns)
        self._next_ns = at + self._interval_ns
        return max(now_ns, round(at))
