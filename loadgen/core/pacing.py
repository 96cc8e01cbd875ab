"""When operations are due. Open loop: the schedule depends on the seed and on nothing that the target does."""

from __future__ import annotations

import math
import random
from array import array
from typing import Protocol

from loadgen.core.model import Burst, Constant, Pace, Poisson, Ramp
from loadgen.core.units import NS_PER_S


class Pacer(Protocol):
    def next(self, elapsed_ns: int, sent: int) -> int | None:
        """Due time of operation number `sent` in ns after the window's start, or None when there are no more.

        Due times ascend with `sent`. `elapsed_ns` is there for pacers that end with time rather than with a count.
        """
        ...


class ConstantPacer:
    def __init__(self, rate: float) -> None:
        self._rate = rate

    def next(self, elapsed_ns: int, sent: int) -> int | None:  # noqa: ARG002
        return round(sent * NS_PER_S / self._rate)


class RampPacer:
    """The rate goes linearly from `start` to `end` within `over_s` seconds, then stays at `end`.

    The number of operations due by time t is the area under the rate; solved for t.
    """

    def __init__(self, start: float, end: float, over_s: float) -> None:
        self._start, self._end, self._over = start, end, over_s

    def next(self, elapsed_ns: int, sent: int) -> int | None:  # noqa: ARG002
        on_ramp = (self._start + self._end) / 2 * self._over
        if sent >= on_ramp:
            return round((self._over + (sent - on_ramp) / self._end) * NS_PER_S)
        slope = (self._end - self._start) / self._over
        if slope == 0:
            return round(sent / self._start * NS_PER_S)
        root = math.sqrt(self._start**2 + 2 * slope * sent)
        return round((root - self._start) / slope * NS_PER_S)


class BurstPacer:
    def __init__(self, size: int, every_ns: int, count: int) -> None:
        self._size, self._every_ns, self._count = size, every_ns, count

    def next(self, elapsed_ns: int, sent: int) -> int | None:  # noqa: ARG002
        number = sent // self._size
        return number * self._every_ns if number < self._count else None


class PoissonPacer:
    """Independent arrivals. Asked in order (0, 1, 2, …): the last answer may be asked for again, earlier ones not."""

    def __init__(self, rate: float, seed: int) -> None:
        self._rate = rate
        self._rng = random.Random(seed)
        self._sent = -1
        self._due_s = 0.0

    def next(self, elapsed_ns: int, sent: int) -> int | None:  # noqa: ARG002
        if sent < self._sent:
            raise ValueError(f"a Poisson pacer is asked in order: {sent} after {self._sent}")
        while self._sent < sent:
            self._sent += 1
            self._due_s += self._rng.expovariate(self._rate)
        return round(self._due_s * NS_PER_S)


def pacer(pace: Pace, seed: int) -> Pacer:
    """The pacer that a scenario's `pace` means. Two pacers of the same pace and seed give the same schedule."""
    match pace:
        case Constant(rate=rate):
            return ConstantPacer(rate)
        case Poisson(rate=rate):
            return PoissonPacer(rate, seed)
        case Ramp(start=start, end=end, over=over):
            return RampPacer(start, end, over.seconds)
        case Burst(size=size, every=every, count=count):
            return BurstPacer(size, int(every), count)
    raise TypeError(f"unknown pace {pace!r}")


class Schedule:
    """The due times of a window, on the clock, handed out slice by slice."""

    def __init__(self, paced: Pacer, start_ns: int, end_ns: int, now_ns: int) -> None:
        self._pacer = paced
        self._start_ns, self._end_ns = start_ns, end_ns
        self.created = 0
        self.last_due_ns = start_ns
        self.next_due_ns = self._look_ahead(now_ns)

    @property
    def is_over(self) -> bool:
        return self.next_due_ns >= self._end_ns

    def end(self) -> None:
        """Let nothing more become due."""
        self.next_due_ns = self._end_ns

    def take_before(self, t_ns: int, now_ns: int) -> array[int]:
        """Take what is due before `t_ns` and has not been taken."""
        taken = array("q")
        while self.next_due_ns < min(t_ns, self._end_ns):
            taken.append(self.next_due_ns)
            self.last_due_ns = self.next_due_ns
            self.created += 1
            self.next_due_ns = self._look_ahead(now_ns)
        return taken

    def _look_ahead(self, now_ns: int) -> int:
        """Due time of the operation after those taken; the window's end when the pacer has no more."""
        due_ns = self._pacer.next(now_ns - self._start_ns, self.created)
        return self._end_ns if due_ns is None else self._start_ns + due_ns
