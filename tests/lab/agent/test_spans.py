"""The numbered log of spans."""

from __future__ import annotations

import time

from loadgen.core.samples import Span
from loadgen.lab.agent.spans import PAGE, SpanLog


def numbered(count: int, capacity: int = 1000) -> SpanLog:
    log = SpanLog(capacity)
    for i in range(count):
        log.add(Span("gc", str(i), "total", i, i))
    return log


def refs(log: SpanLog, after: int) -> tuple[int, int, list[int]]:
    page = log.page(after)
    return page.first, page.next, [int(s.ref) for s in page.spans]


def test_reading_on_from_where_one_was():
    log = numbered(5)
    assert refs(log, 0) == (0, 5, [0, 1, 2, 3, 4])
    assert refs(log, 3) == (3, 5, [3, 4])
    assert refs(log, 5) == (5, 5, [])
    assert refs(log, 99) == (5, 5, [])


def test_what_was_pushed_out_shows_in_the_number_of_the_first():
    log = numbered(10, capacity=4)
    assert refs(log, 2) == (6, 10, [6, 7, 8, 9])
    assert refs(log, 8) == (8, 10, [8, 9])


def test_pages_are_bounded():
    log = numbered(PAGE + 7, capacity=2 * PAGE)
    first = log.page(0)
    assert (len(first.spans), first.next) == (PAGE, PAGE)
    assert len(log.page(first.next).spans) == 7


def test_stage_ends_now():
    log = SpanLog()
    end_ns = log.stage("gc", "1", "load", 5, outcome="ok")
    assert log.page(0).spans == [Span("gc", "1", "load", 5, end_ns, outcome="ok")]
    assert 5 < end_ns <= time.monotonic_ns()
