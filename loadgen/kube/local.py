"""A load that works in a process of its own beside the controller (ports.Running)."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Protocol, Self

import msgspec

from loadgen.core.ports import Emit
from loadgen.core.units import enc_hook
from loadgen.kernel.process import let_go
from loadgen.lab.loads import WorkerLoad
from loadgen.lab.services import Service

KILL_AFTER_S = 45.0
"""What a worker that is told to end may take to remove what it made."""


class Spec(Protocol):
    @property
    def phase(self) -> str: ...
    @property
    def source(self) -> str: ...


class LocalWorker(Service):
    """One worker process, outside of any lab. Told to end, it gets the time to remove what it made."""

    async def kill(self) -> None:
        """SIGTERM, and SIGKILL for one that does not end. Its last messages are nobody's any more."""
        if self._process.returncode is None:
            self._process.terminate()
            try:
                async with asyncio.timeout(KILL_AFTER_S):
                    await self._drain()
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        let_go(self._process)

    async def _drain(self) -> None:
        """A full pipe would keep it from ending."""
        try:
            while await self.stdout.read(1 << 16):
                pass
        except RuntimeError:
            pass  # whoever waits for the load still reads it


class LocalLoad(WorkerLoad):
    """One worker of module MODULE, which finds its spec in a file and this process's id beside it."""

    @classmethod
    async def start(cls, module: str, spec: Spec, log_dir: Path, emit: Emit) -> Self:
        """It may not be ready yet. Spec and log stay in `log_dir`; it ends when this process does."""
        stem = log_dir / f"{spec.phase}-{spec.source}"
        config, log = stem.with_suffix(".json"), stem.with_suffix(".log")
        config.write_bytes(msgspec.json.encode(spec, enc_hook=enc_hook))
        with log.open("ab") as stderr:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                module,
                str(config),
                str(os.getpid()),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                # A Ctrl-C on the terminal is for the owner alone; it ends its children in order.
                start_new_session=True,
            )
        return cls([LocalWorker(f"{spec.source} in phase {spec.phase}", process, log)], emit)
