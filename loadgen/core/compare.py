"""The before/after law, and how much a fix moved each number.

The baseline must be seen to break what it was set up to break, or the experiment proved nothing (INCONCLUSIVE).
Every fix must hold every threshold, or the fix failed (FAIL). Runs whose environment differs in anything but the
variant are not comparable.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from loadgen.core.history import RunInfo
from loadgen.core.judge import RunSummary
from loadgen.core.model import Scenario
from loadgen.core.stats import bootstrap_ratio, mann_whitney
from loadgen.core.verdict import (
    VERDICT_FORMAT,
    ExperimentVerdict,
    Finding,
    VariantVerdict,
    Verdict,
    worst,
)

_SEVERITY = [Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.FAIL]


def judge_variant(
    name: str,
    baseline: bool,
    emulated: tuple[str, ...],
    runs: Sequence[RunSummary],
) -> VariantVerdict:
    """A variant over its repeats. A fix is as good as its worst run, a baseline as convincing as its weakest."""
    choose = min if baseline else max
    findings: list[Finding] = []
    for column in zip(*(run.findings for run in runs), strict=True):
        chosen = choose(column, key=lambda f: _SEVERITY.index(f.status))
        if len(runs) > 1:
            number = next(i for i, f in enumerate(column, start=1) if f is chosen)
            chosen = msgspec.structs.replace(chosen, why=f"{chosen.why} (run {number} of {len(runs)})")
        findings.append(chosen)
    verdict = worst(f.status for f in findings)
    return VariantVerdict(name, baseline, verdict, _why(findings, verdict), emulated, tuple(findings))


def _why(findings: Sequence[Finding], verdict: Verdict) -> str:
    if verdict is Verdict.PASS:
        return "every threshold holds"
    return "; ".join(f"{f.metric} {f.aggregate}: {f.why}" for f in findings if f.status is verdict) or "no thresholds"


def judge_experiment(
    scenario: Scenario, variants: Sequence[VariantVerdict], doubts: Sequence[str] = ()
) -> ExperimentVerdict:
    """The law. `doubts` forbid a PASS: environment differences between runs, and what any of them lacks."""
    verdict, why = _law(scenario, variants)
    if doubts and verdict is Verdict.PASS:
        verdict, why = Verdict.INCONCLUSIVE, "the runs prove nothing: " + "; ".join(doubts)
    return ExperimentVerdict(VERDICT_FORMAT, scenario.name, verdict, why, tuple(variants))


def _law(scenario: Scenario, variants: Sequence[VariantVerdict]) -> tuple[Verdict, str]:
    partial = {name for name, variant in scenario.variants.items() if variant.partial}
    baselines = [v for v in variants if v.baseline]
    fixes = [v for v in variants if not v.baseline and v.name not in partial]
    if not any(v.baseline for v in scenario.variants.values()):
        return _without_baseline(fixes)
    broken = [v for v in fixes if v.verdict is Verdict.FAIL]
    if broken:
        return Verdict.FAIL, "; ".join(f"{v.name}: {v.why}" for v in broken)
    if not baselines:
        return (
            Verdict.INCONCLUSIVE,
            "the baseline was not run, so nothing shows that this load hurts without the fix",
        )
    missing = not_reproduced(baselines[0], scenario.reproduces)
    if missing:
        return Verdict.INCONCLUSIVE, f"{baselines[0].name} did not reproduce the failure: {missing}"
    if not fixes:
        return (
            Verdict.FAIL,
            f"{baselines[0].name} broke its thresholds and no fix was run: {baselines[0].why}",
        )
    doubtful = [v for v in fixes if v.verdict is Verdict.INCONCLUSIVE]
    if doubtful:
        return Verdict.INCONCLUSIVE, "; ".join(f"{v.name}: {v.why}" for v in doubtful)
    names = ", ".join(v.name for v in fixes)
    return Verdict.PASS, f"{baselines[0].name} broke its thresholds, as it must; {names} held every one"


def _without_baseline(fixes: Sequence[VariantVerdict]) -> tuple[Verdict, str]:
    verdict = worst(v.verdict for v in fixes)
    return verdict, "; ".join(f"{v.name}: {v.why}" for v in fixes if v.verdict is verdict) or "nothing was run"


def not_reproduced(baseline: VariantVerdict, reproduces: tuple[str, ...]) -> str:
    """What the baseline was to break and did not, as a phrase; empty when it reproduced everything."""
    broken = {f.metric for f in baseline.findings if f.status is Verdict.FAIL}
    if not reproduces:
        return "" if broken else baseline.why
    held = [metric for metric in reproduces if metric not in broken]
    reasons = [f"{f.metric} {f.aggregate} {f.why}" for f in baseline.findings if f.metric in held]
    return "; ".join(reasons or [f"{metric}: no threshold" for metric in held])


def differences(infos: Sequence[RunInfo]) -> list[str]:
    """Environment entries in which the runs differ: each a sentence. Empty: they are comparable."""
    if not infos:
        return []
    keys = sorted({key for info in infos for key in info.environment})
    found = []
    for key in keys:
        values = sorted({info.environment.get(key, "unknown") for info in infos})
        if len(values) > 1:
            found.append(f"{key} differs: {' / '.join(values)}")
    return found


class Effect(msgspec.Struct, frozen=True):
    """How a variant moved one percentile of one metric against the baseline."""

    metric: str
    variant: str
    percentile: float
    baseline_s: float
    variant_s: float
    ratio: float
    ratio_low: float
    ratio_high: float
    p: float
    """Two-sided Mann–Whitney on all samples."""


_MAX_BOOTSTRAP = 20_000


def effect(metric: str, variant: str, before: np.ndarray, after: np.ndarray, q: float, seed: int) -> Effect:
    """Effect on percentile `q` of latencies in seconds (censored ones at their limit: the ratio is a lower bound).

    The bootstrap draws from at most 20,000 samples a side, chosen by `seed`, so that its time stays bounded.
    """
    rng = np.random.default_rng(seed)
    a, b = (rng.choice(x, min(len(x), _MAX_BOOTSTRAP), replace=False) for x in (before, after))
    interval = bootstrap_ratio(a, b, q, rng, rounds=400)
    x = float(np.percentile(before, q, method="inverted_cdf"))
    y = float(np.percentile(after, q, method="inverted_cdf"))
    p = mann_whitney(a, b).p
    return Effect(metric, variant, q, x, y, x / max(y, 1e-9), interval.low, interval.high, p)
