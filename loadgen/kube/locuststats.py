"""Samples into Locust's statistics. Imported only by locustfiles, in Locust's processes."""

# pyright: reportMissingImports=false
from __future__ import annotations

import time
from typing import Any

import numpy as np
from locust.stats import RequestStats, StatsEntry, StatsError, bucket_response_time

from loadgen.core.samples import Outcome, SampleBatch

_TYPES = {"storm.connect": "TCP", "dns.lookup": "DNS"}
_NS_PER_MS = 1_000_000


def enter(stats: RequestStats, batch: SampleBatch) -> None:
    """A batch into Locust's statistics, as its master merges a worker's report: by entry and not by request."""
    rows, now = batch.array(), time.time()
    kind, name = _TYPES.get(batch.metric, "-"), f"{batch.metric} ({batch.source.partition('@')[0]})"
    took = (rows["done_ns"] - rows["due_ns"]) / _NS_PER_MS
    failed = int((rows["outcome"] != Outcome.OK).sum())
    entry: Any = StatsEntry(stats, name, kind)  # declared with whole milliseconds, used with fractions
    entry.num_requests, entry.num_failures, entry.last_request_timestamp = len(rows), failed, now
    entry.total_response_time = float(took.sum())
    entry.min_response_time, entry.max_response_time = float(took.min()), float(took.max())
    for ms, n in zip(*np.unique(took.round(), return_counts=True), strict=True):
        entry.response_times[bucket_response_time(int(ms))] += int(n)
    entry.num_reqs_per_sec[int(now)] = len(rows)
    if failed:
        entry.num_fail_per_sec[int(now)] = failed
    stats.entries[name, kind].extend(entry)
    stats.total.extend(entry)
    wrong = rows["detail"][rows["outcome"] != Outcome.OK]
    for detail, n in zip(*np.unique(wrong, return_counts=True), strict=True):
        why = batch.details[detail]
        key = StatsError.create_key(kind, name, why)
        error = stats.errors.setdefault(key, StatsError(kind, name, why))
        error.occurred()
        error.occurrences += int(n) - 1
