"""Runs of a cluster by hand: a kubelet's and a containerd's histograms that really count what happened, beside the
samples of our own watch. For tests of what is said about sources and surroundings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from loadgen.core.agreement import Agreement, agreement
from loadgen.core.history import MetricSamples, RunData, Series
from loadgen.core.judge import measured_phases
from loadgen.core.model import Burst, Churn, Phase, Scenario, Variant, seconds
from loadgen.core.samples import Mark, Outcome, Span
from loadgen.core.units import NS_PER_S
from tests import factories

KUBELET_EDGES = (*(0.005 * 2.5**i for i in range(14)), math.inf)
CNI_EDGES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, math.inf)
REFUSED = "429 PutEndpointIDTooManyRequests"
TIMED_OUT = "agent timeout 90s"


def counted(
    series: str,
    seen: Sequence[tuple[float, float]],
    *,
    looks_s: Sequence[float],
    edges: Sequence[float] = KUBELET_EDGES,
    restart_s: float = -math.inf,
    origin_ns: int = 0,
) -> dict[str, Series]:
    """Readings of a histogram that observed each (instant, value), at these instants; a restart forgets."""
    cells: dict[str, tuple[list[int], list[float]]] = {}

    def put(name: str, at: float, value: float) -> None:
        t_ns, values = cells.setdefault(name, ([], []))
        t_ns.append(origin_ns + round(at * NS_PER_S))
        values.append(value)

    for at in looks_s:
        since = restart_s if at >= restart_s else -math.inf
        now = np.array([value for t, value in seen if since <= t <= at])
        put(f"{series}|sum", at, float(now.sum()))
        put(f"{series}|count", at, float(len(now)))
        for edge in edges if len(now) else ():
            put(f"{series}|le={'+Inf' if math.isinf(edge) else repr(edge)}", at, float((now <= edge).sum()))
    return {name: Series(np.array(t_ns, dtype=np.int64), np.array(values)) for name, (t_ns, values) in cells.items()}


def plan(timeout_s: float = 120, thresholds: Sequence[str] = ("sandbox.setup p50 < 100s",)) -> Scenario:
    """A warm-up, then one burst: the measured phase."""
    return Scenario(
        name="burst",
        hypothesis="h",
        variants={"v": Variant(name="v")},
        loads={"pods": Churn(pace=Burst(size=50), timeout=seconds(timeout_s))},
        faults={},
        phases=(
            Phase(name="warm", duration=seconds(10)),
            Phase(name="burst", duration=seconds(timeout_s), loads=("pods",), measured=True),
        ),
        thresholds=tuple(thresholds),
    )


START_S = 10.0
"""When the burst of `plan` begins."""
LOOKS_S = (*(float(t) for t in range(0, 400, 3)), 400.0)


class Pod:
    """What truly happened to one pod: attempts of the kubelet one after the other, as (length, detail of failure).

    The last one came up when its detail is empty. `begin_s`: when it was asked for.
    """

    def __init__(self, *attempts: tuple[float, str], begin_s: float = START_S, queue_s: float = 0.2) -> None:
        self.attempts, self.begin_s, self.queue_s = attempts, begin_s, queue_s

    def operations(self) -> list[tuple[float, float, str]]:
        """(end, length, failure) of each RunPodSandbox; 13 s between them."""
        at, found = self.begin_s + self.queue_s, []
        for length, why in self.attempts:
            found.append((at + length, length, why))
            at += length + 13.0
        return found


def watched(pods: Sequence[Pod], report_s: float = 0.6) -> dict[str, MetricSamples]:
    """What the watch tells of them: everything `report_s` late, stamps in whole seconds."""
    attempts: list[tuple[float, float, str, str]] = []
    setups: list[tuple[float, bool, int, str]] = []
    for number, pod in enumerate(pods):
        ref, began = f"loadgen/churn-{number}", pod.begin_s + 0.05
        for end, _, why in pod.operations():
            attempts.append((began, end + report_s - began, why, ref))
            began = end + report_s
        last = pod.operations()[-1]
        setups.append((last[0] + report_s - pod.begin_s, not last[2], len(pod.attempts), ref))
    begins = [pod.begin_s for pod in pods]
    up = [i for i, (_, ok, _, _) in enumerate(setups) if ok]
    found = {
        "sandbox.setup": factories.samples(
            begins,
            [took for took, _, _, _ in setups],
            outcome=[Outcome.OK if ok else Outcome.UNKNOWN for _, ok, _, _ in setups],
            tries=[tries for _, _, tries, _ in setups],
            refs=[ref for _, _, _, ref in setups],
        ),
        "sandbox.attempt": factories.samples(
            [sent for sent, _, _, _ in attempts],
            [took for _, took, _, _ in attempts],
            outcome=[Outcome.FAIL if why else Outcome.OK for _, _, why, _ in attempts],
            detail=[why for _, _, why, _ in attempts],
            refs=[ref for _, _, _, ref in attempts],
        ),
    }
    if up:
        refs = [setups[i][3] for i in up]
        found["sandbox.condition"] = factories.samples([begins[i] for i in up], [setups[i][0] for i in up], refs=refs)
        found["sandbox.stamp"] = factories.samples(
            [begins[i] for i in up],
            [float(math.floor(setups[i][0] - report_s)) for i in up],
            refs=refs,
        )
    return found


def node(pods: Sequence[Pod], foreign: Sequence[tuple[float, float]] = (), **more: Series) -> dict[str, Series]:
    """What kubelet and containerd count: these pods and `foreign` ones, as (end, length)."""
    operations = [op for pod in pods for op in pod.operations()]
    ends = [(end, length) for end, length, _ in operations]
    adds = [(end, 0.9 * length) for end, length, why in operations if why != "sandbox name reserved"]
    failed = [end for end, _, why in operations if why]
    origin = factories.START_NS
    errors = [float(sum(end <= at for end in failed)) for at in LOOKS_S]
    others = [float(sum(end <= at for end, _ in foreign)) for at in LOOKS_S]
    steady = factories.series(LOOKS_S, np.full(len(LOOKS_S), 5.0))
    return {
        **counted("kubelet.run_podsandbox", [*ends, *foreign], looks_s=LOOKS_S, origin_ns=origin),
        **counted("containerd.set_up_pod", [*adds, *foreign], looks_s=LOOKS_S, edges=CNI_EDGES, origin_ns=origin),
        "kubelet.sandbox_errors": factories.series(LOOKS_S, errors),
        "kubelet|started": steady,
        "containerd|started": steady,
        "other_pods|all": factories.series(LOOKS_S, others),
        "other_pods|cni": factories.series(LOOKS_S, others),
        **more,
    }


def run(
    samples: Mapping[str, MetricSamples],
    readings: Mapping[str, Series],
    *,
    spans: Sequence[Span] = (),
    marks: Sequence[Mark] = (),
    testbed: str = "kind",
    ending: str = "complete",
    scenario: Scenario | None = None,
    environment: Mapping[str, str] = factories.ENVIRONMENT,
) -> RunData:
    scenario = scenario or plan()
    info = msgspec.structs.replace(factories.info(scenario, "v", environment=environment), testbed=testbed)
    all_marks = (*factories.marks(scenario, end_s=390, ending=ending), *marks)
    return factories.run(info, samples, readings, spans, all_marks)


def judged(
    samples: Mapping[str, MetricSamples], readings: Mapping[str, Series], *, ending: str = "complete"
) -> Agreement:
    """What is said of the sources of such a run."""
    found = agreement(run(samples, readings, ending=ending), measured_phases(plan()))
    assert found is not None
    return found


def burst(count: int = 50, slow_s: float = 4.0) -> list[Pod]:
    """Pods that come at once; each waits for those before it. Every tenth is refused once."""
    return [
        Pod(*([(15.0, REFUSED)] if i % 10 == 9 else []), (0.3 + slow_s * i / count, ""), queue_s=0.2 + 0.01 * i)
        for i in range(count)
    ]
