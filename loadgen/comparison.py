"""From run directories to a comparison of two settings (core/versus.py), and which of them may not be compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from loadgen import store
from loadgen.core import thresholds, versus
from loadgen.core.errors import ConfigError
from loadgen.core.history import MetricSamples, RunData
from loadgen.core.judge import judge_run, measured_phases
from loadgen.core.metrics import RATIO_AGGREGATES
from loadgen.core.model import Scenario
from loadgen.core.samples import Outcome
from loadgen.core.stats import Latencies
from loadgen.core.versus import Comparison, Run

ReadScenario = Callable[[dict[str, Any], str], Scenario]

CURRENT, CANDIDATE = "current", "candidate"
ANYTHING = ("settings", "variants", "name", "hypothesis", "proves", "limits", "reproduces")
"""What two scenarios may differ in: the rest of them is the experiment."""


class Side(NamedTuple):
    """One setting's runs: of one variant below `path`, or the one run at `path`."""

    path: Path
    variant: str
    scenario: Scenario
    runs: tuple[RunData, ...]

    def __str__(self) -> str:
        return f"{self.path} ({self.variant})"


def open_side(path: Path, variant: str | None, read_scenario: ReadScenario) -> Side:
    """ConfigError when there is no run there, when its variants leave a choice, or when a run proves nothing."""
    if (path / "marks.jsonl").exists():
        found = {path.name: store.read_run(path)}
    else:
        info = store.read_experiment(path)
        places = {name: path / "runs" / name for name in info.order}
        found = {name: store.read_run(place) for name, place in places.items() if (place / "run.json").exists()}
    if not found:
        raise ConfigError(f"{path}: no run in it began")
    variants = list(dict.fromkeys(data.info.variant for data in found.values()))
    chosen = variant or (variants[0] if len(variants) == 1 else "")
    if chosen not in variants:
        what = f"has no variant {variant}" if variant else "has several variants; choose by --variant"
        raise ConfigError(f"{path} {what}: {', '.join(variants)}")
    mine = {name: data for name, data in found.items() if data.info.variant == chosen}
    scenario = read_scenario(next(iter(mine.values())).info.scenario, str(path / "run.json"))
    for name, data in mine.items():
        if problems := judge_run(name, scenario, data).problems:
            raise ConfigError(f"{path}: {name} proves nothing: {problems[0]}; remove it, or repeat it")
    return Side(path, chosen, scenario, tuple(mine.values()))


def compare(current: Side, candidate: Side, *, margin: float, seed: int, allowed: Sequence[str] = ()) -> Comparison:
    """Runs of one experiment alternated, and are compared in pairs.

    ConfigError when the two were not measured alike: it says in what. `allowed`: differences that may be.
    """
    if found := [text for key, text in _differences(current, candidate) if key not in allowed]:
        raise ConfigError(
            f"{current} and {candidate} cannot be compared: {'; '.join(found)}; --allow-difference KEY permits one"
        )
    names, paired = (str(current), str(candidate)), current.path == candidate.path
    return versus.compare(_of(current), _of(candidate), margin=margin, paired=paired, seed=seed, names=names)


def _differences(a: Side, b: Side) -> list[tuple[str, str]]:
    """(key, sentence) of everything that is not the same and should be."""
    found = [
        (key, f"{key} is {_values(a, key)} and {_values(b, key)}")
        for key in sorted({key for run in (*a.runs, *b.runs) for key in run.info.environment})
        if _values(a, key) != _values(b, key)
    ]
    places = [{run.info.testbed for run in side.runs} for side in (a, b)]
    if places[0] != places[1]:
        found.append(("testbed", f"testbed is {', '.join(sorted(places[0]))} and {', '.join(sorted(places[1]))}"))
    plans = [_experiment(side.runs[0].info.scenario) for side in (a, b)]
    parts = sorted({key for plan in plans for key in plan if plans[0].get(key) != plans[1].get(key)})
    return found + [(key, f"the scenarios have other {key}") for key in parts]


def _values(side: Side, key: str) -> str:
    return " / ".join(sorted({run.info.environment.get(key, "unknown") for run in side.runs}))


def _experiment(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in raw.items() if key not in ANYTHING}


def _of(side: Side) -> dict[str, list[Run]]:
    """The operations whose time or failures have a threshold; where none has, all that every run has.

    A load that only has to have been there (`achieved`) is no result: its rows would make all others less sure.
    """
    asked = [thresholds.parse(text) for text in side.scenario.thresholds]
    results = [t for t in asked if t.metric.kind == "latency" and t.aggregate not in RATIO_AGGREGATES]
    wanted = list(dict.fromkeys(t.metric.name for t in results))
    common = set.intersection(*(set(run.samples) for run in side.runs))
    phases = measured_phases(side.scenario)
    found = {
        metric: [_run(run.samples[metric], phases) for run in side.runs]
        for metric in (wanted or sorted(common))
        if metric in common
    }
    return {metric: runs for metric, runs in found.items() if all(len(run.latencies.seconds) for run in runs)}


def _run(samples: MetricSamples, phases: frozenset[str]) -> Run:
    rows = samples.rows[samples.within(phases)]
    return Run(Latencies.of(rows), int((rows["outcome"] != Outcome.OK).sum()))


# --- an experiment of two settings ----------------------------------------------------------------------------


def versus_scenario(
    raw: Mapping[str, Any], current: Mapping[str, Any], candidate: Mapping[str, Any]
) -> dict[str, Any]:
    """The scenario `raw` with the two settings as its only variants, as plain values."""
    variants = {
        CURRENT: {"baseline": True, "describe": "the settings as they are", "settings": dict(current)},
        CANDIDATE: {"describe": "the settings to be judged", "settings": dict(candidate)},
    }
    return {**raw, "variants": variants, "reproduces": []}
