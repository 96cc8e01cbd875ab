import time

import numpy as np
import pytest

from loadgen.core.samples import SAMPLE_DTYPE, Mark, Message, Reading, SampleBatch, Span, Tally
from loadgen.kube import clocks
from loadgen.kube.clocks import Offset

AHEAD = Offset(1_000, 5)


def batch(times: list[tuple[int, int, int]]) -> SampleBatch:
    rows = np.zeros(len(times), SAMPLE_DTYPE)
    for row, (due, sent, done) in zip(rows, times, strict=True):
        row["due_ns"], row["sent_ns"], row["done_ns"], row["seq"], row["detail"] = due, sent, done, 7, 1
    return SampleBatch("storm.connect", "main", "x", rows.tobytes(), ("", "no"), ("a",) * len(times))


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (Reading(1_500, "s", 2.0), Reading(500, "s", 2.0)),
        (Mark(1_500, "ready", "x"), Mark(500, "ready", "x")),
        (Span("gc", "r", "walk", 1_500, 1_700, 3), Span("gc", "r", "walk", 500, 700, 3)),
        (batch([(1_500, 1_501, 1_900), (2_000, 2_000, 2_001)]), batch([(500, 501, 900), (1_000, 1_000, 1_001)])),
        (Tally("main", "x", {"n": 1}, 0.5, 1.0), Tally("main", "x", {"n": 1}, 0.5, 1.0)),
    ],
)
def test_all_times_of_a_message_move_alike(theirs: Message, ours: Message) -> None:
    assert clocks.to_ours(theirs, AHEAD) == ours


def test_on_the_same_clock_nothing_is_touched() -> None:
    message = batch([(1, 2, 3)])
    assert clocks.to_ours(message, clocks.SAME) is message


@pytest.mark.parametrize("forth", [0, 3, 40])
@pytest.mark.parametrize("back", [0, 5, 40])
def test_the_truth_is_within_the_error_however_a_round_trip_is_shared(forth: int, back: int) -> None:
    truth, sent = 123_456, 1_000
    found = clocks.measured(sent, sent + forth + truth, sent + forth + back)
    assert abs(found.ns - truth) <= found.error_ns
    assert found.error_ns == -(-(forth + back) // 2)


def test_the_shortest_round_trip_is_believed_and_hops_add_up() -> None:
    assert clocks.best([Offset(10, 9), Offset(12, 2), Offset(11, 5)]) == Offset(12, 2)
    assert clocks.chain(Offset(10, 2), Offset(-4, 3)) == Offset(6, 5)


def test_a_machine_has_one_boot_id() -> None:
    assert clocks.boot_id() == clocks.boot_id() != ""
    assert clocks.measured(time.monotonic_ns(), time.monotonic_ns(), time.monotonic_ns()).error_ns >= 0
