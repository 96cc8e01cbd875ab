"""`doctor` and `clean`: what this machine can do, and what killed runs left on it or in a cluster."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from rich.table import Table

from loadgen.cli.app import app, stdout
from loadgen.core.errors import ConfigError
from loadgen.core.verdict import Exit

DoctorTestbed = Annotated[str, typer.Option("--testbed", help="What is asked about: lab or kind.")]
CleanContext = Annotated[
    str | None,
    typer.Option("--context", help="Clean this cluster: put its settings back, remove what is ours."),
]
CleanNamespace = Annotated[str, typer.Option("--namespace", help="Where ours was put.")]


@app.command()
def doctor(testbed: DoctorTestbed = "lab") -> None:
    """Say what this machine can and cannot do, and why."""
    if testbed == "lab":
        from loadgen.kernel import support

        features = support.probe_all()
    elif testbed == "kind":
        from loadgen.kube import hostchecks

        features = asyncio.run(hostchecks.probe_all())
    else:
        raise ConfigError(f"--testbed {testbed}: unknown; allowed: lab, kind")
    table = Table(show_header=True, header_style="bold")
    for column in ("feature", "state", "why", "remedy"):
        table.add_column(column, overflow="fold")
    for feature in features:
        table.add_row(feature.name, feature.state, feature.why, feature.remedy)
    console = stdout()
    console.print(table)
    missing = [feature.name for feature in features if feature.state != "ok"]
    place = "the lab" if testbed == "lab" else "a kind cluster"
    if missing:
        console.print(f"{place} cannot run here: {', '.join(missing)}", markup=False)
        raise typer.Exit(Exit.USAGE)
    console.print(f"{place} can run here")


@app.command()
def clean(context: CleanContext = None, namespace: CleanNamespace = "loadgen") -> None:
    """Remove what killed runs left: on this machine, or with --context in a cluster."""
    if context is not None:
        from loadgen.kube.clean import clean_cluster

        done = asyncio.run(clean_cluster(context, namespace))
    else:
        done = _clean_machine()
    console = stdout()
    for line in done or ["nothing was left"]:
        console.print(line, markup=False)


def _clean_machine() -> list[str]:
    from loadgen.kernel import support
    from loadgen.lab import state

    support.require_root()
    going = [f"{lab.id}: its run is still going; left alone" for lab in state.find() if lab.alive]
    return going + [f"{lab.id}: removed, with {len(lab.pids)} processes" for lab in state.remove_dead()]
