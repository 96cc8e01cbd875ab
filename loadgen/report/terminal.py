"""The outcome on a terminal. Words carry everything; colour only repeats them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import StringIO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from loadgen.core.results import Results
from loadgen.core.units import format_count
from loadgen.core.verdict import Verdict
from loadgen.report import sources, view, wording
from loadgen.report.view import VariantView

WIDTH = 100
SLOWEST = 2
"""Slowest sandboxes named of each variant; the HTML report names more."""
_STYLES = {Verdict.PASS: "bold green", Verdict.INCONCLUSIVE: "bold yellow", Verdict.FAIL: "bold red"}


def findings_table(results: Results) -> RenderableType:
    """Findings by variant, effects, walks, causes, what was emulated, and the verdict as the last line.

    All text is ASCII but for what the scenario brings along, so that it survives any locale and log collector.
    """
    variants = view.variants(results)
    parts: list[RenderableType] = []
    for variant in variants:
        parts += [_heading(variant), _findings(variant), *_problems(variant)]
    parts += _section("What changed", _changes(results, variants))
    drifts = (f"{name}: {wording.drift(passes)}" for name, passes in results.drifts.items())
    parts += _section("How the GC interval drifted", drifts)
    parts += _section("Table walks", (f"{v.name}: {wording.walks(v.walks)}" for v in variants if v.walks.entries))
    parts += _section("Sandbox latency by source, measured phases", sources.lines(variants))
    parts += _section("Failed attempts by kind", sources.failure_lines(variants))
    parts += _section("The slowest sandboxes", _slowest(variants))
    parts += _section("Emulated or modelled", wording.emulated(variants))
    parts.append(_verdict(results))
    return Group(*parts)


def plain(results: Results, width: int = WIDTH) -> str:
    """The same as text without colour, for files and pipes."""
    out = StringIO()
    Console(file=out, width=width, color_system=None, emoji=False).print(findings_table(results))
    return "".join(line.rstrip() + "\n" for line in out.getvalue().splitlines())


def _heading(variant: VariantView) -> Text:
    role = wording.role(variant)
    runs = f"{len(variant.runs)} run" + ("s" if len(variant.runs) != 1 else "")
    text = Text(variant.name, style="bold")
    text.append(f" ({role}, {runs}): " if role else f" ({runs}): ", style="not bold")
    asked_to_hold = not variant.baseline and not variant.partial
    style = _STYLES[variant.verdict.verdict] if asked_to_hold else "bold yellow" if variant.missing else "bold"
    text.append(wording.status(variant), style=style)
    return text


def _findings(variant: VariantView) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False, expand=False)
    for name in ("metric", "aggregate", "observed", "limit", "n", "status"):
        right = name in ("observed", "limit", "n")
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    table.add_column("why", overflow="fold", ratio=1)
    for finding in variant.verdict.findings:
        table.add_row(
            Text(finding.metric),
            finding.aggregate,
            wording.observed(finding),
            wording.limit(finding),
            format_count(finding.n),
            Text(finding.status.value, style=_STYLES[finding.status]),
            Text(finding.why),
        )
    return table


def _problems(variant: VariantView) -> Iterator[RenderableType]:
    for run in variant.runs:
        for problem in run.problems:
            yield Text(f"{run.name}: {problem}", style="yellow")
    yield Text("")


def _changes(results: Results, variants: list[VariantView]) -> Iterator[str]:
    """Clear changes of the metrics that thresholds name, a line each; then those that are not clear, by variant."""
    named = {f.metric for v in variants for f in v.verdict.findings}
    changes = [c for c in wording.changes(results.effects, variants) if c.effect.metric in named]
    yield from (f"{c.effect.variant}: {c.sentence()}" for c in changes if c.clear)
    for variant in variants:
        mine = [c for c in changes if c.effect.variant == variant.name and not c.clear]
        if mine:
            yield f"{variant.name}: no clear change in " + ", ".join(f"{c.effect.metric} {c.aggregate}" for c in mine)


def _slowest(variants: list[VariantView]) -> list[str]:
    """Sandboxes that were slow in the same words are told once."""
    return list(dict.fromkeys(f"{v.name}: {a.sentence()}" for v in variants for a in v.slowest[:SLOWEST]))


def _section(title: str, lines: Iterable[str]) -> list[RenderableType]:
    """A title and indented lines; nothing at all where there are no lines."""
    body = [Padding(Text(line), (0, 0, 0, 2)) for line in lines]
    return [Text(title, style="bold"), *body, Text("")] if body else []


def _verdict(results: Results) -> Text:
    verdict = results.verdict
    text = Text(verdict.verdict.value, style=_STYLES[verdict.verdict])
    text.append(f"  {verdict.scenario}: {verdict.why}", style="not bold default")
    return text
