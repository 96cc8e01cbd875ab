"""All that is known about an experiment once it is analysed: what the reports are made from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from loadgen.core.agreement import Agreement, agreement
from loadgen.core.attribute import Attribution, WalkStats, slowest_sandboxes, walk_stats
from loadgen.core.cilium import GcPass, drift, profile
from loadgen.core.compare import Effect, differences, effect, judge_experiment, judge_variant
from loadgen.core.history import RunData
from loadgen.core.judge import RunSummary, judge_run, measured_phases
from loadgen.core.meanwhile import around
from loadgen.core.model import Scenario
from loadgen.core.stats import samples_needed
from loadgen.core.units import NS_PER_S
from loadgen.core.verdict import ExperimentVerdict

SUMMARY_FORMAT = 1

EFFECT_PERCENTILES = (50.0, 99.0, 99.9)


class RunResult(NamedTuple):
    """One run: its name below runs/, what it left behind, and what that says."""

    name: str
    data: RunData
    summary: RunSummary
    walks: WalkStats
    slowest: Sequence[Attribution]
    agreement: Agreement | None = None
    """What other sources say of its sandboxes; None where there are none to be expected."""

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that makes it doubtful: it was cut short, samples are missing, sources contradict each other."""
        return self.summary.problems + (self.agreement.doubts if self.agreement else ())


class Results(NamedTuple):
    scenario: Scenario
    seed: int
    testbed: str
    started: str
    runs: Sequence[RunResult]
    effects: Sequence[Effect]
    drifts: Mapping[str, Sequence[GcPass]]
    """Variant → the passes by which Cilium's own rule takes a quiet node's GC interval to where its agent starts."""
    verdict: ExperimentVerdict


class SummaryFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """summary.json: every number of the report that is not a picture."""

    format: int
    scenario: str
    seed: int
    testbed: str
    started: str
    runs: Sequence[RunSummary]
    walks: Mapping[str, WalkStats]
    slowest: Mapping[str, Sequence[Attribution]]
    effects: Sequence[Effect]
    drifts: Mapping[str, Sequence[GcPass]]
    sources: Mapping[str, Agreement] = {}


def analyse(scenario: Scenario, seed: int, testbed: str, started: str, runs: Mapping[str, RunData]) -> Results:
    """Everything right of the history, from the histories alone. `runs`: name below runs/ → data, in order."""
    results = [_result(name, scenario, data) for name, data in runs.items()]
    by_variant: dict[str, list[RunResult]] = {}
    for result in results:
        by_variant.setdefault(result.data.info.variant, []).append(result)
    variants = [
        judge_variant(
            name,
            group[0].data.info.baseline,
            group[0].data.info.emulated,
            [r.summary for r in group],
        )
        for name, group in by_variant.items()
    ]
    doubts = differences([r.data.info for r in results])
    doubts += [f"{r.name}: {problem}" for r in results for problem in r.problems]
    verdict = judge_experiment(scenario, variants, doubts)
    return Results(
        scenario=scenario,
        seed=seed,
        testbed=testbed,
        started=started,
        runs=results,
        effects=_effects(scenario, by_variant, seed),
        drifts=_drifts(scenario, by_variant),
        verdict=verdict,
    )


def _result(name: str, scenario: Scenario, data: RunData) -> RunResult:
    sources = agreement(data, measured_phases(scenario))
    slowest = slowest_sandboxes(
        data.samples.get("sandbox.setup"),
        data.samples.get("sandbox.attempt"),
        data.spans,
        around=around(data) if sources else None,
    )
    return RunResult(name, data, judge_run(name, scenario, data), walk_stats(data.spans), slowest, sources)


def summary_file(results: Results) -> SummaryFile:
    return SummaryFile(
        format=SUMMARY_FORMAT,
        scenario=results.scenario.name,
        seed=results.seed,
        testbed=results.testbed,
        started=results.started,
        runs=[r.summary for r in results.runs],
        walks={r.name: r.walks for r in results.runs if r.walks.walks},
        slowest={r.name: r.slowest for r in results.runs if r.slowest},
        effects=results.effects,
        drifts=results.drifts,
        sources={r.name: r.agreement for r in results.runs if r.agreement},
    )


def _drifts(scenario: Scenario, variants: Iterable[str]) -> dict[str, Sequence[GcPass]]:
    found = {}
    for name in variants:
        settings = scenario.variants[name].settings.cilium
        if settings.gc_interval_now and not settings.gc_interval:
            found[name] = drift(profile(settings.profile), settings.bpf.ct_tcp_max, settings.gc_interval_now)
    return found


def measured_seconds(scenario: Scenario, data: RunData, metric: str) -> np.ndarray:
    """Latencies in seconds of `metric` in the measured phases of one run, in order of arrival."""
    samples = data.samples.get(metric)
    if samples is None:
        return np.empty(0)
    rows = samples.rows[samples.within(measured_phases(scenario))]
    return (rows["done_ns"] - rows["due_ns"]) / NS_PER_S


def _effects(scenario: Scenario, by_variant: Mapping[str, Sequence[RunResult]], seed: int) -> list[Effect]:
    """Each latency metric of each variant against the baseline, where both have enough samples."""
    baseline = next((name for name, group in by_variant.items() if group[0].data.info.baseline), None)
    if baseline is None:
        return []

    def pooled(variant: str, metric: str) -> np.ndarray:
        return np.concatenate([measured_seconds(scenario, r.data, metric) for r in by_variant[variant]])

    found = []
    for variant in by_variant:
        metrics = sorted({metric for r in by_variant[variant] for metric in r.data.samples})
        for metric in metrics if variant != baseline else ():
            before, after = pooled(baseline, metric), pooled(variant, metric)
            for q in EFFECT_PERCENTILES:
                if min(len(before), len(after)) >= max(samples_needed(q), 2):
                    found.append(effect(metric, variant, before, after, q, seed))
    return found
