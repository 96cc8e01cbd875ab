"""A run as it is read back from disk: columns for what there are many of, records for the rest."""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

import msgspec
import numpy as np

from loadgen.core.samples import Mark, Span, Tally

RUN_FORMAT = 1


class Ending(Enum):
    """How a run ended. `killed`: it left no word of its end."""

    COMPLETE = "complete"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    KILLED = "killed"


class RunInfo(msgspec.Struct, frozen=True):
    """run.json of one run, written before the first packet. `scenario` is the whole file with overrides applied."""

    format: int
    scenario: dict[str, Any]
    variant: str
    baseline: bool
    partial: bool
    repeat: int
    seed: int
    testbed: str
    environment: dict[str, str]
    """What must be equal for two runs to be comparable: kernel, CPUs, versions."""
    emulated: tuple[str, ...]
    argv: tuple[str, ...]
    started: str
    start_ns: int


class MetricSamples(NamedTuple):
    """All samples of one metric, in order of arrival. `phase` and `source` index the name tuples beside them."""

    rows: np.ndarray
    details: tuple[str, ...]
    phase: np.ndarray
    phases: tuple[str, ...]
    source: np.ndarray
    sources: tuple[str, ...]
    refs: tuple[str, ...]
    """One a row, or empty."""

    def within(self, phases: frozenset[str]) -> np.ndarray:
        """Boolean mask of the samples whose operation was due in one of these phases."""
        wanted = np.array([name in phases for name in self.phases], dtype=bool)
        return wanted[self.phase] if len(wanted) else np.zeros(len(self.rows), dtype=bool)


class Series(NamedTuple):
    """All readings of one series, in order of time."""

    t_ns: np.ndarray
    values: np.ndarray


class RunData(NamedTuple):
    """Everything a run left behind."""

    info: RunInfo
    samples: dict[str, MetricSamples]
    readings: dict[str, Series]
    spans: tuple[Span, ...]
    marks: tuple[Mark, ...]
    tallies: tuple[Tally, ...]

    def ending(self) -> Ending:
        ends = [mark.name for mark in self.marks if mark.kind == "end"]
        return Ending(ends[-1]) if ends else Ending.KILLED

    def phase_windows(self) -> dict[str, tuple[int, int]]:
        """Start and end of each phase, ns; a phase whose end is missing ends with the last mark.

        Marks stand in order of arrival: a probe's may be older than the engine's before it.
        """
        windows: dict[str, tuple[int, int]] = {}
        last = max((mark.t_ns for mark in self.marks), default=0)
        for mark in self.marks:
            if mark.kind == "phase":
                windows[mark.name] = (mark.t_ns, last)
            elif mark.kind == "phase-end" and mark.name in windows:
                windows[mark.name] = (windows[mark.name][0], mark.t_ns)
        return windows
