"""What the engine's process makes of a worker's stream, whole, cut and broken."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from loadgen.core import frames
from loadgen.core.errors import HarnessError
from loadgen.core.samples import Log, Mark, Message, Reading, SampleBatch, Tally
from loadgen.lab.loads import WorkerLoad

TALLY = Tally("main", "x@pod-0", {"dns.lookup": 1}, 0.5, 2.0)
BATCH = SampleBatch("dns.lookup", "main", "x@pod-0", b"\0" * 40)
READY = Mark(1, "ready", "x@pod-0")


class Worker:
    """A Service whose process has said all that it will."""

    name, log = "worker-01-x", Path("worker-01-x.log")

    def __init__(self, said: bytes) -> None:
        self.stdout = asyncio.StreamReader()
        self.stdout.feed_data(said)
        self.stdout.feed_eof()

    async def ended(self) -> None:
        return None

    def died(self) -> HarnessError:
        return HarnessError("worker-01-x was killed")


def follow(said: bytes) -> list[Message]:
    got: list[Message] = []

    async def main() -> None:
        worker: Any = Worker(said)
        load = WorkerLoad([worker], got.append)
        await load.ready()
        await load.wait()

    asyncio.run(main())
    return got


def stream(*messages: Message) -> bytes:
    return b"".join(frames.encode(message) for message in messages)


def test_everything_said_is_handed_on_with_the_cpu_it_took() -> None:
    *others, cpu = follow(stream(READY, BATCH, TALLY))
    assert others == [BATCH, TALLY]
    assert isinstance(cpu, Reading)
    assert (cpu.series, cpu.value) == ("generator.cpu", 0.25)


@pytest.mark.parametrize("cut", range(1, len(frames.encode(TALLY))))
def test_a_worker_without_its_tally_is_lost_wherever_it_was_cut(cut: int) -> None:
    with pytest.raises(HarnessError, match="was killed"):
        follow(stream(READY, BATCH) + frames.encode(TALLY)[:cut])


def test_last_words_are_the_error() -> None:
    with pytest.raises(HarnessError, match=r"ValueError: broken; see worker-01-x\.log"):
        follow(stream(READY, BATCH, Log("ValueError: broken")))
    with pytest.raises(HarnessError, match="OSError: no"):
        follow(stream(Log("OSError: no")))


def test_what_is_no_message_is_an_error_with_the_log() -> None:
    with pytest.raises(HarnessError, match="is no message"):
        follow(stream(READY) + b"\3\0\0\0abc")
