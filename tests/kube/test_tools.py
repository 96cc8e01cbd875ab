from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from loadgen.core.errors import HarnessError, NotSupported
from loadgen.kube import tools


def test_what_a_tool_says_comes_back_and_goes_into_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = "import sys; print(sys.stdin.read()); print('bad', file=sys.stderr); sys.exit(7)"
    done = asyncio.run(tools.call(sys.executable, "-c", script, stdin=b"told", log=log))
    assert done == tools.Done(7, "told\n", "bad\n")
    assert log.read_text().endswith("told\nbad\nexit code 7\n")


def test_a_tool_that_is_missing_or_no_program_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotSupported, match="no-such-tool: not found on PATH"):
        asyncio.run(tools.call("no-such-tool"))
    (tmp_path / "text").write_text("hello")
    with pytest.raises(NotSupported, match="text: cannot be run: Permission denied"):
        asyncio.run(tools.call(tmp_path / "text"))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


DEAF = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").write(f"{os.getpid()}")
time.sleep(600)
"""
WITH_CHILD = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid}")
time.sleep(600)
"""


async def pids(pipe: Path) -> list[int]:
    """What the tool writes into the named pipe, once it does."""
    return [int(word) for word in (await asyncio.to_thread(pipe.read_text)).split()]


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pids"
    os.mkfifo(path)
    return path


@pytest.mark.parametrize("how", ["cancelled", "too long"])
def test_a_tool_that_is_ended_takes_its_children_along(pipe: Path, how: str) -> None:

    async def main() -> list[int]:
        limit_s = 60 if how == "cancelled" else 2.0
        task = asyncio.create_task(tools.call(sys.executable, "-c", WITH_CHILD, pipe, limit_s=limit_s))
        found = await pids(pipe)
        if how == "cancelled":
            task.cancel()
        with pytest.raises(asyncio.CancelledError if how == "cancelled" else HarnessError):
            await task
        return found

    for pid in asyncio.run(main()):
        assert not alive(pid)


def test_a_tool_that_does_not_heed_sigterm_is_killed(pipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "GRACE_S", 0.2)

    async def main() -> int:
        task = asyncio.create_task(tools.call(sys.executable, "-c", DEAF, pipe))
        pid = (await pids(pipe))[0]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return pid

    assert not alive(asyncio.run(main()))


def test_the_environment_is_added_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONE", "1")
    done = asyncio.run(tools.call("/bin/sh", "-c", "echo $ONE $TWO", env={"TWO": "2"}))
    assert done.out == "1 2\n"
    assert "TWO" not in os.environ


@pytest.mark.parametrize(
    ("err", "words"),
    [
        ("one\nERROR: failed to create cluster: no\nCommand Output: x\n", "failed to create cluster: no"),
        ("only this\n\n", "only this"),
        ("", "it said nothing"),
    ],
)
def test_the_line_that_says_what_went_wrong_is_found(err: str, words: str) -> None:
    assert tools.Done(1, "", err).last_words() == words
