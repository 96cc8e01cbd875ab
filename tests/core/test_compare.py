from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from loadgen.core.compare import differences, effect, judge_experiment, judge_variant
from loadgen.core.history import RunInfo
from loadgen.core.judge import RunSummary
from loadgen.core.model import Scenario
from loadgen.core.verdict import Exit, Finding, VariantVerdict, Verdict, exit_code, worst
from loadgen.scenarios import loader

PASS, INCONCLUSIVE, FAIL = Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.FAIL

CHAOS = loader.load("chaos")


def scenario(reproduces: tuple[str, ...] = ()) -> Scenario:
    return msgspec.structs.replace(CHAOS, reproduces=reproduces)


def finding(status: Verdict, metric: str = "sandbox.setup") -> Finding:
    return Finding(metric, "p99", "<", 30.0, "s", 1.0, 50, 0, status, f"was {status.value}")


def variant(
    name: str, *statuses: Verdict, metrics: Sequence[str] = ("sandbox.setup", "dns.lookup")
) -> VariantVerdict:
    findings = tuple(finding(s, m) for s, m in zip(statuses, metrics, strict=False))
    return VariantVerdict(name, name == "before", worst(statuses), "why", (), findings)


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        # The baseline breaks, the fix holds.
        (FAIL, PASS, PASS),
        # The baseline did not reproduce: nothing was proved, however good the fix looks.
        (PASS, PASS, INCONCLUSIVE),
        (INCONCLUSIVE, PASS, INCONCLUSIVE),
        # A broken fix is a FAIL, whatever the baseline did.
        (FAIL, FAIL, FAIL),
        (PASS, FAIL, FAIL),
        (FAIL, INCONCLUSIVE, INCONCLUSIVE),
    ],
)
def test_the_law(before: Verdict, after: Verdict, verdict: Verdict) -> None:
    found = judge_experiment(scenario(), [variant("before", before), variant("after", after)])
    assert found.verdict is verdict


def test_every_failure_that_is_named_must_be_reproduced() -> None:
    both = scenario(("sandbox.setup", "dns.lookup"))
    after = variant("after", PASS, PASS)
    assert judge_experiment(both, [variant("before", FAIL, FAIL), after]).verdict is PASS
    found = judge_experiment(both, [variant("before", FAIL, PASS), after])
    assert found.verdict is INCONCLUSIVE
    assert "did not reproduce" in found.why
    assert "dns.lookup" in found.why


def test_one_fix_of_several_need_not_hold_everything() -> None:
    variants = [variant("before", FAIL), variant("gc-only", FAIL), variant("after", PASS)]
    assert judge_experiment(scenario(), variants).verdict is PASS


@pytest.mark.parametrize(("status", "verdict"), [(FAIL, FAIL), (PASS, INCONCLUSIVE), (INCONCLUSIVE, INCONCLUSIVE)])
def test_a_baseline_alone(status: Verdict, verdict: Verdict) -> None:
    assert judge_experiment(scenario(), [variant("before", status)]).verdict is verdict


@pytest.mark.parametrize(("status", "verdict"), [(FAIL, FAIL), (PASS, INCONCLUSIVE)])
def test_a_fix_alone_proves_nothing_good(status: Verdict, verdict: Verdict) -> None:
    assert judge_experiment(scenario(), [variant("after", status)]).verdict is verdict


def test_a_scenario_without_a_baseline_is_its_own_thresholds() -> None:
    only = msgspec.structs.replace(
        CHAOS, variants={"after": msgspec.structs.replace(CHAOS.variants["after"], baseline=False)}
    )
    assert judge_experiment(only, [variant("after", PASS)]).verdict is PASS
    assert judge_experiment(only, [variant("after", FAIL)]).verdict is FAIL
    assert judge_experiment(only, []).verdict is INCONCLUSIVE


def test_runs_that_are_not_comparable_cannot_pass() -> None:
    variants = [variant("before", FAIL), variant("after", PASS)]
    found = judge_experiment(scenario(), variants, ["kernel differs: 6.1 / 6.18"])
    assert found.verdict is INCONCLUSIVE
    assert "kernel differs" in found.why


def summary(*statuses: Verdict) -> RunSummary:
    return RunSummary("01", "v", 0, "complete", {}, {}, (), tuple(finding(s) for s in statuses))


def test_a_fix_is_as_good_as_its_worst_run_and_a_baseline_as_convincing_as_its_weakest() -> None:
    runs = [summary(FAIL), summary(PASS), summary(FAIL)]
    fix = judge_variant("after", False, (), runs)
    assert (fix.verdict, fix.findings[0].why) == (FAIL, "was FAIL (run 1 of 3)")
    baseline = judge_variant("before", True, (), runs)
    assert (baseline.verdict, baseline.findings[0].why) == (PASS, "was PASS (run 2 of 3)")


def test_the_order_of_verdicts_and_the_exit_codes() -> None:
    assert worst([PASS, FAIL, INCONCLUSIVE]) is FAIL
    assert worst([PASS, INCONCLUSIVE]) is INCONCLUSIVE
    assert worst([]) is INCONCLUSIVE
    assert (
        [exit_code(v) for v in (PASS, FAIL, INCONCLUSIVE)] == [Exit.PASS, Exit.FAIL, Exit.INCONCLUSIVE] == [0, 1, 5]
    )


def test_environments_are_compared_key_by_key() -> None:
    one = RunInfo(1, {}, "a", True, False, 0, 1, "lab", {"kernel": "6.1", "cpus": "2"}, (), (), "", 0)
    other = msgspec.structs.replace(one, environment={"kernel": "6.18", "cpus": "2"})
    assert differences([one, one]) == []
    assert differences([one, other]) == ["kernel differs: 6.1 / 6.18"]
    assert differences([]) == []


def test_an_effect_is_a_ratio_with_its_interval() -> None:
    rng = np.random.default_rng(1)
    before, after = rng.exponential(20, 500), rng.exponential(2, 500)
    found = effect("sandbox.setup", "after", before, after, 50, seed=3)
    assert found.ratio == pytest.approx(found.baseline_s / found.variant_s)
    assert found.ratio_low < 10 < found.ratio_high
    assert found.p < 1e-6
    assert found == effect("sandbox.setup", "after", before, after, 50, seed=3)
