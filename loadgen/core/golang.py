"""Go's own resolver without its sockets: net.Resolver.LookupIPAddr of a program built with CGO_ENABLED=0.

Source of every rule: Go 1.26 src/net/dnsclient_unix.go; the functions below name the one they follow. Every query of
every try has a new socket, so A and AAAA never share a 5-tuple. Both are asked for at once, and both are waited for.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from loadgen.core import dnswire
from loadgen.core.dnswire import AAAA, A, Query
from loadgen.core.lookup import (
    Close,
    Connected,
    Dialogue,
    Did,
    Error,
    Expired,
    Mode,
    OpenRound,
    Problem,
    Reply,
    Send,
    Steps,
    Wait,
    together,
)
from loadgen.core.resolvconf import ResolvConf
from loadgen.core.units import NS_PER_S

EDNS_BYTES = 1232
"""maxDNSPacketSize: every query says it, unless GODEBUG=netedns0=0."""
MAX_NAME = 254


class GoState(msgspec.Struct):
    """What a process keeps: where `rotate` is."""

    offset: int = 0


class _Said(msgspec.Struct, frozen=True):
    """What came of one query: a good answer, or why there is none."""

    error: Error
    reply: bytes = b""


class Lookup(Dialogue):
    """One LookupIPAddr(name). With `single-request` AAAA is asked for when A has been answered, or given up."""

    def __init__(self, name: str, conf: ResolvConf, state: GoState, rng: random.Random) -> None:
        super().__init__(rng)
        self._name, self._conf, self._state = name, conf, state

    def _run(self) -> Steps[Error]:
        """goLookupIPCNAMEOrder."""
        last: Error | None = None
        for name in self._names():
            if self._conf.single_request:
                said = [(yield from self._try_one_name(name, A)), (yield from self._try_one_name(name, AAAA))]
            else:
                said = yield from together([self._try_one_name(name, qtype) for qtype in (A, AAAA)])
            for each in said:
                if each.error and (last is None or name == self._name + "."):
                    last = each.error
            good = [each.reply for each in said if not each.error]
            if any(dnswire.addresses(reply, qtype) for reply in good for qtype in (A, AAAA)):
                self._replies = good
                return Error.NONE
        return last or Error.NXDOMAIN

    def _names(self) -> list[str]:
        """nameList, and isDomainName before it."""
        if isinstance(dnswire.name(self._name), dnswire.Malformed):
            return []
        if self._name.endswith("."):
            return [self._name]
        rooted = self._name + "."
        listed = [rooted + domain.removesuffix(".") + "." for domain in self._conf.search if domain != "."]
        listed = [name for name in listed if len(name) <= MAX_NAME]
        return [rooted, *listed] if self._name.count(".") >= self._conf.ndots else [*listed, rooted]

    def _try_one_name(self, name: str, qtype: int) -> Steps[_Said]:
        """tryOneName: each server in turn, `attempts` times."""
        qname, last = dnswire.name(name), _Said(Error.NXDOMAIN)
        if isinstance(qname, dnswire.Malformed):
            return _Said(Error.NO_RECOVERY)
        count, offset = len(self._conf.servers), self._offset()
        for _ in range(self._conf.attempts):
            for server in ((offset + i) % count for i in range(count)):
                last = yield from self._exchange(name, qname, qtype, server)
                if not last.error:
                    last = _Said(_verdict(last.reply, qtype), last.reply)
                if last.error in (Error.NONE, Error.NXDOMAIN):
                    return last
        return last

    def _offset(self) -> int:
        if not self._conf.rotate:
            return 0
        self._state.offset += 1
        return self._state.offset - 1

    def _exchange(self, name: str, qname: bytes, qtype: int, server: int) -> Steps[_Said]:
        """exchange: UDP, and TCP with a timeout of its own when the answer is truncated; the same id in both."""
        query = dnswire.query(
            self._rng.getrandbits(16),
            qname,
            qtype,
            edns=True,
            edns_bytes=EDNS_BYTES,
            authentic=self._conf.trust_ad,
        )
        reply = b""
        for stream in (True,) if self._conf.use_vc else (False, True):
            this = self._begin(OpenRound(name, server, Mode.SEPARATE, stream=stream))
            reply, how = yield from self._round_trip(this, query)
            truncated = bool(reply) and not stream and bool(reply[2] << 8 & dnswire.TC)
            self._end(this, "truncated" if truncated else how)
            if not truncated:
                break
        return _Said(Error.NONE if reply else Error.AGAIN, reply)

    def _round_trip(self, this: OpenRound, query: Query) -> Steps[tuple[bytes, str]]:
        """The reply or b"", and how the round ended. Replies that do not fit the query are passed over."""
        deadline = self._now + self._conf.timeout * NS_PER_S
        sock = yield from self._socket(this.server, stream=this.stream)
        if isinstance(sock, Problem):
            return b"", "failed"
        connected = not this.stream or isinstance((yield Wait(deadline)), Connected)
        message = dnswire.frame(query.wire) if this.stream else query.wire
        reply, how = b"", "failed"
        if connected and isinstance((yield Send(sock, (message,))), Did):
            this.sent.append(query.qtype)
            reply, how = yield from self._hear(this, query, deadline)
        yield Close(sock)
        return reply, how

    def _hear(self, this: OpenRound, query: Query, deadline: int) -> Steps[tuple[bytes, str]]:
        buffer = bytearray()
        while True:
            event = yield Wait(deadline)
            if isinstance(event, Expired):
                return b"", "timeout"
            if not isinstance(event, Reply) or (this.stream and not event.data):
                return b"", "failed"
            buffer += event.data if this.stream else b""
            messages: Sequence[bytes] = dnswire.unframe(buffer) if this.stream else (event.data,)
            for message in messages:
                if _fits(query, message):
                    this.answered.append(query.qtype)
                    return message, "answered"
                if this.stream:
                    return b"", "failed"


def _fits(query: Query, message: bytes) -> bool:
    """checkResponse: a response, with the id and the question of the query."""
    head = dnswire.header(message)
    return bool(head) and bool(head.flags & dnswire.QR) and dnswire.answers(query, message)


def _verdict(reply: bytes, qtype: int) -> Error:
    """checkHeader and skipToAnswer. No record of the type is "no such host" to Go, whatever the name has else."""
    head, records = dnswire.header(reply), dnswire.records(reply)
    if not head:
        return Error.NO_RECOVERY
    if head.rcode == dnswire.NXDOMAIN:
        return Error.NXDOMAIN
    if head.lame:
        return Error.NO_RECOVERY
    if head.rcode:
        return Error.AGAIN if head.rcode == dnswire.SERVFAIL else Error.NO_RECOVERY
    if isinstance(records, dnswire.Malformed):
        return Error.NO_RECOVERY
    return Error.NONE if any(r.section == 0 and r.rtype == qtype for r in records) else Error.NXDOMAIN
