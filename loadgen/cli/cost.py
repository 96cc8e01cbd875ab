"""`ct-cost`: what a packet pays for a state of its flow, by the kind of state, on this machine."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from loadgen import costs, store
from loadgen.cli.app import app, say, stdout
from loadgen.core.cost import Costs
from loadgen.costs import KIND, Wanted
from loadgen.kernel import support
from loadgen.report import costs as report

OutOpt = Annotated[Path | None, typer.Option("--out", help="Run directory; must not exist yet.")]
FlowsOpt = Annotated[
    int, typer.Option("--flows", min=1_000, max=16_777_216, help="Flows of the first two workloads.")
]
ManyOpt = Annotated[
    int, typer.Option("--many", min=1_000, max=16_777_216, help="Flows of the memory-bound workload.")
]
RepeatOpt = Annotated[int, typer.Option("--repeat", min=1, max=100, help="Measurements of each cell, shuffled.")]
PacketsOpt = Annotated[int, typer.Option("--packets", min=1_009, max=100_000_007, help="Packets a measurement.")]
SeedOpt = Annotated[int | None, typer.Option("--seed", help="Seed of the order; default: drawn.")]
AgainOpt = Annotated[Path | None, typer.Option("--analyze", help="Measure nothing: tell again what is in this run.")]
JsonOpt = Annotated[bool, typer.Option("--json", help="Print costs.json on stdout instead of tables.")]


@app.command("ct-cost")
def ct_cost(
    out: OutOpt = None,
    flows: FlowsOpt = Wanted().flows,
    many: ManyOpt = Wanted().many,
    repeat: RepeatOpt = Wanted().repeats,
    packets: PacketsOpt = Wanted().packets,
    seed: SeedOpt = None,
    analyze: AgainOpt = None,
    json: JsonOpt = False,
) -> None:
    """Measure what connection tracking costs a packet, by the kind of table that keeps the state."""
    if analyze is not None:
        return _tell(analyze, costs.analyse(analyze), json)
    support.require_root()
    chosen = int.from_bytes(os.urandom(4), "little") if seed is None else seed
    place = out or Path("runs") / f"{KIND}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    wanted = Wanted(flows=flows, many=many, repeats=repeat, seed=chosen, packets=packets)
    return _tell(place, costs.measure(wanted, place, sys.argv, say), json)


def _tell(place: Path, found: Costs, json: bool) -> None:
    if json:
        sys.stdout.write(store.to_json(found))
        return
    console = stdout()
    console.print(report.costs(found, costs.read_info(place).notes))
    console.print(f"samples: {place / 'samples.parquet'}", markup=False, highlight=False, soft_wrap=True)
