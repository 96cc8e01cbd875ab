"""`python -m loadgen.lab.launch PARENT NETNS MODULE ARG…`: run a module inside a network namespace, never outliving
the process PARENT that started it."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from loadgen.kernel import netns, process


def main() -> None:
    parent, namespace, module, *rest = sys.argv[1:]
    process.die_with_parent(int(parent))
    netns.enter(Path(namespace))
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
