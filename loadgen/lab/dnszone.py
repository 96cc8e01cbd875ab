"""What the lab's name server answers, and what it does wrong on purpose. No I/O: bytes in, bytes out."""

from __future__ import annotations

import random
import zlib
from typing import Literal

import msgspec

from loadgen.core import dnswire
from loadgen.core.dnswire import AAAA, IN, A, Malformed
from loadgen.core.errors import ConfigError

NO_LIMIT = -1


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is done to queries of this type and name; empty means any. The first rule that fits counts.

    `truncate` sends a UDP client to TCP. `times` is how many queries it is done to.
    """

    action: Literal["drop", "truncate", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED", "FORMERR"]
    qtype: Literal["", "A", "AAAA"] = ""
    name: str = ""
    times: int = NO_LIMIT


class Answer(msgspec.Struct, frozen=True):
    """The reply to a query but for its first two bytes, the id. `label` is what it is counted as."""

    label: str
    name: str
    qtype: int
    body: bytes
    end: int
    """Where the question ends."""


class Zone:
    """The names that exist, and the answer to any query."""

    def __init__(self, names: tuple[str, ...], zones: tuple[str, ...], ttl: int) -> None:
        self._names = frozenset(_wire(n) for n in names)
        self._zones = tuple(_wire(z) for z in zones)
        self._ttl = ttl
        timers = b"".join(n.to_bytes(4, "big") for n in (1, 7200, 1800, 86400, ttl))
        self._soa = dnswire.record(b"\0", dnswire.SOA, IN, ttl, b"\0\0" + timers)

    def answer(self, data: bytes) -> Answer | None:
        """The answer to a query; FORMERR or NOTIMP to one that makes no sense, None to what is no query at all."""
        head, asked = dnswire.header(data), dnswire.question(data)
        if not head or head.flags & dnswire.QR:
            return None
        if not asked or head.flags & 0x7800:
            rcode = dnswire.NOTIMP if asked else dnswire.FORMERR
            end = asked.end if asked else dnswire.HEADER_BYTES
            return Answer("other", "", 0, dnswire.reply(data, end, rcode)[2:], end)
        exists = asked.qclass == IN and self._exists(asked.name)
        rdata = _address(asked.name, asked.qtype) if exists else b""
        records = (dnswire.record(b"\xc0\x0c", asked.qtype, IN, self._ttl, rdata),) if rdata else ()
        body = dnswire.reply(
            data,
            asked.end,
            dnswire.NOERROR if exists else dnswire.NXDOMAIN,
            flags=dnswire.AA | dnswire.RA,
            answer=records,
            authority=b"" if records else self._soa,
        )
        label = {A: "A", AAAA: "AAAA"}.get(asked.qtype, "other")
        return Answer(label, dnswire.text(asked.name), asked.qtype, body[2:], asked.end)

    def _exists(self, name: bytes) -> bool:
        return name in self._names or any(len(name) > len(z) and name.endswith(z) for z in self._zones)


class Policy:
    """Which queries are answered, and what with: the rules first, then chance."""

    def __init__(self, rules: tuple[Rule, ...], loss: float, seed: int) -> None:
        self._rules = [(rule, dnswire.text(_wire(rule.name)) if rule.name else "") for rule in rules]
        self._left = [rule.times for rule in rules]
        self._loss = loss
        self._rng = random.Random(seed)

    def reply(self, query: bytes, answer: Answer, *, stream: bool) -> bytes | None:
        """The whole reply, or None for a query that is to be lost."""
        whole = query[:2] + answer.body
        for i, (rule, name) in enumerate(self._rules):
            fits = rule.qtype in ("", answer.label) and name in ("", answer.name)
            if fits and self._left[i] and not (stream and rule.action == "truncate"):
                self._left[i] -= self._left[i] > 0
                if rule.action == "drop":
                    return None
                if rule.action == "truncate":
                    return dnswire.truncated(whole, answer.end)
                return dnswire.reply(query, answer.end, dnswire.RCODE_NAMES[rule.action])
        return None if self._loss and self._rng.random() < self._loss else whole


def _address(name: bytes, qtype: int) -> bytes:
    """From a range for benchmarks (RFC 2544) or documentation (RFC 3849), the same for the same name."""
    number = zlib.crc32(name)
    if qtype == A:
        return (0xC6120000 | number & 0x1FFFF).to_bytes(4, "big")
    return bytes.fromhex("20010db8") + number.to_bytes(12, "big") if qtype == AAAA else b""


def _wire(name: str) -> bytes:
    found = dnswire.name(name)
    if isinstance(found, Malformed):
        raise ConfigError(f"name: {found.why}")
    return found
