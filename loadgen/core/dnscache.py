"""What a caching forwarder remembers, and for how long: the rules of CoreDNS's cache plugin, in virtual time.

Source: CoreDNS plugin/cache. Answers and denials have a table and a longest time each; nothing is kept for less than
MINTTL; a SERVFAIL is remembered like a denial, for five seconds. A reply's TTLs are the time its entry has left. A
full table gives up its oldest entry, where CoreDNS picks one of a shard at random.
"""

from __future__ import annotations

import math

import msgspec

from loadgen.core import dnswire
from loadgen.core.dnswire import Malformed, Question

MIN_TTL_S = 5
SERVFAIL_TTL_S = 5

Key = tuple[bytes, int, int]
"""Name, type, class."""


class Entry(msgspec.Struct, frozen=True):
    """A reply, without id and flags of its own."""

    rcode: int
    counts: bytes
    """The header's four counts, as they are on the wire."""
    records: bytes
    """All that follows the question."""
    ttls: tuple[int, ...]
    """Offsets of the TTLs in `records`."""
    until_s: float


class Cache:
    def __init__(self, success: int, success_ttl_s: int, denial: int, denial_ttl_s: int) -> None:
        self._most = (success, denial)
        self._longest = (success_ttl_s, denial_ttl_s)
        self._tables: tuple[dict[Key, Entry], dict[Key, Entry]] = ({}, {})
        self.evicted = 0

    def __len__(self) -> int:
        return sum(map(len, self._tables))

    def get(self, key: Key, now_s: float) -> Entry | None:
        for table in self._tables:
            entry = table.get(key)
            if entry is not None:
                if entry.until_s > now_s:
                    return entry
                del table[key]
        return None

    def put(self, key: Key, reply: bytes, now_s: float) -> Entry | Malformed:
        """Remember a reply to `key`, if it is one to remember; the entry to answer with in any case."""
        head, found, asked = dnswire.header(reply), dnswire.records(reply), dnswire.question(reply)
        if not head or not asked or isinstance(found, Malformed):
            return Malformed("the reply cannot be read")
        if (asked.name, asked.qtype, asked.qclass) != key:
            return Malformed("the reply is to another question")
        denial = head.rcode != dnswire.NOERROR or not head.ancount
        ttl_s = self._ttl_s(reply, head, found, denial)
        entry = Entry(
            head.rcode,
            reply[4:12],
            reply[asked.end :],
            tuple(r.ttl_at - asked.end for r in found if r.rtype != dnswire.OPT),
            now_s + ttl_s,
        )
        if (head.rcode in (dnswire.NOERROR, dnswire.NXDOMAIN, dnswire.SERVFAIL)) and not head.truncated:
            for table in self._tables:
                table.pop(key, None)
            table = self._tables[denial]
            if len(table) >= self._most[denial]:
                del table[next(iter(table))]
                self.evicted += 1
            table[key] = entry
        return entry

    def _ttl_s(self, reply: bytes, head: dnswire.Header, found: tuple[dnswire.Record, ...], denial: bool) -> int:
        if head.rcode == dnswire.SERVFAIL:
            return SERVFAIL_TTL_S
        ttls = [r.ttl for r in found if r.rtype != dnswire.OPT]
        # A denial lasts as long as the zone's SOA says in its last field (RFC 2308, 5).
        ttls += [
            int.from_bytes(reply[r.rdata_at + r.rdlength - 4 : r.rdata_at + r.rdlength], "big")
            for r in found
            if denial and r.rtype == dnswire.SOA
        ]
        return max(MIN_TTL_S, min([self._longest[denial], *ttls]))


def reply(entry: Entry, query: bytes, asked: Question, now_s: float) -> bytes:
    """The entry as the reply to `query`: its id, its question as it was spelt, and the TTLs that are left."""
    records = bytearray(entry.records)
    left = max(0, math.ceil(entry.until_s - now_s)).to_bytes(4, "big")
    for at in entry.ttls:
        records[at : at + 4] = left
    bare = dnswire.reply(query, asked.end, entry.rcode)
    return bare[:4] + entry.counts + bare[12:] + bytes(records)
