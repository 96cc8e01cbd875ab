"""A printed conntrack table, counted: what is expired, half closed or alive, how old, and whose it is.

The states come from `native.CtList`, which has already thrown the entries away; what remains is exact for any time.
"""

from __future__ import annotations

from ipaddress import IPv6Address

import msgspec
import numpy as np

ROW = np.dtype([("expires", "=u8"), ("state", "=u8"), ("count", "=u8")])
"""A row of CtList.states."""
ADDRESS_ROW = np.dtype([("address", "V16"), ("count", "=u8")])

RX_CLOSING, TX_CLOSING, SEEN_NON_SYN = 1, 2, 4
_PROTOCOL, _RELATED, _DIRECTION = 0x18, 0x20, 0xC0
_SERVICE = 0x80
"""The bits of `state`; native/ctlist.c, state_of. Protocol 0 is TCP, 1 UDP, 2 ICMP, 3 others."""

AGES_S = (60, 600, 3600, 4 * 3600, 12 * 3600)
"""Upper ends of the classes by which expired entries are counted."""


class CtTable(msgspec.Struct, frozen=True):
    """One list. `states` are ROW rows as bytes."""

    file: str
    entries: int
    bad: int
    uncounted: int
    states: bytes
    sources: tuple[tuple[str, int], ...]
    destinations: tuple[tuple[str, int], ...]
    ports: tuple[tuple[int, int], ...]
    """The most frequent, with their entries."""
    last_report: int
    now: int | None
    """The node's clock when the list was made, from `remaining:` (-d); None when it does not say."""


class CtView(msgspec.Struct, frozen=True):
    """A table at a time. Counts of entries; ages in seconds since an entry expired."""

    file: str
    entries: int
    now_s: int | None
    how: str
    expired: int | None
    ages: tuple[tuple[str, int], ...]
    oldest_s: int
    tcp: int
    established: int
    half_closed: int
    half_closed_alive: int | None
    closed: int
    syn: int
    service: int
    related: int
    other: int


def addresses(rows: bytes, top: int) -> tuple[tuple[str, int], ...]:
    """The `top` most frequent addresses of ADDRESS_ROW rows, most frequent first, then by address."""
    found = np.frombuffer(rows, dtype=ADDRESS_ROW)
    order = np.lexsort((np.arange(len(found)), -found["count"].astype(np.int64)))[:top]
    named = [(_address(found["address"][i].tobytes()), int(found["count"][i])) for i in order]
    return tuple(sorted(named, key=lambda pair: (-pair[1], pair[0])))


def ports(rows: bytes, top: int) -> tuple[tuple[int, int], ...]:
    """The `top` most frequent responder's ports of 65,536 counts."""
    counts = np.frombuffer(rows, dtype="=u8").astype(np.int64)
    order = np.argsort(-counts, kind="stable")[:top]
    return tuple((int(port), int(counts[port])) for port in order if counts[port])


def _address(raw: bytes) -> str:
    address = IPv6Address(raw)
    return str(address.ipv4_mapped or address)


def clock(table: CtTable, uptime_s: int | None) -> tuple[int | None, str]:
    """(now in the table's seconds, how that is known). The last report is the last packet that was noted: a lower
    bound that is right to within Cilium's report interval of 5 s on a node with traffic."""
    if table.now is not None:
        return table.now, "from the remaining times in the list"
    if uptime_s is not None:
        return uptime_s, "from --uptime"
    if table.last_report:
        return table.last_report, "estimated: the latest packet that an entry reports; give --uptime to be sure"
    return None, "unknown: give --uptime, the node's seconds since boot when the list was made"


def view(table: CtTable, uptime_s: int | None) -> CtView:
    """Count `table` as it stood at its time."""
    rows = np.frombuffer(table.states, dtype=ROW)
    count, state, expires = rows["count"].astype(np.int64), rows["state"].astype(np.int64), rows["expires"]
    now, how = clock(table, uptime_s)
    over = expires.astype(np.int64) < now if now is not None else np.zeros(len(rows), bool)
    plain = (state & (_PROTOCOL | _RELATED)) == 0
    service = (state & _DIRECTION) == _SERVICE
    tcp = plain & ~service
    closing = state & (RX_CLOSING | TX_CLOSING)
    half = tcp & ((closing == RX_CLOSING) | (closing == TX_CLOSING))
    seen = (state & SEEN_NON_SYN) != 0

    def total(mask: np.ndarray) -> int:
        return int(count[mask].sum())

    age = (now or 0) - expires.astype(np.int64)
    return CtView(
        file=table.file,
        entries=table.entries,
        now_s=now,
        how=how,
        expired=None if now is None else total(over),
        ages=_ages(age[over], count[over]),
        oldest_s=int(age[over].max(initial=0)),
        tcp=total(tcp),
        established=total(tcp & (closing == 0) & seen),
        half_closed=total(half),
        half_closed_alive=None if now is None else total(half & ~over),
        closed=total(tcp & (closing == (RX_CLOSING | TX_CLOSING))),
        syn=total(tcp & (closing == 0) & ~seen),
        service=total(service),
        related=total((state & _RELATED) != 0),
        other=total(~plain & ~service & ((state & _RELATED) == 0)),
    )


def _ages(age: np.ndarray, count: np.ndarray) -> tuple[tuple[str, int], ...]:
    names = ("under 1 min", "1 to 10 min", "10 min to 1 h", "1 to 4 h", "4 to 12 h", "over 12 h")
    classes = np.searchsorted(np.asarray(AGES_S), age, side="right")
    return tuple((name, int(count[classes == i].sum())) for i, name in enumerate(names))
