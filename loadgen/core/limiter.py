"""Cilium's API rate limiter in virtual time: a token bucket, then a weighted semaphore, both self-adjusting.

Source: Cilium pkg/rate/api_limiter.go (1.16, 1.18) and golang.org/x/time/rate for the bucket. No clock in here: every
call takes the time, in ns. A request lives like this:

    submit ─► RATE (waits for its token) ─► PARALLEL (waits for a place) ─► RUNNING ─► finish
                 └► REFUSED (429)              └► REFUSED (429)        cancel ─► REFUSED (the client is gone)

Whoever drives it calls `advance` at `wake_ns()` and looks at the states of its requests.
"""

from __future__ import annotations

import math
from collections import deque
from enum import Enum

import msgspec

from loadgen.core.units import NS_PER_S

SEMAPHORE_RESOLUTION = 10_000_000
"""Weight that all running requests share; each takes RESOLUTION // parallel at its arrival (api_limiter.go)."""


class LimiterParams(msgspec.Struct, frozen=True, kw_only=True):
    """One call's limits. 0 switches a limit off: no rate, no parallelism, no longest wait."""

    estimate_ns: int = 0
    auto_adjust: bool = False
    rate: float = 0.0
    """Requests per second."""
    burst: int = 1
    parallel: int = 0
    min_parallel: int = 1
    max_parallel: int = 0
    skip_initial: int = 0
    max_wait_ns: int = 0
    mean_over: int = 10
    delayed_adjustment: float = 0.5
    max_adjustment: float = 100.0


class State(Enum):
    RATE = "rate"
    PARALLEL = "parallel"
    RUNNING = "running"
    REFUSED = "refused"
    FINISHED = "finished"


class Refusal(Enum):
    """Why a request was answered 429; the value is Cilium's label `outcome` of processed_requests_total."""

    LIMIT_WAIT = "fail-limit-wait"
    PARALLEL_WAIT = "fail-parallel-wait"
    CANCELLED = "request-cancelled"


class Request:
    """One API request as the limiter sees it. Read `state`; only the limiter writes."""

    def __init__(self, submitted_ns: int) -> None:
        self.state = State.RATE
        self.refusal: Refusal | None = None
        self.submitted_ns = submitted_ns
        self.ready_ns = submitted_ns
        self.deadline_ns: int | None = None
        self.started_ns = 0
        self.parallel = 0
        self.weight = 0
        self.token = False
        self.skipped = False

    @property
    def waiting(self) -> bool:
        return self.state in (State.RATE, State.PARALLEL)


class TokenBucket:
    """x/time/rate: reservations may drive the tokens below zero, and then wait for their own token."""

    def __init__(self, rate: float, burst: int) -> None:
        self.rate, self.burst = rate, burst
        self._tokens, self._last_ns, self._last_event_ns = float(burst), 0, 0

    def reserve(self, now_ns: int) -> int:
        """Take one token; returns when it will be there (now or later)."""
        self._refill(now_ns)
        self._tokens -= 1
        wait_ns = round(-self._tokens / self.rate * NS_PER_S) if self._tokens < 0 else 0
        self._last_event_ns = now_ns + wait_ns
        return self._last_event_ns

    def give_back(self, ready_ns: int, now_ns: int) -> None:
        """Undo a reservation that has not come due, less what later reservations have counted on."""
        if ready_ns < now_ns:
            return
        restored = 1 - self.rate * (self._last_event_ns - ready_ns) / NS_PER_S
        if restored <= 0:
            return
        self._refill(now_ns)
        self._tokens = min(self._tokens + restored, float(self.burst))
        if ready_ns == self._last_event_ns:
            self._last_event_ns = max(now_ns, ready_ns - round(NS_PER_S / self.rate))

    def adjust(self, now_ns: int, rate: float, burst: int) -> None:
        """New limits from now on; who already holds a reservation keeps its time."""
        self._refill(now_ns)
        self.rate, self.burst = rate, burst

    def _refill(self, now_ns: int) -> None:
        gained = self.rate * max(0, now_ns - self._last_ns) / NS_PER_S
        self._tokens = min(self._tokens + gained, float(self.burst))
        self._last_ns = max(now_ns, self._last_ns)


class ApiLimiter:
    """The limiter of one API call (endpoint-create, endpoint-delete, …)."""

    def __init__(self, params: LimiterParams) -> None:
        self.params = params
        self.parallel = params.parallel
        self.factor = 0.0
        """Adjustment factor: estimate / mean of the last processing times; 0 until the first request finished."""
        self.in_flight = 0
        self.mean_processing_s = 0.0
        self.mean_wait_s = 0.0
        self._bucket = TokenBucket(params.rate, max(1, params.burst)) if params.rate else None
        self._free = SEMAPHORE_RESOLUTION
        self._scheduled = 0
        self._rate_waiters: list[Request] = []
        self._parallel_waiters: deque[Request] = deque()
        self._processing: deque[int] = deque(maxlen=params.mean_over)
        self._waits: deque[int] = deque(maxlen=params.mean_over)

    @property
    def rate(self) -> float:
        return self._bucket.rate if self._bucket else 0.0

    @property
    def burst(self) -> int:
        return self._bucket.burst if self._bucket else 0

    @property
    def queued(self) -> int:
        return len(self._rate_waiters) + len(self._parallel_waiters)

    def submit(self, now_ns: int) -> Request:
        """A request has come. It may be RUNNING or REFUSED (the wait foreseen is too long) at once."""
        request = Request(now_ns)
        self._scheduled += 1
        if self._scheduled <= self.params.skip_initial:
            request.skipped = True
            self._run(request, now_ns)
            return request
        request.parallel = self.parallel
        if self._bucket:
            request.ready_ns, request.token = self._bucket.reserve(now_ns), True
        limit = self.params.max_wait_ns
        if limit:
            request.deadline_ns = now_ns + limit
            if request.ready_ns > request.deadline_ns:
                self._refuse(request, Refusal.LIMIT_WAIT, now_ns)
                return request
        self._rate_waiters.append(request)
        self.advance(now_ns)
        return request

    def advance(self, now_ns: int) -> None:
        """Let time pass: tokens that have come, and waits for a place that have lasted too long."""
        for request in sorted((r for r in self._rate_waiters if r.ready_ns <= now_ns), key=lambda r: r.ready_ns):
            self._rate_waiters.remove(request)
            self._seek_place(request, now_ns)
        for request in [r for r in self._parallel_waiters if _over(r, now_ns)]:
            self._parallel_waiters.remove(request)
            self._refuse(request, Refusal.PARALLEL_WAIT, now_ns)
        self._admit(now_ns)

    def wake_ns(self) -> int | None:
        """When `advance` has something to do by the passing of time alone; None: never."""
        times = [r.ready_ns for r in self._rate_waiters]
        times += [r.deadline_ns for r in self._parallel_waiters if r.deadline_ns is not None]
        return min(times, default=None)

    def cancel(self, request: Request, now_ns: int) -> None:
        """The client of a waiting request is gone; its token goes back. No effect on others."""
        if not request.waiting:
            return
        if request.state is State.RATE:
            self._rate_waiters.remove(request)
        else:
            self._parallel_waiters.remove(request)
        self._refuse(request, Refusal.CANCELLED, now_ns)
        self._admit(now_ns)

    def finish(self, request: Request, now_ns: int) -> None:
        """A running request has been processed, well or badly: its place is free, the limits adjust. Idempotent."""
        if request.state is not State.RUNNING:
            return
        request.state = State.FINISHED
        self.in_flight -= 1
        self._free += request.weight
        self._processing.append(now_ns - request.started_ns)
        self._waits.append(0 if request.skipped else request.started_ns - request.submitted_ns)
        self.mean_processing_s = sum(self._processing) / len(self._processing) / NS_PER_S
        self.mean_wait_s = sum(self._waits) / len(self._waits) / NS_PER_S
        if self.params.auto_adjust and self.params.estimate_ns:
            self._adjust(now_ns)
        self._admit(now_ns)

    def _seek_place(self, request: Request, now_ns: int) -> None:
        if request.parallel <= 0:
            self._run(request, now_ns)
            return
        request.state = State.PARALLEL
        request.weight = SEMAPHORE_RESOLUTION // request.parallel
        self._parallel_waiters.append(request)
        self._admit(now_ns)

    def _admit(self, now_ns: int) -> None:
        """First come, first served: a heavy request at the head holds up lighter ones behind it, as in x/sync."""
        while self._parallel_waiters and self._parallel_waiters[0].weight <= self._free:
            request = self._parallel_waiters.popleft()
            self._free -= request.weight
            self._run(request, now_ns)

    def _run(self, request: Request, now_ns: int) -> None:
        request.state, request.started_ns = State.RUNNING, now_ns
        self.in_flight += 1

    def _refuse(self, request: Request, why: Refusal, now_ns: int) -> None:
        request.state, request.refusal, request.weight = State.REFUSED, why, 0
        if self._bucket and request.token:
            self._bucket.give_back(request.ready_ns, now_ns)

    def _adjust(self, now_ns: int) -> None:
        """The rate follows the factor fully, burst and parallelism by half of it (delayed adjustment 0.5)."""
        p = self.params
        mean_ns = max(1.0, self.mean_processing_s * NS_PER_S)
        self.factor = min(p.max_adjustment, max(1 / p.max_adjustment, p.estimate_ns / mean_ns))
        self.parallel = int(self._bounded(self._delayed(p.parallel, p.max_parallel), p.parallel))
        if self._bucket:
            burst = self._bounded(self._delayed(max(1, p.burst), 0), max(1, p.burst))
            self._bucket.adjust(now_ns, self._bounded(p.rate * self.factor, p.rate), math.floor(burst + 0.5))

    def _delayed(self, base: int, highest: int) -> float:
        value = base + base * (self.factor - 1) * self.params.delayed_adjustment
        value = max(value, self.params.min_parallel)
        return min(value, highest) if highest else value

    def _bounded(self, value: float, base: float) -> float:
        return max(base / self.params.max_adjustment, min(base * self.params.max_adjustment, value))


def _over(request: Request, now_ns: int) -> bool:
    return request.deadline_ns is not None and request.deadline_ns <= now_ns
