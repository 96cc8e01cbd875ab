"""Cilium's metrics under Cilium's names and labels, as 1.16 and 1.18 export them (seen live on both)."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from loadgen.core.cilium import Profile
from loadgen.core.limiter import ApiLimiter
from loadgen.core.units import NS_PER_S
from loadgen.native import CtWalk

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""The Go client's defaults, which Cilium uses up to 1.19: quantiles end at 10 s, so read _sum and _count."""

_FAMILY = "ipv4"


class Metrics:
    """One registry of its own. Methods are named for what has happened."""

    def __init__(self, profile: Profile) -> None:
        # Go's client has no _created series; ours would carry one for every counter and histogram.
        disable_created_metrics()
        self._profile = profile
        self.registry = CollectorRegistry()
        self._conntrack()
        self._endpoints()
        self._api()

    def _conntrack(self) -> None:
        name, registry = "cilium_datapath_conntrack", self.registry
        labels = ("family", "protocol", "status")
        self._gc_runs = Counter(f"{name}_gc_runs", "Walks of a CT table: GC and scrubs", labels, registry=registry)
        self._gc_duration = Histogram(
            f"{name}_gc_duration_seconds", "Duration of a walk", labels, registry=registry, buckets=_BUCKETS
        )
        self._gc_entries = Gauge(f"{name}_gc_entries", "Entries that the last walk found", labels, registry=registry)
        self._key_fallbacks = Counter(
            f"{name}_gc_key_fallbacks",
            "Walks that went on from the key before a vanished one",
            ("family", "protocol"),
            registry=registry,
        )
        self._dump_resets = Counter(
            f"{name}_dump_resets", "Walks that began anew", ("area", "name", "family"), registry=registry
        )
        self._pressure = Gauge(
            "cilium_bpf_map_pressure", "Fill of a map at its last walk", ("map_name",), registry=registry
        )
        if self._profile.gc_interval_gauge:
            self._interval = Gauge(
                f"{name}_gc_interval_seconds", "Time until the next GC", ("global",), registry=registry
            )

    def _endpoints(self) -> None:
        self._regeneration = Histogram(
            "cilium_endpoint_regeneration_time_stats_seconds",
            "Stages of successful regenerations",
            ("scope", "status"),
            registry=self.registry,
            buckets=_BUCKETS,
        )
        self._regenerations = Counter(
            "cilium_endpoint_regenerations", "Regenerations that ended", ("outcome",), registry=self.registry
        )
        self._states = Gauge(
            "cilium_endpoint_state", "Endpoints by state", ("endpoint_state",), registry=self.registry
        )

    def _api(self) -> None:
        self._api_time = Histogram(
            "cilium_agent_api_process_time_seconds",
            "Time of API calls, with the wait in the limiter",
            ("path", "method", "return_code"),
            registry=self.registry,
            buckets=_BUCKETS,
        )
        call, value = ("api_call",), ("api_call", "value")
        name, registry = "cilium_api_limiter", self.registry
        self._processed = Counter(
            f"{name}_processed_requests",
            "Requests that ended or were refused",
            ("api_call", "outcome", "return_code"),
            registry=registry,
        )
        self._limiter_processing = Gauge(
            f"{name}_processing_duration_seconds", "Mean and estimate", value, registry=registry
        )
        self._limiter_wait = Gauge(f"{name}_wait_duration_seconds", "Mean and limits", value, registry=registry)
        self._limiter_rate = Gauge(f"{name}_rate_limit", "Rate and burst, adjusted", value, registry=registry)
        self._limiter_flight = Gauge(f"{name}_requests_in_flight", "Requests that run", value, registry=registry)
        self._limiter_factor = Gauge(f"{name}_adjustment_factor", "Estimate / mean", call, registry=registry)

    def walked(self, protocol: str, map_name: str, capacity: int, walk: CtWalk) -> None:
        """A table has been walked, by GC or by a scrub: Cilium counts both in the same series.

        From 1.18 on the duration observed is always 0 and restarts are not counted (core/cilium.py: SOURCES).
        """
        status = "completed" if walk.completed else "uncompleted"
        self._gc_runs.labels(_FAMILY, protocol, status).inc()
        seconds = walk.ns / NS_PER_S if self._profile.gc_duration_observed else 0.0
        self._gc_duration.labels(_FAMILY, protocol, status).observe(seconds)
        if self._profile.walk_restarts_counted:
            self._key_fallbacks.labels(_FAMILY, protocol).inc(walk.fallbacks)
            self._dump_resets.labels("conntrack", "dump_interrupts", _FAMILY).inc(walk.restarts)
        if not walk.completed:
            return
        alive = walk.seen - walk.deleted
        self._gc_entries.labels(_FAMILY, protocol, "alive").set(alive)
        self._gc_entries.labels(_FAMILY, protocol, "deleted").set(walk.deleted)
        self._pressure.labels(map_name).set(alive / capacity)

    def interval(self, interval_ns: int) -> None:
        if self._profile.gc_interval_gauge:
            self._interval.labels("global").set(interval_ns / NS_PER_S)

    def regenerated(self, stages: Mapping[str, int] | None) -> None:
        """A regeneration succeeded, with its stages in ns by Cilium's scope names; None: it failed."""
        self._regenerations.labels("success" if stages is not None else "fail").inc()
        for scope, ns in (stages or {}).items():
            self._regeneration.labels(scope, "success").observe(ns / NS_PER_S)

    def api_call(self, path: str, method: str, code: int, seconds: float) -> None:
        self._api_time.labels(path, method, str(code)).observe(seconds)

    def limited(self, call: str, outcome: str, code: int, limiter: ApiLimiter) -> None:
        """A request has left the limiter `call`, refused or processed."""
        self._processed.labels(call, outcome, str(code)).inc()
        params = limiter.params
        self._limiter_processing.labels(call, "mean").set(limiter.mean_processing_s)
        self._limiter_processing.labels(call, "estimated").set(params.estimate_ns / NS_PER_S)
        self._limiter_wait.labels(call, "mean").set(limiter.mean_wait_s)
        self._limiter_wait.labels(call, "max").set(params.max_wait_ns / NS_PER_S)
        self._limiter_rate.labels(call, "limit").set(limiter.rate)
        self._limiter_rate.labels(call, "burst").set(limiter.burst)
        self._limiter_flight.labels(call, "in-flight").set(limiter.in_flight)
        self._limiter_flight.labels(call, "limit").set(limiter.parallel)
        self._limiter_factor.labels(call).set(limiter.factor)

    def endpoint_states(self, states: Mapping[str, int]) -> None:
        self._states.clear()
        for state, count in states.items():
            self._states.labels(state).set(count)

    def text(self) -> bytes:
        """The exposition format, version 0.0.4."""
        return generate_latest(self.registry)
