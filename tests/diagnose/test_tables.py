"""A list as evidence: the most frequent of everything, and problems by line and by offset."""

from __future__ import annotations

import io

from bench import night
from loadgen.diagnose import tables
from loadgen.diagnose.streams import Source

LINES = b"".join(night.ct_lines(2003))


def test_a_list_becomes_a_table() -> None:
    table, problems = tables.read(Source("f", io.BytesIO(LINES)), json=False)
    assert problems == []
    assert (table.entries, table.bad, table.uncounted, table.now) == (2003, 0, 0, None)
    assert table.ports == ((50_010, 2003),)
    assert len(table.sources) == len(table.destinations) == tables.TOP
    assert table.last_report == night.UPTIME_S - 3


def test_many_bad_lines_are_sixteen_problems_and_a_sum() -> None:
    table, problems = tables.read(Source("f", io.BytesIO(LINES + b"what?\n" * 103)), json=False)
    assert (table.entries, table.bad) == (2003, 103)
    assert problems[0].where == "line 2004"
    assert problems[-1].what == "87 more entries could not be read"
    assert len(problems) == 17


def test_json_problems_are_told_by_offset() -> None:
    data = b'[{"Key": {"DestAddr": [1, 2, 3, 4]}}]'
    table, problems = tables.read(Source("f", io.BytesIO(data)), json=True)
    assert table.entries == 0
    assert [(p.where, p.what) for p in problems] == [(f"offset {len(data) - 2}", "a torn conntrack entry")]
