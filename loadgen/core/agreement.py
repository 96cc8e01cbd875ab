"""Sandbox latency from several sources, each with its known error, and where they contradict each other beyond it.

    watch       sandbox.setup, sandbox.attempt and sandbox.condition: exact instants at which our watch told us
    kubelet     a histogram of RunPodSandbox, of all pods of the node, failed attempts too
    containerd  a histogram of the CNI ADDs within these, failed ones too
    stamps      sandbox.stamp: whole seconds at both ends

A source that is not there is named and proves nothing. A contradiction is a doubt: nothing that rests on these
numbers can pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from loadgen.core import evidence, stats
from loadgen.core.evidence import ATTEMPT, CONDITION, CONTAINERD, KUBELET, SETUP, STAMP, Attempts, Range, Seen
from loadgen.core.histogram import Bounds, nearest_rank
from loadgen.core.history import Ending, MetricSamples, RunData
from loadgen.core.samples import Outcome
from loadgen.core.units import NS_PER_S, format_count, format_duration

CLUSTERS = ("cluster", "kind")
"""Testbeds on which there are other sources than our own."""
QUANTILES = (50.0, 90.0, 99.0)

EARLY_S = 3.0
"""How late a watch may tell that a pod was scheduled, so that its attempt seems shorter than it was."""
PAUSE_S = 16.0
"""The kubelet's pause before a retry, 11 to 15 s measured, is part of the watch's attempt."""
STAMP_S = 1.0
STAMP_SLACK_S = 2.0
"""What the watch may be late with; up to 2.4 s for 98 of 100 pods at a load of 40 on two CPUs."""
STAMP_SHARE = 0.05
"""So many of the pods may be beyond that: a starved API server tells of a few very late."""
TOO_LOOSE = 4
"""Quantiles are not compared when more than one observation in so many may belong to only one side."""


class Source(msgspec.Struct, frozen=True):
    """A row of the table. `absent`: why it says nothing; then there are no numbers. In JSON an open bound is null."""

    name: str
    what: str
    error: str
    n: int = 0
    failed: int | None = None
    mean: float | None = None
    quantiles: dict[str, Bounds] = {}
    absent: str = ""


class Agreement(msgspec.Struct, frozen=True):
    """`doubts`: contradictions, each a sentence. `notes`: what else must be known to read the table.

    `failures`: attempts that did not end well, by what the events said of them.
    """

    sources: tuple[Source, ...]
    failures: dict[str, int]
    doubts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def agreement(data: RunData, phases: frozenset[str]) -> Agreement | None:
    """Of the measured phases of one run; None where no source but our own is to be expected (the lab)."""
    setup = _measured(data.samples.get(SETUP), phases)
    other = any(name in data.readings for name in (f"{KUBELET}|count", f"{CONTAINERD}|count"))
    if not len(setup) or not (other or STAMP in data.samples or data.info.testbed in CLUSTERS):
        return None
    tried = evidence.attempts(data.samples.get(ATTEMPT))
    where = evidence.windows(data, phases)
    kubelet, containerd = (evidence.seen(data, series, tried, where) for series in (KUBELET, CONTAINERD))
    stamps = _measured(data.samples.get(STAMP), phases)
    sources = (
        _setup(setup),
        _attempt(_measured(data.samples.get(ATTEMPT), phases)),
        _condition(_measured(data.samples.get(CONDITION), phases)),
        _kubelet(kubelet),
        _containerd(containerd),
        _stamps(stamps),
    )
    notes = tuple(_notes(kubelet, containerd, len(stamps), int((setup["outcome"] == Outcome.OK).sum())))
    failures = _failures(data.samples.get(ATTEMPT), phases)
    if data.ending() is not Ending.COMPLETE:
        # A run that was cut short proves nothing anyway, and its last look may be missing.
        return Agreement(sources, failures, (), notes)
    doubts = (
        *_count_doubts(kubelet),
        *_watch_doubts(kubelet, tried),
        *_cni_doubts(containerd, kubelet, tried),
        *_stamp_doubts(data, phases),
    )
    return Agreement(sources, failures, doubts, notes)


def _measured(found: MetricSamples | None, phases: frozenset[str]) -> np.ndarray:
    return np.empty(0) if found is None else found.rows[found.within(phases)]


def _failures(found: MetricSamples | None, phases: frozenset[str]) -> dict[str, int]:
    """Most frequent first."""
    if found is None:
        return {}
    rows = _measured(found, phases)
    counts = np.bincount(rows["detail"][rows["outcome"] != Outcome.OK], minlength=len(found.details))
    named = [(text or "no reason given", int(n)) for text, n in zip(found.details, counts, strict=True) if n]
    return dict(sorted(named, key=lambda pair: -pair[1]))


# --- rows ------------------------------------------------------------------------------------------------------


def _setup(rows: np.ndarray) -> Source:
    return _exact(
        rows,
        "watch, whole pod",
        "sandbox.setup: from due until our watch told that the sandbox stands, by an event or by the condition",
        "longer than the sandbox took: the API server, scheduling, the kubelet's queue, the watch itself",
    )


def _attempt(rows: np.ndarray) -> Source:
    what = "sandbox.attempt: from the pod's scheduling, or the attempt before, until our watch told of its end"
    error = "as above; a retry holds the kubelet's pause of 11 to 15 s; events are best effort"
    return _exact(rows, "watch, attempt", what, error)


def _condition(rows: np.ndarray) -> Source:
    what = "sandbox.condition: from the pod's creation until PodReadyToStartContainers was received"
    error = "later than the sandbox: the kubelet says it with its next status, once the containers were started"
    return _exact(rows, "watch, condition", what, error)


def _exact(rows: np.ndarray, name: str, what: str, error: str) -> Source:
    if not len(rows):
        return Source(name, what, error, absent="no samples")
    latencies = stats.Latencies.of(rows)
    values = {q: stats.percentile(latencies, q) for q in QUANTILES if len(rows) >= stats.samples_needed(q)}
    return Source(
        name,
        what,
        error,
        n=len(rows),
        failed=int((rows["outcome"] != Outcome.OK).sum()),
        mean=float(latencies.seconds.mean()),
        quantiles={
            stats.percentile_name(q): Bounds(v.value, math.inf if v.at_least else v.value) for q, v in values.items()
        },
    )


def _kubelet(seen: Seen | None) -> Source:
    what = 'kubelet_runtime_operations_duration_seconds{operation_type="run_podsandbox"}: one attempt'
    return _counted(seen, "kubelet", what, "bounds only, each bucket 2.5 times the one before; all pods of the node")


def _containerd(seen: Seen | None) -> Source:
    what = 'containerd_cri_network_plugin_operations_duration_seconds_seconds{operation_type="set_up_pod"}: a CNI ADD'
    return _counted(seen, "containerd", what, "bounds only, the last bucket ends at 10 s; all pods of the node")


def _counted(seen: Seen | None, name: str, what: str, error: str) -> Source:
    if seen is None:
        return Source(name, what, error, absent="not read before and after the measured phases")
    error += f"; failed attempts are in it ({format_count(seen.errors)} here)"
    if seen.others:
        error += f"; {format_count(seen.others)} other pods came to the node meanwhile"
    if seen.resets:
        error += "; it restarted meanwhile: what it had counted since the look before is missing"
    counted = seen.histogram
    quantiles = {q: counted.quantile(q) for q in QUANTILES if counted.count >= stats.samples_needed(q)}
    return Source(
        name,
        what,
        error,
        n=counted.count,
        failed=seen.errors,
        mean=counted.mean,
        quantiles={stats.percentile_name(q): bounds for q, bounds in quantiles.items() if bounds},
    )


def _stamps(rows: np.ndarray) -> Source:
    what = "sandbox.stamp: creationTimestamp to lastTransitionTime of PodReadyToStartContainers"
    error = "1 s either way: whole seconds at both ends, of two clocks; only pods that came up"
    if not len(rows):
        return Source("stamps", what, error, absent="no pod has the stamp of that condition")
    exact = _exact(rows, "stamps", what, error)
    wide = {name: Bounds(max(0.0, v.low - STAMP_S), v.high + STAMP_S) for name, v in exact.quantiles.items()}
    return msgspec.structs.replace(exact, quantiles=wide)


def _notes(kubelet: Seen | None, containerd: Seen | None, stamped: int, up: int) -> Iterator[str]:
    if kubelet is None and containerd is None and not stamped:
        yield "nothing but our own watch tells how long sandboxes took: no other source could be read"
    if 0 < stamped < up:
        yield f"{stamped:,} pods have a stamp of their sandbox, {up:,} came up: the others went before it was told"
    if kubelet is not None and kubelet.others is None:
        yield "other pods of the node could not be listed: the kubelet may have counted sandboxes of theirs"


# --- the kubelet and the watch ---------------------------------------------------------------------------------


def _count_doubts(kubelet: Seen | None) -> Iterator[str]:
    """What came up and what failed, by the kubelet and by the watch."""
    if kubelet is None or kubelet.resets:
        return
    up = kubelet.histogram.count - kubelet.errors
    if problem := _outside(up, kubelet.ok, kubelet.others):
        yield f"the kubelet counts {_sandboxes(up)} set up, by our watch {problem} came up"
    if problem := _outside(kubelet.errors, kubelet.failed, kubelet.others):
        yield f"the kubelet counts {format_count(kubelet.errors)} failed attempts, by the events there were {problem}"


def _outside(counted: int, known: Range, others: int | None) -> str:
    """What is known instead, as words; empty when `counted` can be. Pods of others may have come on top."""
    if known.least <= counted and (others is None or counted <= known.most + others):
        return ""
    exact = format_count(known.least)
    words = exact if known.least == known.most else f"{exact} to {format_count(known.most)}"
    return words + (f" (and {format_count(others)} other pods)" if others else "")


def _sandboxes(n: int) -> str:
    return f"{format_count(n)} sandbox" + ("es" if n != 1 else "")


def _watch_doubts(kubelet: Seen | None, tried: Attempts) -> Iterator[str]:
    """Quantile by quantile: an attempt that we saw can be neither shorter than the kubelet's nor much longer."""
    if kubelet is None or kubelet.resets or not kubelet.histogram.count or not len(kubelet.attempts):
        return
    slack, n = kubelet.slack, len(kubelet.attempts)
    if slack * TOO_LOOSE > n:
        return
    longest, shortest = _ours(kubelet, tried)
    for q in QUANTILES:
        bounds = kubelet.histogram.quantile(q, slack)
        if bounds is None or n < stats.samples_needed(q):
            continue
        rank = nearest_rank(q, n)
        most, least = longest[min(n, rank + slack) - 1], shortest[max(1, rank - slack) - 1]
        name = stats.percentile_name(q)
        if most + EARLY_S < bounds.low:
            yield (
                f"{name} of an attempt is above {format_duration(bounds.low)} by the kubelet, "
                f"{format_duration(most)} by our watch, which cannot be ahead"
            )
        elif least - evidence.REPORT_S > bounds.high:
            yield (
                f"{name} of an attempt is at most {format_duration(bounds.high)} by the kubelet, at least "
                f"{format_duration(least)} by our watch: more than the kubelet's queue and the report explain"
            )
        else:
            continue
        return


def _ours(kubelet: Seen, tried: Attempts) -> tuple[np.ndarray, np.ndarray]:
    """Our attempts in seconds, ascending: as they are, and without the pause that may be in them."""
    took = (tried.done_ns - tried.sent_ns)[kubelet.attempts] / NS_PER_S
    bare = np.maximum(took - PAUSE_S * tried.retry[kubelet.attempts], 0.0)
    return np.sort(took), np.sort(bare)


# --- containerd ------------------------------------------------------------------------------------------------


def _cni_doubts(cni: Seen | None, kubelet: Seen | None, tried: Attempts) -> Iterator[str]:
    """Every sandbox that came up had its ADD, and no ADD is longer than the attempt that it is part of."""
    if cni is None or cni.resets:
        return
    if cni.histogram.count < cni.ok.least:
        yield (
            f"containerd counts {format_count(cni.histogram.count)} CNI ADDs, fewer than the "
            f"{_sandboxes(cni.ok.least)} that came up by our watch"
        )
    if kubelet is not None and not kubelet.resets:
        yield from _longer_than_whole(cni, kubelet)
    elif kubelet is None and cni.slack * TOO_LOOSE <= len(cni.attempts):
        took, _ = _ours(cni, tried)
        yield from _longer(cni, lambda edge: int((took + EARLY_S > edge).sum()) + cni.slack, "our watch")


def _longer_than_whole(cni: Seen, kubelet: Seen) -> Iterator[str]:
    # The pages are not read at the same instant, and a sandbox is not done with its ADD: what ended at the edge may
    # be in only one of them. Our own attempts have ends that we know.
    slack = max(s.ok.loose + s.failed.loose + (s.others or 0) for s in (cni, kubelet))
    yield from _longer(cni, lambda edge: int(kubelet.histogram.above(edge).high) + slack, "the kubelet")


def _longer(cni: Seen, whole: Callable[[float], int], who: str) -> Iterator[str]:
    """More ADDs above a length than `whole` attempts above it, told where it is plainest."""
    edges = (0.0, *cni.histogram.edges[:-1])
    adds = {edge: int(cni.histogram.above(edge).low) for edge in edges}
    plainest = max(edges, key=lambda edge: adds[edge] - whole(edge))
    if adds[plainest] > whole(plainest):
        took = f" took more than {format_duration(plainest)}" if plainest else " took place"
        yield (
            f"containerd says that {format_count(adds[plainest])} CNI ADDs{took}, {who} that at most "
            f"{format_count(whole(plainest))} whole attempts did"
        )


# --- stamps ----------------------------------------------------------------------------------------------------


def _stamp_doubts(data: RunData, phases: frozenset[str]) -> Iterator[str]:
    """Pod by pod: when the condition was received less its stamp; both count from when the pod was asked for."""
    told, stamps = data.samples.get(CONDITION), data.samples.get(STAMP)
    if told is None or stamps is None or not told.refs or not stamps.refs:
        return
    received = dict(zip(told.refs, told.rows["done_ns"].tolist(), strict=True))
    inside = np.flatnonzero(stamps.within(phases))
    stamped = {stamps.refs[i]: int(stamps.rows["done_ns"][i]) for i in inside}
    late = np.array([(received[ref] - at) / NS_PER_S for ref, at in stamped.items() if ref in received])
    beyond = np.abs(late) > STAMP_S + STAMP_SLACK_S
    if beyond.sum() > STAMP_SHARE * len(late):
        median = float(np.median(late))
        yield (
            f"{int(beyond.sum()):,} of {len(late):,} conditions were received more than "
            f"{format_duration(STAMP_S + STAMP_SLACK_S)} apart from their stamps, in the median "
            f"{format_duration(abs(median))} {'later' if median >= 0 else 'earlier'}: the clocks of node and API "
            "server differ, or the watch lags"
        )
