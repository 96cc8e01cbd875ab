"""The command line: the only place that parses arguments, prints and exits.

app.py has what all commands share, the entry point and the exit codes; run.py runs scenarios; compare.py holds two
settings against each other; cost.py measures what state costs a packet; look.py reads runs and scenarios; diagnose.py
reads the files of an incident; machine.py asks and cleans this machine; cluster.py makes and removes kind clusters;
testbeds.py opens the place where a scenario runs.
"""

from loadgen.cli import cluster, compare, cost, diagnose, look, machine, run  # noqa: F401 - each adds its commands
from loadgen.cli.app import app, guarded, main

__all__ = ["app", "guarded", "main"]
