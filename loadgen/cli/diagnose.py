"""`diagnose`: from an incident's files to its likely cause. Needs no root, no testbed and no network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from loadgen import store
from loadgen.cli.app import app
from loadgen.core import diagnosis
from loadgen.diagnose.read import read_files
from loadgen.report import diagnosis as text

FilesArg = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE...",
        help="In any mix, recognised by content: `cilium-dbg bpf ct list` (text or JSON, best with -d), goroutine "
        "dumps (gops stack, SIGQUIT), `cilium status --verbose`, metrics pages (two or more), agent and kubelet "
        "logs, `conntrack -S` before and after, dmesg, pcap or pcapng of a resolver, a sysdump zip.",
    ),
]
UptimeOpt = Annotated[
    int | None,
    typer.Option(min=0, metavar="SECONDS", help="The node's uptime when the conntrack list was made (/proc/uptime)."),
]

JsonOpt = Annotated[bool, typer.Option("--json", help="Print the diagnosis as JSON, format 1, instead of text.")]


@app.command()
def diagnose(files: FilesArg, uptime: UptimeOpt = None, json: JsonOpt = False) -> None:
    """Name the likely cause of an incident from its files. Exit 1: a cause is likely; 0: none; 5: not enough said."""
    reading = read_files(files, uptime)
    found = diagnosis.diagnose(reading.evidence, reading.kinds, reading.problems, reading.skipped)
    sys.stdout.write(store.to_json(found) if json else text.render(found))
    raise typer.Exit(found.exit_code)
