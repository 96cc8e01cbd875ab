"""Processes of a lab: they die with their parent, and whoever survives can be found by a mark in its environment."""

from __future__ import annotations

import asyncio
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


def let_go(process: asyncio.subprocess.Process) -> None:
    """Close our ends of the pipes of one that has ended. Idempotent.

    A pipe that nobody has read to its end keeps asyncio's transport open; the garbage collector closes it after its
    loop, in the middle of whatever runs then, with an error that Python 3.11's compiler trips over.
    """
    process._transport.close()  # type: ignore[attr-defined] # pyright: ignore # asyncio offers no other way


def start_time(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; with its id this names a process for ever. None: gone."""
    try:
        return parse_start_time(Path(f"/proc/{pid}/stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None
