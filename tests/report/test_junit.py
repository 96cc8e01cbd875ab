from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import pytest

from loadgen.core.history import RunData
from loadgen.core.results import Results
from loadgen.core.verdict import Exit, Verdict, exit_code
from loadgen.report import junit
from tests import factories
from tests.golden import assert_golden

GOLDEN = Path(__file__).parent / "golden"


def red(results: Results) -> bool:
    """What a CI makes of it: red when anything failed or could not be made."""
    root = ET.fromstring(junit.render(results))
    return bool(root.findall(".//failure") or root.findall(".//error"))


def as_variant(run: RunData, name: str) -> RunData:
    """The same measurements under another variant's name."""
    variant = factories.VARIANTS[name]
    info = msgspec.structs.replace(run.info, variant=name, baseline=variant.baseline, partial=variant.partial)
    return run._replace(info=info)


def experiments() -> dict[str, Results]:
    plan, factorial = factories.scenario(), factories.scenario(("before", "gc-only", "dns-only", "after"))
    bad, good = factories.spiral_run(plan, "before"), factories.spiral_run(plan, "after")
    other_kernel = good._replace(info=msgspec.structs.replace(good.info, environment={"kernel": "5.10"}))
    return {
        "the fix held": factories.results(plan, [bad, good]),
        "partial fixes may break": factories.spiral(("before", "gc-only", "dns-only", "after")),
        "the fix broke": factories.results(plan, [bad, as_variant(bad, "after")]),
        "not reproduced": factories.results(plan, [as_variant(good, "before"), good]),
        "no baseline": factories.results(plan, [good]),
        "no fix": factories.results(plan, [bad]),
        "only a partial fix": factories.results(factorial, [bad, factories.spiral_run(factorial, "gc-only")]),
        "cut short": factories.results(plan, [bad, factories.spiral_run(plan, "after", ending="")]),
        "not comparable": factories.results(plan, [bad, other_kernel]),
        "a single variant that holds": factories.results(factories.scenario(("after",)), [good]),
        "a single variant that breaks": factories.results(factories.scenario(("after",)), [as_variant(bad, "after")]),
    }


EXPERIMENTS = experiments()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_red_exactly_when_the_exit_code_is_not_zero(name: str) -> None:
    results = EXPERIMENTS[name]
    assert red(results) == (exit_code(results.verdict.verdict) != Exit.PASS)


def test_the_experiments_above_have_all_verdicts() -> None:
    assert {results.verdict.verdict for results in EXPERIMENTS.values()} == set(Verdict)


def test_the_whole_of_it() -> None:
    assert_golden(GOLDEN / "junit.xml", junit.render(EXPERIMENTS["partial fixes may break"]))


def test_a_baseline_is_one_test_and_its_findings_are_output() -> None:
    suite = ET.fromstring(junit.render(EXPERIMENTS["the fix held"])).find("testsuite[@name='chaos.before']")
    assert suite is not None
    assert [case.get("name") for case in suite.findall("testcase")] == ["before reproduces the failure"]
    assert "FAIL  sandbox.setup failed == 0: 31 == 0 does not hold" in str(suite.findtext("system-out"))


def test_a_partial_fix_that_breaks_is_skipped() -> None:
    suite = ET.fromstring(junit.render(EXPERIMENTS["partial fixes may break"])).find(
        "testsuite[@name='chaos.gc-only']"
    )
    assert suite is not None
    cases = {str(case.get("name")): case.find("skipped") is not None for case in suite.findall("testcase")}
    assert cases["dns.lookup max < 2.5s"]
    assert not cases["sandbox.setup p99 < 30s"]


def test_counts_are_those_of_the_elements() -> None:
    for results in EXPERIMENTS.values():
        root = ET.fromstring(junit.render(results))
        for element in (root, *root.findall("testsuite")):
            for key, tag in (
                ("tests", "testcase"),
                ("failures", "failure"),
                ("errors", "error"),
                ("skipped", "skipped"),
            ):
                assert element.get(key) == str(len(element.findall(f".//{tag}")))


def test_any_text_makes_valid_xml() -> None:
    results = EXPERIMENTS["the fix broke"]
    nasty = "<&>\"' ]]> \x00\x1b\ud800\ufffe ü"
    variants = tuple(msgspec.structs.replace(v, why=nasty, emulated=(nasty,)) for v in results.verdict.variants)
    verdict = msgspec.structs.replace(results.verdict, scenario=nasty, why=nasty, variants=variants)
    text = junit.render(results._replace(verdict=verdict))
    root = ET.fromstring(text.encode())
    failure = root.find("testsuite[last()]/testcase/failure")
    assert failure is not None
    assert failure.get("message") == "<&>\"' ]]> \N{REPLACEMENT CHARACTER}" + "\N{REPLACEMENT CHARACTER}" * 3 + " ü"
