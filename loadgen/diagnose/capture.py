"""pcap and pcapng files: their packets, and the DNS datagrams in them.

Formats: the draft RFCs draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng. Fragments and TCP are passed over.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from loadgen.core.dnscapture import DnsStory, DnsWatch
from loadgen.core.incident import Problem
from loadgen.core.units import NS_PER_S
from loadgen.diagnose.streams import ChunkReader, Source

PACKET_BYTES = 1 << 18
"""tcpdump's largest snapshot length; a longer packet is a torn file."""
_MAGIC = {b"\xd4\xc3\xb2\xa1": ("<", 1000), b"\xa1\xb2\xc3\xd4": (">", 1000)}
_MAGIC |= {b"\x4d\x3c\xb2\xa1": ("<", 1), b"\xa1\xb2\x3c\x4d": (">", 1)}
_SECTION, _INTERFACE, _SIMPLE, _PACKET = 0x0A0D0D0A, 1, 3, 6
_ETHERTYPE_AT = {1: 12, 113: 14, 276: 0}
"""Offset of the EtherType by link type: Ethernet, Linux cooked v1, Linux cooked v2."""
_HEADER_BYTES = {1: 14, 113: 16, 276: 20, 101: 0, 12: 0, 228: 0, 229: 0, 0: 4, 108: 4}


class Torn(Exception):
    """Where a capture stops making sense."""

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(what)
        self.offset = offset


class Packet(NamedTuple):
    at_ns: int
    link: int
    data: bytes


class _Bytes:
    """Exact reads with the offset kept, for saying where a file is torn."""

    def __init__(self, source: Source) -> None:
        self._reader = ChunkReader(source)
        self.offset = 0

    def take(self, size: int, what: str) -> bytes:
        """`size` bytes; b"" at a clean end when nothing at all is left; Torn in the middle."""
        data = self._reader.read(size)
        if data and len(data) < size:
            raise Torn(self.offset, f"{what} is cut off")
        self.offset += len(data)
        return data


def read(source: Source) -> tuple[DnsStory, list[Problem]]:
    """Follow the DNS queries of a capture up to where it is torn, if it is."""
    watch = DnsWatch()
    problems: list[Problem] = []
    try:
        for packet in packets(source):
            found = _udp(packet)
            if found is not None and 53 in (found[0][1], found[1][1]):
                watch.see(packet.at_ns, *found)
    except Torn as torn:
        problems.append(Problem(source.name, f"offset {torn.offset}", str(torn)))
    return watch.story(source.name), problems


def packets(source: Source) -> Iterator[Packet]:
    """The packets in file order; Torn where the file stops making sense."""
    data = _Bytes(source)
    magic = data.take(4, "the file header")
    if magic in _MAGIC:
        yield from _pcap(data, *_MAGIC[magic])
    else:
        yield from _pcapng(data)


def _pcap(data: _Bytes, order: str, unit_ns: int) -> Iterator[Packet]:
    rest = data.take(20, "the file header")
    if len(rest) < 20:
        raise Torn(data.offset, "the file header is cut off")
    link = struct.unpack(order + "I", rest[16:])[0] & 0x0FFFFFFF
    while header := data.take(16, "a packet's header"):
        seconds, fraction, size, _ = struct.unpack(order + "IIII", header)
        if size > PACKET_BYTES:
            raise Torn(data.offset - 16, f"a packet of {size} bytes")
        body = data.take(size, "a packet")
        if len(body) < size:
            raise Torn(data.offset, "a packet is cut off")
        yield Packet(seconds * NS_PER_S + fraction * unit_ns, link, body)


def _pcapng(data: _Bytes) -> Iterator[Packet]:
    order = "<"
    links: list[tuple[int, int]] = []
    kind_bytes: bytes = b"\x0a\x0d\x0d\x0a"
    while kind_bytes:
        start = data.offset - 4
        length_bytes = data.take(4, "a block's length")
        if len(length_bytes) < 4:
            raise Torn(start, "a block's length is cut off")
        body = b""
        if kind_bytes == b"\x0a\x0d\x0d\x0a":
            body = data.take(4, "a section header")
            order = ">" if body == b"\x1a\x2b\x3c\x4d" else "<"
            links = []
        kind, length = struct.unpack(order + "I", kind_bytes)[0], struct.unpack(order + "I", length_bytes)[0]
        if length % 4 or length < 12 + len(body) or length > PACKET_BYTES * 4:
            raise Torn(start, f"a block of {length} bytes")
        rest = length - 8 - len(body)
        tail = data.take(rest, "a block")
        if len(tail) < rest:
            raise Torn(start, "a block is cut off")
        body = (body + tail)[:-4]
        if kind == _INTERFACE and len(body) >= 8 and len(links) < 4096:
            links.append((struct.unpack(order + "H", body[:2])[0], _resolution(body[8:], order)))
        elif kind in (_PACKET, _SIMPLE) and (packet := _block(kind, body, order, links)):
            yield packet
        kind_bytes = data.take(4, "a block's type")


def _block(kind: int, body: bytes, order: str, links: list[tuple[int, int]]) -> Packet | None:
    if kind == _SIMPLE or len(body) < 20:
        return None  # a simple block has no time: it tells nothing about retries
    interface, high, low, captured, _ = struct.unpack(order + "IIIII", body[:20])
    if interface >= len(links):
        return None
    link, per_second = links[interface]
    return Packet((high << 32 | low) * NS_PER_S // per_second, link, body[20 : 20 + captured])


def _resolution(options: bytes, order: str) -> int:
    """Time units a second, of an interface's options: if_tsresol (9), or microseconds."""
    at = 0
    while at + 4 <= len(options):
        code, size = struct.unpack(order + "HH", options[at : at + 4])
        if code == 9 and size == 1 and at + 4 < len(options):
            value = options[at + 4]
            power = value & 0x7F
            return (2**power if value & 0x80 else 10**power) if power < 64 else 10**6
        at += 4 + (size + 3) // 4 * 4
    return 10**6


def _udp(packet: Packet) -> tuple[tuple[bytes, int], tuple[bytes, int], bytes] | None:
    """(source, destination, payload) of an unfragmented UDP packet over IPv4 or IPv6."""
    ip = _ip(packet)
    if len(ip) < 20:
        return None
    if ip[0] >> 4 == 4:
        at, total = (ip[0] & 0xF) * 4, int.from_bytes(ip[2:4], "big")
        if ip[9] != 17 or int.from_bytes(ip[6:8], "big") & 0x3FFF or at < 20:
            return None
        source, destination, ip = ip[12:16], ip[16:20], ip[: total or len(ip)]
    elif ip[0] >> 4 == 6 and len(ip) >= 48 and ip[6] == 17:
        at, source, destination = 40, ip[8:24], ip[24:40]
    else:
        return None
    if len(ip) < at + 8:
        return None
    ports = (int.from_bytes(ip[at : at + 2], "big"), int.from_bytes(ip[at + 2 : at + 4], "big"))
    return (source, ports[0]), (destination, ports[1]), ip[at + 8 :]


def _ip(packet: Packet) -> bytes:
    data, size = packet.data, _HEADER_BYTES.get(packet.link)
    if size is None:
        return b""
    at = _ETHERTYPE_AT.get(packet.link)
    while at is not None and data[at : at + 2] in (b"\x81\x00", b"\x88\xa8") and size < 32:
        at, size = at + 4, size + 4
    return data[size:]
