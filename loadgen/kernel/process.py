"""Processes of a lab: they die with their parent, and whoever survives can be found by a mark in its environment."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from loadgen.core.procfs import parse_start_time
from loadgen.kernel import libc

LAB_VARIABLE = "LOADGEN_LAB"


def die_with_parent(parent: int | None = None, by: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel end this process, with signal `by`, when the thread that started it ends.

    The parent may be dead already, before the kernel was told. With its id in `parent` that is noticed, and this
    process ends here and now.
    """
    libc.prctl(libc.PR_SET_PDEATHSIG, by)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def children_of_lab(lab_id: str) -> list[int]:
    """Ids of the running processes, other than this one, that were started with LOADGEN_LAB=<lab_id>, ascending."""
    mark = f"{LAB_VARIABLE}={lab_id}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended meanwhile, or is not ours
        if mark in environment.split(b"\0"):
            found.append(int(entry.name))
    return sorted(found)


def start_time(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; with its id this names a process for ever. None: gone."""
    try:
        return parse_start_time(Path(f"/proc/{pid}/stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None
