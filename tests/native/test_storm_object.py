"""Storm as a Python object: what it takes, what it refuses, threads and signals."""

from __future__ import annotations

import signal
import time
from array import array
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest

from loadgen.core.samples import Outcome
from loadgen.native import Sink
from tests.storms import MS, REPLY, REQUEST, S, due_in, make_storm, outcomes, run_to_the_end, served


def test_due_times_have_to_ascend() -> None:
    with closing(make_storm(9)) as storm:
        storm.push(array("q", [5, 5, 7]))
        for wrong in ([6], [8, 7]):
            with pytest.raises(ValueError, match="ascend"):
                storm.push(array("q", wrong))
        assert storm.queued == 3
        storm.push(np.array([7, 9], dtype=np.int64))
        assert storm.queued == 5


@pytest.mark.parametrize("wrong", [array("d", [1.0]), array("i", [1, 2]), b"12345678", np.zeros(2, "u8")])
def test_due_times_are_64_bit_integers(wrong: array[int]) -> None:
    with closing(make_storm(9)) as storm, pytest.raises(TypeError, match="64-bit integers"):
        storm.push(wrong)


def test_a_closed_storm_says_so() -> None:
    storm = make_storm(9)
    storm.close()
    for use in (lambda: storm.push(array("q")), lambda: storm.run(0), storm.drain, storm.abandon):
        with pytest.raises(ValueError, match="closed"):
            use()
    assert (storm.open, storm.queued) == (0, 0)


def test_one_thread_at_a_time() -> None:
    with closing(make_storm(9)) as storm, ThreadPoolExecutor(1) as pool:
        storm.push(due_in(60 * S))
        running = pool.submit(storm.run, time.monotonic_ns() + 300 * MS)
        refused = ""
        while not refused and not running.done():
            try:
                storm.drain()
            except RuntimeError as error:
                refused = str(error)
        running.result(5)
        assert "another thread" in refused
        assert storm.drain() == b""


def test_a_signal_is_handled_and_ends_nothing() -> None:
    heard: list[int] = []
    previous = signal.signal(signal.SIGALRM, lambda *_: heard.append(time.monotonic_ns()))
    try:
        with closing(Sink(0, REQUEST, REPLY)) as sink, served(sink), closing(make_storm(sink.port)) as storm:
            storm.push(due_in(300 * MS, 23))
            signal.setitimer(signal.ITIMER_REAL, 0.03)
            samples = run_to_the_end(storm)
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert outcomes(samples) == {(Outcome.OK, ""): 23}
    assert heard
    assert heard[0] < samples["sent_ns"].min()  # during the wait, not after it


def test_an_exception_of_a_signal_handler_leaves_run() -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        with closing(make_storm(9)) as storm:
            storm.push(due_in(60 * S))
            signal.setitimer(signal.ITIMER_REAL, 0.03)
            with pytest.raises(KeyboardInterrupt):
                storm.run(time.monotonic_ns() + 60 * S)
            assert storm.queued == 1
    finally:
        signal.signal(signal.SIGALRM, previous)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"targets": b""}, "targets are 0 bytes"),
        ({"targets": b"12345"}, "targets are 5 bytes"),
        ({"targets": b"\x7f\0\0\1\0\1" + b"\x7f\0\0\1\0\0"}, "target number 1 has port 0"),
        ({"close": "half"}, 'close is "half"'),
        ({"timeout_ns": 0}, "timeout_ns is 0"),
        ({"max_open": 0}, "max_open is 0"),
        ({"reply_bytes": 0}, "reply_bytes is 0"),
    ],
)
def test_arguments_that_cannot_be_meant(arguments: dict[str, int], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        make_storm(9, **arguments)
