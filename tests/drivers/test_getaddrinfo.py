"""The resolvers held to the real ones: what libcs, Go, Node.js and Java send to a scripted server, packet by packet.

Each case is run by our driver and by the real resolver, in a network namespace each, with a server each that follows
the same script. All cases run at once, mostly waiting. A difference must show in every attempt, because a
machine that stops for half a second can make one.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from loadgen.core.dnswire import TYPE_NAMES
from loadgen.core.model import Burst, Dns, Resolver, seconds
from loadgen.core.samples import SampleBatch
from loadgen.drivers.dns import DnsDriver
from loadgen.drivers.pairs import PairsDriver
from loadgen.kernel import netns
from tests.drivers.cases import CASES, Case
from tests.realdns import Samples, Window
from tests.realresolvers import RUNTIMES, Looked, real
from tests.scripted import Packet, scripted

ATTEMPTS = 4
AT_ONCE = 24
WORDS = {
    "EAI_AGAIN": ("EAI_AGAIN", "ETIMEOUT", "ESERVFAIL", "ECONNREFUSED"),
    "EAI_NODATA": ("EAI_NODATA", "ENODATA", "ENOTFOUND"),
    "NXDOMAIN": ("ENOTFOUND",),
    "no address": ("ENOTFOUND",),
    "NO_RECOVERY": ("EAI_FAIL", "ENOTFOUND", "EREFUSED", "ENOTIMP", "EFORMERR", "EBADRESP"),
}
"""By what our resolver says: what the real ones call it."""


class Sent(msgspec.Struct, frozen=True):
    """A query as it can be compared: time since its lookup's first, ports and ids numbered in order of appearance."""

    t_s: float
    what: str

    def __str__(self) -> str:
        return f"{self.t_s:7.3f} s  {self.what}"


Seen = tuple[list[Looked], list[list[Sent]]]
"""How the lookups ended, and the queries of each."""


def lookups_of(case: Case, packets: list[Packet]) -> list[list[Sent]]:
    """By lookup, which the first label tells. Where two threads send, only each one's own order means anything."""
    found = []
    for name in case.names:
        mine = [p for p in packets if p.name.split(".")[0] == name.split(".")[0]]
        began = min((p.t_s for p in mine), default=0.0)
        if case.by_type:
            mine.sort(key=lambda p: p.qtype)
        ports, ids = list(dict.fromkeys(p.port for p in mine)), list(dict.fromkeys(p.id for p in mine))
        found.append([Sent(p.t_s - began, _what(p, ports.index(p.port), ids.index(p.id))) for p in mine])
    return found


def _what(p: Packet, port: int, ident: int) -> str:
    return f"{p.transport} port {port} id {ident} {TYPE_NAMES[p.qtype]} {p.name} flags {p.flags:04x} {p.size} bytes"


def ours(case: Case, namespace: Path) -> list[Looked]:
    """One thread that remembers, one lookup well after the other."""
    pace = Burst(size=1, every=seconds(case.every_s), count=len(case.names))
    load = Dns(pace=pace, names=case.names, state="long-lived", via=case.via)
    batches: list[SampleBatch] = []
    kind = PairsDriver if case.via == "fast" else DnsDriver
    driver = kind(load, Resolver(case.options, case.search, stub=case.stub), ["127.0.0.1"], "pod")
    netns.call(namespace, driver.run, Window(case.every_s * len(case.names)), batches.append)
    samples = Samples(batches)
    took_s = (samples.rows["done_ns"] - samples.rows["sent_ns"]) / 1e9
    words = ["" if "lost" in detail or "TCP" in detail else detail for detail in samples.details]
    return [Looked(word, took) for word, took in zip(words, took_s.tolist(), strict=True)]


class Ring:
    """Makes namespaces and runs cases, as many at once as there is room for."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._numbers = folder, itertools.count()
        self._pool, self._again = ThreadPoolExecutor(AT_ONCE), threading.Lock()
        self._began: dict[str, Future[str]] = {}

    def start(self) -> None:
        for name, case in CASES.items():
            if RUNTIMES[case.runtime]() is not None:
                self._began[name] = self._pool.submit(self.differs, case)

    def result(self, name: str) -> str:
        return self._began[name].result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def differs(self, case: Case) -> str:
        """Empty, or what was sent differently in every attempt."""
        why = self._attempt(case)
        for _ in range(ATTEMPTS - 1):
            if not why:
                break
            with self._again:  # one after the other, for it may be their number that made the difference
                why = self._attempt(case)
        return why

    def _attempt(self, case: Case) -> str:
        with ThreadPoolExecutor(1) as thread:
            theirs = thread.submit(self._run, case, real=True)
            return difference(case, self._run(case, real=False), theirs.result())

    def _run(self, case: Case, *, real: bool) -> Seen:
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        space = folder / "netns"
        netns.create(space)
        try:
            netns.sysctl(space, "net.ipv6.conf.all.disable_ipv6", 0)  # without IPv6, Java asks for no AAAA
            with scripted(space, case.script, case.exist) as server:
                looked = by_real(case, folder, space) if real else ours(case, space)
            return looked, lookups_of(case, server.packets)
        finally:
            netns.delete(space)


def by_real(case: Case, folder: Path, namespace: Path) -> list[Looked]:
    search = " ".join(case.search) or "."
    content = f"nameserver 127.0.0.1\nsearch {search}\noptions {case.options or 'ndots:1'}\n"
    return real(case.runtime, folder, namespace, content, case.names)


def difference(case: Case, mine: Seen, theirs: Seen) -> str:
    """What differs between the two, for a person; empty when nothing does."""
    lines = []
    for name, me, them in zip(case.names, mine[1], theirs[1], strict=True):
        same = [s.what for s in me] == [s.what for s in them]
        late = [abs(a.t_s - b.t_s) > case.tolerance_s for a, b in zip(me, them, strict=False)]
        if not same or any(late):
            lines += [name, "ours:", *map(str, me), "real:", *map(str, them)]
    for name, me, them in zip(case.names, mine[0], theirs[0], strict=True):
        java = them.word == "UnknownHostException"  # whatever it was
        alike = java or them.word in WORDS[me.word] if me.word else not them.word
        if not alike or abs(me.took_s - them.took_s) > case.tolerance_s + case.overhead_s:
            lines.append(
                f"{name}: ours {me.word!r} after {me.took_s:.3f} s, real {them.word!r} after {them.took_s:.3f} s"
            )
    return "\n".join(lines)


@pytest.fixture(scope="module")
def ring(lab_dir: Path) -> Iterator[Ring]:
    folder = lab_dir / "resolvers"
    folder.mkdir()
    made = Ring(folder)
    made.start()
    yield made
    made.close()


@pytest.mark.kernel
@pytest.mark.parametrize("name", CASES)
def test_it_sends_what_the_real_one_sends(ring: Ring, name: str) -> None:
    runtime = CASES[name].runtime
    if RUNTIMES[runtime]() is None:
        pytest.skip(f"not run: {runtime} is not on this machine, or of another release than the model")
    assert ring.result(name) == ""
