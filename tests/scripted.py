"""A name server that does what a script says, and writes down every query that it gets."""

from __future__ import annotations

import heapq
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Literal

import msgspec

from loadgen.core import dnswire
from loadgen.core.dnswire import AAAA, IN, A
from loadgen.kernel import netns

DELAY_S = 0.12
"""Before an answer, so that a pair is here before its first query is answered, however busy the machine is."""
ADDRESSES = {A: bytes((192, 0, 2, 1)), AAAA: bytes.fromhex("20010db8000000000000000000000001")}


class Act(msgspec.Struct, frozen=True):
    """What is done to queries of this type and name (empty: any), to the first `times` of them (0: to all).

    `race` is what kernels before 5.6 did: a query is lost that comes from a port for which an answer is still due.
    """

    do: Literal[
        "drop", "race", "truncate", "late", "twice", "wrong id", "wrong question", "garbage", "nodata", "lame",
        "reset", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED", "FORMERR", "short REFUSED",
    ]  # fmt: skip
    qtype: Literal["", "A", "AAAA"] = ""
    times: int = 0
    name: str = ""
    late_s: float = 0.0


class Packet(msgspec.Struct, frozen=True):
    """One query that came in."""

    t_s: float
    transport: str
    port: int
    id: int
    name: str
    qtype: int
    flags: int
    size: int


class ScriptedServer:
    """Serves 127.0.0.1:53 of the namespace of whoever makes it. Only names in `names` exist."""

    def __init__(self, script: tuple[Act, ...], names: tuple[str, ...]) -> None:
        self.packets: list[Packet] = []
        self._script, self._names = script, names
        self._done: Counter[Act] = Counter()
        self._due: list[tuple[float, int, bytes, socket.socket, tuple[str, int]]] = []
        self._number = count()
        self._owed: Counter[int] = Counter()
        self._udp, self._tcp = (socket.socket(socket.AF_INET, k) for k in (socket.SOCK_DGRAM, socket.SOCK_STREAM))
        for sock in (self._udp, self._tcp):
            sock.bind(("127.0.0.1", 53))
        self._tcp.listen()
        self._clients: dict[socket.socket, bytearray] = {}
        self._wake, self._woken = socket.socketpair()

    def stop(self) -> None:
        self._wake.close()

    def run(self) -> None:
        while True:
            left = max(0.0, self._due[0][0] - time.monotonic()) if self._due else None
            ready = select.select([self._udp, self._tcp, self._woken, *self._clients], [], [], left)[0]
            if self._woken in ready:
                break
            for sock in ready:
                self._take_in(sock)
            while self._due and self._due[0][0] <= time.monotonic():
                self._send(*heapq.heappop(self._due)[2:])
        for sock in (self._udp, self._tcp, self._woken, *self._clients):
            sock.close()

    def _take_in(self, sock: socket.socket) -> None:
        if sock is self._udp:
            self._receive()
        elif sock is self._tcp:
            self._clients[sock.accept()[0]] = bytearray()
        elif (data := _received(sock)) == b"":
            del self._clients[sock]
            sock.close()
        else:
            self._clients[sock] += data
            for message in dnswire.unframe(self._clients[sock]):
                self._asked(message, sock, sock.getpeername())

    def _receive(self) -> None:
        """All that is there, before anything is answered: the two queries of a pair have come together."""
        while True:
            try:
                data, peer = self._udp.recvfrom(4096, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            self._asked(data, self._udp, peer)

    def _asked(self, query: bytes, sock: socket.socket, peer: tuple[str, int]) -> None:
        asked, stream = dnswire.question(query), sock is not self._udp
        assert asked, "a resolver sends whole queries"
        name, kind = dnswire.text(asked.name), dnswire.TYPE_NAMES[asked.qtype]
        flags = int.from_bytes(query[2:4], "big")
        ident, transport = int.from_bytes(query[:2], "big"), "tcp" if stream else "udp"
        now = time.monotonic()
        self.packets.append(Packet(now, transport, peer[1], ident, name, asked.qtype, flags, len(query)))
        act = next((a for a in self._script if self._fits(a, name, kind, peer[1], stream=stream)), None)
        self._done[act or Act("drop")] += act is not None
        for reply in self._replies(query, asked, name, act):
            late = act.late_s if act is not None else 0.0
            self._owed[peer[1]] += 1
            heapq.heappush(self._due, (now + DELAY_S + late, next(self._number), reply, sock, peer))

    def _fits(self, act: Act, name: str, kind: str, port: int, *, stream: bool) -> bool:
        if act.qtype not in ("", kind) or act.name not in ("", name) or 0 < act.times <= self._done[act]:
            return False
        if act.do == "race":
            return not stream and self._owed[port] > 0
        return act.do == "reset" if stream else act.do != "reset"

    def _replies(self, query: bytes, asked: dnswire.Question, name: str, act: Act | None) -> list[bytes]:
        do = act.do if act is not None else ""
        exists = name in self._names
        record = dnswire.record(b"\xc0\x0c", asked.qtype, IN, 30, ADDRESSES[asked.qtype])
        records = (record,) if exists and do not in ("nodata", "lame") else ()
        rcode = dnswire.RCODE_NAMES.get(do.removeprefix("short "), dnswire.NOERROR if exists else dnswire.NXDOMAIN)
        flags = 0 if do == "lame" else dnswire.RA
        good = dnswire.reply(query, asked.end, rcode, flags=flags, answer=() if rcode else records)
        match do:
            case "drop" | "race":
                return []
            case "twice":
                return [good, good]
            case "wrong id":
                return [bytes((good[0] ^ 0x55, good[1] ^ 0x55)) + good[2:]]
            case "wrong question":
                return [good[:13] + bytes((good[13] ^ 1,)) + good[14:]]
            case "garbage":
                return [b"\xff" * 7]
            case "truncate":
                return [dnswire.truncated(good, asked.end)]
            case "short REFUSED":
                return [dnswire.reply(query, dnswire.HEADER_BYTES, rcode)]
            case "reset":
                return [b""]
        return [good]

    def _send(self, reply: bytes, sock: socket.socket, peer: tuple[str, int]) -> None:
        self._owed[peer[1]] -= 1
        try:
            if sock is self._udp:
                sock.sendto(reply, peer)
            elif reply:
                sock.sendall(dnswire.frame(reply))
            else:
                sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the resolver did not wait: an ICMP error, or a stream that is closed


def _received(sock: socket.socket) -> bytes:
    try:
        return sock.recv(4096)
    except OSError:
        return b""


@contextmanager
def scripted(namespace: Path, script: tuple[Act, ...], names: tuple[str, ...]) -> Iterator[ScriptedServer]:
    """Running, in that namespace. `packets` are all there when the context is left."""
    server = netns.call(namespace, ScriptedServer, script, names)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()
