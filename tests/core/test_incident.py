"""Each kind of file is recognised by its content, whatever it is called and whatever stands before it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import night
from loadgen.core.incident import Kind, kind_of

CT = next(night.ct_lines(1))
KINDS = [
    (CT, Kind.CT_TEXT),
    (b"# cilium-dbg bpf ct list global\n\n```\n" + CT, Kind.CT_TEXT),
    (b'[\n  {\n    "Key": {\n', Kind.CT_JSON),
    (b"[]\n", Kind.CT_JSON),
    (night.goroutines().encode(), Kind.GOROUTINES),
    (b"SIGQUIT: quit\nPC=0x1 m=0\n\ngoroutine 0 gp=0x1 m=0 mp=0x2 [idle]:\n", Kind.GOROUTINES),
    (b"goroutine profile: total 3\n", Kind.GOROUTINES),
    (night.status().encode(), Kind.STATUS),
    (night.metrics(1).encode(), Kind.METRICS),
    (night.conntrack_stat(0, 0).encode(), Kind.CONNTRACK),
    (b"entries  clashres found new invalid ignore delete\n00000001 0 0 0 0 0 0\n", Kind.CONNTRACK),
    (b"[    0.000000] Linux version 6.1\n", Kind.DMESG),
    (b"[Fri Mar  1 02:00:00 2024] nf_conntrack: nf_conntrack: table full, dropping packet\n", Kind.DMESG),
    (b"<4>[ 1234.567890] nf_conntrack: table full\n", Kind.DMESG),
    (b"Mar 01 02:00:00 node kernel: nf_conntrack: table full\n", Kind.DMESG),
    (night.agent_log().encode(), Kind.LOG),
    (night.kubelet_log().encode(), Kind.LOG),
    (night.PCAP_HEADER, Kind.CAPTURE),
    (b"\x0a\x0d\x0d\x0a\x1c\0\0\0", Kind.CAPTURE),
    (b"PK\x03\x04rest", Kind.ZIP),
    (b"\x1f\x8b\x08", Kind.GZIP),
    (b"a" * 257 + b"ustar\x0000", Kind.TAR),
    (b" \n\n", Kind.EMPTY),
    (b"", Kind.EMPTY),
    (b"hello\nworld\n", Kind.UNKNOWN),
    (b"\x7fELF\0\0", Kind.UNKNOWN),
]


@pytest.mark.parametrize(("head", "kind"), KINDS)
def test_kinds(head: bytes, kind: Kind) -> None:
    assert kind_of(head) is kind


def test_a_log_that_ends_in_a_dump_is_a_log() -> None:
    assert kind_of(night.agent_log().encode() + night.goroutines().encode()) is Kind.LOG


@given(st.binary(max_size=400))
def test_any_bytes_have_a_kind(head: bytes) -> None:
    assert kind_of(head) in Kind
