"""What every worker process is around its driver: the window that its owner opens, and the way its messages take out.

stdin: `go START_NS END_NS`, then perhaps `stop`; the end of stdin means stop as well. stdout: frames
(core/frames.py). A worker that breaks says so in a last Log message and ends with exit code 1.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, Protocol, TypeVar

import msgspec

from loadgen.core import frames
from loadgen.core.ports import Driver
from loadgen.core.samples import Log, Mark, Message, Tally
from loadgen.core.units import dec_hook


class Spec(Protocol):
    """What the body of a worker needs to know, whatever its driver is."""

    @property
    def phase(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def seed(self) -> int: ...


S = TypeVar("S", bound=Spec)


class LiveWindow:
    """ports.Window, fed by the owner through stdin."""

    def __init__(self, phase: str, seed: int) -> None:
        self.phase = phase
        self.seed = seed
        self.start_ns = 0
        self.end_ns = 0
        self._stopped = threading.Event()
        self._go = threading.Event()

    def stopped(self) -> bool:
        return self._stopped.is_set()

    def wait_go(self) -> bool:
        """True when the work is to begin, False when the owner went away before."""
        self._go.wait()
        return self.start_ns > 0

    def listen(self) -> None:
        """Follow stdin until it ends. Runs on a thread of its own."""
        for line in sys.stdin:
            command, *numbers = line.split()
            if command == "go":
                self.start_ns, self.end_ns = (int(n) for n in numbers)
                self._go.set()
            elif command == "stop":
                self._stopped.set()
        self._stopped.set()
        self._go.set()


class Outlet:
    """Writes frames to stdout; drivers may emit from several threads."""

    def __init__(self, fd: int) -> None:
        self._file = os.fdopen(fd, "wb", buffering=0)
        self._lock = threading.Lock()

    def emit(self, message: Message) -> None:
        frame = memoryview(frames.encode(message))
        with self._lock:
            while frame:
                frame = frame[self._file.write(frame) or 0 :]


def run(kind: type[S], driver: Callable[[S], Driver]) -> int:
    """Be a worker: read the spec that argv names, make its driver, wait for `go`, work. Returned: the exit code."""
    outlet = Outlet(os.dup(1))
    # Whatever a library prints belongs in the log, not among the frames.
    os.dup2(2, 1)
    try:
        spec = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=kind, dec_hook=dec_hook)
        window = LiveWindow(spec.phase, spec.seed)
        threading.Thread(target=window.listen, daemon=True).start()
        work = driver(spec)
        outlet.emit(Mark(time.monotonic_ns(), "ready", spec.source))
        if not window.wait_go():
            return 0
        began, cpu = time.monotonic(), time.process_time()
        created = work.run(window, outlet.emit)
        outlet.emit(
            Tally(
                phase=spec.phase,
                source=spec.source,
                created=created,
                cpu_s=time.process_time() - cpu,
                wall_s=time.monotonic() - began,
            )
        )
    except BrokenPipeError:
        return 1  # the owner is gone and so is the reader of anything we could say
    except Exception as error:  # noqa: BLE001 - the top of the process: every failure must reach the owner
        traceback.print_exc()
        outlet.emit(Log(f"{type(error).__name__}: {error}"))
        return 1
    return 0


def main(kind: type[S], driver: Callable[[S], Driver]) -> NoReturn:
    """The whole of a worker process. `kind`: what its spec file holds."""
    # Threads of drivers may still hold sockets that never end; all that counts has been written.
    code = run(kind, driver)
    sys.stderr.flush()
    os._exit(code)
