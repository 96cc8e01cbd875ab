import math
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from loadgen.core.promtext import Sample, samples

PAGE = r"""
# HELP kubelet_runtime_operations_duration_seconds [ALPHA] Duration in seconds of runtime operations.
# TYPE kubelet_runtime_operations_duration_seconds histogram
kubelet_runtime_operations_duration_seconds_bucket{operation_type="run_podsandbox",le="0.005"} 0
kubelet_runtime_operations_duration_seconds_bucket{operation_type="run_podsandbox",le="+Inf"} 29
kubelet_runtime_operations_duration_seconds_sum{operation_type="run_podsandbox"} 124.8
kubelet_runtime_operations_duration_seconds_count{operation_type="run_podsandbox"} 29
go_goroutines 208 1395066363000
  indented	{ a = "x" , b="} {" ,} 1.1266999999999999e-05
escaped{path="C:\\DIR\\",say="\"hello\"\nthere"} NaN
escaped_more{path="x"} -Inf
"""


def test_only_what_is_wanted_is_read() -> None:
    found = list(samples(PAGE, ["kubelet_runtime_operations_duration_seconds_sum", "go_goroutines"]))
    assert found == [
        Sample("kubelet_runtime_operations_duration_seconds_sum", {"operation_type": "run_podsandbox"}, 124.8),
        Sample("go_goroutines", {}, 208.0),
    ]
    assert list(samples(PAGE, [])) == []


def test_blanks_and_escapes_are_those_of_the_format() -> None:
    indented, escaped = samples(PAGE, ["indented", "escaped"])
    assert (indented.labels, indented.value) == ({"a": "x", "b": "} {"}, 1.1266999999999999e-05)
    assert escaped.labels == {"path": "C:\\DIR\\", "say": '"hello"\nthere'}
    assert math.isnan(escaped.value)


@pytest.mark.parametrize(
    "line", ["bad", "bad{a=1} 2", 'bad{a="1"', 'bad{a="1"} x', 'bad{a="1"}', 'bad{a="1" b="2"} 3', "bad 1 2 3"]
)
def test_a_wanted_line_that_is_malformed_is_an_error(line: str) -> None:
    with pytest.raises(ValueError, match="bad"):
        list(samples(f"good 1\n{line}\n", ["good", "bad"]))
    assert list(samples(f"good 1\n{line}\n", ["good"])) == [Sample("good", {}, 1.0)]


# --- against the official parser ---------------------------------------------------------------------------------

LABELS = st.dictionaries(st.sampled_from(["le2", "x", "y_z"]), st.text(max_size=8), max_size=3)
VALUES = st.floats(allow_nan=False) | st.integers(-(10**15), 10**15).map(float)


class Collector:
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


@st.composite
def families(draw: st.DrawFn) -> list[Metric]:
    """One gauge family and counter with random label sets, and one histogram."""
    found: list[Metric] = []
    for name, kind in (("a", GaugeMetricFamily), ("a_b", CounterMetricFamily), ("ab:c", GaugeMetricFamily)):
        family = kind(name, draw(st.text(max_size=10)))
        for labels in draw(st.lists(LABELS, max_size=3)):
            suffix = "_total" if kind is CounterMetricFamily else ""
            family.add_sample(name + suffix, labels, draw(VALUES))
        found.append(family)
    histogram = HistogramMetricFamily("h", "")
    histogram.add_metric([], [("0.5", 1.0), ("+Inf", float(draw(st.integers(1, 9))))], draw(VALUES))
    return [*found, histogram]


@given(families())
@settings(max_examples=150, deadline=None)
def test_it_reads_what_the_official_parser_reads(found: list[Metric]) -> None:
    registry = CollectorRegistry()
    registry.register(Collector(found))  # pyright: ignore[reportArgumentType] - a Collector by its method
    text = generate_latest(registry).decode()
    wanted = {"a", "a_b_total", "ab:c", "h_bucket", "h_sum", "h_count"}
    theirs = [(s.name, dict(s.labels), s.value) for f in text_string_to_metric_families(text) for s in f.samples]
    assert [tuple(s) for s in samples(text, wanted)] == theirs
