"""Running commands, saying how long each step took, and the folders that all steps share."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "loadgen-e2e"
"""What survives: binaries, archives. Removed by `purge` only."""
BIN = CACHE / "bin"
STATE = Path("/var/lib/loadgen-e2e")
"""Docker's data and sockets; on a filesystem that overlayfs can use."""
FILES = Path(__file__).with_name("files")


@contextmanager
def step(what: str) -> Iterator[None]:
    began = time.monotonic()
    print(f"e2e: {what} ...", file=sys.stderr, flush=True)
    yield
    print(f"e2e: {what}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)


def run(
    *argv: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None, text: str | None = None
) -> str:
    """The command's stdout. SystemExit with its last words when it fails."""
    done = subprocess.run(
        [str(arg) for arg in argv],
        env={**os.environ, **(env or {})},
        cwd=cwd,
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        words = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise SystemExit(f"e2e: {' '.join(map(str, argv))}: exit code {done.returncode}\n{words}")
    return done.stdout


def apt_install(packages: Sequence[str]) -> None:
    """Install what is not there yet; asked for by command or package name, so that it is cheap when all is there."""
    missing = [
        name for name in packages if subprocess.run(["dpkg", "-s", name], capture_output=True, check=False).returncode
    ]
    if not missing:
        return
    with step(f"installing {', '.join(missing)}"):
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        run("apt-get", "-qq", "update", env=quiet)
        # Debian's docker.io would start a daemon of its own beside ours.
        policy = Path("/usr/sbin/policy-rc.d")
        ours = not policy.exists()
        if ours:
            policy.write_text("#!/bin/sh\nexit 101\n")
            policy.chmod(0o755)
        try:
            run("apt-get", "-qq", "-y", "--no-install-recommends", "install", *missing, env=quiet)
        finally:
            if ours:
                policy.unlink()
