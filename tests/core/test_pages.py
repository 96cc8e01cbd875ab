import numpy as np

from loadgen.core import pages
from loadgen.core.histogram import growth, looks
from loadgen.core.history import Series
from loadgen.core.metrics import METRICS
from loadgen.core.pages import CONTAINERD, COREDNS, KUBELET, Wanted, read

KUBELET_PAGE = """
# TYPE kubelet_run_podsandbox_duration_seconds histogram
kubelet_run_podsandbox_duration_seconds_bucket{runtime_handler="",le="0.005"} 29
kubelet_run_podsandbox_duration_seconds_bucket{runtime_handler="",le="+Inf"} 29
kubelet_run_podsandbox_duration_seconds_sum{runtime_handler=""} 8.6e-05
kubelet_run_podsandbox_duration_seconds_count{runtime_handler=""} 29
# TYPE kubelet_runtime_operations_duration_seconds histogram
kubelet_runtime_operations_duration_seconds_bucket{operation_type="list_podsandbox",le="0.005"} 700
kubelet_runtime_operations_duration_seconds_bucket{operation_type="list_podsandbox",le="+Inf"} 800
kubelet_runtime_operations_duration_seconds_bucket{operation_type="run_podsandbox",le="3.0517578125"} 20
kubelet_runtime_operations_duration_seconds_bucket{operation_type="run_podsandbox",le="+Inf"} 29
kubelet_runtime_operations_duration_seconds_sum{operation_type="list_podsandbox"} 3.1
kubelet_runtime_operations_duration_seconds_sum{operation_type="run_podsandbox"} 124.8
kubelet_runtime_operations_duration_seconds_count{operation_type="list_podsandbox"} 800
kubelet_runtime_operations_duration_seconds_count{operation_type="run_podsandbox"} 29
kubelet_runtime_operations_errors_total{operation_type="pull_image"} 2
kubelet_runtime_operations_total{operation_type="run_podsandbox"} 29
process_start_time_seconds 1.79610226898e+09
"""

CONTAINERD_PAGE = """
containerd_cri_network_plugin_operations_duration_seconds_seconds_bucket{operation_type="set_up_pod",le="0.025"} 2
containerd_cri_network_plugin_operations_duration_seconds_seconds_bucket{operation_type="set_up_pod",le="+Inf"} 7
containerd_cri_network_plugin_operations_duration_seconds_seconds_sum{operation_type="set_up_pod"} 0.26
containerd_cri_network_plugin_operations_duration_seconds_seconds_count{operation_type="set_up_pod"} 7
containerd_cri_network_plugin_operations_errors_total_total{operation_type="set_up_pod"} 3
containerd_cri_network_plugin_operations_errors_total_total{operation_type="tear_down_pod"} 1
process_start_time_seconds 1.79610225568e+09
"""

COREDNS_PAGE = """
coredns_build_info{goversion="go1.26",revision="",version="1.13.1"} 1
coredns_dns_requests_total{family="1",proto="udp",server="dns://:53",type="A",view="",zone="."} 4
coredns_dns_requests_total{family="1",proto="tcp",server="dns://:53",type="A",view="",zone="."} 1
coredns_dns_requests_total{family="1",proto="udp",server="dns://:53",type="other",view="",zone="."} 10
"""


def values(page: pages.Page, text: str) -> dict[str, float]:
    return {r.series: r.value for r in read(page, text, 7)}


def test_the_kubelets_sandboxes_come_from_the_metric_that_works() -> None:
    found = values(KUBELET, KUBELET_PAGE)
    assert found == {
        "kubelet.run_podsandbox|le=3.0517578125": 20,
        "kubelet.run_podsandbox|le=+Inf": 29,
        "kubelet.run_podsandbox|sum": 124.8,
        "kubelet.run_podsandbox|count": 29,
        "kubelet.sandbox_errors": 0,  # none failed yet, so it is not on the page
        "kubelet|started": 1.79610226898e09,
    }


def test_containerds_ADDs_have_doubled_suffixes() -> None:
    found = values(CONTAINERD, CONTAINERD_PAGE)
    assert (found["containerd.set_up_pod|count"], found["containerd.set_up_pod|sum"]) == (7, 0.26)
    assert found["containerd.cni_errors"] == 3
    # No pod has been torn down: the family's label is not there, which is a histogram of nothing.
    assert (found["containerd.tear_down_pod|count"], found["containerd.tear_down_pod|sum"]) == (0, 0)
    assert not any(name.startswith("containerd.tear_down_pod|le") for name in found)


def test_queries_are_added_up_by_type() -> None:
    assert values(COREDNS, COREDNS_PAGE) == {"dns.server.a": 5, "dns.server.aaaa": 0}


def test_a_page_of_somebody_else_has_nothing_of_ours() -> None:
    assert read(KUBELET, COREDNS_PAGE, 7) == []
    assert read(COREDNS, "<html>no metrics here</html>", 7) == []


def test_a_label_can_make_a_series_for_each_of_its_values() -> None:
    wanted = Wanted(series="x", metric="m", by="scope", kind="totals")
    text = 'm_sum{scope="a"} 1\nm_count{scope="a"} 2\nm_sum{scope="b"} 3\nm_count{scope="b"} 4\n'
    assert values((wanted,), text) == {"x.a|sum": 1, "x.a|count": 2, "x.b|sum": 3, "x.b|count": 4}


def test_looks_at_a_page_become_a_histogram_again() -> None:
    later = KUBELET_PAGE.replace("} 29", "} 31").replace("124.8", "126.8").replace("} 20", "} 22")
    found: dict[str, list[tuple[int, float]]] = {}
    for t_ns, text in ((0, KUBELET_PAGE), (5, later)):
        for reading in read(KUBELET, text, t_ns):
            found.setdefault(reading.series, []).append((reading.t_ns, reading.value))
    series = {n: Series(np.array([t for t, _ in v]), np.array([x for _, x in v])) for n, v in found.items()}
    seen = looks(series, "kubelet.run_podsandbox")
    assert seen is not None
    grown = growth(seen, 0, 5)
    assert grown is not None
    assert (grown.seen.count, round(grown.seen.sum, 6), grown.seen.edges[0]) == (2, 2.0, 3.0517578125)


def test_every_gauge_that_is_read_may_stand_in_a_threshold() -> None:
    series = {wanted.series for page in (KUBELET, CONTAINERD, COREDNS) for wanted in page if wanted.kind == "value"}
    assert {name for name in series if "|" not in name} <= METRICS.keys()


def test_a_threshold_tells_which_page_is_asked_for() -> None:
    assert pages.asked(KUBELET, ["sandbox.setup p50 < 1s", "kubelet.sandbox_errors max < 5"])
    assert not pages.asked(KUBELET, ["sandbox.setup p50 < 1s", "containerd.cni_errors max < 5"])
