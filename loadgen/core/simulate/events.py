"""The clock of one node, and the two things its work queues for: a lock and a number of permits."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

Then = Callable[[], object]
Event = list[Any]
"""[time in ns, number, function or None when cancelled, its arguments]"""


class Timeline:
    """Events in order of time; those of the same instant in the order in which they were asked for."""

    __slots__ = ("_heap", "_numbers", "now_ns", "processed")

    def __init__(self, start_ns: int) -> None:
        self.now_ns = start_ns
        self.processed = 0
        self._heap: list[Event] = []
        self._numbers = count()

    def at(self, t_ns: int, act: Callable[..., object], *args: Any) -> Event:
        """`act(*args)` at that time, which must not have passed. The event can be cancelled."""
        event: Event = [t_ns, next(self._numbers), act, args]
        heapq.heappush(self._heap, event)
        return event

    def after(self, wait_ns: int, act: Callable[..., object], *args: Any) -> Event:
        return self.at(self.now_ns + wait_ns, act, *args)

    @staticmethod
    def cancel(event: Event) -> None:
        """It will not happen; no effect on one that has happened."""
        event[2] = None

    def next_ns(self) -> int | None:
        """When the next event is due."""
        heap = self._heap
        while heap and heap[0][2] is None:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def run(self, until_ns: int) -> None:
        """Every event before `until_ns`; the clock stands there afterwards."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] < until_ns:
            t_ns, _, act, args = pop(heap)
            if act is not None:
                self.now_ns = t_ns
                self.processed += 1
                act(*args)
        self.now_ns = until_ns


class Places:
    """A number of places, first come, first served: 1 for a lock, more for build permits.

    Whoever waits may leave the queue; one that holds a place must give it back.
    """

    __slots__ = ("_waiting", "free", "longest")

    def __init__(self, places: int) -> None:
        self.free = places
        self._waiting: deque[list[Then | None]] = deque()
        self.longest = 0
        """The longest queue there has been."""

    @property
    def idle_queue(self) -> bool:
        return not self._waiting

    def take(self, then: Then) -> list[Then | None]:
        """Call `then` once there is a place, maybe now. The ticket is for `leave`."""
        ticket: list[Then | None] = [then]
        if self.free:
            self.free -= 1
            then()
        else:
            self._waiting.append(ticket)
            self.longest = max(self.longest, len(self._waiting))
        return ticket

    def leave(self, ticket: list[Then | None]) -> None:
        """Stop waiting. Not for tickets that have got their place."""
        ticket[0] = None

    def give_back(self) -> None:
        while self._waiting:
            then = self._waiting.popleft()[0]
            if then is not None:
                then()
                return
        self.free += 1
