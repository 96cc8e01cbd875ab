"""Findings, effects and walks as the words and numbers that all reports share."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.core.attribute import WalkStats
from loadgen.core.cilium import QUIET_RATE, GcPass
from loadgen.core.compare import Effect
from loadgen.core.model import Scenario
from loadgen.core.stats import Value, percentile_name
from loadgen.core.units import NS_PER_S, format_count, format_duration
from loadgen.core.verdict import Finding
from loadgen.report.view import VariantView

CLEAR_P = 0.05


def number(value: float, unit: str) -> str:
    return format_duration(value) if unit == "s" else format_count(value)


def observed(finding: Finding) -> str:
    """What was observed; `>=` marks a lower bound."""
    if finding.observed is None:
        return "nothing"
    return (">= " if finding.at_least else "") + number(finding.observed, finding.unit)


def limit(finding: Finding) -> str:
    return f"{finding.op} {number(finding.limit, finding.unit)}"


def threshold(finding: Finding) -> str:
    """The threshold as it is written in a scenario file."""
    return f"{finding.metric} {finding.aggregate} {limit(finding)}"


def value(found: Value | None) -> str:
    """A statistic in seconds; a dash where there are too few samples for it."""
    return "-" if found is None else (">= " if found.at_least else "") + format_duration(found.value)


def drift(passes: Sequence[GcPass]) -> str:
    """How an agent's GC interval came to be what it was, in one line."""
    if not passes:
        return "Cilium's rule never takes a quiet node's interval there with a table of this size"
    intervals = [passes[0].interval_ns, *(done.next_ns for done in passes)]
    shown = [format_duration(ns / NS_PER_S) for ns in intervals]
    steps = " > ".join([*shown[:5], "...", shown[-1]] if len(shown) > 6 else shown)
    took = format_duration(passes[-1].t_ns / NS_PER_S)
    return f"{steps}: {len(passes)} passes, {took}, by Cilium's own rule at {QUIET_RATE:g} new connection a second"


def status(variant: VariantView) -> str:
    """The variant's verdict with what it means for its role."""
    word = variant.verdict.verdict.value
    if variant.baseline:
        return f"{word}: it did not reproduce the failure" if variant.missing else f"{word}, as it must"
    return f"{word} (one fix of several: not asked to hold)" if variant.partial else word


def role(variant: VariantView) -> str:
    return "baseline" if variant.baseline else "partial fix" if variant.partial else ""


class Change:
    """An Effect with what its two sides rest on: where operations were given up, the ratio is only a bound."""

    def __init__(self, effect: Effect, before: Value | None, after: Value | None) -> None:
        self.effect = effect
        self.before = before or Value(effect.baseline_s, False)
        self.after = after or Value(effect.variant_s, False)

    @property
    def aggregate(self) -> str:
        return percentile_name(self.effect.percentile)

    @property
    def clear(self) -> bool:
        """Both the interval and the rank test see a difference."""
        e = self.effect
        return not e.ratio_low <= 1 <= e.ratio_high and e.p < CLEAR_P

    def factor(self) -> str:
        """`12.3x faster`; `>=` or `<=` when one side is a lower bound; no factor when both are."""
        e = self.effect
        if self.before.at_least and self.after.at_least:
            return "open: both sides rest on operations given up"
        faster = e.ratio >= 1
        # A lower bound of the numerator bounds the ratio from below, one of the denominator from above.
        bound = ""
        if self.before.at_least or self.after.at_least:
            bound = ">= " if self.before.at_least == faster else "<= "
        return f"{bound}{_times(e.ratio if faster else 1 / e.ratio)}x {'faster' if faster else 'slower'}"

    def interval(self) -> str:
        """The 95 % bootstrap interval, in the direction of `factor`."""
        e = self.effect
        low, high = (e.ratio_low, e.ratio_high) if e.ratio >= 1 else (1 / e.ratio_high, 1 / e.ratio_low)
        return f"{_times(low)} to {_times(high)}"

    def p(self) -> str:
        return "p < 0.001" if self.effect.p < 0.001 else f"p = {self.effect.p:.3f}"

    def sentence(self) -> str:
        sides = f"{self.effect.metric} {self.aggregate}: {value(self.before)} -> {value(self.after)}"
        return f"{sides}, {self.factor()} (95 %: {self.interval()}; {self.p()})"


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"


def changes(effects: Sequence[Effect], variants: Sequence[VariantView]) -> list[Change]:
    """Each effect with its sides' own bounds, in the order of the effects."""
    views = {v.name: v for v in variants}
    baseline = next((v for v in variants if v.baseline), None)
    return [Change(e, _side(baseline, e), _side(views.get(e.variant), e)) for e in effects]


def _side(variant: VariantView | None, effect: Effect) -> Value | None:
    pool = variant.pools.get(effect.metric) if variant else None
    return pool.percentile(effect.percentile) if pool else None


def walks(stats: WalkStats) -> str:
    each = f"{stats.us_per_entry:.3g} us an entry, " if stats.entries else ""
    return (
        f"{format_count(stats.walks)} table walks over {format_count(stats.entries)} entries took "
        f"{format_duration(stats.seconds)}: {each}the longest {format_duration(stats.longest_s)}"
    )


def emulated(variants: Sequence[VariantView]) -> list[str]:
    """Every part that is not the real thing, each once, in order of first mention."""
    return list(dict.fromkeys(text for v in variants for text in v.verdict.emulated))


def not_run(scenario: Scenario, variants: Sequence[VariantView]) -> list[str]:
    """Variants of the scenario that this experiment left out."""
    return [name for name in scenario.variants if name not in {v.name for v in variants}]
