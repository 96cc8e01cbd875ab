"""`simulate`: what a fleet's settings would do over hours or days, and what others would."""

from __future__ import annotations

import secrets
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from loadgen import store
from loadgen.cli.app import app, say, stdout
from loadgen.core.errors import ConfigError
from loadgen.core.simulate.costs import Calibration
from loadgen.core.simulate.fleet import Fleet
from loadgen.report import simtables, simulated
from loadgen.simulation import calibration, fleetfile, fleetrun, output

MAX_HOURS = 24.0 * 366

FleetArg = Annotated[str, typer.Argument(help="A fleet file, or the name of a built-in one: trino-lands.")]
HoursOpt = Annotated[float, typer.Option("--hours", help="How long, in simulated hours.")]
SetOpt = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override, e.g. nodes.big.settings.conntrackGCInterval=60s; repeatable."),
]
OutOpt = Annotated[Path | None, typer.Option("--out", help="Directory for report, Parquet and JSON; must be empty.")]
CalibrateOpt = Annotated[
    Path | None, typer.Option("--calibrate", help="A run directory of the lab: take the cost of walks from it.")
]
SeedOpt = Annotated[int | None, typer.Option("--seed", help="Seed of every draw; default: drawn.")]
PolicyOpt = Annotated[
    list[str] | None,
    typer.Option("--policy", help="This policy only, beside `current`; repeatable. `current`: none."),
]
JobsOpt = Annotated[int | None, typer.Option("--jobs", min=1, max=256, help="Processes; default: one a CPU.")]
JsonOpt = Annotated[bool, typer.Option("--json", help="Print simulation.json on stdout instead of tables.")]


@app.command()
def simulate(
    fleet_file: FleetArg,
    hours: HoursOpt = 24.0,
    set_: SetOpt = None,
    out: OutOpt = None,
    calibrate: CalibrateOpt = None,
    seed: SeedOpt = None,
    policy: PolicyOpt = None,
    jobs: JobsOpt = None,
    json: JsonOpt = False,
) -> None:
    """Simulate hours or days of a node or a fleet: tables, GC, scrubs, limiter, retries. Needs no root, no cluster.

    Runs the fleet as it is written (`current`) and under each of its policies, and ranks them by the pods that were
    late. Exit code 0: nothing here passes or fails.
    """
    if not 0 < hours <= MAX_HOURS:
        raise ConfigError(f"--hours {hours:g}: it must be more than 0 and at most {MAX_HOURS:g}")
    fleet = fleetfile.load(fleet_file, set_ or ())
    found = calibration.from_run(calibrate) if calibrate else []
    fleet = calibration.applied(fleet, found)
    fleets = fleetfile.policies(fleet, policy or ())
    if out is not None:
        output.claim(out)
    seed = secrets.randbelow(2**31) if seed is None else seed
    began = time.monotonic()
    calibrated = tuple(f"{variant}: {_said(measured)}" for variant, measured in found)
    for line in (_title(fleet, fleets, hours, seed), *calibrated):
        say(line)
    result = fleetrun.run(fleets, seed=seed, hours=hours, jobs=jobs, told=say)
    asked = output.Asked(fleet=fleet_file, argv=tuple(sys.argv[1:]), calibrated=calibrated)
    events = sum(outcome.summary.events for outcome in result.policies)
    say(f"{events:,} events in {time.monotonic() - began:.1f} s")
    if out is not None:
        output.write(out, result, fleet, asked, simulated.render(result, asked.calibrated))
    if json:
        sys.stdout.write(store.to_json(output.document(result, asked)))
        return
    simtables.show(stdout(), result)
    if out is not None:
        say(f"report: {out / 'report.html'}")


def _title(fleet: Fleet, fleets: dict[str, Fleet], hours: float, seed: int) -> str:
    nodes = sum(of.count for of in fleet.nodes.values())
    policies = ", ".join(fleets)
    return f"{fleet.name}: {nodes:,} node{'s' * (nodes != 1)}, {hours:g} h, seed {seed}; policies: {policies}"


def _said(measured: Calibration) -> str:
    how = "in batches" if measured.batch else "key by key"
    return (
        f"{measured.entry_ns / 1000:.3g} µs an entry {how}, {measured.slot_ns:.2g} ns a place, from {measured.walks} "
        f"walks (median error {measured.residual:.1%}); plugin {measured.plugin_ns / 1e6:.3g} ms, "
        f"load {measured.load_ns / 1e6:.3g} ms"
    )
