"""What a stub resolver without sockets says to whoever drives it, and what it says at the end.

Each resolver is a `Dialogue`: glibc, musl, golang and cares beside this file; `stubs` knows them by name.

A lookup is a dialogue. Its `start` gives the first Action, and every Action is answered by exactly one Event through
`step`, which gives the next, until `Done`:

    Open, Send, Close   are done at once and answered by Did or Failed
    Wait                is answered by what comes first: Reply, Failed, Connected, or Expired at `deadline_ns`

Sockets are numbered by the lookup, in the order it opens them. Every event carries the time at which it happened.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from enum import IntEnum, StrEnum
from typing import TypeVar

import msgspec

from loadgen.core import dnswire


class Mode(IntEnum):
    """How the A and the AAAA query of one name share a socket."""

    PARALLEL = 0
    """Both at once."""
    SERIAL = 1
    """The second when the first is answered (`single-request`, or the first fallback)."""
    REOPEN = 2
    """As SERIAL, and from a new socket (`single-request-reopen`, or the second fallback)."""
    SEPARATE = 3
    """Each from a socket of its own (Go)."""


class Problem(StrEnum):
    """Why a socket failed, as far as the resolver or its caller care."""

    REFUSED = "connection refused"
    RESET = "connection reset"
    NO_PORTS = "no ports"
    NO_FILES = "no file descriptors"
    OTHER = "network error"


class Error(StrEnum):
    """How a lookup ends; what getaddrinfo returns for it."""

    NONE = ""
    NXDOMAIN = "NXDOMAIN"  # EAI_NONAME
    NODATA = "EAI_NODATA"
    AGAIN = "EAI_AGAIN"
    NO_RECOVERY = "NO_RECOVERY"  # EAI_NONAME too: FORMERR, or REFUSED by TCP
    NO_ADDRESS = "no address"  # EAI_NONAME too: an answer section without an address of the name
    NO_PORTS = Problem.NO_PORTS.value  # EAI_AGAIN, but it is this machine that was the limit
    NO_FILES = Problem.NO_FILES.value
    ABANDONED = "abandoned"


# --- actions and events ---------------------------------------------------------------------------------------


class Open(msgspec.Struct, frozen=True):
    """Open socket number `sock`, connected to name server `server`: UDP, or TCP when `stream`.

    With no server it is a UDP socket that is not connected: every Send says where to, and every Reply where from.
    A stream is answered by Did while it is still connecting; Connected or Failed follows to a Wait.
    """

    sock: int
    server: int | None
    stream: bool


class Send(msgspec.Struct, frozen=True):
    """Send these messages: datagrams with one system call, or one write of a stream.

    `server` is told of a socket that is not connected; there each message is a system call, and none of them fails.
    """

    sock: int
    messages: tuple[bytes, ...]
    server: int | None = None


class Close(msgspec.Struct, frozen=True):
    sock: int


class Wait(msgspec.Struct, frozen=True):
    deadline_ns: int | None
    """None: for ever. glibc waits for a TCP server without any limit of its own."""


class Done(msgspec.Struct, frozen=True):
    result: Result


class Did(msgspec.Struct, frozen=True):
    t_ns: int


class Reply(msgspec.Struct, frozen=True):
    """A datagram, or some bytes of a stream; of a stream b"" means that the server closed it."""

    t_ns: int
    sock: int
    data: bytes
    server: int | None = None
    """Who sent it, to a socket that is not connected."""


class Failed(msgspec.Struct, frozen=True):
    t_ns: int
    sock: int
    problem: Problem


class Connected(msgspec.Struct, frozen=True):
    t_ns: int
    sock: int


class Expired(msgspec.Struct, frozen=True):
    t_ns: int


Action = Open | Send | Close | Wait | Done
Event = Did | Reply | Failed | Connected | Expired
T = TypeVar("T")
Steps = Generator[Action, Event, T]


# --- results --------------------------------------------------------------------------------------------------


class Round(msgspec.Struct, frozen=True):
    """One sending of the queries of one name to one server, and what came of it."""

    name: str
    server: int
    stream: bool
    mode: Mode
    sent: tuple[int, ...]
    """Query types in the order they were sent."""
    answered: tuple[int, ...]
    end: str
    """answered, rejected (SERVFAIL and the like), truncated, timeout, failed or abandoned."""

    @property
    def lost(self) -> tuple[int, ...]:
        """Types that got no answer although this round waited for one."""
        waited = self.end in ("timeout", "failed", "abandoned")
        return tuple(t for t in self.sent if t not in self.answered) if waited else ()


class OpenRound:
    """A Round under way; `good` are the replies worth having."""

    def __init__(self, name: str, server: int, mode: Mode, *, stream: bool) -> None:
        self.name, self.server, self.mode, self.stream = name, server, mode, stream
        self.sent: list[int] = []
        self.answered: list[int] = []
        self.good: list[bytes] = []

    def ended(self, how: str) -> Round:
        return Round(self.name, self.server, self.stream, self.mode, tuple(self.sent), tuple(self.answered), how)


class Result(msgspec.Struct, frozen=True):
    error: Error
    a: tuple[bytes, ...]
    aaaa: tuple[bytes, ...]
    rounds: tuple[Round, ...]
    fell_back: Mode
    """The mode this lookup put the resolver into; PARALLEL when it did not have to."""

    @property
    def queries(self) -> int:
        return sum(len(r.sent) for r in self.rounds)

    @property
    def lost(self) -> int:
        return sum(len(r.lost) for r in self.rounds)

    @property
    def tries(self) -> int:
        """How often the query that was sent most often was sent, all names together."""
        return max(sum(t in r.sent for r in self.rounds) for t in (dnswire.A, dnswire.AAAA))

    @property
    def detail(self) -> str:
        """The error, or in a few words what an answer had to overcome; empty when nothing."""
        lossy = next((r for r in self.rounds if r.lost), None)
        if self.error or lossy is None:
            return self.error.value or ("by TCP after truncation" if self._truncated else "")
        which = " and ".join(dnswire.TYPE_NAMES[t] for t in lossy.lost)
        if self.rounds[-1].lost:
            return f"{which} lost, answered without"
        mode = {Mode.SERIAL: "single-request", Mode.REOPEN: "single-request-reopen"}.get(self.fell_back)
        return f"{which} lost, {mode} fallback" if mode else f"{which} lost, asked again"

    @property
    def _truncated(self) -> bool:
        return any(r.end == "truncated" for r in self.rounds)


# --- what all resolvers share ---------------------------------------------------------------------------------


class Dialogue:
    """One lookup under way. A resolver writes `_run`, which leaves the replies worth having in `_replies`."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._now = 0
        self._opened = 0
        self._rounds: list[Round] = []
        self._under_way: list[OpenRound] = []
        self._replies: Sequence[bytes] = ()
        self._fell_back = Mode.PARALLEL
        self._starved: Problem | None = None
        self._steps = self._to_the_end()

    def start(self, t_ns: int) -> Action:
        self._now = t_ns
        return self._next(None)

    def step(self, event: Event) -> Action:
        self._now = event.t_ns
        return self._next(event)

    def abandon(self) -> Result:
        """Give up at once; what has no answer yet counts as lost. Open sockets are the caller's to close."""
        self._steps.close()
        for this in list(self._under_way):
            self._end(this, "abandoned")
        return self._result(Error.ABANDONED)

    def _run(self) -> Steps[Error]:
        raise NotImplementedError

    def _next(self, event: Event | None) -> Action:
        try:
            return next(self._steps) if event is None else self._steps.send(event)
        except StopIteration as stop:
            return Done(stop.value)

    def _to_the_end(self) -> Steps[Result]:
        error = yield from self._run()
        return self._result(error)

    def _begin(self, this: OpenRound) -> OpenRound:
        self._under_way.append(this)
        return this

    def _end(self, this: OpenRound, how: str) -> None:
        """A round is over. One in which nothing was sent was none."""
        self._under_way.remove(this)
        if this.sent:
            self._rounds.append(this.ended(how))

    def _socket(self, server: int | None, *, stream: bool = False) -> Steps[int | Problem]:
        """The number of a new socket, or why there is none."""
        sock, self._opened = self._opened, self._opened + 1
        event = yield Open(sock, server, stream)
        if isinstance(event, Failed):
            if event.problem in (Problem.NO_PORTS, Problem.NO_FILES):
                self._starved = event.problem
            return event.problem
        return sock

    def _result(self, error: Error) -> Result:
        found: dict[int, tuple[bytes, ...]] = {}
        for reply in self._replies:
            asked = dnswire.question(reply)
            if asked:
                found[asked.qtype] = dnswire.addresses(reply, asked.qtype) or ()
        a, aaaa = found.get(dnswire.A, ()), found.get(dnswire.AAAA, ())
        if not error and not (a or aaaa):
            error = Error.NO_ADDRESS
        if error is Error.AGAIN and self._starved:
            error = Error(self._starved.value)
        return Result(error, a, aaaa, tuple(self._rounds), self._fell_back)


def together(tasks: Sequence[Steps[T]]) -> Steps[list[T]]:
    """Run several dialogues as one, each with sockets of its own; their results, in the order of `tasks`."""
    results: dict[int, T] = {}
    waits: dict[int, Wait] = {}
    owner: dict[int, int] = {}
    ready: list[tuple[int, Event | None]] = [(i, None) for i in range(len(tasks))]
    while True:
        for i, event in ready:
            waits.pop(i, None)
            try:
                action = next(tasks[i]) if event is None else tasks[i].send(event)
                while not isinstance(action, Wait):
                    if isinstance(action, Open):
                        owner[action.sock] = i
                    action = tasks[i].send((yield action))
                waits[i] = action
            except StopIteration as stop:
                results[i] = stop.value
        if not waits:
            return [results[i] for i in range(len(tasks))]
        limits = [wait.deadline_ns for wait in waits.values() if wait.deadline_ns is not None]
        event = yield Wait(min(limits, default=None))
        if isinstance(event, Reply | Failed | Connected):
            ready = [(owner[event.sock], event)]
        else:
            now = event.t_ns
            ready = [(i, event) for i, w in waits.items() if w.deadline_ns is not None and w.deadline_ns <= now]
