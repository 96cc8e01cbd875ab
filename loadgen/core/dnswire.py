"""DNS messages on the wire (RFC 1035, 6891): as much as a stub resolver, a name server and a cache need.

Nothing here raises on bytes from the network. A reader returns `Malformed`, which says why, or the value.
A name is kept as it travels: length-prefixed labels that end with the empty one, uncompressed, in lower case.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Literal

import msgspec

A, CNAME, SOA, TXT, AAAA, OPT = 1, 5, 6, 16, 28, 41
IN, CH = 1, 3
NOERROR, FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, REFUSED = range(6)
TYPE_NAMES = {A: "A", CNAME: "CNAME", SOA: "SOA", TXT: "TXT", AAAA: "AAAA", OPT: "OPT"}
RCODE_NAMES = {
    "NOERROR": NOERROR,
    "FORMERR": FORMERR,
    "SERVFAIL": SERVFAIL,
    "NXDOMAIN": NXDOMAIN,
    "NOTIMP": NOTIMP,
    "REFUSED": REFUSED,
}

QR, AA, TC, RD, RA, AD = 0x8000, 0x0400, 0x0200, 0x0100, 0x0080, 0x0020
HEADER_BYTES = 12
UDP_BYTES = 512
"""What a client without EDNS can take in one datagram (RFC 1035, 2.3.4)."""
EDNS_BYTES = 1200
"""What glibc advertises with `options edns0` (RESOLV_EDNS_BUFFER_SIZE, since 2.26)."""
MAX_NAME, MAX_LABEL = 255, 63

_HEADER = struct.Struct("!6H")
_RR = struct.Struct("!HHIH")
_POINTER = 0xC0


STATS_NAME = b"\x05stats\x07loadgen\0"
"""Asked for this name (class CH, type TXT) the lab's servers give their ServerStats as JSON."""


class ServerStats(msgspec.Struct, frozen=True):
    """What a server of the lab has seen since it started, by query type (`A`, `AAAA`, other types by number)."""

    queries: dict[str, int] = {}
    answers: dict[str, int] = {}
    """Those it sent a reply to, whatever the reply was."""


class Malformed(msgspec.Struct, frozen=True):
    """These bytes are not what they should be."""

    why: str

    def __bool__(self) -> Literal[False]:
        return False


class Header(msgspec.Struct, frozen=True):
    id: int
    flags: int
    qdcount: int
    ancount: int
    nscount: int
    arcount: int

    @property
    def rcode(self) -> int:
        return self.flags & 0xF

    @property
    def truncated(self) -> bool:
        return bool(self.flags & TC)

    @property
    def lame(self) -> bool:
        """An empty answer of a server that neither owns the name nor recurses: an error to glibc (res_send.c)."""
        return not (self.rcode or self.ancount or self.arcount or self.flags & (AA | RA))


class Question(msgspec.Struct, frozen=True):
    """The only question of a message. `end` is the offset of the first byte after it."""

    name: bytes
    qtype: int
    qclass: int
    end: int


class Record(msgspec.Struct, frozen=True):
    """A resource record. Offsets count from the start of the message, because rdata may hold compressed names."""

    name: bytes
    rtype: int
    rclass: int
    ttl: int
    ttl_at: int
    rdata_at: int
    rdlength: int
    section: int
    """0 answer, 1 authority, 2 additional."""


class Query(msgspec.Struct, frozen=True):
    """A query as it is sent, and the bytes of its question, which every reply repeats."""

    id: int
    qtype: int
    wire: bytes
    question: bytes


# --- names ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def name(text: str) -> bytes | Malformed:
    """`kube-dns.kube-system.svc.` in wire form; the dot at the end may be left out, "." is the root."""
    if text == ".":
        return b"\0"
    labels = text.removesuffix(".").split(".")
    if not text.isascii() or not text.isprintable() or " " in text or "\\" in text:
        return Malformed(f"{text!r} holds what is no host name character")
    if "" in labels:
        return Malformed(f"{text!r} has an empty label")
    if max(map(len, labels)) > MAX_LABEL:
        return Malformed(f"{text!r} has a label of more than {MAX_LABEL} bytes")
    wire = b"".join(bytes((len(label),)) + label.lower().encode() for label in labels) + b"\0"
    return wire if len(wire) <= MAX_NAME else Malformed(f"{text!r} is longer than {MAX_NAME} bytes on the wire")


def text(wire: bytes) -> str:
    """A name for people and logs, with the final dot; bytes that are not printable become \\DDD."""
    labels, at = [], 0
    while at < len(wire) and wire[at]:
        label = wire[at + 1 : at + 1 + wire[at]]
        labels.append("".join(chr(b) if 0x21 <= b < 0x7F and b not in b".\\" else f"\\{b:03d}" for b in label))
        at += 1 + wire[at]
    return ".".join(labels) + "."


def read_name(data: bytes, at: int) -> tuple[bytes, int] | Malformed:
    """The name at `at` in wire form, and the offset behind it. A pointer must point backwards, so this ends."""
    out, end, limit = bytearray(), 0, at
    while True:
        if at >= len(data):
            return Malformed("a name runs over the end")
        length = data[at]
        if length >= _POINTER:
            if at + 1 >= len(data):
                return Malformed("half a compression pointer")
            end = end or at + 2
            at = (length & 0x3F) << 8 | data[at + 1]
            if at >= limit:
                return Malformed("a compression pointer does not point backwards")
            limit = at
            continue
        if length > MAX_LABEL:
            return Malformed("a label of a kind that does not exist")
        out += data[at : at + 1 + length]
        at += 1 + length
        if len(out) > MAX_NAME or at > len(data):
            return Malformed("a name is too long or runs over the end")
        if not length:
            return bytes(out).lower(), end or at


# --- reading --------------------------------------------------------------------------------------------------


def header(data: bytes) -> Header | Malformed:
    if len(data) < HEADER_BYTES:
        return Malformed(f"{len(data)} bytes are less than a header")
    return Header(*_HEADER.unpack_from(data))


def question(data: bytes) -> Question | Malformed:
    """The question of a message that has exactly one."""
    if len(data) < HEADER_BYTES or data[4:6] != b"\0\1":
        return Malformed("not exactly one question")
    found = read_name(data, HEADER_BYTES)
    if isinstance(found, Malformed):
        return found
    qname, at = found
    if at + 4 > len(data):
        return Malformed("the question is cut off")
    return Question(qname, data[at] << 8 | data[at + 1], data[at + 2] << 8 | data[at + 3], at + 4)


def records(data: bytes) -> tuple[Record, ...] | Malformed:
    """All records of a message with one question, in order, or why they cannot be read."""
    asked = question(data)
    if isinstance(asked, Malformed):
        return asked
    at, found = asked.end, []
    for section, count in enumerate(_HEADER.unpack_from(data)[3:]):
        for _ in range(count):
            owner = read_name(data, at)
            if isinstance(owner, Malformed):
                return owner
            rname, at = owner
            if at + _RR.size > len(data):
                return Malformed("a record is cut off")
            rtype, rclass, ttl, rdlength = _RR.unpack_from(data, at)
            rdata_at = at + _RR.size
            if rdata_at + rdlength > len(data):
                return Malformed("a record's data is cut off")
            found.append(Record(rname, rtype, rclass, ttl, at + 4, rdata_at, rdlength, section))
            at = rdata_at + rdlength
    return tuple(found)


def addresses(data: bytes, qtype: int) -> tuple[bytes, ...] | Malformed:
    """The addresses of type `qtype` that answer the question, aliases (CNAME) followed in the order they stand."""
    found, asked = records(data), question(data)
    if isinstance(found, Malformed) or isinstance(asked, Malformed):
        return found if isinstance(found, Malformed) else Malformed("no question")
    wanted, size, out = asked.name, 4 if qtype == A else 16, []
    for r in found:
        if r.section:
            break
        if r.rtype == CNAME:
            target = read_name(data, r.rdata_at)
            if isinstance(target, Malformed):
                return target
            wanted = target[0]
        elif r.rtype == qtype and r.name == wanted and r.rdlength == size:
            out.append(data[r.rdata_at : r.rdata_at + size])
    return tuple(out)


def strings(data: bytes) -> bytes | Malformed:
    """The character strings of the first TXT answer, joined."""
    found = records(data)
    if isinstance(found, Malformed):
        return found
    for r in found:
        if r.section == 0 and r.rtype == TXT:
            rdata, at, out = data[r.rdata_at : r.rdata_at + r.rdlength], 0, b""
            while at < len(rdata):
                out += rdata[at + 1 : at + 1 + rdata[at]]
                at += 1 + rdata[at]
            return out
    return Malformed("no TXT answer")


def answers(query: Query, reply: bytes, *, short_error: bool = False) -> bool:
    """Whether `reply` repeats the query's id and question, as glibc asks for (res_queriesmatch).

    `short_error`: a bare header with an error in it matches too (glibc bug 31890, fixed in 2.41 and in the
    stable branches of 2.36 and later).
    """
    if len(reply) < HEADER_BYTES or int.from_bytes(reply[:2], "big") != query.id:
        return False
    end = HEADER_BYTES + len(query.question)
    if reply[HEADER_BYTES:end] == query.question and reply[4:6] == b"\0\1":
        return True
    if short_error and len(reply) == HEADER_BYTES and reply[4:6] == b"\0\0":
        return (reply[3] & 0xF) in (SERVFAIL, NOTIMP, REFUSED)
    got, asked = question(reply), question(query.wire)
    if isinstance(got, Malformed) or isinstance(asked, Malformed):
        return False
    return (got.name, got.qtype, got.qclass) == (asked.name, asked.qtype, asked.qclass)


# --- writing --------------------------------------------------------------------------------------------------


def query(
    ident: int,
    qname: bytes,
    qtype: int,
    *,
    qclass: int = IN,
    edns: bool = False,
    edns_bytes: int = EDNS_BYTES,
    edns_options: bytes = b"",
    authentic: bool = False,
) -> Query:
    """A recursive query; `edns` adds an OPT record (as glibc adds it, if not told otherwise), `authentic` sets AD."""
    flags = RD | (AD if authentic else 0)
    asked = qname + qtype.to_bytes(2, "big") + qclass.to_bytes(2, "big")
    opt = record(b"\0", OPT, edns_bytes, 0, edns_options) if edns else b""
    return Query(ident, qtype, _HEADER.pack(ident, flags, 1, 0, 0, int(edns)) + asked + opt, asked)


def record(owner: bytes, rtype: int, rclass: int, ttl: int, rdata: bytes) -> bytes:
    """One resource record; b"\\xc0\\x0c" as the owner points at the question's name."""
    return owner + _RR.pack(rtype, rclass, ttl, len(rdata)) + rdata


def txt_rdata(content: bytes) -> bytes:
    """`content` as character strings of at most 255 bytes (RFC 1035, 3.3.14)."""
    pieces = [content[i : i + 255] for i in range(0, len(content), 255)] or [b""]
    return b"".join(bytes((len(p),)) + p for p in pieces)


def reply(
    asked: bytes, end: int, rcode: int, *, flags: int = RA, answer: tuple[bytes, ...] = (), authority: bytes = b""
) -> bytes:
    """The reply to the query `asked`, whose question ends at `end`. The id, opcode and RD bit are the query's own."""
    ident, theirs = _HEADER.unpack_from(asked)[:2]
    head = _HEADER.pack(
        ident, QR | (theirs & 0x7900) | flags | rcode, int(end > HEADER_BYTES), len(answer), bool(authority), 0
    )
    return head + asked[HEADER_BYTES:end] + b"".join(answer) + authority


def truncated(message: bytes, end: int) -> bytes:
    """The reply cut down to its question with TC set, for a client to come again by TCP."""
    ident, flags = _HEADER.unpack_from(message)[:2]
    return _HEADER.pack(ident, flags | TC, 1, 0, 0, 0) + message[HEADER_BYTES:end]


# --- TCP ------------------------------------------------------------------------------------------------------


def frame(message: bytes) -> bytes:
    """A message with the length that precedes it in a stream (RFC 1035, 4.2.2)."""
    return len(message).to_bytes(2, "big") + message


def unframe(buffer: bytearray) -> list[bytes]:
    """Takes the whole messages off the front of `buffer` and leaves what is not complete yet."""
    messages, at = [], 0
    while at + 2 <= len(buffer):
        end = at + 2 + int.from_bytes(buffer[at : at + 2], "big")
        if end > len(buffer):
            break
        messages.append(bytes(buffer[at + 2 : end]))
        at = end
    del buffer[:at]
    return messages
