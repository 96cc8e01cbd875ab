"""What is read from the metrics pages of a node under test, and as which series of the run.

Each page is a tuple of Wanted. Series with a `|` in their names are evidence for the analysis and no gauges.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from loadgen.core import histogram, thresholds
from loadgen.core.promtext import Sample, samples
from loadgen.core.samples import Reading

STARTED, TOOK = "|started", "|took"
"""Of each page: when the process behind it began (seconds since the epoch), and how long the look took."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of a page: the sum of its samples that have these labels becomes one series.

    kind: `value`; `histogram` (buckets, sum and count); `totals` (of a histogram only sum and count, where its
    buckets are too low to say anything).
    """

    series: str
    metric: str
    labels: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """Label → values that count; a label that is not named may have any."""
    kind: str = "value"
    by: str = ""
    """A label whose value is added to the series' name: one series for each."""
    witness: str = ""
    """A metric whose presence shows that this one is 0 where it is absent: Go's metrics with labels are not on the
    page before their first use. Without one, what is absent is left out."""

    def names(self) -> tuple[str, ...]:
        """The metric names that its samples have."""
        parts = {"value": ("",), "histogram": ("_bucket", "_sum", "_count"), "totals": ("_sum", "_count")}[self.kind]
        return tuple(self.metric + part for part in parts)


Page = tuple[Wanted, ...]


def _started(source: str) -> Wanted:
    return Wanted(series=source + STARTED, metric="process_start_time_seconds")


_OPERATIONS = "kubelet_runtime_operations"
_SANDBOX = MappingProxyType({"operation_type": ("run_podsandbox",)})
KUBELET: Page = (
    # Not kubelet_run_podsandbox_duration_seconds: its observation is evaluated when it is deferred, and stays at
    # some microseconds whatever the sandbox takes (pkg/kubelet/kuberuntime/instrumented_services.go, 1.34).
    Wanted(
        series="kubelet.run_podsandbox",
        metric=f"{_OPERATIONS}_duration_seconds",
        labels=_SANDBOX,
        kind="histogram",
        witness=f"{_OPERATIONS}_total",
    ),
    Wanted(
        series="kubelet.sandbox_errors",
        metric=f"{_OPERATIONS}_errors_total",
        labels=_SANDBOX,
        witness=f"{_OPERATIONS}_total",
    ),
    _started("kubelet"),
)

# The doubled suffixes are containerd's own.
_NETWORK = "containerd_cri_network_plugin_operations"
CONTAINERD: Page = (
    *(
        Wanted(
            series=f"containerd.{operation}",
            metric=f"{_NETWORK}_duration_seconds_seconds",
            labels=MappingProxyType({"operation_type": (operation,)}),
            kind="histogram",
            witness="process_start_time_seconds",
        )
        for operation in ("set_up_pod", "tear_down_pod")
    ),
    Wanted(
        series="containerd.cni_errors",
        metric=f"{_NETWORK}_errors_total_total",
        labels=MappingProxyType({"operation_type": ("set_up_pod",)}),
        witness="process_start_time_seconds",
    ),
    _started("containerd"),
)

COREDNS: Page = tuple(
    Wanted(
        series=f"dns.server.{kind.lower()}",
        metric="coredns_dns_requests_total",
        labels=MappingProxyType({"type": (kind,)}),
        witness="coredns_build_info",
    )
    for kind in ("A", "AAAA")
)


def read(page: Sequence[Wanted], text: str, t_ns: int) -> list[Reading]:
    """One look at a page. ValueError when what is wanted of it is malformed."""
    by_name: dict[str, list[Sample]] = defaultdict(list)
    names = {name for wanted in page for name in (*wanted.names(), wanted.witness) if name}
    for sample in samples(text, names):
        by_name[sample.name].append(sample)
    found: list[Reading] = []
    for wanted in page:
        family = [s for name in wanted.names() for s in by_name.get(name, ())]
        matching = [s for s in family if _counts(wanted, s)]
        if matching:
            found += _series(wanted, matching, t_ns)
        elif not wanted.by and wanted.witness in by_name:
            found += _series(wanted, (), t_ns)
    return found


def _counts(wanted: Wanted, sample: Sample) -> bool:
    return all(sample.labels.get(label) in values for label, values in wanted.labels.items())


def _series(wanted: Wanted, matching: Iterable[Sample], t_ns: int) -> list[Reading]:
    groups: dict[str, list[Sample]] = defaultdict(list)
    for sample in matching:
        groups[f"{wanted.series}.{sample.labels.get(wanted.by, '')}" if wanted.by else wanted.series].append(sample)
    if not groups:
        groups[wanted.series] = []
    if wanted.kind == "value":
        return [Reading(t_ns, name, sum(s.value for s in group)) for name, group in groups.items()]
    return [r for name, group in groups.items() for r in histogram.readings(name, wanted.metric, group, t_ns)]


def asked(page: Sequence[Wanted], expressions: Iterable[str]) -> bool:
    """Whether any of these thresholds rests on a series of the page."""
    series = {wanted.series for wanted in page}
    return any(thresholds.parse(text).metric.name in series for text in expressions)
