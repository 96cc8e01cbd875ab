"""Cilium's IPv4 conntrack entries as bytes: layout, flags, lifetimes, their text, and tables that a storm left.

Layout: bpf/lib/common.h `struct ipv4_ct_tuple` and `struct ct_entry`; Go mirror pkg/tuple/ipv4.go and
pkg/maps/ctmap/types.go. Both structs have kept their sizes from 1.14 to 1.20; the names are those of 1.16 to 1.18.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from enum import IntFlag
from ipaddress import IPv4Address

import msgspec
import numpy as np

CT_KEY_DTYPE = np.dtype(
    [
        ("daddr", ">u4"),  # originator of the connection: tuples are stored as the reply has them
        ("saddr", ">u4"),  # responder
        ("dport", ">u2"),  # responder's port
        ("sport", ">u2"),  # originator's port
        ("proto", "u1"),
        ("flags", "u1"),  # TupleFlags
    ]
)
"""14 bytes, packed, in network byte order."""

CT_VALUE_DTYPE = np.dtype(
    [
        ("reserved", "=u8"),
        ("backend_id", "=u8"),
        ("packets", "=u8"),  # packets and bytes stay 0: accounting is off by default
        ("bytes", "=u8"),
        ("lifetime", "=u4"),  # CLOCK_MONOTONIC second after which the entry is expired
        ("flags", "=u2"),  # CtFlags
        ("rev_nat_index", ">u2"),
        ("ifindex", "=u2"),
        ("tx_flags_seen", "u1"),  # TCP flags the endpoint sent, of SYN, FIN, RST
        ("rx_flags_seen", "u1"),  # and was sent
        ("src_sec_id", "=u4"),
        ("last_tx_report", "=u4"),
        ("last_rx_report", "=u4"),
    ]
)
"""56 bytes, in host byte order but for rev_nat_index."""

TCP = 6
UDP = 17
ICMP = 1
SCTP = 132
_PROTOCOLS = {TCP: "TCP", UDP: "UDP", ICMP: "ICMP", SCTP: "SCTP"}

TCP_FIN = 0x01
TCP_SYN = 0x02
TCP_RST = 0x04


class TupleFlags(IntFlag):
    """`flags` of a key (bpf/lib/common.h TUPLE_F_*)."""

    OUT = 0
    IN = 1
    RELATED = 2
    SERVICE = 4


class CtFlags(IntFlag):
    """`flags` of a value, in the order of its bits; the names are those that Cilium prints."""

    RX_CLOSING = 1 << 0
    TX_CLOSING = 1 << 1
    NAT64 = 1 << 2
    LB_LOOPBACK = 1 << 3
    SEEN_NON_SYN = 1 << 4
    NODE_PORT = 1 << 5
    PROXY_REDIRECT = 1 << 6
    DSR_INTERNAL = 1 << 7
    FROM_L7_LB = 1 << 8
    FROM_TUNNEL = 1 << 10


# pkg/maps/ctmap/types.go, CtEntry.flagsString
_FLAG_NAMES = {
    CtFlags.RX_CLOSING: "RxClosing",
    CtFlags.TX_CLOSING: "TxClosing",
    CtFlags.NAT64: "Nat64",
    CtFlags.LB_LOOPBACK: "LBLoopback",
    CtFlags.SEEN_NON_SYN: "SeenNonSyn",
    CtFlags.NODE_PORT: "NodePort",
    CtFlags.PROXY_REDIRECT: "ProxyRedirect",
    CtFlags.DSR_INTERNAL: "DSR",
    CtFlags.FROM_L7_LB: "FromL7LB",
    CtFlags.FROM_TUNNEL: "FromTunnel",
}

FIN_CLOSED = CtFlags.RX_CLOSING | CtFlags.TX_CLOSING | CtFlags.SEEN_NON_SYN
HALF_CLOSED = CtFlags.TX_CLOSING | CtFlags.SEEN_NON_SYN
"""The originator's side (OUT) of a connection that its responder never closed."""


class CtTimeouts(msgspec.Struct, frozen=True):
    """How long an entry outlives its last packet, in seconds (flags bpf-ct-timeout-regular-*)."""

    tcp: int = 8000
    syn: int = 60
    close: int = 10
    any: int = 60


TIMEOUTS = CtTimeouts()
"""Cilium 1.15 and later."""

TIMEOUTS_1_14 = CtTimeouts(tcp=21_600)
"""Up to 1.14: cilium commit 6f242b94df shortened it from six hours."""


def timeouts(profile: str) -> CtTimeouts:
    """The timeouts of a Cilium version, `1.14` … `1.20`."""
    return TIMEOUTS_1_14 if profile == "1.14" else TIMEOUTS


def decode(keys: bytes, values: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Raw keys and values as arrays over the same memory; ValueError when there are not as many of each."""
    key_rows = np.frombuffer(keys, dtype=CT_KEY_DTYPE)
    value_rows = np.frombuffer(values, dtype=CT_VALUE_DTYPE)
    if len(key_rows) != len(value_rows):
        raise ValueError(f"{len(key_rows)} keys but {len(value_rows)} values")
    return key_rows, value_rows


def remaining(values: np.ndarray, now_s: int) -> np.ndarray:
    """Seconds that the entries have left, negative for the expired (int64)."""
    return values["lifetime"].astype(np.int64) - now_s


def expired(values: np.ndarray, now_s: int) -> np.ndarray:
    """Which entries a GC pass at `now_s` would delete: lifetime < now, strictly (pkg/maps/ctmap `filterCallback`)."""
    return values["lifetime"] < now_s


def format_entry(key: np.void, value: np.void, now_s: int | None = None) -> str:
    """One entry as `cilium-dbg bpf ct list global` of 1.16 prints it; with `now_s` as `-d` does.

    IN and OUT entries print the originator first. SVC entries are stored the other way round, and print so too.
    """
    flags = TupleFlags(int(key["flags"]))
    source, destination = (key["daddr"], key["sport"]), (key["saddr"], key["dport"])
    direction = "IN" if flags & TupleFlags.IN else "OUT"
    if flags & TupleFlags.SERVICE:
        direction = "SVC"
        source, destination = (key["saddr"], key["dport"]), (key["daddr"], key["sport"])
    protocol = _PROTOCOLS.get(int(key["proto"]), str(key["proto"]))
    related = "related " if flags & TupleFlags.RELATED else ""
    left = "" if now_s is None else f" (remaining: {int(value['lifetime']) - now_s} sec(s))"
    return (
        f"{protocol} {direction} {_endpoint(*source)} -> {_endpoint(*destination)} {related}"
        f"expires={value['lifetime']}{left} Packets={value['packets']} Bytes={value['bytes']} "
        f"RxFlagsSeen=0x{value['rx_flags_seen']:02x} LastRxReport={value['last_rx_report']} "
        f"TxFlagsSeen=0x{value['tx_flags_seen']:02x} LastTxReport={value['last_tx_report']} "
        f"{_flags(CtFlags(int(value['flags'])))} RevNAT={value['rev_nat_index']} "
        f"SourceSecurityID={value['src_sec_id']} IfIndex={value['ifindex']} BackendID={value['backend_id']}"
    )


def _endpoint(address: np.unsignedinteger, port: np.unsignedinteger) -> str:
    return f"{IPv4Address(int(address))}:{port}"


def _flags(flags: CtFlags) -> str:
    names = "".join(f"{name} " for flag, name in _FLAG_NAMES.items() if flag & flags)
    return f"Flags=0x{int(flags):04x} [ {names}]"


# --- what a storm leaves behind -------------------------------------------------------------------------------

EPHEMERAL_FIRST, EPHEMERAL_COUNT = 32_768, 28_232
"""net.ipv4.ip_local_port_range, 32768 to 60999."""


def storm_leftovers(
    n: int,
    *,
    now_s: int,
    expired_share: float,
    pods: Sequence[int],
    datanodes: Sequence[int],
    port: int,
    rng: np.random.Generator,
    timeouts: CtTimeouts = TIMEOUTS,
    within_s: int = 4 * 3600,
    chunk: int = 65_536,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The OUT entries that short connections from `pods` to `datanodes` on `port` left by `now_s`, in chunks.

    Yields (keys, values) of at most `chunk` rows, CT_KEY_DTYPE and CT_VALUE_DTYPE: n unique keys in all, none of
    them with a live connection. Addresses are int(IPv4Address). Exactly round(n × expired_share) entries are expired
    before `now_s`, spread evenly among the rest: closed by FIN from both sides (0x0013), at times drawn from the
    last `within_s` seconds. The rest are half closed (0x0012), with 1 to timeouts.tcp seconds left. No time is
    before the machine's boot (second 0). The same generator state gives the same bytes.

    ValueError when there are fewer than n four-tuples, or when an entry could not have expired yet.
    """
    closed = round(n * expired_share)
    space = len(pods) * len(datanodes) * EPHEMERAL_COUNT
    if n > space:
        raise ValueError(f"{n} entries need more than the {space} connections of these pods, datanodes and ports")
    if closed and now_s < 2:
        raise ValueError(f"nothing can have expired at second {now_s} after boot")
    first, step = _permutation(space, rng)
    pod_table, datanode_table = np.asarray(pods, dtype=">u4"), np.asarray(datanodes, dtype=">u4")
    for start in range(0, n, chunk):
        numbers = np.arange(start, min(start + chunk, n), dtype=np.int64)
        keys = _keys((first + numbers * step) % space, pod_table, datanode_table, port)
        # Of the first i entries, floor(i × closed / n) are closed ones: exact in the end, even on the way.
        is_closed = (numbers + 1) * closed // n > numbers * closed // n
        yield keys, _values(is_closed, now_s, timeouts, within_s, rng)


def _permutation(space: int, rng: np.random.Generator) -> tuple[int, int]:
    """(first, step) such that first + i·step mod space meets every number once: unique keys without a set."""
    first = int(rng.integers(space))
    step = int(rng.integers(1, space + 1))
    while math.gcd(step, space) != 1:
        step += 1
    return first, step % space


def _keys(numbers: np.ndarray, pods: np.ndarray, datanodes: np.ndarray, port: int) -> np.ndarray:
    keys = np.zeros(len(numbers), dtype=CT_KEY_DTYPE)
    pair, ephemeral = np.divmod(numbers, EPHEMERAL_COUNT)
    pod, datanode = np.divmod(pair, len(datanodes))
    keys["daddr"] = pods[pod]
    keys["saddr"] = datanodes[datanode]
    keys["dport"] = port
    keys["sport"] = EPHEMERAL_FIRST + ephemeral
    keys["proto"] = TCP
    keys["flags"] = TupleFlags.OUT
    return keys


def _values(
    closed: np.ndarray, now_s: int, timeouts: CtTimeouts, within_s: int, rng: np.random.Generator
) -> np.ndarray:
    values = np.zeros(len(closed), dtype=CT_VALUE_DTYPE)
    # Closed: expired 1 … within_s seconds ago. Half closed: their last packet is 0 … tcp - 1 seconds old.
    oldest = np.where(closed, min(within_s, now_s - 1), min(timeouts.tcp - 1, now_s) + 1)
    age = (rng.random(len(closed)) * oldest).astype(np.int64)
    lifetime = np.where(closed, now_s - 1 - age, now_s - age + timeouts.tcp)
    last_packet = np.maximum(lifetime - np.where(closed, timeouts.close, timeouts.tcp), 0)
    values["lifetime"] = lifetime
    values["flags"] = np.where(closed, FIN_CLOSED, HALF_CLOSED)
    values["tx_flags_seen"] = TCP_SYN | TCP_FIN
    values["rx_flags_seen"] = np.where(closed, TCP_SYN | TCP_FIN, TCP_SYN)
    values["last_tx_report"] = last_packet
    values["last_rx_report"] = last_packet
    return values
