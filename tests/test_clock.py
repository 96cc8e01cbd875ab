import asyncio
import time

from loadgen.clock import MonotonicClock


def test_a_sleep_never_ends_early_and_one_in_the_past_does_not_wait() -> None:
    clock = MonotonicClock()
    end_ns = clock.now_ns() + 20_000_000

    async def main() -> None:
        await clock.sleep_until(clock.now_ns() - 1)
        await clock.sleep_until(end_ns)

    asyncio.run(main())
    assert time.monotonic_ns() >= end_ns
