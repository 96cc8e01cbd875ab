"""A counted table at a time: exact numbers of a small one, and where the time comes from."""

from __future__ import annotations

import numpy as np
import pytest

from loadgen.core import ctlist
from loadgen.core.ctlist import CtTable

SERVICE, RELATED, UDP = 0x80, 0x20, 0x08
ROWS = [  # expires, state, count
    (100, 7, 10),  # closed on both sides
    (940, 7, 20),
    (2000, 4, 3),  # established
    (2000, 6, 5),  # half closed
    (900, 5, 7),  # half closed, expired
    (1010, 0, 2),  # only SYN
    (2000, SERVICE | 6, 11),
    (2000, RELATED | 0x10, 13),
    (1001, UDP, 17),
]


def table(now: int | None = None, last_report: int = 995) -> CtTable:
    rows = np.array(ROWS, dtype=[("expires", "u8"), ("state", "u8"), ("count", "u8")])
    total = sum(count for _, _, count in ROWS)
    return CtTable("t", total, 0, 0, rows.tobytes(), (), (), (), last_report, now)


def test_states_ages_and_expiry_are_exact() -> None:
    view = ctlist.view(table(now=1000), None)
    assert view.expired == 37
    assert dict(view.ages) == {
        "under 1 min": 0,
        "1 to 10 min": 27,
        "10 min to 1 h": 10,
        "1 to 4 h": 0,
        "4 to 12 h": 0,
        "over 12 h": 0,
    }
    assert view.oldest_s == 900
    assert (view.tcp, view.closed, view.established, view.syn) == (47, 30, 3, 2)
    assert (view.half_closed, view.half_closed_alive) == (12, 5)
    assert (view.service, view.related, view.other) == (11, 13, 17)


@pytest.mark.parametrize(
    ("now", "uptime", "report", "want", "says"),
    [
        (1000, 5, 9, 1000, "remaining"),
        (None, 5, 9, 5, "--uptime"),
        (None, None, 9, 9, "estimated"),
        (None, None, 0, None, "give --uptime"),
    ],
)
def test_where_now_comes_from(now: int | None, uptime: int | None, report: int, want: int | None, says: str) -> None:
    got, how = ctlist.clock(table(now, report), uptime)
    assert got == want
    assert says in how


def test_without_a_time_nothing_is_called_expired() -> None:
    view = ctlist.view(table(last_report=0), None)
    assert view.expired is None
    assert view.half_closed_alive is None
    assert view.half_closed == 12


def test_the_most_frequent_addresses_and_ports() -> None:
    rows = b"".join(
        address + count.to_bytes(8, "little")
        for address, count in (
            (b"\0" * 10 + b"\xff\xff\x0a\0\0\2", 5),
            (b"\xfd" + b"\0" * 14 + b"\1", 9),
            (b"\0" * 10 + b"\xff\xff\x0a\0\0\1", 5),
        )
    )
    assert ctlist.addresses(rows, 3) == (("fd00::1", 9), ("10.0.0.1", 5), ("10.0.0.2", 5))
    counts = np.zeros(65_536, "u8")
    counts[[53, 80]] = 7, 9
    assert ctlist.ports(counts.tobytes(), 5) == ((80, 9), (53, 7))
