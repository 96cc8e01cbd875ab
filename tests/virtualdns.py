"""A network written as a function, and the clock that drives lookups through it (loadgen.core.lookup)."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from itertools import count

import msgspec

from loadgen.core import dnswire, resolvconf, stubs
from loadgen.core.dnswire import AAAA, NOERROR, A
from loadgen.core.lookup import (
    Action,
    Close,
    Connected,
    Did,
    Done,
    Event,
    Expired,
    Failed,
    Open,
    Problem,
    Reply,
    Result,
    Send,
    Wait,
)
from loadgen.core.model import Resolver, StubName
from loadgen.core.units import NS_PER_S

MS = 1_000_000
RTT = 3 * MS
ADDRESS = {A: bytes((192, 0, 2, 1)), AAAA: bytes.fromhex("20010db8000000000000000000000001")}


class Seen(msgspec.Struct, frozen=True):
    """One query on the wire. `number` counts queries from 1."""

    number: int
    t_ns: int
    server: int
    sock: int
    stream: bool
    id: int
    name: str
    qtype: int
    wire: bytes


Answer = bytes | Problem | None
"""What the network makes of a query: a reply, a failed socket, or nothing."""
Behaviour = Callable[[Seen], Answer]


def reply(seen: Seen, rcode: int = NOERROR, *, flags: int = dnswire.RA, answers: int = 1) -> bytes:
    end = 16 + len(dnswire.name(seen.name) or b"")
    rr = dnswire.record(b"\xc0\x0c", seen.qtype, dnswire.IN, 30, ADDRESS[seen.qtype])
    return dnswire.reply(seen.wire, end, rcode, flags=flags, answer=(rr,) * answers if rcode == NOERROR else ())


class Network:
    """Drives lookups one after the other, with a clock of its own; keeps what it saw."""

    def __init__(
        self,
        behaviour: Behaviour,
        options: str = "",
        *,
        search: tuple[str, ...] = (),
        servers: int = 1,
        stub: StubName = "glibc-2.36",
        dribble: bool = False,
    ):
        self.dribble = dribble  # what a stream says comes byte by byte
        self.behaviour, self.now, self.sends, self.opened, self.stub = behaviour, 0, 0, 0, stub
        resolver = Resolver(options, search, stub=stub)
        self.conf = resolvconf.from_settings(resolver, [f"192.0.2.{53 + i}" for i in range(servers)])
        self.seen: list[Seen] = []
        self.refuse_open: dict[int, Problem] = {}
        self.open: dict[int, Open] = {}
        self._due: list[tuple[int, int, Event]] = []
        self._number, self._order = count(1), count()

    def lookup(self, name: str, state: stubs.State | None = None, *, seed: int = 7) -> tuple[float, Result]:
        """Seconds it took, and the result."""
        began, self._due, self.open = self.now, [], {}
        lookup = stubs.lookup(self.stub, name, self.conf, state or stubs.new_state(self.stub), random.Random(seed))
        action = lookup.start(self.now)
        while not isinstance(action, Done):
            action = lookup.step(self._answer(action))
        assert not self.open, "a lookup closes its sockets"
        return (self.now - began) / NS_PER_S, action.result

    def _answer(self, action: Action) -> Event:
        match action:
            case Open(sock=sock, server=server):
                self.opened += 1
                if server in self.refuse_open:
                    return Failed(self.now, sock, self.refuse_open[server])
                self.open[sock] = action
                if action.stream:
                    self._later(Connected(self.now, sock))
            case Close(sock=sock):
                del self.open[sock]
                self._due = [d for d in self._due if getattr(d[2], "sock", None) != sock]
                heapq.heapify(self._due)
            case Send(sock=sock, messages=messages, server=server):
                self.sends += 1
                via = self.open[sock] if server is None else msgspec.structs.replace(self.open[sock], server=server)
                for wire in dnswire.unframe(bytearray(messages[0])) if via.stream else messages:
                    self._query(via, wire)
            case Wait(deadline_ns=deadline):
                return self._next(deadline)
        return Did(self.now)

    def _query(self, via: Open, wire: bytes) -> None:
        asked = dnswire.question(wire)
        assert asked
        ident, name = int.from_bytes(wire[:2], "big"), dnswire.text(asked.name)
        seen = Seen(next(self._number), self.now, via.server, via.sock, via.stream, ident, name, asked.qtype, wire)
        self.seen.append(seen)
        said = self.behaviour(seen)
        if isinstance(said, Problem) and self.open[via.sock].server is None:
            return  # nobody hears of an error on a socket that is not connected
        if isinstance(said, Problem):
            self._later(Failed(0, via.sock, said))
        elif said is not None:
            data = dnswire.frame(said) if via.stream else said
            for piece in (data[i : i + 1] for i in range(len(data))) if via.stream and self.dribble else (data,):
                self._later(Reply(0, via.sock, piece, via.server))

    def _later(self, event: Event) -> None:
        heapq.heappush(self._due, (self.now + RTT, next(self._order), event))

    def _next(self, deadline: int | None) -> Event:
        if self._due and (deadline is None or self._due[0][0] < deadline):
            self.now, _, event = heapq.heappop(self._due)
            return msgspec.structs.replace(event, t_ns=self.now)
        if deadline is None:  # glibc would wait for ever; the server hangs up
            return Reply(self.now, max(self.open), b"")
        self.now = deadline
        return Expired(self.now)

    def wire(self) -> str:
        """`A1 AAAA1`: types in order, each with a digit for its socket."""
        return " ".join(f"{dnswire.TYPE_NAMES[s.qtype]}{s.sock}" for s in self.seen)

    def ids(self) -> list[set[int]]:
        """The ids used for A, and for AAAA."""
        return [{s.id for s in self.seen if s.qtype == t} for t in (A, AAAA)]


def fine(seen: Seen) -> Answer:
    return reply(seen)


class Race:
    """The emulated race: the second of two queries that leave one socket at one instant is dropped."""

    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None

    def __call__(self, seen: Seen) -> Answer:
        mine = (seen.t_ns, seen.sock)
        dropped, self._last = mine == self._last, mine
        return None if dropped else reply(seen)


def no_aaaa_ever(seen: Seen) -> Answer:
    return None if seen.qtype == AAAA else fine(seen)


def no_a_ever(seen: Seen) -> Answer:
    return None if seen.qtype == A else fine(seen)


def silent(seen: Seen) -> Answer:
    return None


def always(rcode: int, only: int | None = None) -> Behaviour:
    return lambda seen: reply(seen, rcode) if only in (None, seen.qtype) else reply(seen)
