"""Frames from worker to controller: in order, complete, once, whatever is cut, repeated, late or lost."""

import random
from collections import deque

import pytest

from loadgen.core import frames
from loadgen.core.samples import Mark, Message
from loadgen.kube import streams
from loadgen.kube.streams import BrokenStream, Chunk, Ended, Incoming, Lost, Mailbox, Outgoing


def marks(n: int) -> list[Message]:
    return [Mark(i, "note", "x" * (i % 97)) for i in range(n)]


def encoded(messages: list[Message]) -> bytes:
    return b"".join(frames.encode(message) for message in messages)


# --- the controller's end -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_pieces_cut_anywhere_are_the_same_messages(size: int) -> None:
    stream, incoming = encoded(marks(50)), Incoming()
    found = [m for at in range(0, len(stream), size) for m in incoming.feed(stream[at : at + size])]
    assert found == marks(50)
    assert not incoming.cut


def test_half_a_frame_at_the_end_is_noticed() -> None:
    incoming = Incoming()
    assert incoming.feed(encoded(marks(3))[:-1]) == marks(2)
    assert incoming.cut


def test_what_is_no_message_is_an_error() -> None:
    with pytest.raises(BrokenStream, match="no message"):
        Incoming().feed(b"\3\0\0\0abc")


# --- the worker's end -----------------------------------------------------------------------------------------


def test_chunks_are_numbered_and_hold_what_was_added() -> None:
    outgoing = Outgoing()
    for part in (b"a", b"b", b"c"):
        outgoing.add(part)
    assert outgoing.take() == (0, b"abc")
    assert outgoing.take() is None
    outgoing.add(b"d")
    assert (outgoing.take(), outgoing.sent, outgoing.empty) == ((1, b"d"), 2, True)


def test_no_chunk_is_larger_than_one_part_or_the_limit() -> None:
    outgoing = Outgoing()
    part = b"x" * (streams.CHUNK_BYTES // 2 + 1)
    for _ in range(3):
        outgoing.add(part)
    sizes = [len(taken[1]) for _ in range(3) if (taken := outgoing.take())]
    assert sizes == [len(part)] * 3


def test_it_goes_no_further_than_the_window_and_fills_up_behind_it() -> None:
    outgoing = Outgoing(window=2, spool_bytes=10)
    for _ in range(3):
        outgoing.add(b"12345")
        taken = outgoing.take()
    assert taken is None
    assert not outgoing.full
    outgoing.add(b"67890")
    assert outgoing.full
    outgoing.acknowledged(0)
    assert outgoing.take() == (2, b"1234567890")
    assert not outgoing.full
    outgoing.acknowledged(0)  # told twice: nothing opens
    outgoing.add(b"x")
    assert outgoing.take() is None


# --- the master's end -----------------------------------------------------------------------------------------


def chunk(number: int, job: int = 0, pod: str = "p", data: bytes = b"d") -> Chunk:
    return Chunk(job, pod, number, data)


def test_letters_are_given_again_until_the_controller_has_them() -> None:
    mailbox = Mailbox()
    for number in range(3):
        mailbox.post(chunk(number))
    assert mailbox.received(0) == []
    assert mailbox.answer() == mailbox.answer()
    assert mailbox.answer().last == 3
    assert mailbox.received(2) == [chunk(0), chunk(1)]
    assert mailbox.answer() == streams.Answer(3, (chunk(2),))
    assert mailbox.received(3) == [chunk(2)]
    assert mailbox.answer() == streams.Answer(3, ())


def test_an_answer_has_a_fair_size_and_the_next_goes_on() -> None:
    mailbox = Mailbox()
    big = b"x" * streams.CHUNK_BYTES
    for number in range(40):
        mailbox.post(chunk(number, data=big))
    seen, after = [], 0
    while letters := mailbox.answer().letters:
        assert sum(len(c.data) for c in letters if isinstance(c, Chunk)) <= streams.ANSWER_BYTES + len(big)
        seen += letters
        after = mailbox.answer().last
        mailbox.received(after)
    assert [c.number for c in seen] == list(range(40))


@pytest.mark.parametrize("after", [-1, 1, 4])
def test_numbers_that_cannot_be_are_refused(after: int) -> None:
    mailbox = Mailbox()
    for number in range(3):
        mailbox.post(chunk(number))
    mailbox.received(2)
    with pytest.raises(BrokenStream, match="letters 3 to 3"):
        mailbox.received(after)


@pytest.mark.parametrize(
    ("letter", "why"),
    [
        (chunk(2), "sent chunk 2 where 1 was due"),
        (chunk(0), "sent chunk 0 where 1 was due"),
        (Ended(0, "p", 2), "sent chunk 2 where 1 was due"),
    ],
)
def test_a_gap_or_a_repetition_is_noticed(letter: streams.Letter, why: str) -> None:
    mailbox = Mailbox()
    mailbox.post(chunk(0))
    mailbox.post(chunk(0, job=1))
    mailbox.post(chunk(0, pod="q"))
    with pytest.raises(BrokenStream, match=why):
        mailbox.post(letter)
    mailbox.post(chunk(1))
    mailbox.post(Ended(0, "p", 2))
    mailbox.post(Lost(0, "q", "gone"))


# --- all three ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_over_a_road_that_delays_and_loses_everything_arrives_once_in_order(seed: int) -> None:
    """Any order of steps: the driver writes, chunks travel, the controller asks, answers and questions get lost."""
    rng = random.Random(seed)
    messages = marks(400)
    stream = deque(encoded(messages)[at : at + 100] for at in range(0, len(encoded(messages)), 100))
    outgoing, mailbox, incoming = Outgoing(window=3, spool_bytes=500), Mailbox(), Incoming()
    found: list[Message] = []
    after, held = 0, 0
    while len(found) < len(messages):
        step = rng.randrange(3)
        if step == 0 and stream and not outgoing.full:
            outgoing.add(stream.popleft())
        elif step == 1 and (taken := outgoing.take()):
            mailbox.post(chunk(taken[0], data=taken[1]))
        elif step == 2:
            for received in mailbox.received(after):
                outgoing.acknowledged(received.number)
            answer = mailbox.answer()
            held = max(held, len(answer.letters))
            if rng.random() < 0.5:
                continue  # lost on the way: the same question is asked again
            for letter in answer.letters:
                assert isinstance(letter, Chunk)
                found += incoming.feed(letter.data)
            after = answer.last
    assert found == messages
    assert held <= 3 + 1
