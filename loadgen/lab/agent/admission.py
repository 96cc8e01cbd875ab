"""The API limiters on the real clock: requests wait here, or are turned away with a 429."""

from __future__ import annotations

import asyncio
import time

from loadgen.core.agentapi import LimiterState
from loadgen.core.limiter import ApiLimiter, LimiterParams, Refusal, Request
from loadgen.core.units import NS_PER_S, format_duration
from loadgen.lab.agent.metrics import Metrics


class Client:
    """Whoever waits for an answer. `gone` is done once it has hung up; the agent's work does not stop by itself."""

    def __init__(self) -> None:
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def hang_up(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)


class TooManyRequests(Exception):
    """The limiter refused a request (HTTP 429)."""


class Gate:
    """One API call's limiter."""

    def __init__(self, call: str, params: LimiterParams, metrics: Metrics) -> None:
        self.call = call
        self._limiter = ApiLimiter(params)
        self._metrics = metrics
        self._waiting: dict[Request, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def enter(self, client: Client) -> Request:
        """Wait for admission; TooManyRequests when it is refused. Every request that entered must `leave`."""
        request = self._limiter.submit(time.monotonic_ns())
        if request.waiting:
            await self._admission(request, client)
        if request.refusal is not None:
            self._count(request.refusal.value, 429)
            raise TooManyRequests(self._why(request.refusal))
        return request

    async def _admission(self, request: Request, client: Client) -> None:
        admitted = asyncio.get_running_loop().create_future()
        self._waiting[request] = admitted
        self._settle()
        try:
            await asyncio.wait({admitted, client.gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting.pop(request, None)
            self._limiter.cancel(request, time.monotonic_ns())
            self._settle()

    def leave(self, request: Request, code: int) -> None:
        """The call has been processed; `code` is its HTTP status."""
        self._limiter.finish(request, time.monotonic_ns())
        self._settle()
        self._count("success" if code < 300 else "fail", code)

    def state(self) -> LimiterState:
        limiter = self._limiter
        return LimiterState(limiter.queued, limiter.in_flight, limiter.factor, limiter.rate, limiter.parallel)

    def _settle(self) -> None:
        """Wake whose wait is over, and set the clock for the next change that comes by time alone."""
        self._limiter.advance(time.monotonic_ns())
        for request, admitted in self._waiting.items():
            if not request.waiting and not admitted.done():
                admitted.set_result(None)
        if self._timer:
            self._timer.cancel()
        wake_ns = self._limiter.wake_ns()
        loop = asyncio.get_running_loop()
        # The loop's clock is CLOCK_MONOTONIC in seconds; rounded down it may fire early, and is then set again.
        self._timer = None if wake_ns is None else loop.call_at(wake_ns / NS_PER_S, self._settle)

    def _count(self, outcome: str, code: int) -> None:
        self._metrics.limited(self.call, outcome, code, self._limiter)

    def _why(self, refusal: Refusal) -> str:
        if refusal is Refusal.LIMIT_WAIT:
            longest = format_duration(self._limiter.params.max_wait_ns / NS_PER_S)
            return f"request would have to wait too long to be served (maximum wait duration: {longest})"
        if refusal is Refusal.PARALLEL_WAIT:
            return f"timed out while waiting to be served with {self._limiter.parallel} parallel requests"
        return "request cancelled while waiting for rate limiting slot"
