"""Lookups as a stub resolver makes them, open loop, many in flight: `core.stubs` decides, the sockets are here.

Every lookup has sockets of its own, as every getaddrinfo has; glibc's A and AAAA leave with one sendmmsg(2). One
thread. With `state: long-lived` all lookups in flight share what the process knows, so the first that loses a reply
teaches all; lookups for which the process has no thread (Node) or whose name is being looked up (Java) wait.
"""

from __future__ import annotations

import errno
import heapq
import random
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence

from loadgen.core import dnswire, resolvconf
from loadgen.core.errors import ConfigError
from loadgen.core.lookup import (
    Action,
    Close,
    Connected,
    Dialogue,
    Did,
    Done,
    Error,
    Event,
    Expired,
    Failed,
    Mode,
    Open,
    Problem,
    Reply,
    Result,
    Send,
    Wait,
)
from loadgen.core.model import Dns, Resolver
from loadgen.core.pacing import pacer
from loadgen.core.ports import Emit, Window
from loadgen.core.samples import SAMPLE_DTYPE, Outcome, SampleBatch
from loadgen.core.stubs import Process, Ticket
from loadgen.core.units import NS_PER_S
from loadgen.drivers.limits import raise_open_files
from loadgen.kernel.sendmmsg import Sender

METRIC = "dns.lookup"
STATES = ("fresh", "long-lived")
EMIT_NS = 250_000_000
TICK_NS = 100_000_000
"""The longest wait, so that a stop is noticed."""
BURST = 32
"""Lookups started before replies get their turn."""

UNSENT = Result(Error.ABANDONED, (), (), (), Mode.PARALLEL)
"""Of a lookup that never began."""

_ROW = struct.Struct("<4q4H")
assert _ROW.size == SAMPLE_DTYPE.itemsize
_IP_RECVERR, _IPV6_RECVERR = 11, 25
_PROBLEMS = {
    errno.ECONNREFUSED: Problem.REFUSED,
    errno.ECONNRESET: Problem.RESET,
    errno.EADDRNOTAVAIL: Problem.NO_PORTS,
    errno.EAGAIN: Problem.NO_PORTS,  # what connect(2) of UDP says when the port range is used up
    errno.EMFILE: Problem.NO_FILES,
    errno.ENFILE: Problem.NO_FILES,
}


class DnsDriver:
    """ports.Driver of a Dns load. Runs in the thread, and so in the network namespace, that calls `run`.

    A lookup is OK when an address came, FAIL when the resolver gave up or the name has none (`detail` says which),
    UNKNOWN when it was still under way after `load.timeout`. `tries` counts how often the query that was
    sent most often was sent, `lost` queries without an answer in their round. ConfigError when the load or the
    resolver settings cannot be honoured.
    """

    def __init__(self, load: Dns, resolver: Resolver, servers: Sequence[str], source: str, *, port: int = 53) -> None:
        if load.state not in STATES:
            raise ConfigError(f"loads.{source}.state: {load.state!r} is not one of {', '.join(STATES)}")
        if not load.names:
            raise ConfigError(f"loads.{source}.names: there is no name to look up")
        for name in load.names:
            found = dnswire.name(name)
            if isinstance(found, dnswire.Malformed):
                raise ConfigError(f"loads.{source}.names: {found.why}")
        self._load = load
        self._stub = resolver.stub
        self._conf = resolvconf.from_settings(resolver, servers)
        self._source = source
        self._port = port

    def run(self, window: Window, emit: Emit) -> dict[str, int]:
        """Look up what is due in the window; return when every lookup has ended or was given up."""
        raise_open_files()
        outlet = _Outlet(window.phase, self._source, emit)
        with select.epoll() as epoll:
            rng = random.Random(f"{window.seed} {self._source}")
            process = Process(self._stub, self._conf, rng, fresh=self._load.state == "fresh")
            flights = _Flights(self._load, self._conf, process, self._port, epoll, outlet)
            created = self._loop(window, flights, epoll, outlet)
        outlet.flush()
        return {METRIC: created}

    def _loop(self, window: Window, flights: _Flights, epoll: select.epoll, outlet: _Outlet) -> int:
        paced, created = pacer(self._load.pace, window.seed), 0

        def next_due() -> int | None:
            due = paced.next(time.monotonic_ns() - window.start_ns, created)
            return None if due is None or window.start_ns + due >= window.end_ns else window.start_ns + due

        due_ns = next_due()
        while True:
            now = time.monotonic_ns()
            if window.stopped():
                due_ns = None
            for _ in range(BURST):
                if due_ns is None or due_ns > now:
                    break
                flights.begin(created, due_ns)
                created += 1
                due_ns = next_due()
            flights.expire()
            outlet.offer(now)
            if due_ns is None and flights.landed:
                return created
            _wait(epoll, min(now + TICK_NS, flights.next_ns, now + TICK_NS if due_ns is None else due_ns))
            for fd, events in epoll.poll(0):
                flights.ready(fd, events)


class _Flight:
    """One lookup under way, or waiting for its process."""

    __slots__ = (
        "armed_ns",
        "deadline_ns",
        "due_ns",
        "limit_ns",
        "lookup",
        "name",
        "over",
        "sent_ns",
        "seq",
        "sockets",
        "ticket",
    )

    def __init__(self, seq: int, name: str, due_ns: int, now_ns: int, limit_ns: int) -> None:
        self.seq, self.name, self.due_ns, self.sent_ns, self.limit_ns = seq, name, due_ns, now_ns, limit_ns
        self.over = False
        self.ticket: Ticket | None = None
        self.lookup: Dialogue | None = None
        self.sockets: dict[int, socket.socket] = {}
        self.deadline_ns: int | None = None
        self.armed_ns: int | None = None


class _Flights:
    """All lookups under way: their sockets, their timers, and what each is to do next."""

    def __init__(
        self,
        load: Dns,
        conf: resolvconf.ResolvConf,
        process: Process,
        port: int,
        epoll: select.epoll,
        outlet: _Outlet,
    ) -> None:
        self._load, self._conf, self._process, self._port = load, conf, process, port
        self._epoll, self._outlet = epoll, outlet
        self._sender = Sender()
        self._servers = {(address, port): i for i, address in enumerate(conf.servers)}
        self._six = any(":" in address for address in conf.servers)
        self._by_fd: dict[int, tuple[_Flight, int]] = {}
        self._timers: list[tuple[int, int, _Flight]] = []
        self._waiting: deque[_Flight] = deque()
        self._calling = False
        self._under_way = 0

    @property
    def landed(self) -> bool:
        return not self._under_way

    @property
    def next_ns(self) -> int:
        """When the next timer is due."""
        return self._timers[0][0] if self._timers else 1 << 62

    def begin(self, seq: int, due_ns: int) -> None:
        name = self._load.names[seq % len(self._load.names)]
        now = time.monotonic_ns()
        flight = _Flight(seq, name, due_ns, now, now + int(self._load.timeout))
        self._under_way += 1
        if not self._take_off(flight):
            self._waiting.append(flight)
            self._arm(flight)

    def _take_off(self, flight: _Flight) -> bool:
        """False when the process cannot take it on yet."""
        now = time.monotonic_ns()
        flight.ticket = self._process.begin(flight.name, now)
        if flight.ticket is None:
            return False
        flight.sent_ns, flight.lookup = now, flight.ticket.lookup
        self._drive(flight, flight.lookup.start(now))
        return True

    def _call_up(self) -> None:
        """A lookup has ended: let those begin that waited for that."""
        waiting, self._waiting = self._waiting, deque()
        while waiting and not self._process.busy:
            flight = waiting.popleft()
            if not flight.over and not self._take_off(flight):
                self._waiting.append(flight)
        self._waiting.extend(waiting)

    def ready(self, fd: int, events: int) -> None:
        """Something happened to a socket."""
        flight, sock = self._by_fd.get(fd, (None, 0))
        if flight is None or flight.lookup is None:
            return  # closed by an event before this one in the same batch
        try:
            event = self._read(flight.sockets[sock], sock, events)
        except BlockingIOError:
            return
        except OSError as error:
            # The error stays in the socket's queue, and epoll would report it for ever.
            self._epoll.unregister(fd)
            event = Failed(time.monotonic_ns(), sock, _PROBLEMS.get(error.errno or 0, Problem.OTHER))
        self._drive(flight, flight.lookup.step(event))

    def expire(self) -> None:
        """Tell every lookup whose time is up."""
        now = time.monotonic_ns()
        while self._timers and self._timers[0][0] <= now:
            flight = heapq.heappop(self._timers)[2]
            flight.armed_ns = None
            if flight.over:
                continue
            if now >= flight.limit_ns:
                self._finish(flight, flight.lookup.abandon() if flight.lookup else UNSENT, given_up=True)
            elif flight.lookup is None:
                self._arm(flight)
            elif flight.deadline_ns is not None and now >= flight.deadline_ns:
                self._drive(flight, flight.lookup.step(Expired(now)))
            else:
                self._arm(flight)

    def _drive(self, flight: _Flight, action: Action) -> None:
        """Do what the lookup wants until it waits or is done."""
        lookup = flight.lookup
        assert lookup is not None
        while not isinstance(action, Wait | Done):
            action = lookup.step(self._do(flight, action))
        if isinstance(action, Done):
            self._finish(flight, action.result)
        else:
            flight.deadline_ns = action.deadline_ns
            self._arm(flight)

    def _do(self, flight: _Flight, action: Open | Send | Close) -> Event:
        try:
            if isinstance(action, Open):
                self._open(flight, action)
            elif isinstance(action, Send):
                self._send(flight.sockets[action.sock], action)
            else:
                self._close(flight.sockets.pop(action.sock))
        except OSError as error:
            problem = _PROBLEMS.get(error.errno or 0, Problem.OTHER)
            return Failed(time.monotonic_ns(), action.sock, problem)
        return Did(time.monotonic_ns())

    def _open(self, flight: _Flight, action: Open) -> None:
        six = self._six if action.server is None else ":" in self._conf.servers[action.server]
        kind = (socket.SOCK_STREAM if action.stream else socket.SOCK_DGRAM) | socket.SOCK_NONBLOCK
        sock = socket.socket(socket.AF_INET6 if six else socket.AF_INET, kind)
        try:
            if action.server is None:
                sock.bind(("::" if six else "0.0.0.0", 0))
            elif action.stream:
                code = sock.connect_ex((self._conf.servers[action.server], self._port))
                if code not in (0, errno.EINPROGRESS):
                    raise OSError(code, "connect")
            else:
                # So that an ICMP error ends the wait (glibc bug 24047).
                level, option = (socket.IPPROTO_IPV6, _IPV6_RECVERR) if six else (socket.IPPROTO_IP, _IP_RECVERR)
                sock.setsockopt(level, option, 1)
                sock.connect((self._conf.servers[action.server], self._port))
            self._epoll.register(sock.fileno(), select.EPOLLOUT if action.stream else select.EPOLLIN)
        except OSError:
            sock.close()
            raise
        flight.sockets[action.sock] = sock
        self._by_fd[sock.fileno()] = (flight, action.sock)

    def _send(self, sock: socket.socket, action: Send) -> None:
        messages = action.messages
        if action.server is not None:
            address = self._conf.servers[action.server]
            mapped = f"::ffff:{address}" if self._six and ":" not in address else address
            for message in messages:
                try:
                    sock.sendto(message, (mapped, self._port))
                except OSError:
                    pass  # musl does not look: it is a lost datagram
            return
        if len(messages) > 1:
            messages = messages[self._sender.send(sock.fileno(), messages) :]
        for message in messages:
            if sock.send(message) != len(message):
                raise OSError(errno.EMSGSIZE, "cut short")

    def _read(self, sock: socket.socket, number: int, events: int) -> Event:
        now = time.monotonic_ns()
        if events & select.EPOLLOUT:  # only asked for while a stream is connecting
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, "connect")
            self._epoll.modify(sock.fileno(), select.EPOLLIN)
            return Connected(now, number)
        try:
            data, peer = sock.recvfrom(65535)  # a stream has no peer to tell
            sender = self._servers.get((peer[0].removeprefix("::ffff:"), peer[1])) if peer else None
            return Reply(now, number, data, sender)
        except BlockingIOError:
            if events & select.EPOLLERR:
                raise OSError(errno.EIO, "an error without a number") from None
            raise

    def _arm(self, flight: _Flight) -> None:
        """Make sure that a timer ends no later than the lookup's deadline or its limit."""
        when = flight.limit_ns
        if flight.deadline_ns is not None and flight.deadline_ns < when:
            when = flight.deadline_ns
        if flight.armed_ns is None or when < flight.armed_ns:
            flight.armed_ns = when
            heapq.heappush(self._timers, (when, flight.seq, flight))

    def _finish(self, flight: _Flight, result: Result, *, given_up: bool = False) -> None:
        for sock in flight.sockets.values():
            self._close(sock)
        # A timer may still point here for seconds; it must not keep the rest alive.
        flight.sockets, flight.lookup, flight.over = {}, None, True
        self._under_way -= 1
        if flight.ticket is not None:
            self._process.end(flight.ticket, result, time.monotonic_ns())
            flight.ticket = None
        outcome = Outcome.UNKNOWN if given_up else Outcome.FAIL if result.error else Outcome.OK
        detail = f"timeout {self._load.timeout}" if given_up else result.detail
        self._outlet.add(flight, outcome, result.tries, result.lost, detail)
        if self._waiting and not self._calling:
            self._calling = True
            self._call_up()
            self._calling = False

    def _close(self, sock: socket.socket) -> None:
        self._by_fd.pop(sock.fileno(), None)
        sock.close()


class _Outlet:
    """Collects samples and passes them on every quarter of a second."""

    def __init__(self, phase: str, source: str, emit: Emit) -> None:
        self._phase, self._source, self._emit = phase, source, emit
        self._rows = bytearray()
        self._details = {"": 0}
        self._next_ns = 0

    def add(self, flight: _Flight, outcome: Outcome, tries: int, lost: int, detail: str) -> None:
        index = self._details.setdefault(detail, len(self._details))
        now = time.monotonic_ns()
        self._rows += _ROW.pack(flight.seq, flight.due_ns, flight.sent_ns, now, outcome, tries, lost, index)

    def offer(self, now_ns: int) -> None:
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + EMIT_NS
            self.flush()

    def flush(self) -> None:
        if self._rows:
            rows, details = bytes(self._rows), tuple(self._details)
            self._rows.clear()
            self._emit(SampleBatch(METRIC, self._phase, self._source, rows, details))


def _wait(epoll: select.epoll, until_ns: int) -> None:
    """epoll counts in milliseconds, which is what a whole lookup takes; select counts in microseconds."""
    left = max(0, until_ns - time.monotonic_ns()) / NS_PER_S
    select.select((epoll,), (), (), left)
