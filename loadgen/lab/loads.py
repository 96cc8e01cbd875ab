"""A load at work: its worker processes, read frame by frame (ports.Running)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from loadgen.core import frames
from loadgen.core.errors import HarnessError
from loadgen.core.ports import Emit
from loadgen.core.samples import Log, Mark, Reading, Tally
from loadgen.lab.services import READY_LIMIT_S


class Worker(Protocol):
    """A process that speaks the worker protocol: a Service of the lab, or one elsewhere."""

    name: str
    log: Path

    @property
    def stdin(self) -> asyncio.StreamWriter: ...

    @property
    def stdout(self) -> asyncio.StreamReader: ...

    async def ended(self) -> None: ...

    def died(self) -> HarnessError: ...

    async def kill(self) -> None: ...


class WorkerLoad:
    def __init__(self, workers: Sequence[Worker], emit: Emit) -> None:
        self._workers = workers
        self._emit = emit

    async def ready(self) -> None:
        """Wait until every worker stands at the line."""
        await asyncio.gather(*(self._ready(worker) for worker in self._workers))

    async def _ready(self, worker: Worker) -> None:
        try:
            message = await asyncio.wait_for(_read(worker), READY_LIMIT_S)
        except TimeoutError:
            raise HarnessError(f"{worker.name} did not start; see {worker.log}") from None
        if not isinstance(message, Mark):
            raise await _lost(worker, message)

    def go(self, start_ns: int, end_ns: int) -> None:
        self._say(f"go {start_ns} {end_ns}\n")

    def stop(self) -> None:
        self._say("stop\n")

    def _say(self, line: str) -> None:
        for worker in self._workers:
            if not worker.stdin.is_closing():
                worker.stdin.write(line.encode())

    async def wait(self) -> None:
        await asyncio.gather(*(self._follow(worker) for worker in self._workers))

    async def _follow(self, worker: Worker) -> None:
        tally = None
        while (message := await _read(worker)) is not None:
            if isinstance(message, Log):
                raise await _lost(worker, message)
            if isinstance(message, Tally):
                tally = message
            self._emit(message)
        if tally is None:
            raise await _lost(worker, None)
        if tally.wall_s > 0:
            self._emit(Reading(time.monotonic_ns(), "generator.cpu", tally.cpu_s / tally.wall_s))
        await worker.ended()

    async def close(self) -> None:
        await asyncio.gather(*(worker.kill() for worker in self._workers))


async def _read(worker: Worker) -> frames.Message | None:
    """The next message, or None at the end of the stream (a frame cut in half is the end as well)."""
    try:
        header = await worker.stdout.readexactly(frames.HEADER_BYTES)
        return frames.decode(await worker.stdout.readexactly(frames.body_length(header)))
    except asyncio.IncompleteReadError:
        return None
    except msgspec.DecodeError as error:
        raise HarnessError(f"{worker.name} sent something that is no message: {error}; see {worker.log}") from None


async def _lost(worker: Worker, message: object) -> HarnessError:
    if isinstance(message, Log):
        return HarnessError(f"{worker.name}: {message.error}; see {worker.log}")
    await worker.ended()
    return worker.died()
