"""A resolver's packets, followed query by query: what was lost, and by its retries, whose resolver it is.

Signatures (docs/fidelity.md; measured with the real resolvers, sources there): glibc sends A and AAAA from one port
and after 5 s resends both from the same port under the same IDs; musl resends what is missing after timeout/attempts,
2.5 s; c-ares shares a port too and retries after 2 s from a new one; Go asks from a port a query, again after 5 s.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import NamedTuple

import msgspec

from loadgen.core import dnswire
from loadgen.core.dnswire import Malformed
from loadgen.core.units import NS_PER_S

PENDING_MAX = 65_536
"""Queries followed at once; the oldest is given up when there are more."""
GIVE_UP_S = 30.0
"""No resolver here waits longer for an answer than twice this."""
SOONEST_RETRY_S = 0.5
SIGNATURES_MAX = 256
_PAIR_S = 0.1
_TYPES = {dnswire.A: "A", dnswire.AAAA: "AAAA"}


class Retry(NamedTuple):
    after_s: float
    same_port: bool
    same_id: bool
    was_answered: bool
    """It had its answer, and only its partner (the other of A and AAAA) had not."""


class DnsStory(msgspec.Struct, frozen=True):
    """What a capture tells. `retries` by signature; `libc` votes by resolver."""

    file: str
    packets: int
    queries: int
    answered: int
    pairs: int
    """A and AAAA of one name from one port within 0.1 s."""
    one_lost: int
    """Pairs of which exactly one query was answered before its retry or the end of the capture."""
    second_lost: int
    """Of these, pairs that lost the query sent second: a race loses it, chance loses either."""
    both_lost: int
    other_lost: int
    retries: tuple[tuple[str, int], ...] = ()
    libc: tuple[tuple[str, int], ...] = ()
    malformed: int = 0


class _Query:
    __slots__ = ("answered", "at", "ident", "partner", "port", "retried")

    def __init__(self, at: int, ident: int, port: int) -> None:
        self.at, self.ident, self.port = at, ident, port
        self.answered = self.retried = False
        self.partner: _Query | None = None


def libc_of(retry: Retry) -> str | None:
    """The resolver that retries so; None when more than one does, or none that is known."""
    after = retry.after_s
    if retry.was_answered:
        return "glibc"  # no other asks again for what it has
    if retry.same_port and retry.same_id:
        return "glibc" if _near(after, 5.0) else "musl" if _near(after, 2.5) else None
    if not retry.same_port:
        return "c-ares" if _near(after, 2.0) else "Go" if _near(after, 5.0) else None
    return None


def _near(seconds: float, wanted: float) -> bool:
    return abs(seconds - wanted) <= 0.05 * wanted


class DnsWatch:
    """Feed it every DNS datagram of a capture in order, then ask for the story. Memory is bounded."""

    def __init__(self) -> None:
        self._open: OrderedDict[tuple[bytes, bytes, int, int, bytes], _Query] = OrderedDict()
        self._last: OrderedDict[tuple[bytes, bytes, int, bytes], _Query] = OrderedDict()
        self._ports: OrderedDict[tuple[bytes, bytes, int, int, bytes], _Query] = OrderedDict()
        self._counts: Counter[str] = Counter()
        self._retries: Counter[str] = Counter()
        self._libc: Counter[str] = Counter()

    def see(self, at_ns: int, source: tuple[bytes, int], destination: tuple[bytes, int], payload: bytes) -> None:
        """One UDP payload to or from port 53. Addresses are packed, 4 or 16 bytes."""
        self._counts["packets"] += 1
        head, asked = dnswire.header(payload), dnswire.question(payload)
        if isinstance(head, Malformed) or isinstance(asked, Malformed):
            self._counts["malformed"] += 1
        elif destination[1] == 53 and not payload[2] & 0x80:
            self._query(at_ns, source, destination[0], head.id, asked.name.lower(), asked.qtype)
        elif source[1] == 53 and payload[2] & 0x80:
            self._reply(destination, source[0], head.id, asked.name.lower(), asked.qtype)

    def story(self, file: str) -> DnsStory:
        """What was seen; queries still open count as lost."""
        for query in self._open.values():
            self._close(query)
        self._open.clear()
        c = self._counts
        return DnsStory(
            file=file,
            packets=c["packets"],
            queries=c["queries"],
            answered=c["answered"],
            pairs=c["pairs"],
            one_lost=c["one_lost"],
            second_lost=c["second_lost"],
            both_lost=c["both_lost"],
            other_lost=c["other_lost"],
            retries=tuple(self._retries.most_common()),
            libc=tuple(self._libc.most_common()),
            malformed=c["malformed"],
        )

    def _query(self, at: int, client: tuple[bytes, int], server: bytes, ident: int, name: bytes, qtype: int) -> None:
        self._counts["queries"] += 1
        asked, key = (client[0], server, qtype, name), (client[0], server, client[1], qtype, name)
        query = _Query(at, ident, client[1])
        before = self._open.pop(key, None) or self._given_up(asked, at)
        is_retry = before is not None and self._retry(before, query)
        if before is not None:
            self._close(before)
        if not is_retry:
            self._pair(query, key)
        self._open[key] = self._last[asked] = query
        self._last.move_to_end(asked)
        if len(self._open) > PENDING_MAX:
            self._close(self._open.popitem(last=False)[1])
        if len(self._last) > PENDING_MAX:
            self._last.popitem(last=False)

    def _given_up(self, asked: tuple[bytes, bytes, int, bytes], at: int) -> _Query | None:
        """The last query for the same, from another port, if it has waited long enough to be asked again."""
        last = self._last.get(asked)
        waited = last is not None and not last.answered and (at - last.at) / NS_PER_S >= SOONEST_RETRY_S
        return last if waited else None

    def _pair(self, query: _Query, key: tuple[bytes, bytes, int, int, bytes]) -> None:
        client, server, port, qtype, name = key
        if qtype not in _TYPES:
            return
        other = self._ports.pop((client, server, port, dnswire.A + dnswire.AAAA - qtype, name), None)
        if other is not None and other.partner is None and query.at - other.at <= _PAIR_S * NS_PER_S:
            query.partner, other.partner = other, query
            self._counts["pairs"] += 1
            return
        self._ports[key] = query
        if len(self._ports) > PENDING_MAX:
            self._ports.popitem(last=False)

    def _retry(self, before: _Query, now: _Query) -> bool:
        """Whether `now` asks again for what `before` waited for; counted if so."""
        retry = Retry(
            (now.at - before.at) / NS_PER_S,
            same_port=before.port == now.port,
            same_id=before.ident == now.ident,
            was_answered=before.answered,
        )
        partner_lost = before.partner is not None and not before.partner.answered
        if before.answered and not (partner_lost and retry.same_port and retry.same_id):
            return False  # a new lookup
        if not SOONEST_RETRY_S <= retry.after_s <= GIVE_UP_S:
            return False  # a new lookup, or a retry that did not wait
        ports = "same port" if retry.same_port else "new port"
        if len(self._retries) < SIGNATURES_MAX:
            self._retries[f"after {retry.after_s:.1f} s from the {ports}"] += 1
        libc = libc_of(retry)
        if libc:
            self._libc[libc] += 1
        return True

    def _reply(self, client: tuple[bytes, int], server: bytes, ident: int, name: bytes, qtype: int) -> None:
        query = self._open.get((client[0], server, client[1], qtype, name))
        if query is not None and query.ident == ident and not query.answered:
            query.answered = True
            self._counts["answered"] += 1

    def _close(self, query: _Query) -> None:
        """Count what became of it; of a pair, when the first of the two is closed."""
        if query.retried:
            return
        other, query.retried = query.partner, True
        if other is None:
            self._counts["other_lost"] += not query.answered
            return
        other.retried = True
        if query.answered != other.answered:
            self._counts["one_lost"] += 1
            lost, kept = (other, query) if query.answered else (query, other)
            self._counts["second_lost"] += lost.at >= kept.at
        elif not query.answered:
            self._counts["both_lost"] += 1
