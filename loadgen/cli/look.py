"""`analyze`, `list`, `validate`, `schema`: what needs no testbed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from loadgen import analysis, store
from loadgen.cli.app import app, stdout
from loadgen.cli.run import JsonOpt, ScenarioArg, SetOpt, analyse, tell
from loadgen.core.model import Scenario
from loadgen.core.verdict import exit_code
from loadgen.report import markdown as markdown_report
from loadgen.scenarios import loader
from loadgen.simulation import fleetfile

MarkdownOpt = Annotated[bool, typer.Option("--markdown", help="GitHub's Markdown instead of tables.")]
FleetOpt = Annotated[bool, typer.Option("--fleet", help="The files that `simulate` reads.")]
RunArg = Annotated[Path, typer.Argument(help="A run directory.")]


@app.command()
def analyze(run_directory: RunArg, json: JsonOpt = False) -> None:
    """Recompute summary, verdict and report of a run directory from its samples. Needs no root."""
    results = analyse(run_directory)
    analysis.write_reports(run_directory, results)
    tell(run_directory, results, json)
    raise typer.Exit(exit_code(results.verdict.verdict))


@app.command()
def report(run_directory: RunArg, markdown: MarkdownOpt = False) -> None:
    """Print a run directory's outcome again, from its samples; with --markdown for a CI job's summary."""
    results = analyse(run_directory)
    if markdown:
        sys.stdout.write(markdown_report.render(results))
    else:
        tell(run_directory, results, json=False)


@app.command("list")
def list_() -> None:
    """List the built-in scenarios, their variants and hypotheses."""
    table = Table(show_header=True, header_style="bold", expand=False)
    for column in ("scenario", "variants", "hypothesis"):
        table.add_column(column, overflow="fold")
    for name in loader.builtin_names():
        scenario = loader.load(name)
        table.add_row(name, "\n".join(scenario.variants), scenario.hypothesis)
    stdout().print(table)


@app.command()
def validate(scenario: ScenarioArg, set_: SetOpt = None) -> None:
    """Check a scenario file: keys, types, references, thresholds."""
    found: Scenario = loader.load(scenario, set_ or ())
    stdout().print(f"{scenario}: {found.name} is a valid scenario of format {found.format}", markup=False)


@app.command()
def schema(fleet: FleetOpt = False) -> None:
    """Print the JSON Schema of scenario files, or of fleet files, for editors."""
    sys.stdout.write(store.to_json(fleetfile.json_schema() if fleet else loader.json_schema()))
