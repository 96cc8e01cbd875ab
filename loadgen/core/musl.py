"""musl's stub resolver without its sockets: getaddrinfo(AF_UNSPEC) of musl up to 1.2.3, and of 1.2.4 and later.

Source of every rule: musl's src/network/res_msend.c (sending, waiting) and lookup_name.c (search list, errors), tags
v1.2.3 and v1.2.5. A name has one socket, which is not connected. Both queries go to all name servers at once; every
`timeout / attempts` those without an answer go again, by the same socket with the same ids. Nothing is remembered.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from loadgen.core import dnswire
from loadgen.core.dnswire import Query
from loadgen.core.lookup import (
    Close,
    Connected,
    Dialogue,
    Did,
    Error,
    Event,
    Expired,
    Mode,
    OpenRound,
    Problem,
    Reply,
    Send,
    Steps,
    Wait,
)
from loadgen.core.resolvconf import ResolvConf
from loadgen.core.units import NS_PER_S

_FINAL = (dnswire.NOERROR, dnswire.NXDOMAIN)
_IDENTIFIABLE_BYTES = 4
_LEAST_STREAM_BYTES = 13
_TC_BYTE = 2


class Lookup(Dialogue):
    """One getaddrinfo(name, AF_UNSPEC). `by_tcp`: 1.2.4 and later, where a truncated reply is asked for again by TCP,
    the two ids differ for sure, and a name without addresses is EAI_NODATA."""

    def __init__(self, name: str, conf: ResolvConf, rng: random.Random, *, by_tcp: bool) -> None:
        super().__init__(rng)
        self._name, self._conf, self._by_tcp = name, conf, by_tcp

    # --- names: name_from_dns_search, name_from_dns -----------------------------------------------------------

    def _run(self) -> Steps[Error]:
        name = self._name
        rooted = name.endswith(".")
        search = () if rooted or name.count(".") >= self._conf.ndots else self._conf.search
        for domain in search:
            error = yield from self._ask(f"{name}.{domain}")
            if error is not Error.NXDOMAIN:  # only "no such name" goes on
                return error
        return (yield from self._ask(name))

    def _ask(self, name: str) -> Steps[Error]:
        queries = self._queries(name)
        if queries is None:
            return Error.NXDOMAIN if self._by_tcp else Error.NO_ADDRESS
        exchange = _Exchange(self, name, queries)
        answers = yield from exchange.run()
        if answers is None:
            return Error.AGAIN
        for reply in answers:
            rcode = reply[3] & 0xF if len(reply) >= _IDENTIFIABLE_BYTES else dnswire.SERVFAIL
            if rcode == dnswire.SERVFAIL:
                return Error.AGAIN
            if rcode:
                return Error.NXDOMAIN if rcode == dnswire.NXDOMAIN else Error.NO_RECOVERY
        self._replies = answers
        if any(dnswire.addresses(reply, query.qtype) for reply, query in zip(answers, queries, strict=True)):
            return Error.NONE
        return Error.NODATA if self._by_tcp else Error.NO_ADDRESS

    def _queries(self, name: str) -> tuple[Query, ...] | None:
        """res_mkquery takes ids off the clock, so the second is close to the first."""
        qname = dnswire.name(name)
        if isinstance(qname, dnswire.Malformed):
            return None
        first = self._rng.getrandbits(16)
        second = (first + self._rng.randrange(80, 1000)) & 0xFFFF
        if self._by_tcp and first >> 8 == second >> 8:
            second = (second + 0x100) & 0xFFFF
        return dnswire.query(first, qname, dnswire.A), dnswire.query(second, qname, dnswire.AAAA)


class _Stream:
    """The connection of a query whose reply was truncated."""

    def __init__(self, i: int, this: OpenRound) -> None:
        self.i, self.this = i, this
        self.received = bytearray()


class _Exchange:
    """__res_msend_rc: the queries of one name, until each has an answer or `timeout` is over."""

    def __init__(self, lookup: Lookup, name: str, queries: Sequence[Query]) -> None:
        self._lookup, self._conf, self._queries, self._name = lookup, lookup._conf, queries, name
        self._answers: dict[int, bytes] = {}
        """By the query's place."""
        self._truncated: set[int] = set()
        self._sock = 0
        self._streams: dict[int, _Stream] = {}
        self._resends = 0
        self._round: OpenRound | None = None

    @property
    def _complete(self) -> bool:
        return len(self._answers) == len(self._queries)

    def run(self) -> Steps[list[bytes] | None]:
        """An answer to each query, or None: one missing is none at all."""
        sock = yield from self._lookup._socket(None)
        if isinstance(sock, Problem):
            return None
        self._sock = sock
        end_ns = self._lookup._now + self._conf.timeout * NS_PER_S
        interval_ns = self._conf.timeout * NS_PER_S // self._conf.attempts
        going = True
        while going and not self._complete and self._lookup._now < end_ns:
            again_ns = self._lookup._now + interval_ns
            yield from self._send_unanswered()
            going = yield from self._listen(min(again_ns, end_ns))
        self._end_round()
        for opened, stream in self._streams.items():
            self._lookup._end(stream.this, "timeout" if going else "failed")
            yield Close(opened)
        yield Close(self._sock)
        return [self._answers[i] for i in range(len(self._queries))] if self._complete else None

    def _send_unanswered(self) -> Steps[None]:
        """To every server, one datagram a system call."""
        self._end_round()
        self._resends = 2 * len(self._queries)
        self._round = self._lookup._begin(OpenRound(self._name, 0, Mode.PARALLEL, stream=False))
        for i in range(len(self._queries)):
            if i not in self._answers and i not in self._truncated:
                for server in range(len(self._conf.servers)):
                    yield from self._send(self._round, i, server)

    def _send(self, this: OpenRound, i: int, server: int) -> Steps[None]:
        yield Send(self._sock, (self._queries[i].wire,), server)
        this.sent.append(self._queries[i].qtype)

    def _end_round(self) -> None:
        if self._round is not None:
            silent = set(self._round.sent) - set(self._round.answered)
            self._lookup._end(self._round, "timeout" if silent else "truncated" if self._truncated else "answered")
        self._round = None

    def _listen(self, until_ns: int) -> Steps[bool]:
        """Until all have their answers, or the time is over; False when a stream broke, which ends the exchange."""
        while not self._complete:
            event = yield Wait(until_ns)
            if isinstance(event, Expired):
                return True
            if isinstance(event, Reply) and event.sock == self._sock:
                yield from self._datagram(event.data, event.server)
                continue
            stream = None if isinstance(event, Did) else self._streams.get(event.sock)
            if stream is not None and not (yield from self._stream(event, stream)):
                return False
        return True

    def _datagram(self, data: bytes, server: int | None) -> Steps[None]:
        """Only the id is looked at, and only "yes" and "no such name" are taken; of other codes SERVFAIL is asked
        again at once, some times, and REFUSED and the rest are as if nothing had come."""
        i = next((i for i, q in enumerate(self._queries) if q.wire[:2] == data[:2]), None)
        known = i is None or i in self._answers or i in self._truncated
        if i is None or known or len(data) < _IDENTIFIABLE_BYTES or server is None or self._round is None:
            return
        rcode = data[3] & 0xF
        if rcode == dnswire.SERVFAIL and self._resends:
            self._resends -= 1
            yield from self._send(self._round, i, server)
        if rcode not in _FINAL:
            return
        self._round.answered.append(self._queries[i].qtype)
        if self._lookup._by_tcp and data[2] & _TC_BYTE:
            self._truncated.add(i)
            sock = yield from self._lookup._socket(server, stream=True)
            if not isinstance(sock, Problem):
                this = self._lookup._begin(OpenRound(self._name, server, Mode.PARALLEL, stream=True))
                self._streams[sock] = _Stream(i, this)
        else:
            self._answers[i] = data

    def _stream(self, event: Event, stream: _Stream) -> Steps[bool]:
        """1.2.4 and later: one query by TCP. Anything but an answer ends everything."""
        query = self._queries[stream.i]
        if isinstance(event, Connected):
            did = yield Send(event.sock, (dnswire.frame(query.wire),))
            stream.this.sent.append(query.qtype)
            return isinstance(did, Did)
        if not isinstance(event, Reply) or not event.data:
            return False
        stream.received += event.data
        messages = dnswire.unframe(stream.received)
        if not messages:
            return True
        if len(messages[0]) < _LEAST_STREAM_BYTES or messages[0][3] & 0xF not in _FINAL:
            return False
        self._answers[stream.i] = messages[0]
        stream.this.answered.append(query.qtype)
        self._lookup._end(stream.this, "answered")
        del self._streams[event.sock]
        yield Close(event.sock)
        return True
