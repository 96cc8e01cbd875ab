"""Samples, readings, spans and marks: what a run's history is made of.

A batch of samples travels from the worker that made them to disk as one numpy array, so that the C engine, the
pipe and the Parquet writer share one layout.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec
import numpy as np


class Outcome(IntEnum):
    """How an operation ended. A timeout is UNKNOWN: it may have happened, so its latency is censored."""

    OK = 0
    FAIL = 1
    UNKNOWN = 2


SAMPLE_DTYPE = np.dtype(
    [
        ("seq", "<i8"),  # number of the operation within its source and phase, from 0 without gaps
        ("due_ns", "<i8"),  # when the pacer wanted it; latency counts from here
        ("sent_ns", "<i8"),  # when it really started
        ("done_ns", "<i8"),  # when it ended, or when it was given up (UNKNOWN)
        ("outcome", "<u2"),
        ("tries", "<u2"),  # attempts it took: CNI ADDs of a sandbox, rounds of a lookup
        ("lost", "<u2"),  # queries of a lookup that were never answered in their round
        ("detail", "<u2"),  # index into the batch's `details`
    ]
)
"""40 bytes; times are CLOCK_MONOTONIC nanoseconds, which all processes of one machine share."""


class SampleBatch(msgspec.Struct, frozen=True, tag="samples"):
    """Some samples of one metric from one source. `rows` is the memory of a SAMPLE_DTYPE array."""

    metric: str
    phase: str
    source: str
    rows: bytes
    details: tuple[str, ...] = ("",)
    refs: tuple[str, ...] = ()
    """One a row, or none at all: what the sample is called in spans (a container id)."""

    def array(self) -> np.ndarray:
        return np.frombuffer(self.rows, dtype=SAMPLE_DTYPE)


class Reading(msgspec.Struct, frozen=True, tag="reading"):
    """One look at one number, e.g. series `ct.tcp.entries`."""

    t_ns: int
    series: str
    value: float


class Span(msgspec.Struct, frozen=True, tag="span"):
    """One stage of one operation inside the agent, for attribution: who waited where, for how long.

    op: endpoint-create, endpoint-delete or gc. stage: limiter-wait, build-wait, lock-wait, walk, load, total.
    `n` counts entries walked (stage walk); `outcome` is set on stage total (an HTTP status, or ok/failed).
    """

    op: str
    ref: str
    stage: str
    start_ns: int
    end_ns: int
    n: int = 0
    deleted: int = 0
    outcome: str = ""


class Mark(msgspec.Struct, frozen=True, tag="mark"):
    """Something that happened at an instant: a phase began, a fault was injected, a GC pass ended."""

    t_ns: int
    kind: str
    name: str
    text: str = ""


class Tally(msgspec.Struct, frozen=True, tag="tally"):
    """A worker's closing account. `created` must equal the samples that arrived, metric by metric."""

    phase: str
    source: str
    created: dict[str, int]
    cpu_s: float
    wall_s: float


class Log(msgspec.Struct, frozen=True, tag="log"):
    """A worker's last words before it dies of an error of its own (harness, not target)."""

    error: str


Message = SampleBatch | Reading | Span | Mark | Tally | Log
