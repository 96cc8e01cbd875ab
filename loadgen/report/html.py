"""The HTML report: one file that opens from a disk, with no network, on a screen, a phone or paper."""

from __future__ import annotations

import re
from importlib import resources
from typing import Any, NamedTuple, TypeVar

import jinja2
import msgspec
from markupsafe import Markup

from loadgen.core.results import Results
from loadgen.report import charts, distributions, seconds, sources, tables, view, wording
from loadgen.report.figure import Chart
from loadgen.report.tables import Table
from loadgen.report.view import VariantView

T = TypeVar("T")
_OPERATORS = {">= ": "≥\N{NO-BREAK SPACE}", "<= ": "≤\N{NO-BREAK SPACE}"}


class Section(NamedTuple):
    """A heading with its pictures, its tables, and tables that are folded away until asked for."""

    name: str
    title: str
    intro: str
    charts: list[Chart]
    tables: list[Table]
    folded: list[Table]


def render(results: Results) -> str:
    """The whole page. Every text from outside is escaped; every number comes from `results`."""
    variants = view.variants(results)
    sections = [s for s in _sections(results, variants) if s.charts or s.tables or s.folded]
    pictures = {chart.name: chart for section in sections for chart in section.charts}
    return page(
        "report.html.j2",
        pictures,
        results=results,
        verdict=results.verdict,
        matrix=tables.matrix(variants),
        problems=[(r.name, p) for r in results.runs for p in r.problems],
        emulated=wording.emulated(variants),
        not_run=wording.not_run(results.scenario, variants),
        sections=sections,
        scenario_json=_scenario_text(results),
    )


def page(template: str, pictures: dict[str, Chart], **values: Any) -> str:
    """A template with the pictures' data, and with the styles and scripts that draw them."""
    return (
        _environment()
        .get_template(template)
        .render(
            pictures=_json(pictures),
            styles=[_file("assets", "uPlot.min.css"), _file("templates", "report.css")],
            scripts=[_file("assets", "uPlot.iife.min.js"), _file("templates", "report.js")],
            **values,
        )
    )


def _sections(results: Results, variants: list[VariantView]) -> list[Section]:
    return [
        Section("findings", "Findings by variant", "", [], [tables.findings(v) for v in variants], []),
        Section(
            "changes",
            "What changed",
            "Each percentile of each latency against the baseline, in the measured phases.",
            [],
            _there(tables.effects(results, variants)),
            [],
        ),
        _table_section(results, variants),
        _sandbox_section(results, variants),
        _lookup_section(results, variants),
        _connection_section(results, variants),
        Section(
            "runs",
            "How it was made",
            "",
            [],
            _there(
                tables.runs(results), tables.faults(results), sources.notes(variants), tables.environment(results)
            ),
            _there(tables.gauges(variants), sources.untold(results)),
        ),
    ]


def _table_section(results: Results, variants: list[VariantView]) -> Section:
    return Section(
        "table",
        "Connection tracking",
        "",
        _there(charts.ct_chart(results.scenario, variants), charts.queue_chart(results.scenario, variants)),
        _there(tables.ct_table(variants), tables.counters(variants, tables.CT_COUNTERS)),
        _there(tables.drift(results)),
    )


def _sandbox_section(results: Results, variants: list[VariantView]) -> Section:
    plan, metrics = results.scenario, ("sandbox.setup", "sandbox.attempt", "sandbox.delete")
    return Section(
        "sandboxes",
        "Pod sandboxes",
        "",
        _there(
            charts.lanes_chart(plan, variants),
            seconds.latency_chart(plan, variants),
            seconds.refusal_chart(plan, variants),
            charts.points_chart(plan, variants, "sandbox.setup", "Sandbox setup over time"),
            distributions.tail_chart(plan, variants, "sandbox.setup", "How many sandboxes take how long"),
        ),
        _there(
            tables.percentiles(variants, metrics),
            sources.table(variants),
            sources.failures(variants),
            tables.slowest(variants),
            tables.accounts(variants, metrics),
            tables.counters(variants, sources.NODE_COUNTERS),
        ),
        [],
    )


def _lookup_section(results: Results, variants: list[VariantView]) -> Section:
    plan, metric = results.scenario, "dns.lookup"
    looked_up = any(metric in v.pools for v in variants)
    return Section(
        "lookups",
        "Name lookups",
        "",
        _there(
            distributions.histogram_chart(plan, variants, metric, "How long lookups take"),
            charts.points_chart(plan, variants, metric, "Lookups over time"),
            distributions.tail_chart(plan, variants, metric, "How many lookups take how long"),
        ),
        _there(
            tables.percentiles(variants, [metric]),
            tables.accounts(variants, [metric]),
            tables.counters(variants, tables.LOOKUP_COUNTERS if looked_up else ()),
        ),
        [],
    )


def _connection_section(results: Results, variants: list[VariantView]) -> Section:
    plan, metric = results.scenario, "storm.connect"
    return Section(
        "connections",
        "The connection storm",
        "",
        _there(
            distributions.histogram_chart(plan, variants, metric, "How long connections take"),
            distributions.tail_chart(plan, variants, metric, "How many connections take how long"),
        ),
        _there(tables.percentiles(variants, [metric]), tables.accounts(variants, [metric])),
        [],
    )


def _there(*found: T | None) -> list[T]:
    return [item for item in found if item is not None]


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("loadgen.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["typeset"] = _typeset
    return environment


def _typeset(text: str) -> str:
    """`>= 90us` as people write it where any character may stand."""
    for plain, shown in _OPERATORS.items():
        text = text.replace(plain, shown)
    return re.sub(r"(?<=\d)us\b", "µs", text)


def _file(folder: str, name: str) -> Markup:
    """Our own and the charting library's files go in as they are. None of them may end the element it stands in."""
    text = (resources.files("loadgen.report") / folder / name).read_text(encoding="utf-8")
    assert "</s" not in text, f"{name} would end its own element"
    return Markup(text)


def _json(value: object) -> Markup:
    """JSON that may stand in a script element: nothing in it can end the element or begin a comment."""
    text = msgspec.json.encode(value).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _scenario_text(results: Results) -> str:
    """The scenario as the first run recorded it, overrides applied."""
    if not results.runs:
        return ""
    return msgspec.json.format(msgspec.json.encode(results.runs[0].data.info.scenario), indent=2).decode()
