from __future__ import annotations

import asyncio
import threading

import pytest

from loadgen.kernel.threads import to_thread


def test_the_result_and_the_error_come_back() -> None:
    assert asyncio.run(to_thread(divmod, 7, 2)) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(to_thread(divmod, 7, 0))


def test_a_cancelled_caller_ends_after_the_work() -> None:
    assert asyncio.run(done_before_the_cancelled_caller())


async def done_before_the_cancelled_caller() -> bool:
    started, allowed, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        allowed.wait(30)
        done.set()

    caller = asyncio.create_task(to_thread(work))
    await asyncio.to_thread(started.wait, 30)
    caller.cancel()
    await asyncio.sleep(0)
    assert not caller.done()
    allowed.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    return done.is_set()
