from __future__ import annotations

import msgspec
import pytest

from loadgen.core.compare import Effect
from loadgen.core.stats import Value
from loadgen.report import view, wording
from tests import factories

EFFECT = Effect("dns.lookup", "after", 99.0, 5.0, 0.004, 1250.0, 1100.0, 1300.0, 0.0001)


def change(before: Value | None = None, after: Value | None = None, **changed: float) -> wording.Change:
    return wording.Change(msgspec.structs.replace(EFFECT, **changed), before, after)


@pytest.mark.parametrize(
    ("before", "after", "ratio", "said"),
    [
        (Value(5, False), Value(0.5, False), 10.0, "10x faster"),
        (Value(0.5, False), Value(5, False), 0.1, "10x slower"),
        (Value(90, True), Value(1, False), 90.0, ">= 90x faster"),
        (Value(5, False), Value(1, True), 5.0, "<= 5x faster"),
        (Value(1, False), Value(90, True), 1 / 90, ">= 90x slower"),
        (Value(90, True), Value(90, True), 1.0, "open: both sides rest on operations given up"),
        (None, None, 1234.5, "1,234x faster"),
    ],
)
def test_a_factor_is_a_bound_where_a_side_is_one(before: Value, after: Value, ratio: float, said: str) -> None:
    assert change(before, after, ratio=ratio).factor() == said


def test_a_change_is_one_sentence() -> None:
    assert change().sentence() == "dns.lookup p99: 5s -> 4ms, 1,250x faster (95 %: 1,100 to 1,300; p < 0.001)"


def test_the_interval_of_a_slow_down_is_turned_round() -> None:
    assert change(ratio=0.5, ratio_low=0.4, ratio_high=0.8).interval() == "1.25 to 2.5"


@pytest.mark.parametrize(
    ("low", "high", "p", "clear"), [(1.1, 1.3, 0.01, True), (0.9, 1.3, 0.01, False), (1.1, 1.3, 0.2, False)]
)
def test_a_change_is_clear_when_interval_and_rank_test_agree(low: float, high: float, p: float, clear: bool) -> None:
    assert change(ratio_low=low, ratio_high=high, p=p).clear is clear


def test_each_side_of_an_effect_knows_whether_it_is_a_bound() -> None:
    results = factories.spiral()
    changes = wording.changes(results.effects, view.variants(results))
    setup = next(c for c in changes if c.effect.metric == "sandbox.setup" and c.effect.percentile == 99)
    assert (setup.before, setup.after) == (Value(90.0, True), Value(6.375, False))


def test_findings_are_written_as_thresholds_are() -> None:
    results = factories.spiral()
    written = [wording.threshold(f) for f in results.verdict.variants[0].findings]
    assert tuple(written) == results.scenario.thresholds


def test_what_is_emulated_is_named_once() -> None:
    assert wording.emulated(view.variants(factories.spiral())) == list(factories.EMULATED)


def test_variants_that_were_left_out_are_named() -> None:
    results = factories.spiral(("before", "after"))
    plan = factories.scenario(("before", "gc-only", "dns-only", "after"))
    assert wording.not_run(plan, view.variants(results)) == ["gc-only", "dns-only"]
