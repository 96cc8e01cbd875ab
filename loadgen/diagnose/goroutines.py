"""Goroutine dumps: `gops stack`, SIGQUIT (also in the middle of a log) and pprof's debug=1, grouped by stack."""

from __future__ import annotations

import re
from collections import Counter

from loadgen.core.incident import Goroutines, Stack

FRAMES_MAX, GROUPS_MAX = 64, 20_000
_HEADER = re.compile(rb"goroutine \d+ (?:[^\[\]]* )?\[([^\]\n]*)\]:")
_MINUTES = re.compile(rb"(\d{1,9}) minutes")
_PROFILE = re.compile(rb"(\d{1,9}) @(?: 0x[0-9a-f]+)+\s*$")
_PROFILE_FRAME = re.compile(rb"#\t0x[0-9a-f]+\t(\S+?)(?:\+0x[0-9a-f]+)?(?:\t|\s*$)")


class GoroutineReader:
    """Feed it lines; lines of no dump are passed over."""

    def __init__(self) -> None:
        self._groups: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self._minutes: dict[tuple[str, tuple[str, ...]], int] = {}
        self._frames: list[str] | None = None
        self._state, self._waited, self._count = "", 0, 1

    def line(self, line: bytes) -> None:
        """One line without its newline."""
        if line.startswith(b"goroutine ") and (found := _HEADER.match(line)):
            self._begin(1, found[1])
        elif b" @ 0x" in line and (found := _PROFILE.match(line)):
            self._begin(int(found[1]), b"")
        elif self._frames is not None:
            self._frame(line)

    def dump(self, file: str) -> Goroutines:
        """All that was seen, the most frequent stacks first."""
        self._end()
        stacks = [
            Stack(count, state, frames, self._minutes[state, frames])
            for (state, frames), count in self._groups.most_common()
        ]
        return Goroutines(file, sum(self._groups.values()), tuple(stacks))

    def _begin(self, count: int, state: bytes) -> None:
        self._end()
        waited = _MINUTES.search(state)
        self._state = state.split(b",")[0].decode("utf-8", "replace")[:80]
        self._waited, self._count, self._frames = int(waited[1]) if waited else 0, count, []

    def _frame(self, line: bytes) -> None:
        if not line.strip():
            self._end()
        elif len(self._frames or ()) >= FRAMES_MAX or line.startswith((b"\t", b"created by ")):
            pass
        elif found := _PROFILE_FRAME.match(line):
            self._add(found[1])
        elif line.endswith(b")") and b"(" in line:
            self._add(line[: line.rindex(b"(")])

    def _add(self, name: bytes) -> None:
        if self._frames is not None:
            self._frames.append(name.decode("utf-8", "replace")[:200])

    def _end(self) -> None:
        if self._frames:
            key = (self._state, tuple(self._frames))
            if key in self._groups or len(self._groups) < GROUPS_MAX:
                self._groups[key] += self._count
                self._minutes[key] = max(self._minutes.get(key, 0), self._waited)
        self._frames = None
