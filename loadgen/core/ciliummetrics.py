"""Cilium's own metrics by version: what is read of an agent's page, and what a version does not tell.

Names and labels were read in Cilium's sources and seen on running agents of 1.16.15 and 1.18.3; each Shortcoming
names its source. Means of the API limiter are over its last 10 calls (pkg/rate), so they lag behind by as many.
"""

from __future__ import annotations

import re
from types import MappingProxyType

import msgspec

from loadgen.core.pages import STARTED, Page, Wanted

NEWEST = (1, 20)
"""What is newer is read as this one."""

_REFUSED = ("fail-limit-wait", "fail-parallel-wait", "request-cancelled")
"""Outcomes that are answered 429. The label return_code says so too, but only from 1.16 (PR #31227)."""


def _limiter(series: str, metric: str, value: str) -> Wanted:
    labels = MappingProxyType({"api_call": ("endpoint-create",), "value": (value,)})
    return Wanted(series=f"cilium.limiter.{series}", metric=f"cilium_api_limiter_{metric}", labels=labels)


def _refused(series: str, call: str) -> Wanted:
    metric = "cilium_api_limiter_processed_requests_total"
    labels = MappingProxyType({"api_call": (call,), "outcome": _REFUSED})
    return Wanted(series=series, metric=metric, labels=labels, witness=metric)


_CONNTRACK = "cilium_datapath_conntrack"
_ALIVE = MappingProxyType({"protocol": ("TCP",), "status": ("alive",)})
_GLOBAL_TCP = MappingProxyType({"map_name": ("ct4_global",)})

_PAGE: tuple[tuple[tuple[int, int], Wanted], ...] = (
    ((1, 14), _limiter("wait", "wait_duration_seconds", "mean")),
    ((1, 14), _limiter("processing", "processing_duration_seconds", "mean")),
    ((1, 14), _limiter("rate", "rate_limit", "limit")),
    ((1, 14), _limiter("in_flight", "requests_in_flight", "in-flight")),
    ((1, 14), _refused("cilium.creates_refused", "endpoint-create")),
    ((1, 14), _refused("cilium.deletes_refused", "endpoint-delete")),
    (
        (1, 14),
        Wanted(
            series="cilium.regeneration",
            metric="cilium_endpoint_regeneration_time_stats_seconds",
            labels=MappingProxyType({"status": ("success",)}),
            kind="totals",
            by="scope",
        ),
    ),
    ((1, 14), Wanted(series="cilium.ct.walks", metric=f"{_CONNTRACK}_gc_runs_total")),
    ((1, 14), Wanted(series="cilium.ct.alive", metric=f"{_CONNTRACK}_gc_entries", labels=_ALIVE)),
    ((1, 14), Wanted(series="cilium.ct.walk", metric=f"{_CONNTRACK}_gc_duration_seconds", kind="totals")),
    ((1, 16), Wanted(series="cilium.ct.pressure", metric="cilium_bpf_map_pressure", labels=_GLOBAL_TCP)),
    ((1, 18), Wanted(series="cilium.gc.interval", metric=f"{_CONNTRACK}_gc_interval_seconds")),
    ((1, 14), Wanted(series=f"cilium{STARTED}", metric="process_start_time_seconds")),
)


class Shortcoming(msgspec.Struct, frozen=True):
    """What versions from `since` until before `until` do not tell, or tell wrongly."""

    since: tuple[int, int]
    until: tuple[int, int] | None
    metric: str
    what: str
    source: str


SHORTCOMINGS: tuple[Shortcoming, ...] = (
    Shortcoming(
        (1, 18),
        None,
        f"{_CONNTRACK}_gc_duration_seconds",
        "its sum stays 0: the batch walk starts no clock",
        "pkg/maps/ctmap iterate() of 1.18 and 1.20; seen on 1.18.3: every observation in le=0.005",
    ),
    Shortcoming(
        (1, 18),
        None,
        f"{_CONNTRACK}_gc_key_fallbacks_total, {_CONNTRACK}_dump_resets_total",
        "stay 0: they belong to DumpReliablyWithCallback, which is no longer called",
        "PR #36288, be4d573875",
    ),
    Shortcoming(
        (1, 14),
        None,
        f"{_CONNTRACK}_gc_runs_total, {_CONNTRACK}_gc_entries",
        "count the walks of endpoint creates and deletes like periodic passes; entries are those of the last walk",
        "pkg/maps/ctmap doGC4; seen on 1.16.15 and 1.18.3",
    ),
    Shortcoming(
        (1, 16),
        None,
        "cilium_bpf_map_pressure",
        "stale: set only by a GC pass or an endpoint's walk, 9e-05 right after 500,000 entries came",
        "746876a1d4 (1.16); seen on 1.16.15",
    ),
    Shortcoming(
        (1, 14), (1, 16), "cilium_bpf_map_pressure", "not there for the conntrack tables", "746876a1d4 (1.16)"
    ),
    Shortcoming(
        (1, 14),
        (1, 18),
        f"{_CONNTRACK}_gc_interval_seconds",
        "not there: the interval is in the log only",
        "82610768bf",
    ),
    Shortcoming(
        (1, 18),
        None,
        f"{_CONNTRACK}_gc_interval_seconds",
        "not set when conntrackGCInterval fixes the interval",
        "82610768bf (1.18)",
    ),
    Shortcoming(
        (1, 14),
        None,
        "cilium_endpoint_regeneration_time_stats_seconds",
        "only of regenerations that succeeded: one that its client gave up is missing",
        "pkg/endpoint; seen on 1.16.15: 9 creates that failed at 90 s left no trace",
    ),
    Shortcoming(
        (1, 14),
        (1, 20),
        "cilium_endpoint_regeneration_time_stats_seconds, cilium_agent_api_process_time_seconds",
        "buckets end at 10 s: sum and count are read, no quantiles",
        "pkg/metrics: the Go client's default buckets up to 1.19",
    ),
)


def minor(version: str) -> tuple[int, int]:
    """`v1.16.15` → (1, 16); what has no number in front is read as the newest known."""
    found = re.match(r"v?(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else NEWEST


def page(version: str) -> Page:
    """What to read of an agent of this version."""
    known = min(minor(version), NEWEST)
    return tuple(wanted for since, wanted in _PAGE if since <= known)


def shortcomings(version: str) -> tuple[Shortcoming, ...]:
    """What an agent of this version does not tell."""
    known = min(minor(version), NEWEST)
    return tuple(s for s in SHORTCOMINGS if s.since <= known and (s.until is None or known < s.until))
