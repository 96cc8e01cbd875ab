"""From a run's history to its summary and findings. The same code for the run that just ended and for `analyze`."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np

from loadgen.core import thresholds as th
from loadgen.core.history import Ending, MetricSamples, RunData
from loadgen.core.model import Scenario
from loadgen.core.stats import LatencySummary, summarise
from loadgen.core.verdict import Finding, Verdict

EVIDENCE = "|"
"""In the names of series that are no gauges: a histogram's buckets, a page's age."""


class GaugeSummary(msgspec.Struct, frozen=True):
    n: int
    min: float
    mean: float
    max: float
    last: float


class RunSummary(msgspec.Struct, frozen=True):
    """The numbers of one run's measured phases, with everything that makes them doubtful."""

    run: str
    variant: str
    repeat: int
    ending: str
    metrics: dict[str, LatencySummary]
    gauges: dict[str, GaugeSummary]
    problems: tuple[str, ...]
    """Reasons why this run proves nothing good: it was cut short, or samples are missing."""
    findings: tuple[Finding, ...]


def measured_phases(scenario: Scenario) -> frozenset[str]:
    """Phases that count. A scenario that marks none has said that all do."""
    marked = frozenset(phase.name for phase in scenario.phases if phase.measured)
    return marked or frozenset(phase.name for phase in scenario.phases)


def judge_run(name: str, scenario: Scenario, data: RunData) -> RunSummary:
    """Summary and findings of one run. A run with problems cannot pass: its passes become INCONCLUSIVE."""
    phases = measured_phases(scenario)
    selected = {m: _select(s, phases) for m, s in data.samples.items()}
    metrics = {m: summarise(rows, data.samples[m].details) for m, rows in selected.items() if len(rows)}
    gauges = _gauge_windows(data, phases)
    problems = _problems(data)
    findings = []
    for text in scenario.thresholds:
        threshold = th.parse(text)
        metric = threshold.metric.name
        if threshold.metric.kind == "latency":
            rows = selected.get(metric, np.empty(0))
            finding = th.evaluate_samples(threshold, rows, metrics.get(metric))
        else:
            finding = th.evaluate_readings(threshold, gauges.get(metric, np.empty(0)))
        findings.append(_doubt(finding, problems))
    return RunSummary(
        run=name,
        variant=data.info.variant,
        repeat=data.info.repeat,
        ending=data.ending().value,
        metrics=metrics,
        gauges={name: _gauge(values) for name, values in gauges.items() if len(values)},
        problems=problems,
        findings=tuple(findings),
    )


def _select(samples: MetricSamples, phases: frozenset[str]) -> np.ndarray:
    return samples.rows[samples.within(phases)]


def _gauge_windows(data: RunData, phases: frozenset[str]) -> dict[str, np.ndarray]:
    windows = [window for name, window in data.phase_windows().items() if name in phases]
    found = {}
    for name, series in data.readings.items():
        if EVIDENCE in name:
            continue
        inside = np.zeros(len(series.t_ns), dtype=bool)
        for start, end in windows:
            inside |= (series.t_ns >= start) & (series.t_ns <= end)
        found[name] = series.values[inside]
    return found


def _gauge(values: np.ndarray) -> GaugeSummary:
    return GaugeSummary(
        len(values), float(values.min()), float(values.mean()), float(values.max()), float(values[-1])
    )


def _problems(data: RunData) -> tuple[str, ...]:
    ending = data.ending()
    if ending is not Ending.COMPLETE:
        return (f"the run was cut short ({ending.value})",)
    return tuple(unaccounted(data))


def unaccounted(data: RunData) -> list[str]:
    """Operations that were created but have no sample, or samples nobody created: created = measured + censored."""
    created: Counter[tuple[str, str, str]] = Counter()
    for tally in data.tallies:
        for metric, count in tally.created.items():
            created[metric, tally.phase, tally.source] += count
    arrived: Counter[tuple[str, str, str]] = Counter()
    for metric, samples in data.samples.items():
        pairs, counts = np.unique(np.stack([samples.phase, samples.source]), axis=1, return_counts=True)
        for (phase, source), count in zip(pairs.T, counts, strict=True):
            arrived[metric, samples.phases[phase], samples.sources[source]] += int(count)
    return [
        f"{metric} of {source} in phase {phase}: {created[metric, phase, source]} operations created, "
        f"{arrived[metric, phase, source]} samples"
        for metric, phase, source in sorted(created.keys() | arrived.keys())
        if created[metric, phase, source] != arrived[metric, phase, source]
    ]


def _doubt(finding: Finding, problems: tuple[str, ...]) -> Finding:
    if finding.status is not Verdict.PASS or not problems:
        return finding
    return msgspec.structs.replace(finding, status=Verdict.INCONCLUSIVE, why=f"{finding.why}, but {problems[0]}")
