"""`python -m e2e.machine build|up|env|down|purge`: make this machine able to run kind, or undo that."""

from __future__ import annotations

import shutil
import sys

from e2e.machine import engine, nodeimage, tools
from e2e.machine.steps import BIN, CACHE, STATE


def up() -> None:
    """Docker running, the node image and the base image in it, tools in the cache."""
    tools.build_all()
    engine.start()
    nodeimage.build()
    nodeimage.build_base()


def env() -> None:
    print(f"export DOCKER_HOST={engine.HOST} LOADGEN_NODE_IMAGE={nodeimage.NODE} PATH={BIN}:$PATH")


def purge() -> None:
    engine.stop()
    shutil.rmtree(STATE, ignore_errors=True)
    shutil.rmtree(CACHE, ignore_errors=True)


COMMANDS = {"build": tools.build_all, "up": up, "env": env, "down": engine.stop, "purge": purge}


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1] not in COMMANDS:
        print(f"usage: python -m e2e.machine {'|'.join(COMMANDS)}", file=sys.stderr)
        return 4
    COMMANDS[sys.argv[1]]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
