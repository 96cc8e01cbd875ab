import pytest

from loadgen.core import ciliummetrics, pages
from loadgen.core.cilium import profile
from loadgen.core.ciliummetrics import minor, shortcomings
from loadgen.core.limiter import ApiLimiter, Refusal
from loadgen.core.metrics import METRICS
from loadgen.lab.agent.metrics import Metrics

PAGE_1_16 = """
cilium_api_limiter_wait_duration_seconds{api_call="endpoint-create",value="max"} 60
cilium_api_limiter_wait_duration_seconds{api_call="endpoint-create",value="mean"} 26.7
cilium_api_limiter_wait_duration_seconds{api_call="endpoint-delete",value="mean"} 5
cilium_api_limiter_processing_duration_seconds{api_call="endpoint-create",value="mean"} 1.6
PROCESSED{api_call="endpoint-create",outcome="success",return_code="201"} 50
PROCESSED{api_call="endpoint-create",outcome="fail-limit-wait",return_code="429"} 46
PROCESSED{api_call="endpoint-create",outcome="fail-parallel-wait",return_code="429"} 98
cilium_endpoint_regeneration_time_stats_seconds_sum{scope="waitingForCTClean",status="success"} 125
cilium_endpoint_regeneration_time_stats_seconds_count{scope="waitingForCTClean",status="success"} 50
cilium_endpoint_regeneration_time_stats_seconds_sum{scope="waitingForCTClean",status="failure"} 900
cilium_endpoint_regeneration_time_stats_seconds_count{scope="waitingForCTClean",status="failure"} 9
cilium_datapath_conntrack_gc_runs_total{family="ipv4",protocol="TCP",status="completed"} 61
cilium_datapath_conntrack_gc_runs_total{family="ipv4",protocol="non-TCP",status="completed"} 61
cilium_datapath_conntrack_gc_entries{family="ipv4",protocol="TCP",status="alive"} 1000000
cilium_datapath_conntrack_gc_entries{family="ipv4",protocol="TCP",status="deleted"} 4
cilium_bpf_map_pressure{map_name="ct4_global"} 9e-05
process_start_time_seconds 5
""".replace("PROCESSED", "cilium_api_limiter_processed_requests_total")


def read(version: str, text: str = PAGE_1_16) -> dict[str, float]:
    return {r.series: r.value for r in pages.read(ciliummetrics.page(version), text, 7)}


def test_an_agents_page_of_1_16() -> None:
    found = read("1.16.15")
    assert found == {
        "cilium.limiter.wait": 26.7,
        "cilium.limiter.processing": 1.6,
        "cilium.creates_refused": 144,
        "cilium.deletes_refused": 0,
        "cilium.regeneration.waitingForCTClean|sum": 125,
        "cilium.regeneration.waitingForCTClean|count": 50,
        "cilium.ct.walks": 122,
        "cilium.ct.alive": 1_000_000,
        "cilium.ct.pressure": 9e-05,
        "cilium|started": 5,
    }


def test_429s_are_counted_where_return_code_is_not_a_label_yet() -> None:
    old = PAGE_1_16.replace(',return_code="429"', "").replace(',return_code="201"', "")
    assert read("1.15.9", old)["cilium.creates_refused"] == 144


def test_what_a_version_lacks_is_not_read() -> None:
    assert "cilium.ct.pressure" not in read("1.15.9")
    text = PAGE_1_16 + 'cilium_datapath_conntrack_gc_interval_seconds{global="global"} 450\n'
    assert "cilium.gc.interval" not in read("1.16.15", text)
    assert read("1.18.3", text)["cilium.gc.interval"] == 450


@pytest.mark.parametrize(
    ("version", "found"),
    [("1.16.15", (1, 16)), ("v1.18.3-rc.1", (1, 18)), ("1.16", (1, 16)), ("", (1, 20)), ("main", (1, 20))],
)
def test_versions_as_images_and_charts_have_them(version: str, found: tuple[int, int]) -> None:
    assert minor(version) == found


def test_what_is_newer_than_known_is_read_as_the_newest() -> None:
    assert ciliummetrics.page("1.99.0") == ciliummetrics.page("1.20.0")
    assert shortcomings("2.0") == shortcomings("1.20")


def test_shortcomings_are_those_of_the_version() -> None:
    def of(version: str, metric: str) -> list[str]:
        return [s.what for s in shortcomings(version) if metric in s.metric]

    assert of("1.16.15", "gc_duration_seconds") == []
    assert of("1.18.3", "gc_duration_seconds") == ["its sum stays 0: the batch walk starts no clock"]
    assert of("1.16.15", "map_pressure")[0].startswith("stale")
    assert of("1.15.0", "map_pressure") == ["not there for the conntrack tables"]
    assert of("1.14.3", "gc_interval_seconds") == ["not there: the interval is in the log only"]
    assert all(s.source and s.what for s in ciliummetrics.SHORTCOMINGS)


def test_the_versions_agree_with_what_is_known_of_them_elsewhere() -> None:
    """core.cilium says of two versions what they export."""
    for name in ("1.16", "1.18"):
        known = profile(name)
        told = " ".join(s.metric for s in shortcomings(name))
        assert ("gc_duration_seconds" in told) is not known.gc_duration_observed
        assert ("dump_resets_total" in told) is not known.walk_restarts_counted
        series = {wanted.series for wanted in ciliummetrics.page(name)}
        assert ("cilium.gc.interval" in series) is known.gc_interval_gauge


def test_the_agent_model_exports_what_is_read() -> None:
    """The lab's model has Cilium's names: its page is read like the real one's."""
    metrics = Metrics(profile("1.18"))
    metrics.regenerated({"waitingForCTClean": 2_000_000_000, "total": 3_000_000_000})
    limiter = ApiLimiter(profile("1.18").limits["endpoint-create"])
    metrics.limited("endpoint-create", Refusal.LIMIT_WAIT.value, 429, limiter)
    metrics.interval(60_000_000_000)
    found = read("1.18", metrics.text().decode())
    assert found["cilium.creates_refused"] == 1
    assert found["cilium.regeneration.waitingForCTClean|sum"] == 2.0
    assert found["cilium.gc.interval"] == 60
    assert {"cilium.limiter.wait", "cilium.limiter.processing", "cilium.limiter.rate"} <= found.keys()


def test_every_gauge_that_is_read_may_stand_in_a_threshold() -> None:
    gauges = {w.series for w in ciliummetrics.page("") if w.kind == "value" and "|" not in w.series}
    assert gauges <= METRICS.keys()
