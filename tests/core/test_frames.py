import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.core import frames
from loadgen.core.samples import Log, Mark, Message, Reading, SampleBatch, Span, Tally

MESSAGES: list[Message] = [
    SampleBatch("dns.lookup", "main", "lookups@pod-0", b"\0" * 40, ("", "timeout"), ("ref",)),
    Reading(5, "ct.tcp.entries", 7.5),
    Span("gc", "1", "walk tcp", 1, 2, 3, 4, "ok"),
    Mark(9, "phase", "main", "measured"),
    Tally("main", "lookups@pod-0", {"dns.lookup": 3}, 0.5, 2.0),
    Log("ValueError: x"),
]


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_survives_the_pipe(message: Message) -> None:
    frame = frames.encode(message)
    header, body = frame[: frames.HEADER_BYTES], frame[frames.HEADER_BYTES :]
    assert frames.body_length(header) == len(body)
    assert frames.decode(body) == message


@given(st.binary(max_size=200))
def test_garbage_is_an_error_and_nothing_else(garbage: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        frames.decode(b"\xc1" + garbage)
