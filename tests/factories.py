"""Builders of histories and results by hand: pure, deterministic, no testbed. For tests of judging and reporting.

`samples`, `series`, `run` and `results` are the bricks. `spiral()` is a small experiment whose every number is
chosen; `realistic()` is one of the size of a real run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from loadgen.core.history import RUN_FORMAT, MetricSamples, RunData, RunInfo, Series
from loadgen.core.model import Burst, Churn, Dns, Phase, Resolver, Scenario, Settings, Storm, Variant, seconds
from loadgen.core.results import Results, analyse
from loadgen.core.samples import SAMPLE_DTYPE, Mark, Outcome, Span, Tally
from loadgen.core.units import NS_PER_S, enc_hook

START_NS = 1_000 * NS_PER_S
STARTED = "2024-05-06T07:08:09+00:00"
ENVIRONMENT = {"kernel": "6.1.0-21-amd64", "cpus": "2", "loadgen": "0.1.0", "nft": "1.0.6"}
EMULATED = ("the agent and the kubelet are modelled", "racing second queries are dropped by an nft rule")
THRESHOLDS = (
    "sandbox.setup p99 < 30s",
    "sandbox.setup failed == 0",
    "dns.lookup max < 2.5s",
    "storm.connect achieved >= 0.95",
)
VARIANTS = {
    "before": Variant(name="before", baseline=True, describe="nothing fixed"),
    "gc-only": Variant(name="gc-only", partial=True, describe="conntrackGCInterval: 60s alone"),
    "dns-only": Variant(name="dns-only", partial=True, describe="single-request-reopen alone"),
    "after": Variant(
        name="after",
        describe="conntrackGCInterval: 60s and single-request-reopen",
        settings=Settings(resolver=Resolver(options="single-request-reopen")),
    ),
}


def ns(at_s: float) -> int:
    """Seconds since the run's start → CLOCK_MONOTONIC nanoseconds."""
    return START_NS + round(at_s * NS_PER_S)


def scenario(variants: Sequence[str] = ("before", "after"), thresholds: Sequence[str] = THRESHOLDS) -> Scenario:
    return Scenario(
        name="chaos",
        hypothesis="Two settings decide whether pods start and lookups return.",
        proves="Both failures on one node under one load, and both cures together.",
        limits="The agent and the kubelet are modelled.",
        variants={name: VARIANTS[name] for name in variants},
        loads={"storm": Storm(), "pods": Churn(pace=Burst(size=50), timeout=seconds(90)), "lookups": Dns()},
        phases=(
            Phase(name="storm", duration=seconds(30), loads=("storm", "lookups")),
            Phase(name="burst", duration=seconds(90), loads=("storm", "pods", "lookups"), measured=True),
        ),
        thresholds=tuple(thresholds),
        reproduces=("sandbox.setup", "dns.lookup") if len(variants) > 1 else (),
    )


def samples(
    due_s: Sequence[float] | np.ndarray,
    took_s: Sequence[float] | np.ndarray,
    *,
    outcome: Sequence[int] | np.ndarray | Outcome = Outcome.OK,
    tries: Sequence[int] | np.ndarray | int = 1,
    lost: Sequence[int] | np.ndarray | int = 0,
    detail: Sequence[str] = (),
    phase: Sequence[str] | str = "burst",
    refs: Sequence[str] = (),
    source: str = "load",
) -> MetricSamples:
    """Samples of one source, sent when due. A single value stands for all rows."""
    n = len(due_s)
    rows = np.zeros(n, dtype=SAMPLE_DTYPE)
    rows["seq"] = np.arange(n)
    rows["due_ns"] = START_NS + np.round(np.asarray(due_s) * NS_PER_S).astype(np.int64)
    rows["sent_ns"] = rows["due_ns"]
    rows["done_ns"] = rows["due_ns"] + np.round(np.asarray(took_s) * NS_PER_S).astype(np.int64)
    rows["outcome"], rows["tries"], rows["lost"] = outcome, tries, lost
    details = tuple(dict.fromkeys(("", *detail)))
    rows["detail"] = [details.index(text) for text in detail] if detail else 0
    phase_of = [phase] * n if isinstance(phase, str) else list(phase)
    phases = tuple(dict.fromkeys(phase_of))
    codes = np.array([phases.index(name) for name in phase_of], dtype=np.int32)
    return MetricSamples(rows, details, codes, phases, np.zeros(n, dtype=np.int32), (source,), tuple(refs))


def series(at_s: Sequence[float] | np.ndarray, values: Sequence[float] | np.ndarray) -> Series:
    return Series(START_NS + np.round(np.asarray(at_s) * NS_PER_S).astype(np.int64), np.asarray(values, dtype=float))


def marks(
    plan: Scenario, end_s: float = 120, gc_s: Sequence[float] = (), ending: str = "complete"
) -> tuple[Mark, ...]:
    """The phases one after the other, the last one until `end_s`; GC passes; an end unless `ending` is empty."""
    found, at = [], 0.0
    for phase in plan.phases:
        stop = end_s if phase is plan.phases[-1] else at + phase.duration / NS_PER_S
        found += [Mark(ns(at), "phase", phase.name), Mark(ns(stop), "phase-end", phase.name)]
        at = stop
    found += [Mark(ns(t), "gc", "ct4", "pass over") for t in gc_s]
    found += [Mark(ns(end_s), "end", ending)] if ending else []
    return tuple(sorted(found, key=lambda mark: mark.t_ns))


def tallies(by_metric: Mapping[str, MetricSamples]) -> tuple[Tally, ...]:
    """The closing accounts that make created = measured + censored hold."""
    found = []
    for metric, s in by_metric.items():
        for phase, source in sorted(set(zip(s.phase.tolist(), s.source.tolist(), strict=True))):
            count = int(((s.phase == phase) & (s.source == source)).sum())
            found.append(Tally(s.phases[phase], s.sources[source], {metric: count}, 1.0, 90.0))
    return tuple(found)


def info(plan: Scenario, variant: str, *, repeat: int = 0, environment: Mapping[str, str] = ENVIRONMENT) -> RunInfo:
    return RunInfo(
        format=RUN_FORMAT,
        scenario=msgspec.to_builtins(plan, enc_hook=enc_hook),
        variant=variant,
        baseline=plan.variants[variant].baseline,
        partial=plan.variants[variant].partial,
        repeat=repeat,
        seed=7,
        testbed="lab",
        environment=dict(environment),
        emulated=EMULATED,
        argv=("loadgen", "chaos", "--seed", "7"),
        started=STARTED,
        start_ns=START_NS,
    )


def run(
    run_info: RunInfo,
    by_metric: Mapping[str, MetricSamples],
    readings: Mapping[str, Series] | None = None,
    spans: Sequence[Span] = (),
    run_marks: Sequence[Mark] = (),
) -> RunData:
    """A run whose accounts are in order."""
    return RunData(
        run_info, dict(by_metric), dict(readings or {}), tuple(spans), tuple(run_marks), tallies(by_metric)
    )


def results(plan: Scenario, runs: Sequence[RunData]) -> Results:
    """Analysed as `loadgen analyze` would. Directory names follow the order given."""
    named = {f"{i:02d}-{data.info.variant}": data for i, data in enumerate(runs, start=1)}
    return analyse(plan, 7, "lab", STARTED, named)


def stages(op: str, ref: str, start_s: float, *parts: tuple[str, float], n: int = 0) -> list[Span]:
    """Spans of one operation of the agent, stage after stage: (stage, seconds). `n` entries go to walks."""
    ends = np.cumsum([start_s, *(took for _, took in parts)])
    return [
        Span(op, ref, stage, ns(a), ns(b), n if stage.startswith("walk") else 0)
        for (stage, _), (a, b) in zip(parts, pairwise(ends), strict=True)
    ]


# --- the spiral: every number chosen --------------------------------------------------------------------------


def spiral_run(plan: Scenario, variant: str, *, repeat: int = 0, ending: str = "complete") -> RunData:
    """before, dns-only: 31 of 50 sandboxes given up at 90 s; before, gc-only: 4 of 800 lookups take 5 s.

    The other side of each is quick. 1,000 connections of 1 ms in every variant.
    """
    slow_pods, slow_dns = variant in ("before", "dns-only"), variant in ("before", "gc-only")
    by_metric = {
        "sandbox.setup": _pods(slow_pods),
        "dns.lookup": _lookups(slow_dns),
        "storm.connect": samples(np.linspace(30, 119, 1000), np.full(1000, 0.001)),
    }
    entries = [2_000_000, 2_050_000, 2_200_000] if slow_pods else [2_000_000, 60_000, 60_000]
    readings = {
        "ct.tcp.entries": series([0, 60, 119], entries),
        "ct.tcp.expired_share": series([0, 60, 119], [0.98, 0.95, 0.9] if slow_pods else [0.98, 0.1, 0.05]),
        "agent.lock.waiters": series([0, 31, 60, 119], [0, 49, 40, 31] if slow_pods else [0, 6, 0, 0]),
        "race.drops": series([0, 119], [0, 4]),
        "nfct.clash_resolve": series([0, 119], [10, 25]),
    }
    walk = 4.5 if slow_pods else 0.125
    spans: list[Span] = []
    for i in range(50):
        served = walk * (i + 1) < 90
        rest = (("walk tcp", walk), ("load", 0.05)) if served else ()
        waited = ("build-wait", min(walk * i, 90.0))
        spans += stages("endpoint-create", f"pod-{i:02d}", 30.0, waited, *rest, n=int(entries[1]))
    run_marks = marks(plan, gc_s=() if slow_pods else (31.5, 91.5), ending=ending)
    return run(info(plan, variant, repeat=repeat), by_metric, readings, spans, run_marks)


def _pods(slow: bool) -> MetricSamples:
    refs = [f"pod-{i:02d}" for i in range(50)]
    if not slow:
        return samples([30.0] * 50, [0.25 + 0.125 * i for i in range(50)], refs=refs)
    up = [4.5 * (i + 1) for i in range(19)]
    given_up = ["agent timeout 90s"] * 31
    return samples(
        [30.0] * 50,
        up + [90.0] * 31,
        outcome=[Outcome.OK] * 19 + [Outcome.UNKNOWN] * 31,
        tries=[1] * 19 + [2] * 31,
        detail=[""] * 19 + given_up,
        refs=refs,
    )


def _lookups(slow: bool) -> MetricSamples:
    n = 800
    took = np.array([0.002 + 0.001 * (i % 4) for i in range(n)])
    lost = np.zeros(n, dtype=int)
    if slow:
        took[[100, 300, 500, 700]] += 5.0
        lost[[100, 300, 500, 700]] = 1
    return samples(np.linspace(30, 119, n), took, lost=lost, tries=1 + lost)


def spiral(variants: Sequence[str] = ("before", "after")) -> Results:
    plan = scenario(variants)
    return results(plan, [spiral_run(plan, name) for name in variants])


# --- realistic: the size and shape of a run of the lab ----------------------------------------------------------


def realistic(variants: Sequence[str] = ("before", "after"), seed: int = 7, lookups: int = 37_000) -> Results:
    """120 s, 50 sandboxes, `lookups` of which 0.5 % take 5 s without the fix, a connection storm."""
    plan = scenario(variants)
    rng = np.random.default_rng(seed)
    return results(plan, [_realistic_run(plan, name, rng, lookups) for name in variants])


def _realistic_run(plan: Scenario, variant: str, rng: np.random.Generator, lookups: int) -> RunData:
    slow_pods, slow_dns = variant in ("before", "dns-only"), variant in ("before", "gc-only")
    pods, attempts, spans = _realistic_pods(rng, slow_pods)
    by_metric = {
        "sandbox.setup": pods,
        "sandbox.attempt": attempts,
        "dns.lookup": _realistic_lookups(rng, slow_dns, lookups),
        "storm.connect": _realistic_storm(rng, 20_000),
    }
    lost = int(by_metric["dns.lookup"].rows["lost"].sum())
    at = np.arange(0.0, 120.0, 0.5)
    run_marks = marks(plan, gc_s=() if slow_pods else (12.4, 72.6))
    readings = {**_realistic_table(rng, at, slow_pods), **_counters(at, max(lost, 160))}
    return run(info(plan, variant), by_metric, readings, spans, run_marks)


def _realistic_pods(rng: np.random.Generator, slow: bool) -> tuple[MetricSamples, MetricSamples, list[Span]]:
    """Two build permits over table walks of 4.4 s (0.03 s): each pod waits for those before it; 90 s is the end."""
    walk = 4.4 if slow else 0.03
    took, tries, refs, spans = [], [], [], []
    for i in range(50):
        wait = walk * (i // 2) + float(rng.uniform(0.05, 0.4))
        own = walk * float(rng.uniform(0.9, 1.3)) + 0.05
        total = wait + own
        retried = total > 40 and i % 3 == 0
        took.append(min(total * (1.3 if retried else 1.0), 90.0))
        tries.append(2 if retried else 1)
        refs.append(f"{i:02x}c0ffee{i:04x}" + (f" {i:02x}decade{i:04x}" if retried else ""))
        parts = (
            ("limiter-wait", 0.02),
            ("build-wait", wait),
            ("lock-wait", own / 9),
            ("walk tcp", own),
            ("load", 0.05),
        )
        spans += stages(
            "endpoint-create", refs[-1].split()[0], 30.0, *parts, n=round(1_666 * (30 + total)) + 2_000_000 * slow
        )
    late = np.array(took) >= 90.0
    retried = np.array(tries) > 1
    outcome = np.where(late, int(Outcome.UNKNOWN), int(Outcome.OK))
    why = ["agent timeout 90s" if x else "" for x in late]
    setup = samples([30.0] * 50, took, outcome=outcome, tries=tries, detail=why, refs=refs)
    failed = np.concatenate([np.full(50, int(Outcome.OK)), np.full(int(retried.sum()), int(Outcome.FAIL))])
    first = np.where(retried, np.array(took) * 0.6, took)
    attempt = samples(
        np.concatenate([np.full(50, 30.0), np.full(int(retried.sum()), 30.0)]),
        np.concatenate([took, first[retried]]),
        outcome=failed,
        detail=[""] * 50 + ["429 TooManyRequests"] * int(retried.sum()),
        refs=[r.split()[-1] for r in refs] + [r.split()[0] for r, x in zip(refs, retried, strict=True) if x],
    )
    return setup, attempt, spans


def _realistic_lookups(rng: np.random.Generator, slow: bool, n: int) -> MetricSamples:
    due = np.linspace(0.0, 119.9, n)
    took = 0.0042 * np.exp(rng.normal(0, 0.35, n)) + np.where(rng.random(n) < 0.002, 0.03, 0.0)
    lost = (rng.random(n) < 0.005).astype(int) if slow else np.zeros(n, dtype=int)
    took = took + 5.005 * lost + np.where((lost > 0) & (rng.random(n) < 0.02), 5.0, 0.0)
    return samples(due, took, lost=lost, tries=1 + lost, phase=_phase_of(due))


def _realistic_storm(rng: np.random.Generator, n: int) -> MetricSamples:
    due = np.linspace(0.0, 119.9, n)
    return samples(due, 0.0006 * np.exp(rng.normal(0, 0.5, n)), phase=_phase_of(due))


def _phase_of(due: np.ndarray) -> list[str]:
    return ["storm" if x < 30 else "burst" for x in due.tolist()]


def _realistic_table(rng: np.random.Generator, at: np.ndarray, slow: bool) -> dict[str, Series]:
    live = np.minimum(at, 70) * 1_666
    garbage = np.where(at < 70, 0.0, (at - 70) * 1_666)
    expired = 2_000_000 + garbage
    if not slow:
        expired = np.where(at < 12, 2_000_000.0, np.where(at < 72, garbage, np.maximum(garbage - 4_000, 0)))
    entries = live + expired
    waiting = np.where(at < 30, 0, np.maximum(48 - (at - 30) / 2.2, 14) if slow else np.maximum(9 - (at - 30) * 8, 0))
    cpu = np.clip(rng.normal(0.35, 0.03, len(at)), 0, 2)
    return {
        "ct.tcp.entries": series(at, np.round(entries)),
        "ct.tcp.expired_share": series(at[::4], (expired / entries)[::4]),
        "ct.any.entries": series(at, np.round(np.minimum(at, 60) * 310)),
        "agent.lock.waiters": series(at, np.floor(waiting / 24)),
        "agent.build.waiters": series(at, np.floor(waiting)),
        "sandbox.waiting": series(at, np.ceil(waiting)),
        "agent.gc.interval": series(at, np.full(len(at), 43_200.0 if slow else 60.0)),
        "agent.gc.runs": series(at, np.zeros(len(at)) if slow else np.searchsorted([12.4, 72.6], at)),
        "generator.cpu": series(at, cpu),
    }


def _counters(at: np.ndarray, drops: int) -> dict[str, Series]:
    return {
        "race.drops": series(at, np.round(at / at[-1] * drops)),
        "nfct.clash_resolve": series(at, 12 + np.round(at / at[-1] * 431)),
        "nfct.insert_failed": series(at, np.zeros(len(at))),
        "dns.server.a": series(at, np.round(at * 308)),
        "dns.server.aaaa": series(at, np.round(at * 306)),
    }
