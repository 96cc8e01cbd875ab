"""`python -m loadgen.lab.dnsserver CONFIG.json`: a name server behind the lab's kube-dns Service, by UDP and TCP.

It answers fast, or exactly `delay` later without holding up the next, or never, as told. Prints `ready` once it is
bound; ends at SIGTERM with its ServerStats as one JSON line. While it runs, a query for `stats.loadgen.` (class CH,
type TXT) is answered with them. One thread, one epoll loop; what to answer is decided in
`loadgen.lab.dnszone`.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import sys
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from loadgen.core import dnswire
from loadgen.core.dnswire import CH, TXT, ServerStats
from loadgen.core.errors import ConfigError
from loadgen.core.model import Probability, seconds
from loadgen.core.units import NS_PER_S, Duration, dec_hook
from loadgen.lab.dnszone import Answer, Policy, Rule, Zone

BATCH = 64
"""Datagrams taken before anything else gets its turn."""
MAX_CONNECTIONS = 900
"""Beyond it the oldest connection gives way, so that forgotten ones cannot use up the process's descriptors."""
MAX_CACHED = 4096
RECEIVE_BUFFER = 4 << 20
_PORTS_TRIED = 50


class DnsServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`names` exist, and every name below one of `zones`; each has one A and one AAAA record. No other exists."""

    address: str
    port: int = 53
    names: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    ttl: int = 30
    """Also for how long a cache may remember that a name does not exist."""
    delay: Duration = seconds(0)
    loss: Probability = 0.0
    seed: int = 0
    rules: tuple[Rule, ...] = ()
    log: str = ""
    """A file that gets every query as a line of JSON (LoggedQuery)."""


class LoggedQuery(msgspec.Struct, frozen=True):
    t_ns: int
    transport: str
    peer: str
    port: int
    id: int
    name: str
    qtype: int
    answered: bool


class _Connection:
    """A TCP client. `owed` counts answers that are still held back by the delay."""

    def __init__(self, sock: socket.socket, peer: tuple[str, int]) -> None:
        self.sock, self.peer = sock, peer
        self.received, self.unsent = bytearray(), bytearray()
        self.owed = 0
        self.ended = False  # the client sends no more


class DnsServer:
    """Bound when it is made (OSError). `run` serves until `stop`, which may be called from anywhere."""

    def __init__(self, config: DnsServerConfig) -> None:
        self._zone = Zone(config.names, config.zones, config.ttl)
        self._policy = Policy(config.rules, config.loss, config.seed)
        self._delay_ns = int(config.delay)
        self._udp, self._tcp = _bind(config.address, config.port)
        self.port: int = self._udp.getsockname()[1]
        self._log = Path(config.log).open("ab", buffering=0) if config.log else None  # noqa: SIM115 - closed in _close
        self._queries: Counter[str] = Counter()
        self._answers: Counter[str] = Counter()
        self._prepared: dict[bytes, Answer] = {}
        self._later: deque[tuple[int, _Connection | tuple[str, int], bytes, str]] = deque()
        self._connections: dict[int, _Connection] = {}
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll = select.epoll()
        weakref.finalize(self, os.close, self._wake)  # not by `run`: `stop` may be about to write to it
        self._stopped = False
        for fd in (self._udp.fileno(), self._tcp.fileno(), self._wake):
            self._epoll.register(fd, select.EPOLLIN)

    def stop(self) -> None:
        self._stopped = True
        os.eventfd_write(self._wake, 1)

    def stats(self) -> ServerStats:
        return ServerStats(dict(self._queries), dict(self._answers))

    def run(self) -> None:
        on_udp, on_tcp = self._udp.fileno(), self._tcp.fileno()
        while not self._stopped:
            self._wait()
            for fd, events in self._epoll.poll(0):
                if fd == on_udp:
                    self._receive()
                elif fd == on_tcp:
                    self._accept()
                elif fd in self._connections:
                    self._converse(self._connections[fd], events)
            self._send_due()
        self._close()

    def _wait(self) -> None:
        """Until something is there or an answer is due. epoll counts in milliseconds, select in microseconds."""
        left = max(0, self._later[0][0] - time.monotonic_ns()) / NS_PER_S if self._later else None
        select.select((self._epoll,), (), (), left)

    def _receive(self) -> None:
        for _ in range(BATCH):
            try:
                data, peer = self._udp.recvfrom(4096)
            except BlockingIOError:
                return
            except OSError:
                continue  # an ICMP error of an earlier answer, whose client is gone
            answer = self._prepare(data)
            if answer is not None:
                self._take(data, answer, peer)

    def _prepare(self, data: bytes) -> Answer | None:
        """The answer but for the id; queries that differ in nothing else are answered from memory."""
        rest = data[2:]
        known = self._prepared.get(rest)
        if known is not None:
            return known
        asked = dnswire.question(data)
        if asked and (asked.name, asked.qtype, asked.qclass) == (dnswire.STATS_NAME, TXT, CH):
            return Answer("stats", "", TXT, b"", asked.end)
        answer = self._zone.answer(data)
        if len(self._prepared) >= MAX_CACHED:
            self._prepared.clear()
        if answer is not None:
            self._prepared[rest] = answer
        return answer

    def _take(self, data: bytes, answer: Answer, client: _Connection | tuple[str, int]) -> None:
        """Answer a query now, later or never."""
        if answer.label == "stats":
            self._send(client, stats_reply(data, answer.end, self.stats()), "")
            return
        stream = isinstance(client, _Connection)
        self._queries[answer.label] += 1
        reply = self._policy.reply(data, answer, stream=stream)
        if self._log is not None:
            peer = client.peer if isinstance(client, _Connection) else client
            self._write_log(data, answer, peer, "tcp" if stream else "udp", answered=reply is not None)
        if reply is None:
            return
        if not self._delay_ns:
            self._send(client, reply, answer.label)
            return
        if isinstance(client, _Connection):
            client.owed += 1
        self._later.append((time.monotonic_ns() + self._delay_ns, client, reply, answer.label))

    def _send_due(self) -> None:
        now = time.monotonic_ns() if self._later else 0
        while self._later and self._later[0][0] <= now:
            _, client, reply, label = self._later.popleft()
            if isinstance(client, _Connection):
                client.owed -= 1
            self._send(client, reply, label)

    def _send(self, client: _Connection | tuple[str, int], reply: bytes, label: str) -> None:
        if isinstance(client, _Connection):
            if client.sock.fileno() < 0:
                return  # it did not wait
            client.unsent += dnswire.frame(reply)
            self._flush(client)
        else:
            try:
                self._udp.sendto(reply, client)
            except OSError:
                return  # no buffer or no route: lost, as datagrams are, and not counted as an answer
        if label:
            self._answers[label] += 1

    def _accept(self) -> None:
        try:
            sock, peer = self._tcp.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE) and self._connections:
                self._drop(next(iter(self._connections.values())))
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self._connections) >= MAX_CONNECTIONS:
            self._drop(next(iter(self._connections.values())))
        self._connections[sock.fileno()] = _Connection(sock, peer)
        self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _converse(self, client: _Connection, events: int) -> None:
        if events & select.EPOLLOUT:
            self._flush(client)
        if client.ended:
            if events & (select.EPOLLHUP | select.EPOLLERR):
                self._drop(client)
            return
        if not events & ~select.EPOLLOUT:
            return
        try:
            data = client.sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            self._drop(client)
            return
        client.ended = not data
        client.received += data
        for message in dnswire.unframe(client.received):
            answer = self._prepare(message)
            if answer is not None:
                self._take(message, answer, client)
        self._flush(client)

    def _flush(self, client: _Connection) -> None:
        """Send what the client takes; close once it has everything and wants no more."""
        if client.sock.fileno() < 0:
            return
        try:
            del client.unsent[: client.sock.send(client.unsent) if client.unsent else 0]
        except BlockingIOError:
            pass  # EPOLLOUT says when
        except OSError:
            self._drop(client)
            return
        if client.ended and not client.unsent and not client.owed:
            self._drop(client)
            return
        wanted = (0 if client.ended else select.EPOLLIN) | (select.EPOLLOUT if client.unsent else 0)
        self._epoll.modify(client.sock.fileno(), wanted)

    def _drop(self, client: _Connection) -> None:
        self._connections.pop(client.sock.fileno(), None)
        client.sock.close()

    def _write_log(
        self, data: bytes, answer: Answer, peer: tuple[str, int], transport: str, *, answered: bool
    ) -> None:
        assert self._log is not None
        ident = int.from_bytes(data[:2], "big")
        line = LoggedQuery(time.monotonic_ns(), transport, *peer[:2], ident, answer.name, answer.qtype, answered)
        self._log.write(msgspec.json.encode(line) + b"\n")

    def _close(self) -> None:
        for client in list(self._connections.values()):
            self._drop(client)
        for opened in (self._udp, self._tcp, self._epoll, self._log):
            if opened is not None:
                opened.close()


def stats_reply(query: bytes, end: int, stats: msgspec.Struct) -> bytes:
    """`stats` as JSON in a TXT record, in answer to a query for STATS_NAME."""
    rdata = dnswire.txt_rdata(msgspec.json.encode(stats))
    return dnswire.reply(query, end, dnswire.NOERROR, answer=(dnswire.record(b"\xc0\x0c", TXT, CH, 0, rdata),))


def _bind(address: str, port: int) -> tuple[socket.socket, socket.socket]:
    """UDP and TCP on one port. Port 0: one that is free in both; the first that the kernel gives need not be."""
    for _ in range(_PORTS_TRIED if port == 0 else 0):
        try:
            return _bind_both(address, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    return _bind_both(address, port)


def _bind_both(address: str, port: int) -> tuple[socket.socket, socket.socket]:
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        udp.bind((address, port))
        enlarge_buffer(udp)
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tcp.bind(udp.getsockname())
        tcp.listen(1024)
    except OSError:
        udp.close()
        tcp.close()
        raise
    return udp, tcp


def enlarge_buffer(udp: socket.socket) -> None:
    """A burst must not be lost in front of a server whose losses are made on purpose."""
    so_rcvbufforce = 33
    try:
        udp.setsockopt(socket.SOL_SOCKET, so_rcvbufforce, RECEIVE_BUFFER)
    except PermissionError:
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)


C = TypeVar("C")


def serve(name: str, kind: type[C], run: Callable[[C], None]) -> None:
    """Read the configuration named on the command line and run; one line and exit code 1 for what cannot be."""
    try:
        run(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=kind, dec_hook=dec_hook))
    except (OSError, IndexError, msgspec.DecodeError, ConfigError) as error:
        raise SystemExit(f"{name}: {error}") from error


def say(line: str) -> None:
    """One line for whoever started this process."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _run(config: DnsServerConfig) -> None:
    server = DnsServer(config)
    signal.signal(signal.SIGTERM, lambda *_: server.stop())
    say("ready")
    server.run()
    say(msgspec.json.encode(server.stats()).decode())


if __name__ == "__main__":
    serve("dnsserver", DnsServerConfig, _run)
