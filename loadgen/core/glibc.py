"""glibc's stub resolver without its sockets: getaddrinfo(AF_UNSPEC) of glibc 2.31 to 2.42, step by step.

Source of every rule: glibc's resolv/res_query.c (search list, errors), resolv/res_send.c (tries, timeouts, fallbacks)
and resolv/nss_dns/dns-host.c, tags glibc-2.31 to glibc-2.42; the functions below name the one they follow. A `Lookup`
is a dialogue in the words of `loadgen.core.lookup`. The caller owns clock, sockets and randomness.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from enum import Enum

import msgspec

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
    Failed,
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


class ResolverState(msgspec.Struct):
    """What a thread's res_state keeps from one lookup to the next.

    Use one for all lookups to be a long-lived process, a new one for each to be a new process each time.
    """

    fallback: Mode = Mode.PARALLEL
    """RES_F_SNGLKUP and RES_F_SNGLKUPREOP: set when one of two replies was lost, for ever."""
    rotation: int | None = None
    """Where `rotate` is; a process starts somewhere at random."""


class _End(Enum):
    ANSWERED = 0
    HALF = 1  # one good answer, and then silence
    NEXT = 2  # nothing to use: go on to the next server or try
    TRUNCATED = 3


_REJECTIONS = (dnswire.SERVFAIL, dnswire.NOTIMP, dnswire.REFUSED)
_ERRORS = {
    dnswire.NOERROR: Error.NODATA,
    dnswire.NXDOMAIN: Error.NXDOMAIN,
    dnswire.SERVFAIL: Error.AGAIN,
}


class Release(msgspec.Struct, frozen=True):
    """Where releases differ on the wire. What they know of resolv.conf is in `resolvconf.GLIBC_SINCE`."""

    number: tuple[int, ...] = (2, 36)

    @property
    def fixed(self) -> bool:
        """Bug 31890: an error that is a bare header counts as a reply. Bug 30081: an error in single-request mode
        does not wait for the second reply, which was never asked for. Both fixed in 2.41 and on the stable branches,
        which distributions follow, of 2.34 and later; not on those of 2.31 to 2.33."""
        return self.number >= (2, 34)


class Lookup(Dialogue):
    """One getaddrinfo(name, AF_UNSPEC). `state` is read at every try and written when a fallback is learned."""

    def __init__(
        self,
        name: str,
        conf: ResolvConf,
        state: ResolverState,
        rng: random.Random,
        release: Release = Release(),  # noqa: B008 - it is frozen
    ) -> None:
        super().__init__(rng)
        self._name, self._conf, self._state, self._release = name, conf, state, release
        self._sockets: dict[int, int] = {}
        self._early: dict[int, deque[Event]] = {}
        self._heard = False  # gotsomewhere: a reply or a timeout, anything but an ICMP error
        self._refused = False  # errno is ECONNREFUSED
        self._first_rcode = dnswire.NOERROR  # of the reply in the first answer buffer

    # --- names: __res_context_search, __res_context_query -----------------------------------------------------

    def _run(self) -> Steps[Error]:
        name, conf = self._name, self._conf
        dots, as_is = name.count("."), None
        if dots >= conf.ndots or name.endswith("."):
            as_is = yield from self._ask(name)
            if not as_is or name.endswith("."):
                return as_is
        error, passed, root = Error.NXDOMAIN, set(), False
        for domain in conf.search:
            root |= domain == "."
            error = yield from self._ask(f"{name}.{domain.removeprefix('.')}")
            if not error or self._refused:
                return error
            servfail = error is Error.AGAIN and self._first_rcode == dnswire.SERVFAIL
            if not servfail and error not in (Error.NODATA, Error.NXDOMAIN):
                break
            passed.add(error)
        if as_is is None and not root and (dots or not conf.search or not conf.no_tld_query):
            error = yield from self._ask(name)
            if not error:
                return error
        return as_is or next((e for e in (Error.NODATA, Error.AGAIN) if e in passed), error)

    def _ask(self, name: str) -> Steps[Error]:
        """One name as it stands, to all servers, all tries."""
        self._refused, self._first_rcode = False, dnswire.NOERROR
        qname = dnswire.name(name)
        if isinstance(qname, dnswire.Malformed):
            return Error.NO_RECOVERY
        queries = self._queries(qname)
        replies = yield from self._send(name, queries)
        heads = [h for r in replies if (h := dnswire.header(r))]
        if not heads:
            return Error.AGAIN
        if any(h.rcode == dnswire.NOERROR and h.ancount for h in heads):
            self._replies = replies
            return Error.NONE
        return _ERRORS.get(heads[0].rcode or heads[-1].rcode, Error.NO_RECOVERY)

    def _queries(self, qname: bytes) -> tuple[Query, ...]:
        types = (dnswire.A,) if self._conf.no_aaaa else (dnswire.A, dnswire.AAAA)
        return tuple(
            dnswire.query(self._rng.getrandbits(16), qname, t, edns=self._conf.edns0, authentic=self._conf.trust_ad)
            for t in types
        )

    # --- servers and tries: __res_context_send ----------------------------------------------------------------

    def _send(self, name: str, queries: tuple[Query, ...]) -> Steps[Sequence[bytes]]:
        """Every server of every try until one gives something; the one or two replies, or none."""
        stream, self._heard, problem = self._conf.use_vc, False, None
        count, offset = len(self._conf.servers), self._offset()
        for _ in range(self._conf.attempts):
            for server in ((offset + i) % count for i in range(count)):
                replies: Sequence[bytes] = ()
                if not stream:
                    end, replies = yield from self._datagrams(name, server, queries)
                    stream = end is _End.TRUNCATED
                if stream:
                    replies, problem = yield from self._stream(name, server, queries)
                if replies:
                    yield from self._close_all()
                    return replies
            if stream:  # "at most one attempt per server"
                break
        yield from self._close_all()
        self._refused = problem is Problem.REFUSED if stream else not self._heard
        return ()

    def _offset(self) -> int:
        """nameserver_offset: `rotate` begins one server further at every name."""
        if not self._conf.rotate:
            return 0
        now = self._state.rotation if self._state.rotation is not None else self._rng.getrandbits(16)
        self._state.rotation = now + 1
        return now

    def _patience_ns(self, server: int) -> int:
        """The exponential back-off goes by the server's index, not by the try; at least a second."""
        seconds = self._conf.timeout << server
        return max(1, seconds // len(self._conf.servers) if server else seconds) * NS_PER_S

    # --- UDP: send_dg -----------------------------------------------------------------------------------------

    def _datagrams(self, name: str, server: int, queries: tuple[Query, ...]) -> Steps[tuple[_End, Sequence[bytes]]]:
        """One try with one server: the round, and the two fallbacks that do not count as tries."""
        conf = self._conf
        asked_for = Mode.REOPEN if conf.single_request_reopen else Mode(int(conf.single_request))
        mode = max(asked_for, self._state.fallback)
        while True:
            if server not in self._sockets and isinstance((yield from self._open(server, stream=False)), Problem):
                return _End.NEXT, ()
            end, good = yield from self._datagram_round(name, server, queries, mode)
            if end is not _End.HALF:
                return end, good
            if mode is Mode.REOPEN:  # the third silence: the one answer has to do
                return _End.ANSWERED, good
            mode = Mode(mode + 1)
            self._state.fallback = max(self._state.fallback, mode)
            self._fell_back = mode
            if mode is Mode.REOPEN:
                yield from self._close_all()

    def _datagram_round(
        self, name: str, server: int, queries: tuple[Query, ...], mode: Mode
    ) -> Steps[tuple[_End, Sequence[bytes]]]:
        deadline = self._now + self._patience_ns(server)
        this = self._begin(OpenRound(name, server, mode, stream=False))
        if not (yield from self._transmit(this, queries[:1] if mode else queries)):
            return (yield from self._give_up(this, "failed"))
        while True:
            event = yield from self._wait(self._sockets[server], deadline)
            if isinstance(event, Expired):
                self._heard = True
                self._end(this, "timeout")
                return (_End.HALF if this.good else _End.NEXT), this.good
            if not isinstance(event, Reply) or not event.data:
                return (yield from self._give_up(this, "failed"))
            self._heard = True
            end = self._judge(this, queries, event.data)
            if end is _End.TRUNCATED:
                yield from self._give_up(this, "truncated")
                return _End.TRUNCATED, ()
            if end is _End.NEXT:
                return (yield from self._give_up(this, "rejected"))
            if end is _End.ANSWERED:
                self._end(this, "answered" if this.good else "rejected")
                return (_End.ANSWERED if this.good else _End.NEXT), this.good
            if end is _End.HALF and mode:
                if mode is Mode.REOPEN:
                    yield from self._close_all()
                    if isinstance((yield from self._open(server, stream=False)), Problem):
                        return (yield from self._give_up(this, "failed"))
                if not (yield from self._transmit(this, queries[1:])):
                    return (yield from self._give_up(this, "failed"))

    def _judge(self, this: OpenRound, queries: tuple[Query, ...], data: bytes) -> _End | None:
        """What a datagram means for the round. None: it is none of ours, or the wait goes on."""
        head = dnswire.header(data)
        if isinstance(head, dnswire.Malformed):
            return _End.NEXT
        waiting = [q for q in queries if q.qtype not in this.answered]
        short = self._release.fixed
        match = next((q for q in waiting if dnswire.answers(q, data, short_error=short)), None)
        if match is None:
            return None
        if not this.answered:
            self._first_rcode = head.rcode
        if head.rcode in _REJECTIONS or head.lame:
            waits = len(queries) > 1 and not (this.mode and self._release.fixed)
            if self._conf.strict_error or not (this.answered or waits):
                this.answered.append(match.qtype)
                return _End.NEXT
            this.answered.append(match.qtype)
            return _End.ANSWERED if len(this.answered) == len(queries) else None
        if head.truncated:
            return _End.TRUNCATED
        this.answered.append(match.qtype)
        this.good.append(data)
        return _End.ANSWERED if len(this.answered) == len(queries) else _End.HALF

    # --- TCP: send_vc -----------------------------------------------------------------------------------------

    def _stream(
        self, name: str, server: int, queries: tuple[Query, ...]
    ) -> Steps[tuple[Sequence[bytes], Problem | None]]:
        """Both queries in one write on one connection; a reset between replies is tried once more."""
        for last in (False, True):
            this = self._begin(OpenRound(name, server, Mode.PARALLEL, stream=True))
            problem, again = yield from self._stream_round(this, queries)
            if problem is None:
                self._end(this, "answered")
                return this.good, None
            yield from self._give_up(this, "failed")
            if last or not again:
                return (), problem
        raise AssertionError("unreachable")

    def _stream_round(self, this: OpenRound, queries: tuple[Query, ...]) -> Steps[tuple[Problem | None, bool]]:
        """Why it failed, if it did, and whether to connect once more. Replies are told apart by their ids alone."""
        sock = yield from self._open(this.server, stream=True)
        if isinstance(sock, Problem):
            return sock, False
        event = yield from self._wait(sock, None)
        if not isinstance(event, Connected):
            return event.problem if isinstance(event, Failed) else Problem.OTHER, False
        if not (yield from self._transmit(this, queries)):
            return Problem.OTHER, False
        buffer = bytearray()
        while True:
            event = yield from self._wait(sock, None)
            if isinstance(event, Failed):
                return event.problem, event.problem is Problem.RESET and len(buffer) < 2
            if not isinstance(event, Reply) or not event.data:
                return Problem.OTHER, False
            buffer += event.data
            for message in dnswire.unframe(buffer):
                head = dnswire.header(message)
                if isinstance(head, dnswire.Malformed):
                    return Problem.OTHER, False
                waiting = (q for q in queries if q.qtype not in this.answered)
                match = next((q for q in waiting if q.id == head.id), None)
                if match is not None:
                    self._first_rcode = self._first_rcode if this.answered else head.rcode
                    this.answered.append(match.qtype)
                    this.good.append(message)
            if len(this.answered) == len(queries):
                return None, False

    # --- sockets ----------------------------------------------------------------------------------------------

    def _open(self, server: int, *, stream: bool) -> Steps[int | Problem]:
        """The number of a new connected socket to the server, or why there is none."""
        sock = yield from self._socket(server, stream=stream)
        if isinstance(sock, Problem):
            yield from self._close_all()
        else:
            self._sockets[server] = sock
        return sock

    def _transmit(self, this: OpenRound, queries: tuple[Query, ...]) -> Steps[bool]:
        messages = tuple(q.wire for q in queries)
        if this.stream:
            messages = (b"".join(map(dnswire.frame, messages)),)
        event = yield Send(self._sockets[this.server], messages)
        if not isinstance(event, Did):
            return False
        this.sent += (q.qtype for q in queries)
        return True

    def _wait(self, sock: int, deadline_ns: int | None) -> Steps[Event]:
        """The next event of this socket. What other servers' sockets say meanwhile is kept for their turn."""
        early = self._early.get(sock)
        if early:
            return early.popleft()
        while True:
            event = yield Wait(deadline_ns)
            if isinstance(event, Expired | Did) or event.sock == sock:
                return event
            self._early.setdefault(event.sock, deque()).append(event)

    def _close_all(self) -> Steps[None]:
        """__res_iclose: whenever glibc closes one socket, it closes all."""
        for sock in self._sockets.values():
            yield Close(sock)
        self._sockets.clear()
        self._early.clear()

    def _give_up(self, this: OpenRound, how: str) -> Steps[tuple[_End, Sequence[bytes]]]:
        """close_and_return_error"""
        self._end(this, how)
        yield from self._close_all()
        return _End.NEXT, ()
