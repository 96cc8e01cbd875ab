"""Bytes and text against what real Cilium has and prints; leftovers against what a storm could have left."""

from __future__ import annotations

import struct
from ipaddress import IPv4Address

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.core import conntrack
from loadgen.core.conntrack import CT_KEY_DTYPE, CT_VALUE_DTYPE, CtFlags, CtTimeouts

KEY = struct.Struct(">IIHHBB")
VALUE = struct.Struct("=QQQQIHHHBBIII")

CLIENT, SERVER = (int(IPv4Address(text)) for text in ("10.202.0.139", "10.202.0.189"))


def entry(kind=0, proto=6, **value):
    keys = np.zeros(1, dtype=CT_KEY_DTYPE)
    keys[0] = (CLIENT, SERVER, 8080, 39164, proto, kind)
    values = np.zeros(1, dtype=CT_VALUE_DTYPE)
    for name, number in value.items():
        values[0][name] = number
    return keys[0], values[0]


# --- layout ---------------------------------------------------------------------------------------------------


def test_key_bytes_of_the_documented_example():
    """Pod 10.0.0.5:40000 to 10.0.0.9:50010, egress."""
    keys, _ = conntrack.decode(bytes.fromhex("0a0000050a000009c35a9c400600"), bytes(56))
    assert keys[0].tolist() == (int(IPv4Address("10.0.0.5")), int(IPv4Address("10.0.0.9")), 50010, 40000, 6, 0)


def test_value_fields_are_where_cilium_has_them():
    fields = (1, 2, 3, 4, 0x0A0B0C0D, 0x0013, 0, 7, 0x03, 0x06, 17433, 1783, 1784)
    _, values = conntrack.decode(bytes(14), VALUE.pack(*fields))
    assert values[0].tolist() == fields


def test_rev_nat_index_is_in_network_order():
    _, values = conntrack.decode(bytes(14), bytes(38) + b"\x01\x02" + bytes(16))
    assert values[0]["rev_nat_index"] == 0x0102


def test_keys_without_values_are_refused():
    with pytest.raises(ValueError, match="2 keys but 1 values"):
        conntrack.decode(bytes(28), bytes(56))


# --- text -----------------------------------------------------------------------------------------------------


CLOSED = {
    "lifetime": 1793, "flags": 0x13, "tx_flags_seen": 3, "rx_flags_seen": 3, "last_tx_report": 1783,
    "last_rx_report": 1783, "src_sec_id": 17433,
}  # fmt: skip
REST = (
    "Packets=0 Bytes=0 RxFlagsSeen=0x03 LastRxReport=1783 TxFlagsSeen=0x03 LastTxReport=1783 "
    "Flags=0x0013 [ RxClosing TxClosing SeenNonSyn ] RevNAT=0 SourceSecurityID=17433 IfIndex=0 BackendID=0"
)


def test_line_of_a_real_1_16_agent():
    assert conntrack.format_entry(*entry(**CLOSED)) == (
        f"TCP OUT 10.202.0.139:39164 -> 10.202.0.189:8080 expires=1793 {REST}"
    )


def test_line_with_the_time_that_is_left():
    assert conntrack.format_entry(*entry(**CLOSED), now_s=1788) == (
        f"TCP OUT 10.202.0.139:39164 -> 10.202.0.189:8080 expires=1793 (remaining: 5 sec(s)) {REST}"
    )


@pytest.mark.parametrize(
    ("kind", "proto", "start"),
    [
        pytest.param(1, 6, "TCP IN 10.202.0.139:39164 -> 10.202.0.189:8080 expires=", id="in"),
        pytest.param(2, 1, "ICMP OUT 10.202.0.139:39164 -> 10.202.0.189:8080 related expires=", id="related"),
        pytest.param(3, 1, "ICMP IN 10.202.0.139:39164 -> 10.202.0.189:8080 related expires=", id="related in"),
        pytest.param(4, 17, "UDP SVC 10.202.0.189:8080 -> 10.202.0.139:39164 expires=", id="service"),
        pytest.param(0, 132, "SCTP OUT 10.202.0.139:39164 -> 10.202.0.189:8080 expires=", id="sctp"),
        pytest.param(0, 99, "99 OUT 10.202.0.139:39164 -> 10.202.0.189:8080 expires=", id="unknown"),
    ],
)
def test_line_by_kind_of_entry(kind, proto, start):
    assert conntrack.format_entry(*entry(kind, proto)).startswith(start)


def test_line_of_an_entry_without_flags():
    assert " Flags=0x0000 [ ] " in conntrack.format_entry(*entry())


# --- lifetimes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lifetime", "left", "is_expired"), [(100, 0, False), (99, -1, True), (8100, 8000, False)])
def test_expired_is_strictly_before_now(lifetime, left, is_expired):
    values = np.array([entry(lifetime=lifetime)[1]])
    assert conntrack.remaining(values, 100).tolist() == [left]
    assert conntrack.expired(values, 100).tolist() == [is_expired]


@pytest.mark.parametrize(("profile", "tcp"), [("1.14", 21_600), ("1.15", 8000), ("1.16", 8000), ("1.18", 8000)])
def test_tcp_timeout_by_version(profile, tcp):
    assert conntrack.timeouts(profile) == CtTimeouts(tcp=tcp, syn=60, close=10, any=60)


# --- a storm's leftovers --------------------------------------------------------------------------------------

PODS = [int(IPv4Address("10.244.0.2")), int(IPv4Address("10.244.0.3"))]
DATANODES = [int(IPv4Address("10.128.0.1")) + i for i in range(5)]
PORT = 50010


def leftovers(n, *, now_s=100_000, expired_share=0.9, seed=7, chunk=65_536, **more):
    chunks = list(
        conntrack.storm_leftovers(
            n,
            **{
                "now_s": now_s, "expired_share": expired_share, "pods": PODS, "datanodes": DATANODES, "port": PORT,
                "rng": np.random.default_rng(seed), "chunk": chunk, **more,
            },
        )
    )  # fmt: skip
    return (
        np.concatenate([np.empty(0, CT_KEY_DTYPE), *(keys for keys, _ in chunks)]),
        np.concatenate([np.empty(0, CT_VALUE_DTYPE), *(values for _, values in chunks)]),
    )


def unique(keys):
    return len(np.unique(keys.view("V14")))


def test_every_four_tuple_is_used_when_all_are_asked_for():
    space = len(PODS) * len(DATANODES) * conntrack.EPHEMERAL_COUNT
    keys, _ = leftovers(space)
    assert len(keys) == unique(keys) == space
    assert set(keys["daddr"].tolist()) == set(PODS)
    assert set(keys["saddr"].tolist()) == set(DATANODES)
    assert (keys["sport"].min(), keys["sport"].max()) == (32768, 60999)
    assert np.all((keys["dport"] == PORT) & (keys["proto"] == 6) & (keys["flags"] == 0))


def test_more_than_there_are_four_tuples_is_refused():
    with pytest.raises(ValueError, match="282320 connections"):
        leftovers(len(PODS) * len(DATANODES) * conntrack.EPHEMERAL_COUNT + 1)


def test_nothing_can_expire_at_boot():
    with pytest.raises(ValueError, match="second 1 after boot"):
        leftovers(1, now_s=1, expired_share=1.0)


def test_closed_and_half_closed_entries():
    now = 100_000
    _, values = leftovers(10_000, now_s=now, within_s=3600)
    dead = conntrack.expired(values, now)
    assert np.count_nonzero(dead) == 9000

    closed, half = values[dead], values[~dead]
    left = conntrack.remaining(closed, now)
    assert -3600 <= left.min() < -3500
    assert -100 < left.max() <= -1
    assert np.all(closed["flags"] == 0x13)
    assert np.all(closed["lifetime"] - closed["last_tx_report"] == 10)
    assert np.all((closed["tx_flags_seen"] == 0x03) & (closed["rx_flags_seen"] == 0x03))

    left = conntrack.remaining(half, now)
    assert 1 <= left.min() < 100
    assert 7900 < left.max() <= 8000
    assert np.all(half["flags"] == CtFlags.TX_CLOSING | CtFlags.SEEN_NON_SYN)
    assert np.all(half["lifetime"] - half["last_rx_report"] == 8000)
    assert np.all((half["tx_flags_seen"] == 0x03) & (half["rx_flags_seen"] == 0x02))


def test_the_same_seed_gives_the_same_bytes_however_they_are_cut():
    first, again, other = leftovers(5000), leftovers(5000, chunk=999), leftovers(5000, seed=8)
    assert [a.tobytes() for a in first] == [a.tobytes() for a in again]
    assert first[0].tobytes() != other[0].tobytes()


@given(
    n=st.integers(0, 3000),
    share=st.floats(0, 1),
    now=st.integers(2, 2**31),
    pods=st.integers(1, 3),
    datanodes=st.integers(1, 7),
    seed=st.integers(0, 2**32),
    chunk=st.integers(1, 4000),
    tcp=st.sampled_from([8000, 21_600]),
)
def test_any_leftovers_are_unique_exact_and_after_boot(n, share, now, pods, datanodes, seed, chunk, tcp):
    keys, values = leftovers(
        n, now_s=now, expired_share=share, seed=seed, chunk=chunk,
        pods=range(1, pods + 1), datanodes=range(100, 100 + datanodes), timeouts=CtTimeouts(tcp=tcp),
    )  # fmt: skip
    assert len(keys) == len(values) == unique(keys) == n
    assert np.count_nonzero(conntrack.expired(values, now)) == round(n * share)
    left = conntrack.remaining(values, now)
    assert np.all((left != 0) & (left <= tcp))
    assert np.all(values["lifetime"] >= 1)
    assert np.all(values["last_tx_report"] <= now)
