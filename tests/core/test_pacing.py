from itertools import pairwise

import pytest

from loadgen.core.model import Burst, Constant, Pace, Poisson, Ramp
from loadgen.core.pacing import Schedule, pacer
from loadgen.core.units import NS_PER_S, Duration

S = NS_PER_S


@pytest.mark.parametrize(
    ("pace", "sent", "due"),
    [
        # 10 a second: the first at once, then every 100 ms
        (Constant(rate=10), 0, 0),
        (Constant(rate=10), 1, S // 10),
        (Constant(rate=10), 25, 5 * S // 2),
        # a third of a second does not drift: number 3,000,000 is due after 10^6 s
        (Constant(rate=3), 3_000_000, 1_000_000 * S),
        # bursts of 5 every 2 s, three of them
        (Burst(size=5, every=Duration(2 * S), count=3), 4, 0),
        (Burst(size=5, every=Duration(2 * S), count=3), 5, 2 * S),
        (Burst(size=5, every=Duration(2 * S), count=3), 14, 4 * S),
        (Burst(size=5, every=Duration(2 * S), count=3), 15, None),
        # 0 to 10 a second in 10 s: 50 by then, the 50th at its end, then 10 a second
        (Ramp(start=0, end=10, over=Duration(10 * S)), 0, 0),
        (Ramp(start=0, end=10, over=Duration(10 * S)), 50, 10 * S),
        (Ramp(start=0, end=10, over=Duration(10 * S)), 60, 11 * S),
        # half-way up in time is a quarter of the area
        (Ramp(start=0, end=8, over=Duration(10 * S)), 10, 5 * S),
        (Ramp(start=4, end=4, over=Duration(10 * S)), 8, 2 * S),
    ],
)
def test_an_operation_is_due(pace: Pace, sent: int, due: int | None) -> None:
    assert pacer(pace, seed=1).next(0, sent) == due


def test_poisson_arrivals_repeat_with_their_seed_and_have_their_rate() -> None:
    one, two, other = pacer(Poisson(rate=50), 7), pacer(Poisson(rate=50), 7), pacer(Poisson(rate=50), 8)
    schedule = [one.next(0, i) for i in range(5000)]
    assert schedule == [two.next(0, i) for i in range(5000)]
    assert schedule != [other.next(0, i) for i in range(5000)]
    assert all(a is not None and b is not None and a <= b for a, b in pairwise(schedule))
    last = schedule[-1]
    assert last is not None
    assert last / S == pytest.approx(100, rel=0.05)


def test_poisson_is_asked_in_order() -> None:
    arrivals = pacer(Poisson(rate=1), 1)
    assert arrivals.next(0, 3) == arrivals.next(0, 3)
    with pytest.raises(ValueError, match="in order"):
        arrivals.next(0, 2)


def test_a_schedule_hands_out_each_due_time_once_and_none_beyond_the_window() -> None:
    start, end = 5 * S, 7 * S
    schedule = Schedule(pacer(Constant(rate=10), 1), start, end, now_ns=start)
    slices = [schedule.take_before(t, t).tolist() for t in (start, start + 1, start + S, start + S, end + S)]
    assert slices[0] == []
    assert slices[1] == [start]
    assert [due for taken in slices for due in taken] == [start + i * S // 10 for i in range(20)]
    assert (schedule.created, schedule.last_due_ns, schedule.is_over) == (20, end - S // 10, True)


def test_a_schedule_that_was_ended_or_whose_pacer_has_no_more_is_over() -> None:
    ended = Schedule(pacer(Constant(rate=10), 1), 0, 7 * S, now_ns=0)
    ended.take_before(S, 0)
    ended.end()
    assert (ended.is_over, ended.take_before(7 * S, S).tolist(), ended.created) == (True, [], 10)
    burst = Schedule(pacer(Burst(size=3, every=Duration(S)), 1), 0, 7 * S, now_ns=0)
    assert burst.take_before(1, 0).tolist() == [0, 0, 0]
    assert burst.is_over
