"""How a worker's frames get to the controller by way of the Locust master: in numbered chunks, none lost, none twice.

    driver ──pipe──► Outgoing ──Locust messages──► Mailbox ──HTTP──► Incoming
                         ▲                            │                  │
                         └────── acknowledgement ─────┴──── after=N ─────┘

A chunk is kept by the master until the controller asks for what comes after it, so that an answer that was lost on
the way is given again. The worker sends no further than WINDOW chunks ahead of that, keeps up to SPOOL_BYTES, and
then lets its driver wait at the pipe. So no memory grows with a controller that is slow, and what a driver lost by
waiting shows in its samples.
"""

from __future__ import annotations

from collections import deque

import msgspec

from loadgen.core import frames
from loadgen.core.samples import Message

CHUNK_BYTES = 256 << 10
WINDOW = 8
SPOOL_BYTES = 64 << 20
"""1.6 million samples: half an hour of a storm of 833/s."""
ANSWER_BYTES = 4 << 20


class BrokenStream(Exception):
    """Something is missing, came twice, or is no message: what is said says which."""


class Outgoing:
    """A worker's end: bytes in, numbered chunks out, as far as the other end has kept up."""

    def __init__(self, window: int = WINDOW, spool_bytes: int = SPOOL_BYTES) -> None:
        self._window, self._spool_bytes = window, spool_bytes
        self._parts: deque[bytes] = deque()
        self._size = 0
        self._next = 0
        self._acknowledged = -1

    @property
    def full(self) -> bool:
        return self._size >= self._spool_bytes

    @property
    def empty(self) -> bool:
        return not self._parts

    @property
    def sent(self) -> int:
        """Chunks taken so far."""
        return self._next

    def add(self, part: bytes) -> None:
        self._parts.append(part)
        self._size += len(part)

    def take(self) -> tuple[int, bytes] | None:
        """The next chunk with its number; None while there is none, or the window is shut."""
        if not self._parts or self._next > self._acknowledged + self._window:
            return None
        taken: list[bytes] = []
        size = 0
        while self._parts and (not taken or size + len(self._parts[0]) <= CHUNK_BYTES):
            taken.append(self._parts.popleft())
            size += len(taken[-1])
        self._size -= size
        number, self._next = self._next, self._next + 1
        return number, b"".join(taken)

    def acknowledged(self, number: int) -> None:
        """The controller has everything up to chunk `number`."""
        self._acknowledged = max(self._acknowledged, number)


class Chunk(msgspec.Struct, frozen=True, tag="chunk"):
    """A piece of one worker's frames for one job, cut anywhere. Numbered from 0 in each job of each worker."""

    job: int
    pod: str
    number: int
    data: bytes


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """A driver process is over, after `chunks` chunks. `why`: what it died of, empty when it ended well."""

    job: int
    pod: str
    chunks: int
    why: str = ""


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """Nothing more will come of this worker."""

    job: int
    pod: str
    why: str


Letter = Chunk | Ended | Lost


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """What a controller gets: `last` is the number of the last letter in it, to ask on from."""

    last: int
    letters: tuple[Letter, ...]


class Mailbox:
    """The master's end: letters of all workers in one numbered row, kept until the controller has them."""

    def __init__(self) -> None:
        self._letters: deque[Letter] = deque()
        self._last = 0
        self._expected: dict[tuple[int, str], int] = {}

    def post(self, letter: Letter) -> None:
        """BrokenStream when a chunk is not the next one of its worker and job."""
        if isinstance(letter, Chunk | Ended):
            number = letter.number if isinstance(letter, Chunk) else letter.chunks
            expected = self._expected.get((letter.job, letter.pod), 0)
            if number != expected:
                raise BrokenStream(f"{letter.pod} sent chunk {number} where {expected} was due")
            if isinstance(letter, Chunk):
                self._expected[letter.job, letter.pod] = number + 1
        self._letters.append(letter)
        self._last += 1

    def received(self, after: int) -> list[Chunk]:
        """The controller has letters up to number `after`: forget them; returned are the chunks among them.

        BrokenStream when these never were, or are asked for again after it had them.
        """
        first = self._last - len(self._letters) + 1
        if not first - 1 <= after <= self._last:
            there = f"there are letters {first} to {self._last}"
            raise BrokenStream(f"after={after}: {there}; has a second controller asked?")
        gone = [self._letters.popleft() for _ in range(after - first + 1)]
        return [letter for letter in gone if isinstance(letter, Chunk)]

    def answer(self) -> Answer:
        """The letters that follow, as many as make an answer of a fair size."""
        letters: list[Letter] = []
        size = 0
        for letter in self._letters:
            if size > ANSWER_BYTES:
                break
            letters.append(letter)
            size += len(letter.data) if isinstance(letter, Chunk) else 0
        return Answer(self._last - len(self._letters) + len(letters), tuple(letters))


class Incoming:
    """Frames put together again from the pieces of a stream."""

    def __init__(self) -> None:
        self._rest = b""

    @property
    def cut(self) -> bool:
        """Half a frame is waiting for its other half."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[Message]:
        """The messages that `data` completes. BrokenStream when something in it is none."""
        stream = memoryview(self._rest + data)
        found: list[Message] = []
        at = 0
        while len(stream) - at >= frames.HEADER_BYTES:
            body = at + frames.HEADER_BYTES
            end = body + frames.body_length(bytes(stream[at:body]))
            if end > len(stream):
                break
            try:
                found.append(frames.decode(bytes(stream[body:end])))
            except msgspec.DecodeError as error:
                raise BrokenStream(f"something that is no message: {error}") from None
            at = end
        self._rest = bytes(stream[at:])
        return found
