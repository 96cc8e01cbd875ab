"""The agent's spans, numbered, kept until they have been read or pushed out."""

from __future__ import annotations

import time
from collections import deque

from loadgen.core.agentapi import SpanPage
from loadgen.core.samples import Span

CAPACITY = 200_000
"""A burst of 50 pods makes about 500; a reader that asks every second loses none."""
PAGE = 20_000


class SpanLog:
    def __init__(self, capacity: int = CAPACITY) -> None:
        self._spans: deque[Span] = deque(maxlen=capacity)
        self._next = 0

    def add(self, span: Span) -> None:
        self._spans.append(span)
        self._next += 1

    def stage(
        self, op: str, ref: str, stage: str, start_ns: int, *, n: int = 0, deleted: int = 0, outcome: str = ""
    ) -> int:
        """A stage that began at `start_ns` has just ended; returns the time of its end."""
        end_ns = time.monotonic_ns()
        self.add(Span(op, ref, stage, start_ns, end_ns, n=n, deleted=deleted, outcome=outcome))
        return end_ns

    def page(self, after: int) -> SpanPage:
        """Spans from number `after` on, at most PAGE of them."""
        oldest = self._next - len(self._spans)
        first = min(max(after, oldest), self._next)
        start = first - oldest
        spans = [self._spans[i] for i in range(start, min(start + PAGE, len(self._spans)))]
        return SpanPage(first, first + len(spans), spans)
