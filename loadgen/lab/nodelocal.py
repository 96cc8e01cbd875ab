"""`python -m loadgen.lab.nodelocal CONFIG.json`: a caching forwarder on the node, in place of NodeLocal DNSCache.

Its rules are those of the cluster zone in the nodelocaldns manifest (kubernetes cluster/addons/dns/nodelocaldns):
UDP and TCP in, `cache { success 9984 30; denial 9984 5 }`, and `forward . UPSTREAM { force_tcp }`. As in CoreDNS's
forward plugin a query takes a connection of its own from those that are idle, or a new one, and gives it back with
the answer; it waits 2 s on a connection, tries again until 5 s are over, and then the client gets SERVFAIL. Unlike
CoreDNS, queries for one name that come while it is being asked for wait for the same answer.

Prints `ready` once it is bound; its NodeLocalStats go out like those of loadgen.lab.dnsserver.
"""

from __future__ import annotations

import asyncio
import random
import signal
import socket
from collections import Counter, deque
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

import msgspec

from loadgen.core import dnscache, dnswire
from loadgen.core.dnscache import Cache, Entry, Key
from loadgen.core.dnswire import CH, TXT, Malformed
from loadgen.lab.dnsserver import enlarge_buffer, say, serve, stats_reply

READ_LIMIT_S, TOTAL_LIMIT_S = 2.0, 5.0
"""CoreDNS plugin/pkg/proxy readTimeout, plugin/forward defaultTimeout."""
KEEP_S = 10.0
"""How long an idle upstream connection is kept (forward: `expire`)."""
IDLE_LIMIT_S = 8.0
"""How long a TCP client may be silent (miekg/dns)."""
PAUSE_S = 0.1
"""Between two tries when an upstream refuses at once."""


class NodeLocalConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    listen: tuple[str, ...]
    upstream: str
    port: int = 53
    upstream_port: int = 53
    success: int = 9984
    success_ttl_s: int = 30
    denial: int = 9984
    denial_ttl_s: int = 5


class NodeLocalStats(msgspec.Struct, frozen=True):
    """Counts since the start; the first two as in dnswire.ServerStats."""

    queries: dict[str, int]
    answers: dict[str, int]
    hits: int
    misses: int
    coalesced: int
    """Misses that waited for an answer already asked for."""
    forwarded: int
    """Queries sent upstream, tries again included."""
    failures: int
    """Tries that ended without an answer."""
    evicted: int


Send = Callable[[bytes], None]


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.idle_since = 0.0

    async def exchange(self, query: bytes) -> bytes:
        """Send it and return the reply with its id. IncompleteReadError when the server hangs up."""
        self._writer.write(dnswire.frame(query))
        while True:
            length = int.from_bytes(await self._reader.readexactly(2), "big")
            reply = await self._reader.readexactly(length)
            if reply[:2] == query[:2]:
                return reply

    def close(self) -> None:
        self._writer.close()


class Upstream:
    """The server behind the cache, by TCP."""

    def __init__(self, address: str, port: int) -> None:
        self._address, self._port = address, port
        self._idle: deque[_Connection] = deque()
        self._rng = random.Random(0)  # ids only tell apart what is on one connection
        self.forwarded = 0
        self.failures = 0

    async def ask(self, key: Key) -> bytes | None:
        """The reply, or None when there was none within TOTAL_LIMIT_S."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + TOTAL_LIMIT_S
        name, qtype, qclass = key
        query = dnswire.query(self._rng.getrandbits(16), name, qtype, qclass=qclass)
        while (left := deadline - loop.time()) > 0:
            reused = self._take()
            try:
                async with asyncio.timeout(min(READ_LIMIT_S, left)):
                    return await self._exchange(reused, query.wire)
            except TimeoutError:
                self.failures += 1
            except (OSError, asyncio.IncompleteReadError):
                # An idle connection that the server has closed meanwhile says nothing about the server.
                if reused is None:
                    self.failures += 1
                    await asyncio.sleep(min(PAUSE_S, left))
        return None

    async def _exchange(self, reused: _Connection | None, query: bytes) -> bytes:
        connection = reused or _Connection(*await asyncio.open_connection(self._address, self._port))
        done = False
        self.forwarded += 1
        try:
            reply = await connection.exchange(query)
            done = True
        finally:
            if done:
                self._give_back(connection)
            else:
                connection.close()
        return reply

    def _take(self) -> _Connection | None:
        self._expire()
        return self._idle.pop() if self._idle else None

    def _give_back(self, connection: _Connection) -> None:
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.append(connection)

    def _expire(self) -> None:
        oldest = asyncio.get_running_loop().time() - KEEP_S
        while self._idle and self._idle[0].idle_since < oldest:
            self._idle.popleft().close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


class NodeLocal:
    """Answers from the cache, or with what the upstream says."""

    def __init__(self, config: NodeLocalConfig) -> None:
        self._config = config
        self._cache = Cache(config.success, config.success_ttl_s, config.denial, config.denial_ttl_s)
        self._upstream = Upstream(config.upstream, config.upstream_port)
        self._asking: dict[Key, asyncio.Task[Entry | None]] = {}
        self._queries: Counter[str] = Counter()
        self._answers: Counter[str] = Counter()
        self._hits = self._misses = self._coalesced = 0

    async def run(self, ready: Callable[[], None], stopped: asyncio.Event) -> None:
        """Serve on every address until `stopped`. OSError when one cannot be bound."""
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            stack.callback(self._upstream.close)
            for address in self._config.listen:
                udp = await loop.create_datagram_endpoint(
                    lambda: _Datagrams(self), (address, self._config.port), family=socket.AF_INET
                )
                stack.callback(udp[0].close)
                enlarge_buffer(udp[0].get_extra_info("socket"))
                tcp = await asyncio.start_server(self._converse, address, self._config.port)
                stack.callback(tcp.close)
            ready()
            await stopped.wait()

    def stats(self) -> NodeLocalStats:
        return NodeLocalStats(
            dict(self._queries),
            dict(self._answers),
            self._hits,
            self._misses,
            self._coalesced,
            self._upstream.forwarded,
            self._upstream.failures,
            self._cache.evicted,
        )

    def ask(self, query: bytes, send: Send) -> asyncio.Task[Entry | None] | None:
        """Answer a message through `send`, now, or when the returned task is done. Nonsense gets what it deserves."""
        head, asked = dnswire.header(query), dnswire.question(query)
        if not head or head.flags & dnswire.QR:
            return None
        if isinstance(asked, Malformed) or head.flags & 0x7800:
            rcode = dnswire.FORMERR if isinstance(asked, Malformed) else dnswire.NOTIMP
            send(dnswire.reply(query, dnswire.HEADER_BYTES, rcode))
            return None
        key = (asked.name, asked.qtype, asked.qclass)
        if key == (dnswire.STATS_NAME, TXT, CH):
            send(stats_reply(query, asked.end, self.stats()))
            return None
        label = {dnswire.A: "A", dnswire.AAAA: "AAAA"}.get(asked.qtype, "other")
        self._queries[label] += 1
        entry = self._cache.get(key, asyncio.get_running_loop().time())
        if entry is not None:
            self._hits += 1
            self._answer(entry, query, asked, label, send)
            return None
        self._misses += 1
        self._coalesced += key in self._asking
        task = self._asking.get(key) or self._forward(key)

        def done(ended: asyncio.Task[Entry | None]) -> None:
            if not ended.cancelled():  # which happens only when this process ends
                self._answer(ended.result(), query, asked, label, send)

        task.add_done_callback(done)
        return task

    def _forward(self, key: Key) -> asyncio.Task[Entry | None]:
        task = self._asking[key] = asyncio.create_task(self._fetch(key))
        task.add_done_callback(lambda _: self._asking.pop(key))
        return task

    async def _fetch(self, key: Key) -> Entry | None:
        reply = await self._upstream.ask(key)
        if reply is None:
            return None
        return self._cache.put(key, reply, asyncio.get_running_loop().time()) or None

    def _answer(self, entry: Entry | None, query: bytes, asked: dnswire.Question, label: str, send: Send) -> None:
        self._answers[label] += 1
        if entry is None:
            send(dnswire.reply(query, asked.end, dnswire.SERVFAIL))
        else:
            send(dnscache.reply(entry, query, asked, asyncio.get_running_loop().time()))

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One TCP client: queries are answered as their answers come, in any order."""
        owed: set[asyncio.Task[Entry | None]] = set()

        def send(reply: bytes) -> None:
            if not writer.is_closing():
                writer.write(dnswire.frame(reply))

        try:
            while True:
                async with asyncio.timeout(IDLE_LIMIT_S):
                    length = int.from_bytes(await reader.readexactly(2), "big")
                    query = await reader.readexactly(length)
                task = self.ask(query, send)
                if task is not None:
                    owed.add(task)
                    task.add_done_callback(owed.discard)
                await writer.drain()
        except (asyncio.IncompleteReadError, TimeoutError, OSError):
            if owed:
                await asyncio.wait(owed)
        finally:
            writer.close()


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, cache: NodeLocal) -> None:
        self._cache = cache

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._cache.ask(data, partial(self._send, data, addr))

    def _send(self, query: bytes, addr: tuple[str, int], reply: bytes) -> None:
        if len(reply) > dnswire.UDP_BYTES and len(reply) > _datagram_limit(query):
            asked = dnswire.question(reply)
            reply = dnswire.truncated(reply, asked.end if asked else dnswire.HEADER_BYTES)
        if not self._transport.is_closing():
            self._transport.sendto(reply, addr)


def _datagram_limit(query: bytes) -> int:
    """What the client said that it can take (EDNS), at least 512 bytes."""
    sizes = [r.rclass for r in dnswire.records(query) or () if r.rtype == dnswire.OPT]
    return max([dnswire.UDP_BYTES, *sizes])


def _run(config: NodeLocalConfig) -> None:
    cache = NodeLocal(config)

    async def main() -> None:
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        await cache.run(lambda: say("ready"), stopped)

    asyncio.run(main())
    say(msgspec.json.encode(cache.stats()).decode())


if __name__ == "__main__":
    serve("nodelocal", NodeLocalConfig, _run)
