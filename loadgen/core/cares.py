"""c-ares without its sockets: ares_getaddrinfo(AF_UNSPEC), and what Node.js makes of c-ares, both of c-ares 1.34.6.

Source of every rule: c-ares v1.34.6 src/lib/ares_process.c (sending, timeouts, errors), ares_metrics.c (how long to
wait), ares_close_sockets.c (when a socket goes), ares_cookie.c, ares_getaddrinfo.c and ares_search.c (names). A and
AAAA leave by one connected socket; a query that has to be asked again gets a new one.

Three things are left out: lookups of one channel at the same time share a socket in c-ares, and have one each here;
now and then c-ares asks a failed server the same question as well, to see whether it is back; and a server's own
cookie is not sent back to it.
"""

from __future__ import annotations

import random
from collections import deque

import msgspec

from loadgen.core import dnswire
from loadgen.core.aresmetrics import ServerHealth
from loadgen.core.dnswire import AAAA, A, Query
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
    Open,
    OpenRound,
    Problem,
    Reply,
    Send,
    Steps,
    Wait,
)
from loadgen.core.resolvconf import ResolvConf
from loadgen.core.units import NS_PER_S

EDNS_BYTES = 1232
READ_FIRST_NS = 200_000
"""What has come by then is read before anything is sent again: c-ares empties a socket before it goes on."""
NO_COOKIES_NS = 120 * NS_PER_S
COOKIE_OPTION = bytes((0, 10, 0, 8))
_REJECTIONS = {
    dnswire.SERVFAIL: Error.AGAIN,
    dnswire.NOTIMP: Error.NO_RECOVERY,
    dnswire.REFUSED: Error.NO_RECOVERY,
}
_FAILS_TO_SEARCH = (Error.NXDOMAIN, Error.NODATA)


class Settings(msgspec.Struct, frozen=True):
    """What an application told c-ares."""

    tries: int = 0
    """0: what resolv.conf says."""
    edns: bool = True
    own_flags: bool = False
    """It set its flags itself. If not, c-ares sets them, after it has read `use-vc`, which so does nothing."""
    check: bool = True
    """Ask again after SERVFAIL, NOTIMP and REFUSED; ARES_FLAG_NOCHECKRESP hands them on."""
    search: bool = True
    """ares_getaddrinfo; ares_query asks for the name as it stands, and A and AAAA know nothing of each other."""
    tick_ns: int = 0
    """Not 0: timeouts are noticed only so long, or a multiple of it, after something last came in."""


NODE = Settings(tries=4, edns=False, own_flags=True, check=False, search=False, tick_ns=NS_PER_S)
"""dns.promises.Resolver of Node.js 20, resolve4 and resolve6 at once (src/cares_wrap.cc)."""


class Channel(msgspec.Struct):
    """What a channel remembers of its servers, by their number."""

    servers: dict[int, ServerHealth] = {}
    no_cookies_until_ns: dict[int, int] = {}
    """Servers that answered without a cookie (RFC 7873) are not sent one for some time."""

    def health(self, server: int) -> ServerHealth:
        return self.servers.setdefault(server, ServerHealth())


class _Asked:
    """One query, from its first sending to its end."""

    def __init__(self, query: Query, name: str, *, edns: bool) -> None:
        self.query, self.name, self.edns = query, name, edns
        self.tries, self.by_tcp, self.final = 0, False, False
        self.sock, self.server = -1, 0
        self.sent_ns, self.deadline_ns = 0, 0
        self.this: OpenRound | None = None
        self.error: Error | None = None
        self.reply = b""


class Lookup(Dialogue):
    """One lookup of both types. `channel` is read for the timeouts and written with what its servers did."""

    def __init__(
        self,
        name: str,
        conf: ResolvConf,
        channel: Channel,
        rng: random.Random,
        settings: Settings = Settings(),  # noqa: B008 - it is frozen
    ) -> None:
        super().__init__(rng)
        self._name, self._conf, self._channel, self._settings = name, conf, channel, settings
        self._tries = len(conf.servers) * (settings.tries or conf.attempts)
        self._live: list[_Asked] = []
        self._to_send: deque[_Asked] = deque()
        self._open: dict[int, Open] = {}
        self._buffers: dict[int, bytearray] = {}
        self._connected: set[int] = set()
        self._active_ns = 0

    # --- names: ares_search_name_list, host_callback ----------------------------------------------------------

    def _run(self) -> Steps[Error]:
        error = yield from self._search()
        yield from self._close_idle()
        return error

    def _search(self) -> Steps[Error]:
        error, nodata = Error.NXDOMAIN, False
        for name in self._names():
            qname = dnswire.name(name)
            if isinstance(qname, dnswire.Malformed):
                return Error.NO_RECOVERY
            asked = [_Asked(self._query(qname, qtype), name, edns=self._settings.edns) for qtype in (A, AAAA)]
            yield from self._ask(asked)
            replies = [a.reply for a in asked if a.reply]
            if any(dnswire.addresses(reply, qtype) for reply in replies for qtype in (A, AAAA)):
                self._replies = replies
                return Error.NONE
            nodata |= any(a.error is Error.NODATA for a in asked)
            error = asked[-1].error or Error.NODATA
            single = "." not in name.removesuffix(".") and error in _REJECTIONS.values()
            if error not in _FAILS_TO_SEARCH and not single:
                return error
        return Error.NODATA if nodata else error

    def _names(self) -> list[str]:
        if self._name.endswith(".") or not self._settings.search:
            return [self._name]
        listed = [f"{self._name}.{domain.removesuffix('.')}" for domain in self._conf.search]
        return [self._name, *listed] if self._name.count(".") >= self._conf.ndots else [*listed, self._name]

    def _query(self, qname: bytes, qtype: int, ident: int | None = None, *, cookie: bool = True) -> Query:
        options = COOKIE_OPTION + self._rng.randbytes(8) if cookie else b""
        ident, edns = self._rng.getrandbits(16) if ident is None else ident, self._settings.edns
        return dnswire.query(ident, qname, qtype, edns=edns, edns_bytes=EDNS_BYTES, edns_options=options)

    # --- the channel's loop: ares_send_query, process_timeouts, process_answer --------------------------------

    def _ask(self, asked: list[_Asked]) -> Steps[None]:
        """Until each has an answer or an error; sockets that nobody waits for are closed on the way."""
        self._active_ns = self._now
        self._to_send.extend(asked)
        for each in asked:
            each.by_tcp = self._conf.use_vc and self._settings.own_flags
        while True:
            while self._to_send:
                yield from self._send(self._to_send.popleft())
            if not self._live:
                return  # the next name may go by the same socket
            yield from self._close_idle()
            yield from self._take_event((yield Wait(self._noticed_ns(min(a.deadline_ns for a in self._live)))))
            while self._to_send and self._live:
                event = yield Wait(self._now + READ_FIRST_NS)
                if isinstance(event, Expired):
                    break
                yield from self._take_event(event)

    def _take_event(self, event: Event) -> Steps[None]:
        if isinstance(event, Expired):
            for each in [a for a in self._live if a.deadline_ns <= event.t_ns]:
                self._again(each, "timeout", Error.AGAIN)
            return
        self._active_ns = event.t_ns
        if isinstance(event, Connected):
            self._connected.add(event.sock)
            for each in [a for a in self._live if a.sock == event.sock]:
                yield from self._write(each)
        elif isinstance(event, Reply) and (event.data or not self._open[event.sock].stream):
            yield from self._read(event.sock, event.data)
        elif isinstance(event, Reply | Failed):
            yield from self._break(event.sock)

    def _noticed_ns(self, deadline_ns: int) -> int:
        """When the application looks at its timeouts; what has come by then is read before."""
        tick_ns = self._settings.tick_ns
        if not tick_ns:
            return deadline_ns
        ticks = (deadline_ns - self._active_ns) // tick_ns + 1
        return self._active_ns + max(ticks * tick_ns, READ_FIRST_NS)

    def _send(self, asked: _Asked) -> Steps[None]:
        """ares_send_query: by the socket of the best server, or a new one when that server has failed."""
        count = len(self._conf.servers)
        best = min(self._channel.health(i).failures for i in range(count))
        good = [i for i in range(count) if self._channel.health(i).failures == best]
        asked.server = self._rng.choice(good) if self._conf.rotate else good[0]
        sock = self._fitting(asked)
        if sock is None:
            opened = yield from self._socket(asked.server, stream=asked.by_tcp)
            if isinstance(opened, Problem):
                self._refuse(asked)
                return
            sock = opened
            self._open[sock] = Open(sock, asked.server, asked.by_tcp)
        asked.sock = sock
        asked.sent_ns, asked.deadline_ns = self._now, self._now + self._patience_ns(asked)
        asked.this = self._begin(OpenRound(asked.name, asked.server, Mode.PARALLEL, stream=asked.by_tcp))
        self._live.append(asked)
        if not asked.by_tcp or sock in self._connected:  # a new connection says when it can be written to
            yield from self._write(asked)

    def _fitting(self, asked: _Asked) -> int | None:
        if self._channel.health(asked.server).failures and not asked.by_tcp:
            return None  # an old socket may be what is wrong
        wanted = (asked.server, asked.by_tcp)
        return next((sock for sock, o in self._open.items() if (o.server, o.stream) == wanted), None)

    def _write(self, asked: _Asked) -> Steps[None]:
        """With a cookie, by UDP, to a server that may know cookies; ares_cookie_apply."""
        q, until_ns = asked.query, self._channel.no_cookies_until_ns.get(asked.server, 0)
        if asked.edns:
            cookie = not asked.by_tcp and self._now >= until_ns
            asked.query = self._query(q.question[:-4], q.qtype, q.id, cookie=cookie)
        wire = dnswire.frame(asked.query.wire) if asked.by_tcp else asked.query.wire
        if not isinstance((yield Send(asked.sock, (wire,))), Did):
            yield from self._break(asked.sock)
        elif asked.this is not None:
            asked.this.sent.append(asked.query.qtype)

    def _patience_ns(self, asked: _Asked) -> int:
        """ares_calc_query_timeout: doubled with every round of all servers, then less by up to a half."""
        least_ms = self._channel.health(asked.server).timeout_ms(self._now, self._conf.timeout * 1000)
        rounds = asked.tries // len(self._conf.servers)
        ms = least_ms << rounds
        if rounds:
            ms -= int(ms * self._rng.random() * 0.5)
        return max(ms, least_ms) * 1_000_000

    def _refuse(self, asked: _Asked) -> None:
        self._channel.health(asked.server).failures += 1
        self._retry(asked, Error.AGAIN)

    def _again(self, asked: _Asked, how: str, error: Error) -> None:
        """It failed at this server."""
        self._channel.health(asked.server).failures += 1
        self._leave(asked, how)
        self._retry(asked, error)

    def _retry(self, asked: _Asked, error: Error) -> None:
        """ares_requeue_query"""
        asked.tries += 1
        if asked.tries < self._tries and not asked.final:
            self._to_send.append(asked)
        else:
            asked.error = error

    def _leave(self, asked: _Asked, how: str) -> None:
        self._live.remove(asked)
        if asked.this is not None:
            self._end(asked.this, how)
        asked.this = None

    def _read(self, sock: int, data: bytes) -> Steps[None]:
        """process_answer, for every message that has come whole."""
        messages = [data]
        if self._open[sock].stream:
            buffer = self._buffers.setdefault(sock, bytearray())
            buffer += data
            messages = dnswire.unframe(buffer)
        for message in messages:
            if message and isinstance(dnswire.records(message), dnswire.Malformed):
                yield from self._break(sock, Error.NO_RECOVERY)  # "malformations are never accepted"
                return
            match = next((a for a in self._live if dnswire.answers(a.query, message)), None)
            if match is not None and match.this is not None:
                match.this.answered.append(match.query.qtype)
                self._take(match, message)

    def _take(self, asked: _Asked, message: bytes) -> None:
        head = dnswire.header(message)
        assert head
        if asked.edns and not asked.by_tcp and not head.arcount:
            self._channel.no_cookies_until_ns[asked.server] = self._now + NO_COOKIES_NS
        if head.rcode == dnswire.FORMERR and asked.edns and not head.arcount:
            self._leave(asked, "rejected")
            asked.edns, asked.query = (
                False,
                dnswire.query(asked.query.id, asked.query.question[:-4], asked.query.qtype),
            )
            self._to_send.append(asked)
        elif head.truncated and not asked.by_tcp:
            self._leave(asked, "truncated")
            asked.by_tcp = True
            self._to_send.append(asked)
        elif self._settings.check and head.rcode in _REJECTIONS:
            self._again(asked, "rejected", _REJECTIONS[head.rcode])
        else:
            self._answered(asked, message, head)

    def _answered(self, asked: _Asked, message: bytes, head: dnswire.Header) -> None:
        """It is over: ares_metrics_record, server_set_good, and the other query need not be asked again."""
        health = self._channel.health(asked.server)
        health.failures = 0
        if head.rcode in (dnswire.NOERROR, dnswire.NXDOMAIN):
            health.record(self._now, self._now - asked.sent_ns)
        self._leave(asked, "rejected" if head.rcode in _REJECTIONS else "answered")
        asked.reply = message
        if head.rcode:
            asked.error = Error.NXDOMAIN if head.rcode == dnswire.NXDOMAIN else Error.NO_RECOVERY
            asked.error = _REJECTIONS.get(head.rcode, asked.error)
        elif not dnswire.addresses(message, asked.query.qtype):
            asked.error = Error.NODATA
        elif self._settings.search and asked.query.qtype == A:
            for other in (*self._live, *self._to_send):
                other.final = True

    # --- sockets: ares_close_connection, ares_check_cleanup_conns ---------------------------------------------

    def _break(self, sock: int, error: Error = Error.AGAIN) -> Steps[None]:
        """handle_conn_error: all that waits for this socket is asked again."""
        opened = self._open.pop(sock, None)
        if opened is None or opened.server is None:
            return
        self._channel.health(opened.server).failures += 1
        for asked in [a for a in self._live if a.sock == sock]:
            self._leave(asked, "failed")
            self._retry(asked, error)
        yield Close(sock)

    def _close_idle(self) -> Steps[None]:
        for sock in [sock for sock in self._open if all(a.sock != sock for a in self._live)]:
            del self._open[sock]
            yield Close(sock)
