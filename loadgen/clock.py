"""The machine's monotonic clock, for the engine (ports.Clock)."""

from __future__ import annotations

import asyncio
import time

from loadgen.core.units import NS_PER_S


class MonotonicClock:
    def now_ns(self) -> int:
        return time.monotonic_ns()

    async def sleep_until(self, t_ns: int) -> None:
        # A sleep may end a little early; the promise is not before t_ns.
        while (left := t_ns - time.monotonic_ns()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(left / NS_PER_S)
