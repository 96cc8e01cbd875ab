"""The outcome as GitHub's Markdown, for a job's step summary or an issue: verdict first, a table for each variant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from loadgen.core.results import Results
from loadgen.core.units import format_count
from loadgen.core.verdict import Verdict
from loadgen.report import sources, view, wording
from loadgen.report.view import VariantView

_SIGNS = {Verdict.PASS: "✅", Verdict.INCONCLUSIVE: "⚠️", Verdict.FAIL: "❌"}
_COLUMNS = ("metric", "aggregate", "observed", "limit", "n", "status", "why")


def render(results: Results) -> str:
    """One document that ends with a newline."""
    return "\n".join(_blocks(results)) + "\n"


def _blocks(results: Results) -> Iterator[str]:
    verdict = results.verdict
    variants = view.variants(results)
    title = f"{text(verdict.scenario)} on {text(results.testbed)}: {verdict.verdict.value}"
    yield f"## {_SIGNS[verdict.verdict]} {title}\n\n{text(verdict.why)}\n"
    for variant in variants:
        yield _variant(variant)
    changes = [c.sentence() for c in wording.changes(results.effects, variants) if c.clear]
    yield from _list("What changed", changes)
    yield from _list("Sandbox latency by source", list(sources.lines(variants)))
    yield from _list("Failed attempts by kind", list(sources.failure_lines(variants)))
    yield from _list("Emulated or modelled", wording.emulated(variants))


def _variant(variant: VariantView) -> str:
    role = wording.role(variant)
    title = f"### {text(variant.name)}{f' ({role})' if role else ''}: {wording.status(variant)}"
    rows = [_row(_COLUMNS), _row("---" for _ in _COLUMNS)]
    for f in variant.verdict.findings:
        cells = (
            f.metric,
            f.aggregate,
            wording.observed(f),
            wording.limit(f),
            format_count(f.n),
            f.status.value,
            f.why,
        )
        rows.append(_row(text(cell) for cell in cells))
    problems = [f"* {text(f'{run.name}: {problem}')}" for run in variant.runs for problem in run.problems]
    return "\n".join([title, "", *rows, "", *problems])


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _list(title: str, lines: list[str]) -> Iterator[str]:
    if lines:
        yield "\n".join([f"### {title}", "", *(f"* {text(line)}" for line in lines), ""])


def text(value: str) -> str:
    """Text that Markdown shows as it is: in a cell of a table too, where a bar would end it."""
    escaped = "".join(f"\\{c}" if c in "\\`*_{}[]<>|#~" else c for c in value)
    return " ".join(escaped.split())
