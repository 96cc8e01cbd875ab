import subprocess
import sys
from pathlib import Path

import msgspec

from loadgen.core import frames
from loadgen.core.model import Constant, Dns, Storm
from loadgen.core.samples import Log, Mark, Message, SampleBatch, Tally
from loadgen.core.units import enc_hook
from loadgen.drivers.dns import DnsDriver
from loadgen.drivers.libc import LibcDriver
from loadgen.drivers.storm import StormDriver
from loadgen.lab.worker import WorkerSpec, driver


def spec(load: Storm | Dns) -> WorkerSpec:
    return WorkerSpec(load=load, phase="main", source="x@pod-0", seed=1)


def messages(stream: bytes) -> list[Message]:
    found = []
    while stream:
        size = frames.HEADER_BYTES + frames.body_length(stream[: frames.HEADER_BYTES])
        found.append(frames.decode(stream[frames.HEADER_BYTES : size]))
        stream = stream[size:]
    return found


def run(tmp_path: Path, content: bytes, stdin: str) -> subprocess.CompletedProcess[bytes]:
    path = tmp_path / "spec.json"
    path.write_bytes(content)
    argv = [sys.executable, "-m", "loadgen.lab.worker", str(path)]
    return subprocess.run(argv, input=stdin.encode(), capture_output=True, timeout=60, check=False)


def test_each_load_has_its_driver() -> None:
    assert isinstance(driver(spec(Storm())), StormDriver)
    assert isinstance(driver(spec(Dns())), DnsDriver)
    assert isinstance(driver(spec(Dns(via="glibc"))), LibcDriver)


def test_a_worker_says_ready_then_samples_then_its_tally(tmp_path: Path) -> None:
    # No route leads to the service address outside a lab: every lookup fails at once, and is a sample.
    load = Dns(pace=Constant(rate=1000))
    content = msgspec.json.encode(spec(load), enc_hook=enc_hook)
    start = 1
    done = run(tmp_path, content, f"go {start} {start + 23_000_000}\nstop\n")
    first, *others = messages(done.stdout)
    assert (done.returncode, first.__class__) == (0, Mark)
    tally = others.pop()
    assert isinstance(tally, Tally)
    arrived = sum(len(m.array()) for m in others if isinstance(m, SampleBatch))
    assert tally.created == {"dns.lookup": arrived}


def test_a_worker_that_is_never_told_to_go_ends_quietly(tmp_path: Path) -> None:
    done = run(tmp_path, msgspec.json.encode(spec(Dns()), enc_hook=enc_hook), "")
    assert done.returncode == 0
    assert [type(m) for m in messages(done.stdout)] == [Mark]


def test_a_broken_worker_sends_its_last_words(tmp_path: Path) -> None:
    done = run(tmp_path, b"{}", "")
    (last,) = messages(done.stdout)
    assert done.returncode == 1
    assert isinstance(last, Log)
    assert "ValidationError" in last.error
    assert b"Traceback" in done.stderr
