"""Pairs and Responder: what the C loop counts is what the other end saw, whatever that end does."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.core import dnswire
from loadgen.core.dnswire import AAAA, A
from loadgen.core.lookup import Mode
from loadgen.core.samples import SAMPLE_DTYPE, Outcome
from loadgen.core.units import NS_PER_S
from loadgen.native import PAIRS_DETAILS, Pairs, Responder

LOCAL = bytes((127, 0, 0, 1))
PRIME = 1009
RESOLVERS = ("glibc", "musl-1.2.3", "musl")


def queries(*names: str, types: tuple[int, ...] = (A, AAAA)) -> bytes:
    wires = [dnswire.query(0, dnswire.name(name) or b"\0", t).wire for name in names for t in types]
    return b"".join(map(dnswire.frame, wires))


def make(port: int, **options: object) -> Pairs:
    whole = {
        "queries": queries("a.test.", "b.test."),
        "per_lookup": 2,
        "server": LOCAL + port.to_bytes(2, "big"),
        "resolver": "glibc",
        "mode": Mode.PARALLEL,
        "remembers": False,
        "recycles": False,
        "round_ns": 50_000_000,
        "attempts": 2,
        "limit_ns": 30 * NS_PER_S,
        "max_open": 200,
        "seed": 7,
        **options,
    }
    return Pairs(**whole)


def look_up(pairs: Pairs, n: int) -> tuple[np.ndarray, list[str]]:
    """The samples of `n` lookups that are due at once, by number, and their details as words."""
    pairs.push(np.full(n, time.monotonic_ns(), np.int64))
    while pairs.open or pairs.queued:
        pairs.run(time.monotonic_ns() + NS_PER_S)
    rows = np.sort(np.frombuffer(pairs.drain(), SAMPLE_DTYPE), order="seq")
    pairs.close()
    return rows, [PAIRS_DETAILS[i] for i in rows["detail"]]


@contextmanager
def responder() -> Iterator[Responder]:
    server = Responder()
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            server.run(time.monotonic_ns() + 20_000_000)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield server
    finally:
        stop.set()
        thread.join()
        server.close()


class Server:
    """Answers each datagram with what `behaviour` makes of it; keeps (port, id, type) of all."""

    def __init__(self, behaviour) -> None:
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._sock.bind(("127.0.0.1", 0))
        self.port = self._sock.getsockname()[1]
        self.seen: list[tuple[int, int, int]] = []
        self._behaviour = behaviour
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", ("127.0.0.1", self.port))
        self._thread.join()
        self._sock.close()

    def _serve(self) -> None:
        while True:
            data, peer = self._sock.recvfrom(4096)
            if not data:
                return
            asked = dnswire.question(data)
            assert asked
            self.seen.append((peer[1], int.from_bytes(data[:2], "big"), asked.qtype))
            for reply in self._behaviour(data, asked):
                self._sock.sendto(reply, peer)


def good(data: bytes, asked: dnswire.Question, rcode: int = 0, flags: int = dnswire.RA, *, records: int = 1) -> bytes:
    rdata = bytes(4 if asked.qtype == A else 16)
    record = dnswire.record(b"\xc0\x0c", asked.qtype, dnswire.IN, 30, rdata)
    return dnswire.reply(data, asked.end, rcode, flags=flags, answer=(record,) * (0 if rcode else records))


@pytest.mark.parametrize("recycles", [False, True])
@pytest.mark.parametrize("resolver", RESOLVERS)
def test_every_lookup_is_two_queries_from_one_port_and_ends_once(resolver: str, recycles: bool) -> None:
    with responder() as server:
        pairs = make(server.port, resolver=resolver, recycles=recycles, round_ns=5 * NS_PER_S)
        pairs.push(np.full(PRIME, time.monotonic_ns(), np.int64))
        while pairs.open or pairs.queued:
            pairs.run(time.monotonic_ns() + NS_PER_S)
        rows = np.sort(np.frombuffer(pairs.drain(), SAMPLE_DTYPE), order="seq")
        assert (pairs.sent, pairs.answered) == (2 * PRIME, 2 * PRIME)
        pairs.close()
    assert server.answered == 2 * PRIME
    assert rows["seq"].tolist() == list(range(PRIME))
    assert set(rows["outcome"]) == {Outcome.OK}
    assert (rows["sent_ns"] >= rows["due_ns"]).all()
    assert (rows["done_ns"] > rows["sent_ns"]).all()
    assert Counter(rows["tries"].tolist()) == {1: PRIME}


@pytest.mark.parametrize("recycles", [False, True])
def test_a_lookup_has_a_port_of_its_own_and_ids_of_its_own(recycles: bool) -> None:
    with Server(lambda data, asked: [good(data, asked)]) as server:
        look_up(make(server.port, recycles=recycles, round_ns=5 * NS_PER_S, max_open=1), 53)
        by_port = Counter(port for port, _, _ in server.seen)
    assert len(by_port) > 40  # a port may come again by chance
    assert len({ident for _, ident, _ in server.seen}) > 90
    assert [qtype for _, _, qtype in server.seen] == [A, AAAA] * 53


def rcode_of(rcode: int):
    return lambda data, asked: [good(data, asked, rcode)]


# resolver, behaviour, the detail, tries, lost
ENDS = {
    "glibc: NXDOMAIN": ("glibc", rcode_of(dnswire.NXDOMAIN), "NXDOMAIN", 1, 0),
    "glibc: no data": ("glibc", lambda d, a: [good(d, a, records=0)], "EAI_NODATA", 1, 0),
    "glibc: SERVFAIL": ("glibc", rcode_of(dnswire.SERVFAIL), "EAI_AGAIN", 2, 0),
    "glibc: REFUSED": ("glibc", rcode_of(dnswire.REFUSED), "EAI_AGAIN", 2, 0),
    "glibc: lame": ("glibc", lambda d, a: [good(d, a, flags=0, records=0)], "EAI_AGAIN", 2, 0),
    "glibc: FORMERR": ("glibc", rcode_of(dnswire.FORMERR), "NO_RECOVERY", 1, 0),
    "glibc: silence": ("glibc", lambda d, a: [], "EAI_AGAIN", 2, 4),
    "glibc: one SERVFAIL": ("glibc", lambda d, a: [good(d, a, 2 if a.qtype == A else 0)], "", 1, 0),
    "glibc: truncated": (
        "glibc",
        lambda d, a: [good(d, a, flags=dnswire.TC | dnswire.RA, records=0)],
        "truncated, and TCP is not spoken here",
        1,
        0,
    ),
    "glibc: twice": ("glibc", lambda d, a: [good(d, a)] * 2, "", 1, 0),
    "glibc: another's first": ("glibc", lambda d, a: [bytes(2) + good(d, a)[2:], good(d, a)], "", 1, 0),
    "glibc: AAAA never": (
        "glibc",
        lambda d, a: [good(d, a)] if a.qtype == A else [],
        "AAAA lost, answered without",
        3,
        3,
    ),
    "musl: NXDOMAIN": ("musl", rcode_of(dnswire.NXDOMAIN), "NXDOMAIN", 1, 0),
    "musl: no data": ("musl", lambda d, a: [good(d, a, records=0)], "EAI_NODATA", 1, 0),
    "old musl: no data": ("musl-1.2.3", lambda d, a: [good(d, a, records=0)], "no address", 1, 0),
    "musl: SERVFAIL": ("musl", rcode_of(dnswire.SERVFAIL), "EAI_AGAIN", 2, 4),
    "musl: REFUSED": ("musl", rcode_of(dnswire.REFUSED), "EAI_AGAIN", 2, 4),
    "musl: silence": ("musl", lambda d, a: [], "EAI_AGAIN", 2, 4),
    "musl: AAAA never": ("musl", lambda d, a: [good(d, a)] if a.qtype == A else [], "EAI_AGAIN", 2, 2),
}


@pytest.mark.parametrize(("resolver", "behaviour", "detail", "tries", "lost"), ENDS.values(), ids=ENDS)
def test_how_a_lookup_ends(resolver: str, behaviour, detail: str, tries: int, lost: int) -> None:
    with Server(behaviour) as server:
        # A round that is to expire is short; one that is not may take as long as a busy machine does.
        round_ns = 50_000_000 if lost else 20 * NS_PER_S
        rows, details = look_up(make(server.port, resolver=resolver, round_ns=round_ns, recycles=True), 3)
    assert (details, rows["tries"].tolist(), rows["lost"].tolist()) == ([detail] * 3, [tries] * 3, [lost] * 3)
    assert set(rows["outcome"]) == {Outcome.OK if not detail or "without" in detail else Outcome.FAIL}


class Forgetful:
    """Loses the first AAAA queries."""

    def __init__(self, times: int) -> None:
        self.left = times

    def __call__(self, data: bytes, asked: dnswire.Question) -> list[bytes]:
        self.left -= asked.qtype == AAAA
        return [] if asked.qtype == AAAA and self.left >= 0 else [good(data, asked)]


@pytest.mark.parametrize(
    ("times", "detail", "ports"),
    [
        (1, "AAAA lost, single-request fallback", [0, 0, 0, 0]),
        (2, "AAAA lost, single-request-reopen fallback", [0, 0, 0, 0, 1, 2]),
    ],
)
def test_glibc_falls_back_as_it_does(times: int, detail: str, ports: list[int]) -> None:
    with Server(Forgetful(times)) as server:
        details = look_up(make(server.port, round_ns=NS_PER_S // 2), 1)[1]
        numbers = list(dict.fromkeys(port for port, _, _ in server.seen))
        assert [numbers.index(port) for port, _, _ in server.seen] == ports
    assert details == [detail]


def test_musl_asks_for_what_is_missing_by_the_same_port_and_id() -> None:
    with Server(Forgetful(1)) as server:
        details = look_up(make(server.port, resolver="musl", round_ns=NS_PER_S // 2), 1)[1]
        assert [qtype for _, _, qtype in server.seen] == [A, AAAA, AAAA]
        assert server.seen[1] == server.seen[2]
        assert server.seen[0][0] == server.seen[1][0]
    assert details == ["AAAA lost, asked again"]


@pytest.mark.parametrize(("remembers", "second"), [(True, [A, A]), (False, [A, AAAA, A, AAAA])])
def test_a_fallback_is_remembered_if_wanted(remembers: bool, second: list[int]) -> None:
    """The second lookup is not answered at all: one that asks one by one never comes to its AAAA."""
    forgets, count = Forgetful(1), [0]

    def behaviour(data: bytes, asked: dnswire.Question) -> list[bytes]:
        count[0] += 1
        return forgets(data, asked) if count[0] <= 4 else []

    with Server(behaviour) as server:
        details = look_up(make(server.port, remembers=remembers, round_ns=NS_PER_S // 2, max_open=1), 2)[1]
    assert details == ["AAAA lost, single-request fallback", "EAI_AGAIN"]
    assert [qtype for _, _, qtype in server.seen[4:]] == second


def test_a_server_that_is_not_there_costs_no_time() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    rows, details = look_up(make(port, round_ns=60 * NS_PER_S), 3)
    assert details == ["EAI_AGAIN"] * 3
    assert rows["tries"].tolist() == [2] * 3


def test_what_is_not_over_is_abandoned_and_what_waited_says_so() -> None:
    with Server(lambda data, asked: []) as server:
        pairs = make(server.port, round_ns=60 * NS_PER_S, max_open=2)
        pairs.push(np.full(5, time.monotonic_ns(), np.int64))
        pairs.run(time.monotonic_ns() + 20_000_000)
        assert (pairs.open, pairs.queued) == (2, 3)
        pairs.abandon()
        rows = np.frombuffer(pairs.drain(), SAMPLE_DTYPE)
        pairs.close()
    assert [PAIRS_DETAILS[i] for i in rows["detail"]] == ["abandoned"] * 2 + ["too many open"] * 3
    assert set(rows["outcome"]) == {Outcome.UNKNOWN}
    assert rows["lost"].tolist() == [2, 2, 0, 0, 0]


def test_a_lookup_is_given_up_after_its_limit() -> None:
    with Server(lambda data, asked: []) as server:
        rows, details = look_up(make(server.port, round_ns=20_000_000, attempts=500, limit_ns=50_000_000), 2)
    assert details == ["timeout"] * 2
    assert ((rows["done_ns"] - rows["sent_ns"]) >= 50_000_000).all()


def test_nothing_is_sent_before_it_is_due() -> None:
    with responder() as server:
        pairs = make(server.port, round_ns=5 * NS_PER_S)
        due = time.monotonic_ns() + np.arange(1, 24, dtype=np.int64) * 2_000_000
        pairs.push(due)
        while pairs.open or pairs.queued:
            pairs.run(time.monotonic_ns() + NS_PER_S)
        rows = np.frombuffer(pairs.drain(), SAMPLE_DTYPE)
        pairs.close()
    assert len(rows) == 23
    assert (rows["sent_ns"] >= rows["due_ns"]).all()


WRONG = {
    "a port of 0": {"server": LOCAL + b"\0\0"},
    "half a message": {"queries": queries("a.test.")[:-3]},
    "nothing": {"queries": b""},
    "one query too few": {"queries": queries("a.test.", types=(A,))},
    "a name without an end": {"queries": dnswire.frame(bytes(12) + b"\x3f" + bytes(9))},
    "a resolver that is not known": {"resolver": "go"},
    "a mode that is not known": {"mode": 3},
    "no time": {"round_ns": 0},
    "no lookup at a time": {"max_open": 0},
}


@pytest.mark.parametrize("options", WRONG.values(), ids=WRONG)
def test_what_makes_no_sense_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        make(53, **options)


def test_due_times_ascend_and_a_closed_object_says_so() -> None:
    pairs = make(53)
    with pytest.raises(ValueError, match="ascend"):
        pairs.push(np.array([2, 1], np.int64))
    with pytest.raises(TypeError, match="64-bit"):
        pairs.push(np.array([1.0]))
    pairs.close()
    pairs.close()
    with pytest.raises(ValueError, match="closed"):
        pairs.drain()


@settings(max_examples=25)
@given(st.lists(st.binary(max_size=80), min_size=1, max_size=4), st.sampled_from(RESOLVERS), st.booleans())
def test_whatever_a_server_sends_lookups_end(noise: list[bytes], resolver: str, whole: bool) -> None:
    """Garbage as it is, and behind the right id and question."""

    def behaviour(data: bytes, asked: dnswire.Question) -> list[bytes]:
        return [data[:2] + (data[2 : asked.end] if whole else b"") + piece for piece in noise]

    with Server(behaviour) as server:
        rows, _ = look_up(make(server.port, resolver=resolver, round_ns=10_000_000, recycles=True), 5)
    assert rows["seq"].tolist() == list(range(5))


def test_the_responder_answers_whole_queries_only() -> None:
    with responder() as server, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(20)
        client.connect(("127.0.0.1", server.port))
        for junk in (b"", b"x" * 11, bytes(12), bytes(5) + b"\1" + bytes(6) + b"\x3fabc"):
            client.send(junk)
        for qtype in (A, AAAA, dnswire.TXT):
            asked = dnswire.query(qtype, dnswire.name("a.test.") or b"", qtype, edns=True)
            client.send(asked.wire)
            reply = client.recv(4096)
            assert dnswire.answers(asked, reply)
            found = dnswire.addresses(reply, qtype)
            assert [len(address) for address in found or ()] == {A: [4], AAAA: [16]}.get(qtype, [])
