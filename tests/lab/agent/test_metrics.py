"""Cilium's metric names and labels, as prometheus-client's own parser reads them."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadgen.core.cilium import PROFILES
from loadgen.core.limiter import ApiLimiter
from loadgen.core.units import NS_PER_S
from loadgen.lab.agent.metrics import Metrics

CONNTRACK = "cilium_datapath_conntrack"


class Walk:
    """A native.CtWalk cannot be made by hand; this has its attributes."""

    seen, expired, deleted, fallbacks, restarts = 1000, 0, 40, 3, 1
    cancelled, completed, ns = False, True, 2 * NS_PER_S


class CancelledWalk(Walk):
    cancelled, completed = True, False


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(metrics.text().decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for f in families for s in f.samples}


def of(metrics: Metrics, series: str, /, **labels: str) -> float | None:
    return samples(metrics).get((series, tuple(sorted(labels.items()))))


@pytest.mark.parametrize("version", ["1.16", "1.18"])
def test_walks_of_either_version(version):
    metrics = Metrics(PROFILES[version])
    metrics.walked("TCP", "ct4_global", 9600, Walk())  # type: ignore[arg-type]
    done = {"family": "ipv4", "protocol": "TCP", "status": "completed"}
    assert of(metrics, f"{CONNTRACK}_gc_runs_total", **done) == 1
    assert of(metrics, f"{CONNTRACK}_gc_duration_seconds_count", **done) == 1
    assert of(metrics, f"{CONNTRACK}_gc_duration_seconds_sum", **done) == (2.0 if version == "1.16" else 0.0)
    fallbacks = of(metrics, f"{CONNTRACK}_gc_key_fallbacks_total", family="ipv4", protocol="TCP")
    assert fallbacks == (3 if version == "1.16" else None)
    resets = of(metrics, f"{CONNTRACK}_dump_resets_total", area="conntrack", name="dump_interrupts", family="ipv4")
    assert resets == (1 if version == "1.16" else None)
    for status, entries in (("alive", 960), ("deleted", 40)):
        assert of(metrics, f"{CONNTRACK}_gc_entries", family="ipv4", protocol="TCP", status=status) == entries
    assert of(metrics, "cilium_bpf_map_pressure", map_name="ct4_global") == 0.1


def test_interval_gauge_is_of_newer_versions_only():
    for version, value in (("1.16", None), ("1.18", 300.0)):
        metrics = Metrics(PROFILES[version])
        metrics.interval(300 * NS_PER_S)
        assert of(metrics, f"{CONNTRACK}_gc_interval_seconds", **{"global": "global"}) == value


def test_cancelled_walk_counts_as_uncompleted_and_sets_no_gauge():
    metrics = Metrics(PROFILES["1.16"])
    metrics.walked("TCP", "ct4_global", 9600, CancelledWalk())  # type: ignore[arg-type]
    assert of(metrics, f"{CONNTRACK}_gc_runs_total", family="ipv4", protocol="TCP", status="uncompleted") == 1
    assert not [name for name, _ in samples(metrics) if name.endswith("gc_entries")]


def test_endpoints_and_api():
    metrics = Metrics(PROFILES["1.16"])
    metrics.regenerated({"waitingForCTClean": 3 * NS_PER_S, "total": 4 * NS_PER_S})
    metrics.regenerated(None)
    metrics.endpoint_states({"ready": 4})
    metrics.endpoint_states({"regenerating": 1})
    metrics.api_call("/v1/endpoint", "PUT", 201, 1.5)
    limiter = ApiLimiter(PROFILES["1.16"].limits["endpoint-create"])
    limiter.finish(limiter.submit(0), NS_PER_S)
    metrics.limited("endpoint-create", "success", 201, limiter)
    metrics.limited("endpoint-create", "fail-limit-wait", 429, limiter)
    stats = "cilium_endpoint_regeneration_time_stats_seconds_sum"
    assert of(metrics, stats, scope="waitingForCTClean", status="success") == 3
    assert of(metrics, "cilium_endpoint_regenerations_total", outcome="fail") == 1
    assert of(metrics, "cilium_endpoint_state", endpoint_state="ready") is None
    assert of(metrics, "cilium_endpoint_state", endpoint_state="regenerating") == 1
    api = {"path": "/v1/endpoint", "method": "PUT", "return_code": "201"}
    assert of(metrics, "cilium_agent_api_process_time_seconds_sum", **api) == 1.5
    refused = {"api_call": "endpoint-create", "outcome": "fail-limit-wait", "return_code": "429"}
    assert of(metrics, "cilium_api_limiter_processed_requests_total", **refused) == 1
    assert of(metrics, "cilium_api_limiter_adjustment_factor", api_call="endpoint-create") == 2.0
    assert of(metrics, "cilium_api_limiter_rate_limit", api_call="endpoint-create", value="limit") == 1.0
    assert not [name for name, _ in samples(metrics) if name.endswith("_created")]
