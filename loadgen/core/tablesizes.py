"""How large Cilium makes its conntrack tables from a node's memory (dynamic sizing).

Source: pkg/option/config.go getDynamicSizeCalculator, the same arithmetic from 1.14 to 1.20; checked against a log: a
node with 33,677,205,504 bytes at 0.0025 has 295,414 and 147,707.
"""

from __future__ import annotations

from typing import NamedTuple

DEFAULT_RATIO = 0.0025
MAX_ENTRIES = 1 << 24

_CT, _NAT, _NEIGH, _SOCK_REV = 38 + 56, 38 + 56, 16 + 8, 32 + 20
"""Bytes of an entry's key and value, of the IPv6 variants."""
_TCP_DEFAULT, _ANY_DEFAULT = 524_288, 262_144
_TCP_LEAST, _ANY_LEAST = 131_072, 65_536
_TOTAL = _TCP_DEFAULT * (_CT + _NAT + _NEIGH) + _ANY_DEFAULT * (_CT + _SOCK_REV)


class CtSizes(NamedTuple):
    """Entries of the TCP table and of the other one."""

    tcp: int
    other: int


def dynamic_sizes(memory_bytes: int, ratio: float = DEFAULT_RATIO) -> CtSizes:
    """Capacities that an agent with bpf.mapDynamicSizeRatio `ratio` gives its IPv4 tables on such a node.

    ValueError when the ratio is not within (0, 1].
    """
    if not 0 < ratio <= 1:
        raise ValueError(f"the ratio must be within (0, 1], is {ratio}")
    share = int(memory_bytes * ratio)
    return CtSizes(_scaled(share, _TCP_DEFAULT, _TCP_LEAST), _scaled(share, _ANY_DEFAULT, _ANY_LEAST))


def _scaled(share: int, default: int, least: int) -> int:
    return min(MAX_ENTRIES, max(least, default * share // _TOTAL))
