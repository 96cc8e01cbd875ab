"""Worker processes of the controller's own: what is told of those that end in other ways than they should."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path

import pytest

from loadgen.kube import local
from loadgen.kube.local import LocalWorker


async def start(tmp_path: Path, code: str) -> LocalWorker:
    """A Python program that says when it is there."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    worker = LocalWorker("pods in phase burst", process, tmp_path / "burst-pods.log")
    assert await worker.stdout.readline() == b"there\n"
    return worker


TIDY = """
import signal, sys
def end(*_):
    open({path!r}, "w").write("tidied up")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("there", flush=True)
signal.pause()
"""
DEAF = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("there", flush=True)
while True: signal.pause()
"""
TALKATIVE = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: (sys.stdout.write("x" * (1 << 20)), sys.exit(0)))
print("there", flush=True)
signal.pause()
"""


def test_a_worker_that_is_ended_may_tidy_up(tmp_path: Path) -> None:
    async def main() -> None:
        worker = await start(tmp_path, TIDY.format(path=str(tmp_path / "done")))
        await worker.kill()
        await worker.kill()  # idempotent

    asyncio.run(main())
    assert (tmp_path / "done").read_text() == "tidied up"


def test_a_worker_that_does_not_listen_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "KILL_AFTER_S", 0.2)

    async def main() -> str:
        worker = await start(tmp_path, DEAF)
        await worker.kill()
        return str(worker.died())

    told = asyncio.run(main())
    assert told == f"pods in phase burst was killed by {signal.SIGKILL.name}; see {tmp_path / 'burst-pods.log'}"


@pytest.mark.parametrize("followed", [True, False])
def test_a_worker_that_has_much_to_say_at_its_end_gets_there(tmp_path: Path, followed: bool) -> None:
    async def main() -> float:
        worker = await start(tmp_path, TALKATIVE)
        follower = asyncio.create_task(worker.stdout.read()) if followed else None
        await asyncio.sleep(0)
        began = time.monotonic()
        await worker.kill()
        if follower is not None:
            assert len(await follower) == 1 << 20
        return time.monotonic() - began

    assert asyncio.run(main()) < 20
