"""From a run directory to results and reports: no testbed, no root. `run` and `chaos` end with the same step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from loadgen import store
from loadgen.core.errors import ConfigError
from loadgen.core.history import RunData
from loadgen.core.model import Scenario
from loadgen.core.results import Results, analyse, summary_file
from loadgen.report import html, junit

ReadScenario = Callable[[dict[str, object], str], Scenario]


def analyse_directory(out: Path, read_scenario: ReadScenario) -> Results:
    """Results of the experiment in `out`, or of the one run in it. `read_scenario` makes a Scenario of raw values."""
    if (out / "marks.jsonl").exists():
        data = store.read_run(out)
        scenario = read_scenario(data.info.scenario, str(out / "run.json"))
        return analyse(scenario, data.info.seed, data.info.testbed, data.info.started, {out.name: data})
    info = store.read_experiment(out)
    scenario = read_scenario(info.scenario, str(out / "run.json"))
    runs = _runs(out, info.order)
    if not runs:
        raise ConfigError(f"{out}: no run in it began")
    return analyse(scenario, info.seed, info.testbed, info.started, runs)


def begun(out: Path) -> bool:
    """Whether any run in `out` got as far as its first file, so that there is something to analyse."""
    return (out / "run.json").exists() and bool(_runs(out, store.read_experiment(out).order))


def _runs(out: Path, order: tuple[str, ...]) -> dict[str, RunData]:
    """The runs that were begun; an experiment that was cut short has fewer than it planned."""
    return {
        name: store.read_run(out / "runs" / name) for name in order if (out / "runs" / name / "run.json").exists()
    }


def write_reports(out: Path, results: Results) -> None:
    """summary.json, verdict.json, report.html and junit.xml in `out`, each all or nothing."""
    store.write_json(out / "summary.json", summary_file(results))
    store.write_text(out / "report.html", html.render(results))
    store.write_text(out / "junit.xml", junit.render(results))
    # Last: whoever finds a verdict finds everything else.
    store.write_json(out / "verdict.json", results.verdict)
