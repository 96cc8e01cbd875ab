"""Clocks of several machines: how far each is off ours, and messages moved onto ours.

Times are CLOCK_MONOTONIC, which every machine counts from its own start. Machines with one boot id have one clock, so
nothing is estimated and nothing moves. Otherwise the offset is what Cristian's method says: a clock is asked, and its
answer is taken to be of the middle of the round trip; the error is at most half of it. Of several round trips the
shortest is believed (F. Cristian, "Probabilistic clock synchronization", 1989).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np

from loadgen.core.samples import SAMPLE_DTYPE, Mark, Message, Reading, SampleBatch, Span

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_TIMES = ("due_ns", "sent_ns", "done_ns")


class Offset(msgspec.Struct, frozen=True):
    """Another clock's reading less ours, and how far that may be wrong."""

    ns: int = 0
    error_ns: int = 0


SAME = Offset()


def boot_id() -> str:
    """What tells this machine, since its last start, from every other."""
    return BOOT_ID.read_text().strip()


def measured(sent_ns: int, answer_ns: int, received_ns: int) -> Offset:
    """From one round trip: asked and answered on our clock, `answer_ns` on the other."""
    return Offset(answer_ns - (sent_ns + received_ns) // 2, (received_ns - sent_ns + 1) // 2)


def best(offsets: Iterable[Offset]) -> Offset:
    """The one of the shortest round trip."""
    return min(offsets, key=lambda offset: offset.error_ns)


def chain(first: Offset, second: Offset) -> Offset:
    """A clock known to another (`second`), which is known to us (`first`)."""
    return Offset(first.ns + second.ns, first.error_ns + second.error_ns)


def to_ours(message: Message, offset: Offset) -> Message:
    """`message` of a clock that is `offset` from ours, with our times. All its times move alike: durations stay."""
    if not offset.ns:
        return message
    match message:
        case SampleBatch():
            rows = np.frombuffer(message.rows, SAMPLE_DTYPE).copy()
            for field in _TIMES:
                rows[field] -= offset.ns
            return msgspec.structs.replace(message, rows=rows.tobytes())
        case Reading() | Mark():
            return msgspec.structs.replace(message, t_ns=message.t_ns - offset.ns)
        case Span():
            return msgspec.structs.replace(
                message, start_ns=message.start_ns - offset.ns, end_ns=message.end_ns - offset.ns
            )
        case _:
            return message
