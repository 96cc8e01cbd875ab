"""Lookups by a real libc: getaddrinfo(3) of glibc or musl in a program of its own (lookup.c), open loop.

This module says when they are due, a slice of 100 ms ahead, and hands on what the program reports. How often a lookup
asked and what it lost is the libc's own affair: `tries` is 1 and `lost` is 0 in every sample.
"""

from __future__ import annotations

import queue
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from loadgen.core.errors import ConfigError, HarnessError
from loadgen.core.model import Dns, Resolver
from loadgen.core.pacing import Schedule, pacer
from loadgen.core.ports import Emit, Window
from loadgen.core.samples import SAMPLE_DTYPE, Outcome, SampleBatch
from loadgen.core.units import NS_PER_S, Duration
from loadgen.drivers.limits import raise_open_files
from loadgen.kernel import libc, mounts

METRIC = "dns.lookup"
FOLDER = Path(__file__).parent
SLICE_NS = 100_000_000
EMIT_NS = 250_000_000
SPARE_NS = 100_000_000
"""An answer that comes with the timeout is still taken; so little later nobody waits for it."""

_RECORD = struct.Struct("<4qii")
_ROW = struct.Struct("<4q4H")
assert _ROW.size == SAMPLE_DTYPE.itemsize
# netdb.h, the same in both; EAI_NONAME under the name that the wire driver gives it.
_ERRORS = {-2: "NXDOMAIN", -3: "EAI_AGAIN", -4: "EAI_FAIL", -5: "EAI_NODATA", -10: "EAI_MEMORY", -11: "EAI_SYSTEM"}


def program(via: str) -> Path:
    """The lookup program of a libc, built beside this file. It may not be there: `missing` says so."""
    return FOLDER / f"lookup-{via}"


def missing(load: Dns, where: str) -> str:
    """Why `load` cannot run here; empty when it can. `where` names the load."""
    if load.via in ("wire", "fast") or program(load.via).exists():
        return ""
    needs = {"glibc": "a C compiler", "musl": "musl-gcc (Debian: musl-tools)"}[load.via]
    return (
        f"{where}.via: {load.via}: its lookup program was not built, for want of {needs}; install that, then "
        "python setup.py build_ext --inplace"
    )


class LibcDriver:
    """ports.Driver of a Dns load with `via` glibc or musl. Runs in the network namespace of the calling thread.

    A lookup is OK when getaddrinfo returned addresses, FAIL when it returned an error (`detail`), UNKNOWN when it had
    not returned `load.timeout` after it was due: it cannot be called back, only no longer be waited for.

    The libc reads /etc/resolv.conf. With `resolver` it gets to see a file of our own there, which says that and
    `server`, and asks DNS alone: in a mount namespace, for which it takes root.
    """

    def __init__(self, load: Dns, source: str, *, resolver: Resolver | None = None, server: str = "") -> None:
        if not load.names:
            raise ConfigError(f"loads.{source}.names: there is no name to look up")
        why = missing(load, f"loads.{source}")
        if why:
            raise ConfigError(why)
        self._load, self._source = load, source
        self._files = {} if resolver is None else _files(resolver, server)

    def run(self, window: Window, emit: Emit) -> dict[str, int]:
        """Look up what is due in the window; return when every lookup has ended or was given up."""
        raise_open_files()
        schedule = Schedule(pacer(self._load.pace, window.seed), window.start_ns, window.end_ns, time.monotonic_ns())
        outlet = _Outlet(window.phase, self._source, emit, int(self._load.timeout))
        with self._program() as process:
            assert process.stdin is not None
            assert process.stdout is not None
            reader = _Reader(process.stdout)
            while not schedule.is_over:
                now_ns = time.monotonic_ns()
                if window.stopped():
                    schedule.end()
                taken = schedule.take_before(now_ns + SLICE_NS, now_ns)
                outlet.begun(taken)
                _write(process, taken.tobytes())
                _listen(process, reader, outlet, now_ns + SLICE_NS)
            process.stdin.close()
            while outlet.waiting:
                _listen(process, reader, outlet, time.monotonic_ns() + SLICE_NS)
        outlet.flush()
        return {METRIC: schedule.created}

    @contextmanager
    def _program(self) -> Iterator[subprocess.Popen[bytes]]:
        state = "fresh" if self._load.state == "fresh" else "reuse"
        command = [str(program(self._load.via)), state, *self._load.names]
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="loadgen-")))
            for name, content in self._files.items():
                (folder / name).write_text(content)
            # A thread of its own: what it mounts is seen by what it starts, and by nobody else.
            with ThreadPoolExecutor(1) as pool:
                process = pool.submit(_start, command, folder, self._files).result()
            try:
                yield process
            finally:
                # Lookups that were given up may still be waiting in there.
                process.kill()
                assert process.stdin is not None
                process.stdin.close()
                process.wait()


def _files(resolver: Resolver, server: str) -> dict[str, str]:
    lines = [f"nameserver {server}", f"search {' '.join(resolver.search)}", f"options {resolver.options}"]
    return {
        "resolv.conf": "".join(f"{line}\n" for line in lines if not line.endswith(" ")),
        "nsswitch.conf": "hosts: dns\n",
    }


def _start(command: Sequence[str], folder: Path, names: Collection[str]) -> subprocess.Popen[bytes]:
    """The program; where it looks, our files of these names lie over those of /etc."""
    if names:
        mounts.scratch()
    for name in names:
        libc.mount(str(folder / name), f"/etc/{name}", None, libc.MS_BIND)
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)


class _Reader:
    """Takes the program's records off its pipe as they come, so that it never waits for us."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._parts: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._rest = b""
        self.ended = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with self._pipe:
            while part := self._pipe.read(1 << 16):
                self._parts.put(part)
        self._parts.put(b"")

    def records(self, until_ns: int) -> list[tuple[int, int, int, int, int]]:
        """What has come, as soon as something has, or nothing at `until_ns`."""
        try:
            part = self._parts.get(timeout=max(0, until_ns - time.monotonic_ns()) / NS_PER_S)
        except queue.Empty:
            return []
        self.ended = self.ended or not part
        data = self._rest + part
        whole = len(data) // _RECORD.size * _RECORD.size
        self._rest = data[whole:]
        return [record[:5] for record in _RECORD.iter_unpack(data[:whole])]


def _write(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin is not None
    left = memoryview(data)
    try:
        while left:
            left = left[process.stdin.write(left) or 0 :]
    except BrokenPipeError:
        raise _died(process) from None


def _listen(process: subprocess.Popen[bytes], reader: _Reader, outlet: _Outlet, until_ns: int) -> None:
    """Take in records until `until_ns`, or until no lookup is under way any more."""
    while (now := time.monotonic_ns()) < until_ns:
        for record in reader.records(until_ns):
            outlet.returned(*record)
        if reader.ended and outlet.waiting:
            raise _died(process)
        outlet.give_up(now)
        outlet.offer(now)
        if reader.ended:
            return


def _died(process: subprocess.Popen[bytes]) -> HarnessError:
    code = process.wait()
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return HarnessError(f"the lookup program {how} with lookups under way; its last words are in the log")


class _Outlet:
    """Lookups under way, and the samples of those that are over, passed on every quarter of a second."""

    def __init__(self, phase: str, source: str, emit: Emit, timeout_ns: int) -> None:
        self._phase, self._source, self._emit, self._timeout_ns = phase, source, emit, timeout_ns
        self._under_way: dict[int, int] = {}
        self._begun = 0
        self._rows = bytearray()
        self._details = {"": 0}
        self._next_ns = 0

    @property
    def waiting(self) -> int:
        return len(self._under_way)

    def begun(self, due_ns: Iterable[int]) -> None:
        for due in due_ns:
            self._under_way[self._begun] = due
            self._begun += 1

    def returned(self, seq: int, due_ns: int, sent_ns: int, done_ns: int, result: int) -> None:
        if self._under_way.pop(seq, None) is None:
            return  # given up before
        detail = _ERRORS.get(result, f"EAI {result}") if result else ""
        self._add(seq, due_ns, sent_ns, done_ns, Outcome.FAIL if result else Outcome.OK, detail)

    def give_up(self, now_ns: int) -> None:
        """End those that have had their time. Due times ascend with numbers, so the first are the oldest."""
        while self._under_way:
            seq, due_ns = next(iter(self._under_way.items()))
            if now_ns < due_ns + self._timeout_ns + SPARE_NS:
                return
            del self._under_way[seq]
            self._add(seq, due_ns, due_ns, now_ns, Outcome.UNKNOWN, f"timeout {Duration(self._timeout_ns)}")

    def _add(self, seq: int, due_ns: int, sent_ns: int, done_ns: int, outcome: Outcome, detail: str) -> None:
        index = self._details.setdefault(detail, len(self._details))
        self._rows += _ROW.pack(seq, due_ns, sent_ns, done_ns, outcome, 1, 0, index)

    def offer(self, now_ns: int) -> None:
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + EMIT_NS
            self.flush()

    def flush(self) -> None:
        if self._rows:
            rows, details = bytes(self._rows), tuple(self._details)
            self._rows.clear()
            self._emit(SampleBatch(METRIC, self._phase, self._source, rows, details))
