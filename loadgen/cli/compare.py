"""`compare`: two settings, or the runs of two days: better, worse, no difference, or not known."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from loadgen import comparison, experiment, store
from loadgen.cli import testbeds
from loadgen.cli.app import app, stdout
from loadgen.cli.run import (
    TESTBEDS,
    AllowOpt,
    CniOpt,
    ContextOpt,
    ImageOpt,
    JsonOpt,
    NamespaceOpt,
    NodeOpt,
    SeedOpt,
    SetOpt,
    TestbedOpt,
    drive,
)
from loadgen.core.errors import ConfigError
from loadgen.core.history import Ending
from loadgen.core.model import Settings
from loadgen.core.verdict import Exit
from loadgen.core.versus import LEAST_RUNS, Comparison, Outcome, narrow
from loadgen.kube.options import DEFAULTS, ClusterOptions
from loadgen.report import compared
from loadgen.scenarios import keys, loader

_EXITS = {
    Outcome.BETTER: Exit.PASS,
    Outcome.SAME: Exit.PASS,
    Outcome.WORSE: Exit.FAIL,
    Outcome.INCONCLUSIVE: Exit.INCONCLUSIVE,
}

DirectoriesArg = Annotated[
    list[Path] | None, typer.Argument(metavar="[RUN_A RUN_B]", help="Run directories: current, then candidate.")
]
BaselineOpt = Annotated[Path | None, typer.Option("--baseline", help="Run directory that RUN_A is held against.")]
VariantOpt = Annotated[
    list[str] | None, typer.Option("--variant", help="Variant in the run directories; given twice, one for each.")
]
CurrentOpt = Annotated[Path | None, typer.Option("--current", help="Settings as they are (YAML).")]
CandidateOpt = Annotated[Path | None, typer.Option("--candidate", help="Settings to be judged (YAML).")]
ScenarioOpt = Annotated[str, typer.Option("--scenario", help="Scenario to run both settings in.")]
MarginOpt = Annotated[float, typer.Option("--margin", min=0.001, max=10, help="0.1: 10 % slower is no worse.")]
MostOpt = Annotated[int, typer.Option("--max-repeats", min=LEAST_RUNS, help="Runs of each setting at most.")]
DifferenceOpt = Annotated[
    list[str] | None, typer.Option("--allow-difference", help="Environment key that may differ; repeatable.")
]
OutOpt = Annotated[Path | None, typer.Option("--out", help="Run directory of --candidate; must not exist yet.")]


@app.command()
def compare(
    runs: DirectoriesArg = None,
    baseline: BaselineOpt = None,
    variant: VariantOpt = None,
    current: CurrentOpt = None,
    candidate: CandidateOpt = None,
    scenario: ScenarioOpt = "ct-gc-spiral",
    margin: MarginOpt = 0.1,
    max_repeats: MostOpt = 10,
    allow_difference: DifferenceOpt = None,
    seed: SeedOpt = None,
    set_: SetOpt = None,
    out: OutOpt = None,
    json: JsonOpt = False,
    testbed: TestbedOpt = "lab",
    context: ContextOpt = None,
    node: NodeOpt = None,
    cni: CniOpt = "cilium",
    namespace: NamespaceOpt = "loadgen",
    image: ImageOpt = None,
    allow_context: AllowOpt = None,
) -> None:
    """Is a candidate better or worse than the current settings? Of two run directories, or of two settings files."""
    chosen = int.from_bytes(os.urandom(4), "little") if seed is None else seed
    directories = [*([baseline] if baseline else []), *(runs or [])]
    if candidate is None and current is None:
        _tell(_of_directories(directories, variant or [], margin, chosen, allow_difference or []), json)
        return
    if candidate is None or current is None or directories:
        raise ConfigError("compare takes two run directories, or --current and --candidate, not a part of both")
    if testbed not in TESTBEDS:
        raise ConfigError(f"--testbed {testbed}: unknown; allowed: {', '.join(TESTBEDS)}")
    options = ClusterOptions(
        context=context,
        node=node,
        cni=cni,
        namespace=namespace,
        image=image or DEFAULTS.image,
        allow_context=allow_context,
    )
    place = out or Path("runs") / f"compare-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    plan = _plan(loader.load(scenario, set_ or ()), current, candidate, chosen, max_repeats, place, margin)
    ending = testbeds.within(testbed, options, lambda made: drive(plan, made, place, None, quiet=json))
    if ending is Ending.INTERRUPTED:
        raise KeyboardInterrupt
    found = _of_experiment(place, margin, chosen)
    store.write_json(place / "compare.json", found)
    _tell(found, json)


def _of_directories(
    directories: list[Path], variants: list[str], margin: float, seed: int, allowed: list[str]
) -> Comparison:
    if len(directories) != 2:
        raise ConfigError(
            f"compare takes two run directories (or --baseline and one), {len(directories)} given; or --current and "
            "--candidate with two settings files"
        )
    if len(variants) > 2:
        raise ConfigError(f"--variant is given {len(variants)} times, for two run directories")
    chosen = [*variants, *variants] if len(variants) == 1 else variants or [None, None]
    both = zip(directories, chosen, strict=True)
    sides = [comparison.open_side(path, variant, loader.from_raw) for path, variant in both]
    return comparison.compare(sides[0], sides[1], margin=margin, seed=seed, allowed=allowed)


def _of_experiment(place: Path, margin: float, seed: int) -> Comparison:
    sides = [
        comparison.open_side(place, name, loader.from_raw) for name in (comparison.CURRENT, comparison.CANDIDATE)
    ]
    return comparison.compare(sides[0], sides[1], margin=margin, seed=seed)


def _plan(
    scenario: Any, current: Path, candidate: Path, seed: int, most: int, place: Path, margin: float
) -> experiment.Plan:
    raw = comparison.versus_scenario(loader.to_raw(scenario), _settings(current), _settings(candidate))
    both = loader.from_raw(raw, f"{scenario.name} with {current} and {candidate}")
    return experiment.Plan(
        scenario=both,
        raw=loader.to_raw(both),
        variants=list(both.variants),
        repeat=most,
        seed=seed,
        argv=sys.argv,
        shuffled=True,
        enough=lambda repeats: repeats >= LEAST_RUNS and narrow(_of_experiment(place, margin, seed)),
    )


def _settings(path: Path) -> dict[str, Any]:
    """A settings file: what a scenario has below `settings`. ConfigError names file and key."""
    try:
        found = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not readable: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    found = {} if found is None else found
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: settings are a mapping with {', '.join(Settings.__struct_encode_fields__)}")
    keys.check(found, Settings, str(path))
    return found


def _tell(found: Comparison, json: bool) -> None:
    if json:
        sys.stdout.write(store.to_json(found))
    else:
        stdout().print(compared.comparison(found))
    raise typer.Exit(_EXITS[found.outcome])
