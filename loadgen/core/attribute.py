"""Where the time of the slowest sandboxes went: the agent's spans joined with the sandboxes' samples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from loadgen.core.history import MetricSamples
from loadgen.core.meanwhile import Meanwhile
from loadgen.core.samples import Span
from loadgen.core.units import NS_PER_S, format_duration

RETRY = "waiting for the kubelet's next attempt"
FAILED = "in attempts that failed ({why})"
LAST = "in the last attempt, with the kubelet's pause before it"
THROTTLED = "held back by loadgen's own API limit (--qps, --burst)"
_SMALL = 0.01
"""A cause below this share of the whole is left out of the sentence."""

_CAUSES = {
    "limiter-wait": "waiting in the API rate limiter",
    "build-wait": "waiting for a build permit behind other endpoints' table walks",
    "lock-wait": "waiting for a CT table's delete lock",
    "walk": "walking the CT tables",
    "load": "loading the datapath",
}


class Attribution(msgspec.Struct, frozen=True, omit_defaults=True):
    """One slow sandbox: how long, in how many attempts, and what the agent did for it, in seconds."""

    ref: str
    seconds: float
    tries: int
    up: bool
    causes: dict[str, float]
    meanwhile: Meanwhile | None = None
    """What the node did at that time, where its metrics were read."""

    def sentence(self) -> str:
        parts = [
            f"{format_duration(s)} {cause}"
            for cause, s in sorted(self.causes.items(), key=lambda c: -c[1])
            if s >= _SMALL * self.seconds
        ]
        state = "up after" if self.up else "not up after"
        tries = f"{self.tries} attempt" + ("s" if self.tries != 1 else "")
        told = ", ".join(parts)
        if self.meanwhile is not None and (around := self.meanwhile.sentence()):
            told = f"{told}; meanwhile on the node: {around}" if told else f"on the node {around}"
        return f"{state} {format_duration(self.seconds)} and {tries}: " + (told or "no span of the agent")


def slowest_sandboxes(
    samples: MetricSamples | None,
    attempts: MetricSamples | None,
    spans: Sequence[Span],
    count: int = 5,
    around: Callable[[int, int], Meanwhile | None] | None = None,
) -> list[Attribution]:
    """The `count` slowest samples of sandbox.setup with their causes.

    A sample's ref holds the names of its attempts (sandbox.attempt) by which the agent's spans know it: container
    ids, or the pod's name for all of them. `around`, on a cluster: what the node did from one instant to another.
    """
    if samples is None or not len(samples.rows) or not samples.refs:
        return []
    stages: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        if span.op == "endpoint-create":
            stages[span.ref].append(span)
    tried = _windows(attempts)
    latency = samples.rows["done_ns"] - samples.rows["due_ns"]
    found = []
    for i in np.argsort(latency, kind="stable")[::-1][:count]:
        row = samples.rows[i]
        refs = list(dict.fromkeys(samples.refs[i].split()))
        causes = _causes(refs, stages, int(row["due_ns"]), int(row["done_ns"]))
        between = _between([tried[ref] for ref in refs if ref in tried])
        if between > 0:
            causes[RETRY] = between
        if around is not None:
            causes = {**causes, **(_attempts_of(attempts, refs[0]) if refs and not causes else {})}
            causes[THROTTLED] = (int(row["sent_ns"]) - int(row["due_ns"])) / NS_PER_S
        found.append(
            Attribution(
                ref=samples.refs[i],
                seconds=float(latency[i]) / NS_PER_S,
                tries=int(row["tries"]),
                up=int(row["outcome"]) == 0,
                causes=causes,
                meanwhile=around(int(row["due_ns"]), int(row["done_ns"])) if around is not None else None,
            )
        )
    return found


def _windows(attempts: MetricSamples | None) -> dict[str, tuple[int, int]]:
    """Start and end of each attempt, by container id."""
    if attempts is None or not attempts.refs:
        return {}
    rows = attempts.rows
    return {
        ref: (int(sent), int(done))
        for ref, sent, done in zip(attempts.refs, rows["sent_ns"], rows["done_ns"], strict=True)
    }


def _attempts_of(attempts: MetricSamples | None, pod: str) -> dict[str, float]:
    """On a cluster, where no span tells more: seconds in a pod's failed attempts by reason, and in the last one.

    Nothing for a pod that came up at once: that attempt is all there is.
    """
    mine = [i for i, ref in enumerate(attempts.refs) if ref == pod] if attempts is not None else []
    if attempts is None or len(mine) < 2:
        return {}
    causes: dict[str, float] = defaultdict(float)
    for i in sorted(mine, key=lambda i: int(attempts.rows["sent_ns"][i])):
        row = attempts.rows[i]
        failed = int(row["outcome"]) != 0
        cause = FAILED.format(why=attempts.details[row["detail"]] or "no reason given") if failed else LAST
        causes[cause] += (int(row["done_ns"]) - int(row["sent_ns"])) / NS_PER_S
    return dict(causes)


def _between(windows: Sequence[tuple[int, int]]) -> float:
    """Seconds between the end of each attempt and the start of the next: DEL and the kubelet's wait."""
    ordered = sorted(windows)
    return sum(max(0, b[0] - a[1]) for a, b in pairwise(ordered)) / NS_PER_S


def _causes(refs: Sequence[str], stages: dict[str, list[Span]], start_ns: int, end_ns: int) -> dict[str, float]:
    """Seconds by cause within the sandbox's own time; what the agent did after it was given up is not counted."""
    causes: dict[str, float] = defaultdict(float)
    for ref in refs:
        for span in stages.get(ref, ()):
            cause = _CAUSES.get(span.stage.split(" ")[0])
            overlap = min(span.end_ns, end_ns) - max(span.start_ns, start_ns)
            if cause and overlap > 0:
                causes[cause] += overlap / NS_PER_S
    return dict(causes)


class WalkStats(msgspec.Struct, frozen=True):
    """Table walks of a run: how many, how long, how fast."""

    walks: int
    entries: int
    seconds: float
    us_per_entry: float
    longest_s: float


def walk_stats(spans: Sequence[Span]) -> WalkStats:
    walks = [s for s in spans if s.stage.startswith("walk")]
    entries = sum(s.n for s in walks)
    total = sum(s.end_ns - s.start_ns for s in walks) / NS_PER_S
    longest = max((s.end_ns - s.start_ns for s in walks), default=0) / NS_PER_S
    return WalkStats(len(walks), entries, total, total / entries * 1e6 if entries else 0.0, longest)
