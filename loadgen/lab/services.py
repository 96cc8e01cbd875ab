"""The lab's long-running processes: started in their namespace, ready before use, watched while they run."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from loadgen.core.errors import HarnessError
from loadgen.core.units import format_duration
from loadgen.kernel.process import LAB_VARIABLE, let_go
from loadgen.lab.state import LabState

READY_LIMIT_S = 120.0
"""A 16 M-entry table takes seconds to make on a busy machine; a service silent for this long is broken."""
STOP_LIMIT_S = 10.0


class Service:
    """One process. Its stdout says `ready`; its stderr goes to the run's logs."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process

    @classmethod
    async def spawn(
        cls, state: LabState, name: str, netns: str, module: str, config: object, log_dir: Path
    ) -> Service:
        """Start `module` with `config` (written as JSON) in the namespace. It may not be ready yet."""
        path = state.write_config(name, config)
        log = log_dir / f"{name}.log"
        with log.open("ab") as stderr:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "loadgen.lab.launch",
                str(os.getpid()),
                str(state.netns / netns),
                module,
                str(path),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, LAB_VARIABLE: state.id},
                # A Ctrl-C on the terminal is for the owner alone; it ends its children in order.
                start_new_session=True,
            )
        return cls(name, process, log)

    @property
    def stdin(self) -> asyncio.StreamWriter:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def stdout(self) -> asyncio.StreamReader:
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait_ready(self) -> None:
        try:
            line = await asyncio.wait_for(self.stdout.readline(), READY_LIMIT_S)
        except TimeoutError:
            await self.stop()
            raise HarnessError(
                f"{self.name} was not ready after {format_duration(READY_LIMIT_S)}; see {self.log}"
            ) from None
        if line.strip() != b"ready":
            await self._process.wait()
            raise self.died()

    async def ended(self) -> None:
        """Return when the process has ended."""
        await self._process.wait()

    def died(self) -> HarnessError:
        code = self._process.returncode
        how = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"ended with exit code {code}"
        return HarnessError(f"{self.name} {how}{self._last_words()}; see {self.log}")

    def _last_words(self) -> str:
        try:
            lines = self.log.read_text(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return f": {lines[-1]}" if lines else ""

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL for one that does not listen. Idempotent."""
        if self._process.returncode is None:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), STOP_LIMIT_S)
            except TimeoutError:
                await self.kill()
        let_go(self._process)

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        let_go(self._process)
