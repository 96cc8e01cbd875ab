"""What a run looks like while it goes on: messages folded into a few numbers and one line."""

from __future__ import annotations

from collections import Counter

import numpy as np

from loadgen.core.samples import Mark, Message, Outcome, Reading, SampleBatch
from loadgen.core.units import NS_PER_S, format_count

_GAUGES = (
    ("ct.tcp.entries", "CT entries"),
    ("agent.lock.waiters", "lock waiters"),
    ("agent.build.waiters", "build waiters"),
    ("sandbox.waiting", "sandboxes under way"),
    ("race.drops", "racing queries dropped"),
)
_RATE_WINDOW_NS = 5 * NS_PER_S
SLOW_S = 1.0


class Progress:
    """Fold of a run's messages. `line` is what a person wants to know now."""

    def __init__(self) -> None:
        self.phase = ""
        self.phase_start_ns = 0
        self._arrived: Counter[str] = Counter()
        self._bad: Counter[str] = Counter()
        self._slow: Counter[str] = Counter()
        self._recent: dict[str, list[tuple[int, int]]] = {}
        self._gauges: dict[str, float] = {}

    def add(self, message: Message) -> None:
        match message:
            case Mark(kind="phase", name=name, t_ns=t_ns):
                self.phase, self.phase_start_ns = name, t_ns
            case Reading(series=series, value=value):
                self._gauges[series] = value
            case SampleBatch():
                self._add_samples(message)

    def _add_samples(self, batch: SampleBatch) -> None:
        rows = batch.array()
        if not len(rows):
            return
        metric = batch.metric
        self._arrived[metric] += len(rows)
        self._bad[metric] += int((rows["outcome"] != Outcome.OK).sum())
        self._slow[metric] += int(((rows["done_ns"] - rows["due_ns"]) > SLOW_S * NS_PER_S).sum())
        last = int(np.max(rows["done_ns"]))
        recent = self._recent.setdefault(metric, [])
        recent.append((last, len(rows)))
        while recent and recent[0][0] < last - _RATE_WINDOW_NS:
            recent.pop(0)

    def line(self, now_ns: int) -> str:
        """E.g. `burst 12 s · storm.connect 21,003 (1,660/s) · dns.lookup 2,402 (200/s) · CT entries 2,104,332`."""
        parts = [
            f"{self.phase or 'set-up'} {max(0, now_ns - self.phase_start_ns) // NS_PER_S} s"
            if self.phase
            else "set-up"
        ]
        parts += [self._metric(metric, now_ns) for metric in sorted(self._arrived)]
        parts += [f"{name} {format_count(self._gauges[s])}" for s, name in _GAUGES if s in self._gauges]
        return " · ".join(parts)

    def _metric(self, metric: str, now_ns: int) -> str:
        recent = [n for t, n in self._recent.get(metric, []) if t >= now_ns - _RATE_WINDOW_NS]
        rate = sum(recent) / (_RATE_WINDOW_NS / NS_PER_S)
        text = f"{metric} {self._arrived[metric]:,}"
        if rate >= 1:
            text += f" ({rate:,.0f}/s)"
        if self._slow[metric]:
            text += f", {self._slow[metric]:,} over {SLOW_S:g} s"
        if self._bad[metric]:
            text += f", {self._bad[metric]:,} failed or given up"
        return text
