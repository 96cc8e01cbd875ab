"""pcap and pcapng of every byte order, clock and link type that a resolver is captured with; and torn ones."""

from __future__ import annotations

import io
import struct

import pytest

from bench import night
from loadgen.core.dnscapture import DnsStory
from loadgen.core.incident import Problem
from loadgen.diagnose import capture
from loadgen.diagnose.streams import Source

PCAP = night.lookups(20, 6, 2_500_000, both=False)


def read(data: bytes) -> tuple[DnsStory, list[Problem]]:
    return capture.read(Source("f", io.BytesIO(data)))


def records(data: bytes = PCAP) -> list[tuple[int, bytes]]:
    """(microseconds, frame) of a little-endian pcap."""
    found, at = [], 24
    while at < len(data):
        seconds, micros, size, _ = struct.unpack_from("<IIII", data, at)
        found.append((seconds * 1_000_000 + micros, data[at + 16 : at + 16 + size]))
        at += 16 + size
    return found


def pcap(order: str, magic: int, unit: int, link: int, wrap: bytes, cut: int) -> bytes:
    out = struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 262_144, link)
    for micros, frame in records():
        body = wrap + frame[cut:]
        fraction = micros % 1_000_000 * (1000 if unit == 1 else 1)
        out += struct.pack(order + "IIII", micros // 1_000_000, fraction, len(body), len(body)) + body
    return out


def pcapng(order: str, resolution: int | None) -> bytes:
    def block(kind: int, body: bytes) -> bytes:
        body += b"\0" * (-len(body) % 4)
        size = struct.pack(order + "I", 12 + len(body))
        return struct.pack(order + "I", kind) + size + body + size

    options = b"" if resolution is None else struct.pack(order + "HHB3x", 9, 1, resolution) + b"\0" * 4
    out = block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))
    out += block(1, struct.pack(order + "HHI", 1, 0, 0) + options)
    out += block(4, b"name resolution, passed over")
    for micros, frame in records():
        time = micros if resolution is None else micros * 1000
        head = struct.pack(order + "IIIII", 0, time >> 32, time & 0xFFFFFFFF, len(frame), len(frame))
        out += block(6, head + frame)
    return out


def is_whole(story: DnsStory) -> bool:
    return (story.pairs, story.one_lost, story.second_lost, story.libc) == (20, 6, 6, (("musl", 6),))


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("magic", "unit"), [(0xA1B2C3D4, 1000), (0xA1B23C4D, 1)])
def test_byte_orders_and_clocks(order: str, magic: int, unit: int) -> None:
    story, problems = read(pcap(order, magic, unit, 1, b"", 0))
    assert problems == []
    assert is_whole(story)


@pytest.mark.parametrize(
    ("link", "wrap"),
    [
        (101, b""),
        (228, b""),
        (0, b"\2\0\0\0"),
        (113, b"\0" * 14 + b"\x08\0"),
        (276, b"\x08\0" + b"\0" * 18),
        (1, b"\2" * 12 + b"\x81\0\0\x64\x08\0"),
    ],
)
def test_link_types(link: int, wrap: bytes) -> None:
    assert is_whole(read(pcap("<", 0xA1B2C3D4, 1000, link, wrap, 14))[0])


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("resolution", [None, 9])
def test_pcapng(order: str, resolution: int | None) -> None:
    story, problems = read(pcapng(order, resolution))
    assert problems == []
    assert is_whole(story)


@pytest.mark.parametrize("data", [PCAP, pcapng("<", None)])
def test_a_torn_capture_keeps_its_whole_packets(data: bytes) -> None:
    story, problems = read(data[:-9])
    assert story.packets == len(records()) - 1
    assert len(problems) == 1
    assert problems[0].where.startswith("offset ")
    assert "cut off" in problems[0].what


def test_a_length_that_cannot_be_ends_the_file() -> None:
    data = PCAP + struct.pack("<IIII", 0, 0, 1 << 30, 1 << 30)
    story, problems = read(data)
    assert is_whole(story)
    assert problems == [Problem("f", f"offset {len(PCAP)}", f"a packet of {1 << 30} bytes")]


def test_an_ipv6_lookup() -> None:
    question = b"\1x\0" + struct.pack(">HH", 28, 1)
    udp = struct.pack(">HHHH", 4000, 53, 8 + 12 + len(question), 0)
    udp += struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + question
    frame = b"\2" * 12 + b"\x86\xdd" + struct.pack(">IHBB", 6 << 28, len(udp), 17, 64) + b"\1" * 16 + b"\2" * 16 + udp
    data = night.PCAP_HEADER + struct.pack("<IIII", 1, 0, len(frame), len(frame)) + frame
    assert read(data)[0].queries == 1
