"""What a stub resolver without sockets says to whoever drives it, and what it says at the end.

A lookup is a dialogue. Its `start` gives the first Action, and every Action is answered by exactly one Event through
`step`, which gives the next, until `Done`:

    Open, Send, Close   are done at once and answered by Did or Failed
    Wait                is answered by what comes first: Reply, Failed, Connected, or Expired at `deadline_ns`

Sockets are numbered by the lookup, in the order it opens them. Every event carries the time at which it happened.
"""

from __future__ import annotations

from collections.abc import Generator
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

    A stream is answered by Did while it is still connecting; Connected or Failed follows to a Wait.
    """

    sock: int
    server: int
    stream: bool


class Send(msgspec.Struct, frozen=True):
    """Send these messages: datagrams with one system call, or one write of a stream."""

    sock: int
    messages: tuple[bytes, ...]


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
