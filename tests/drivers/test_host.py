"""The body of a worker process: what it says, in what order, and how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadgen.core import frames
from loadgen.core.samples import Log, Mark, Message, Reading, Tally
from loadgen.drivers.host import LiveWindow, Outlet

WORKER = """
import msgspec
from loadgen.core.samples import Reading
from loadgen.drivers import host

class Spec(msgspec.Struct, frozen=True):
    phase: str
    source: str
    seed: int

class Driver:
    def __init__(self, spec):
        if spec.seed == 13:
            raise ValueError("an unlucky seed")
    def run(self, window, emit):
        print("not a frame")
        while not window.stopped():
            pass
        emit(Reading(window.start_ns, window.phase, window.end_ns))
        return {"things": 3}

host.main(Spec, Driver)
"""


def messages(stream: bytes) -> list[Message]:
    found = []
    while stream:
        size = frames.HEADER_BYTES + frames.body_length(stream[: frames.HEADER_BYTES])
        found.append(frames.decode(stream[frames.HEADER_BYTES : size]))
        stream = stream[size:]
    return found


def work(tmp_path: Path, stdin: str, spec: str = '{"phase": "main", "source": "x@pod-0", "seed": 1}'):
    path = tmp_path / "spec.json"
    path.write_text(spec)
    argv = [sys.executable, "-c", WORKER, str(path)]
    return subprocess.run(argv, input=stdin.encode(), capture_output=True, timeout=60, check=False)


def test_it_says_ready_then_what_its_driver_says_then_its_tally(tmp_path: Path) -> None:
    done = work(tmp_path, "go 5 9\nstop\n")
    ready, reading, tally = messages(done.stdout)
    assert isinstance(ready, Mark)
    assert (ready.kind, ready.name) == ("ready", "x@pod-0")
    assert reading == Reading(5, "main", 9)
    assert isinstance(tally, Tally)
    assert (tally.phase, tally.source, tally.created) == ("main", "x@pod-0", {"things": 3})
    assert done.returncode == 0
    assert done.stderr == b"not a frame\n"


def test_its_owner_gone_before_go_it_ends_quietly(tmp_path: Path) -> None:
    done = work(tmp_path, "")
    assert (done.returncode, [type(m) for m in messages(done.stdout)]) == (0, [Mark])


def test_its_owner_gone_at_work_it_stops(tmp_path: Path) -> None:
    done = work(tmp_path, "go 5 9\n")
    assert [type(m) for m in messages(done.stdout)] == [Mark, Reading, Tally]


@pytest.mark.parametrize(
    ("spec", "why"), [("{}", "ValidationError"), ('{"phase": "", "source": "x", "seed": 13}', "an unlucky seed")]
)
def test_a_broken_worker_sends_its_last_words(tmp_path: Path, spec: str, why: str) -> None:
    done = work(tmp_path, "", spec)
    (last,) = messages(done.stdout)
    assert done.returncode == 1
    assert isinstance(last, Log)
    assert why in last.error
    assert b"Traceback" in done.stderr


def test_the_outlet_writes_whole_frames() -> None:
    read, write = os.pipe()
    Outlet(write).emit(Mark(1, "ready", "x"))
    assert messages(os.read(read, 1000)) == [Mark(1, "ready", "x")]
    os.close(read)


def test_the_window_follows_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    window = LiveWindow("main", 7)
    monkeypatch.setattr(sys, "stdin", iter(["go 5 9\n", "stop\n"]))
    assert not window.stopped()
    window.listen()
    assert window.wait_go()
    assert (window.start_ns, window.end_ns, window.stopped()) == (5, 9, True)
