"""The command line: the only place that parses arguments, prints and exits.

app.py has what all commands share, the entry point and the exit codes; run.py runs scenarios; compare.py holds two
settings against each other; cost.py measures what state costs a packet; simulate.py needs neither run nor machine;
diagnose.py reads the files of an incident; look.py reads runs and scenarios; machine.py asks and cleans this machine;
cluster.py makes and removes kind clusters; testbeds.py opens the place where a scenario runs.
"""

from loadgen.cli import (  # noqa: F401 - each adds its commands
    cluster,
    compare,
    cost,
    diagnose,
    look,
    machine,
    run,
    simulate,
)
from loadgen.cli.app import app, guarded, main

__all__ = ["app", "guarded", "main"]
