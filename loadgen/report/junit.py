"""JUnit XML: red exactly when loadgen's exit code for this verdict is not 0.

A baseline that breaks its thresholds is what must happen, so its suite asks only whether it reproduced the failure
and carries its findings as output. The thresholds of a partial fix that do not hold are skipped: nobody asked them
to. All else that a verdict rests on (no fix was run, the runs are not comparable) is in the experiment's suite.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from loadgen.core.history import Ending
from loadgen.core.results import Results
from loadgen.core.verdict import ExperimentVerdict, Finding, Verdict
from loadgen.report import sources, view, wording
from loadgen.report.view import VariantView

# XML 1.0 has no way to write these characters, escaped or not.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(results: Results) -> str:
    """One suite a variant and one for the experiment. Times are wall seconds of the variant's runs."""
    variants = view.variants(results)
    suites = [_variant_suite(results, variant) for variant in variants]
    suites.append(_experiment_suite(results.verdict))
    root = ET.Element("testsuites", name=_clean(results.scenario.name))
    for suite in suites:
        _count(suite)
    root.extend(suites)
    for key in ("tests", "failures", "errors", "skipped"):
        root.set(key, str(sum(int(suite.get(key, "0")) for suite in suites)))
    root.set("time", f"{sum(float(suite.get('time', '0')) for suite in suites):.3f}")
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _variant_suite(results: Results, variant: VariantView) -> ET.Element:
    name = f"{results.scenario.name}.{variant.name}"
    seconds = sum(view.duration_s(run.data) for run in variant.runs)
    suite = ET.Element("testsuite", name=_clean(name), timestamp=_clean(results.started), time=f"{seconds:.3f}")
    _properties(suite, results, variant)
    if variant.baseline:
        _baseline_case(suite, name, variant)
    else:
        for finding in variant.verdict.findings:
            _threshold_case(suite, name, finding, variant.partial)
    _output(suite, [_line(f) for f in variant.verdict.findings] + _doubts(variant) + list(sources.lines([variant])))
    return suite


def _baseline_case(suite: ET.Element, classname: str, variant: VariantView) -> None:
    case = _case(suite, classname, f"{variant.name} reproduces the failure")
    if variant.missing:
        _outcome(case, Verdict.INCONCLUSIVE, f"{variant.name} did not reproduce the failure: {variant.missing}")


def _threshold_case(suite: ET.Element, classname: str, finding: Finding, partial: bool) -> None:
    case = _case(suite, classname, wording.threshold(finding))
    if partial and finding.status is not Verdict.PASS:
        why = f"one fix of several is not asked to hold every threshold; {finding.status.value}: {finding.why}"
        ET.SubElement(case, "skipped", message=_clean(why))
    else:
        _outcome(case, finding.status, finding.why)


def _experiment_suite(verdict: ExperimentVerdict) -> ET.Element:
    suite = ET.Element("testsuite", name=_clean(f"{verdict.scenario}.experiment"), time="0.000")
    case = _case(suite, f"{verdict.scenario}.experiment", f"{verdict.scenario} passes")
    _outcome(case, verdict.verdict, verdict.why)
    _output(suite, [f"{verdict.verdict.value}: {verdict.why}"])
    return suite


def _case(suite: ET.Element, classname: str, name: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", classname=_clean(classname), name=_clean(name))


def _outcome(case: ET.Element, status: Verdict, why: str) -> None:
    """FAIL is a failure; INCONCLUSIVE an error: the test could not be made. Both are red."""
    tag = {Verdict.FAIL: "failure", Verdict.INCONCLUSIVE: "error"}.get(status)
    if tag:
        ET.SubElement(case, tag, type=status.value, message=_clean(why)).text = _clean(why)


def _properties(suite: ET.Element, results: Results, variant: VariantView) -> None:
    """What the run was made with, as name and value."""
    pairs = [
        ("variant", variant.name),
        ("role", wording.role(variant) or "fix"),
        ("verdict", variant.verdict.verdict.value),
        ("seed", str(results.seed)),
        ("testbed", results.testbed),
        ("runs", str(len(variant.runs))),
        *(("emulated", text) for text in variant.verdict.emulated),
        *sorted(variant.runs[0].data.info.environment.items() if variant.runs else ()),
        *((f"finding: {wording.threshold(f)}", _line(f)) for f in variant.verdict.findings if variant.baseline),
    ]
    properties = ET.SubElement(suite, "properties")
    for name, value in pairs:
        ET.SubElement(properties, "property", name=_clean(name), value=_clean(value))


def _line(finding: Finding) -> str:
    return f"{finding.status.value}  {wording.threshold(finding)}: {finding.why}"


def _doubts(variant: VariantView) -> list[str]:
    endings = [(r.name, r.summary.ending) for r in variant.runs if r.summary.ending != Ending.COMPLETE.value]
    lines = [f"{name}: ended {ending}" for name, ending in endings]
    return lines + [f"{r.name}: {problem}" for r in variant.runs for problem in r.problems]


def _output(suite: ET.Element, lines: list[str]) -> None:
    ET.SubElement(suite, "system-out").text = _clean("\n".join(lines))


def _count(suite: ET.Element) -> None:
    suite.set("tests", str(len(suite.findall("testcase"))))
    for key, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(key, str(len(suite.findall(f"testcase/{tag}"))))


def _clean(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
