"""The cache on the node, between real clients and the lab's real name server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import dns.message
import dns.rcode
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.core import dnswire
from loadgen.core.dnswire import AAAA, CH, TXT, A
from loadgen.core.units import Duration
from loadgen.lab import nodelocal
from loadgen.lab.dnszone import Rule
from loadgen.lab.nodelocal import NodeLocal, NodeLocalConfig, NodeLocalStats
from tests.ports import free_ports
from tests.realdns import ask, dns_server, logged, query

STATS = dnswire.query(9, dnswire.STATS_NAME, TXT, qclass=CH).wire


@contextmanager
def cache(upstream: int, **config: object) -> Iterator[int]:
    """A running cache; the port it listens on."""
    port = free_ports()
    made = NodeLocalConfig(listen=("127.0.0.1",), port=port, upstream="127.0.0.1", upstream_port=upstream, **config)
    ready, ends = threading.Event(), []

    async def serve() -> None:
        stopped = asyncio.Event()
        ends.append(partial(asyncio.get_running_loop().call_soon_threadsafe, stopped.set))
        await NodeLocal(made).run(ready.set, stopped)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(10)
    try:
        yield port
    finally:
        ends[0]()
        thread.join()


def stats(port: int) -> NodeLocalStats:
    (reply,) = ask(port, STATS)
    return msgspec.json.decode(dnswire.strings(reply) or b"", type=NodeLocalStats)


def rcode(reply: bytes) -> str:
    return dns.rcode.to_text(dns.message.from_wire(reply).rcode())


@pytest.mark.parametrize("stream", [False, True])
def test_the_second_time_comes_from_the_cache(tmp_path: Path, stream: bool) -> None:
    log = tmp_path / "queries.jsonl"
    with dns_server(log=str(log)) as server, cache(server.port) as port:
        pair = (query(qtype=A, ident=1), query(qtype=AAAA, ident=2))
        first = sorted(ask(port, *pair, stream=stream))
        again = sorted(ask(port, *pair, stream=stream))
        assert [dnswire.addresses(r, t) for r, t in zip(again, (A, AAAA), strict=True)] == [
            dnswire.addresses(r, t) for r, t in zip(first, (A, AAAA), strict=True)
        ]
        assert [r[:2] for r in again] == [b"\0\1", b"\0\2"]
        twice = {"A": 2, "AAAA": 2}
        assert stats(port) == NodeLocalStats(twice, twice, 2, 2, 0, 2, 0, 0)
    assert {q.transport for q in logged(log)} == {"tcp"}


def test_upstream_connections_are_used_again(tmp_path: Path) -> None:
    log = tmp_path / "queries.jsonl"
    with dns_server(log=str(log)) as server, cache(server.port) as port:
        for i in range(5):
            ask(port, query(f"no-such-name-{i}."))
    assert (len(logged(log)), len({q.port for q in logged(log)})) == (5, 1)


def test_a_name_that_is_being_asked_for_is_asked_for_once(tmp_path: Path) -> None:
    log = tmp_path / "queries.jsonl"
    with dns_server(log=str(log), delay=Duration(50_000_000)) as server, cache(server.port) as port:
        replies = ask(port, *(query(ident=i) for i in range(10)))
        assert sorted(int.from_bytes(r[:2], "big") for r in replies) == list(range(10))
        got = stats(port)
    assert (len(logged(log)), got.misses, got.coalesced, got.hits) == (1, 10, 9, 0)


def test_that_a_name_does_not_exist_is_remembered_too() -> None:
    with dns_server() as server, cache(server.port) as port:
        for _ in range(2):
            (reply,) = ask(port, query("no-such-name."))
            assert rcode(reply) == "NXDOMAIN"
            assert dns.message.from_wire(reply).authority[0].ttl == 5
        assert (stats(port).hits, stats(port).forwarded) == (1, 1)


def test_a_silent_upstream_is_asked_again_on_a_new_connection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(nodelocal, "READ_LIMIT_S", 0.1)
    log = tmp_path / "queries.jsonl"
    with dns_server(log=str(log), rules=(Rule("drop", times=1),)) as server, cache(server.port) as port:
        assert rcode(ask(port, query())[0]) == "NOERROR"
        assert (stats(port).forwarded, stats(port).failures) == (2, 1)
    assert len({q.port for q in logged(log)}) == 2


@pytest.mark.parametrize("silent", [True, False])
def test_an_upstream_that_does_not_answer_is_a_servfail(monkeypatch: pytest.MonkeyPatch, silent: bool) -> None:
    monkeypatch.setattr(nodelocal, "READ_LIMIT_S", 0.2)
    monkeypatch.setattr(nodelocal, "TOTAL_LIMIT_S", 0.5)
    with dns_server(rules=(Rule("drop"),)) as server, cache(server.port if silent else free_ports()) as port:
        began = time.monotonic()
        (reply,) = ask(port, query())
        assert rcode(reply) == "SERVFAIL"
        assert time.monotonic() - began >= 0.5
        assert stats(port).failures >= 3


def test_it_finds_back_to_an_upstream_that_was_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodelocal, "TOTAL_LIMIT_S", 0.3)
    upstream = free_ports()
    with cache(upstream) as port:
        with dns_server(port=upstream):
            assert rcode(ask(port, query("a."))[0]) == "NXDOMAIN"  # leaves an idle connection behind
        assert rcode(ask(port, query("b."))[0]) == "SERVFAIL"
        with dns_server(port=upstream):
            assert rcode(ask(port, query("c."))[0]) == "NXDOMAIN"


def test_a_large_answer_goes_to_udp_clients_that_can_take_it() -> None:
    many = tuple(dnswire.record(b"\xc0\x0c", A, dnswire.IN, 30, bytes((192, 0, 2, i))) for i in range(60))

    def serve_one(listener: socket.socket) -> None:
        with listener, listener.accept()[0] as client:
            message = dnswire.unframe(bytearray(client.recv(500)))[0]
            client.sendall(dnswire.frame(dnswire.reply(message, len(message), 0, answer=many)))

    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=serve_one, args=(listener,))
    thread.start()
    with cache(listener.getsockname()[1]) as port:
        small, large = ask(port, query(), query(edns=True, ident=2))
        (whole,) = ask(port, query(), stream=True)
    thread.join()
    assert dns.message.from_wire(small).flags & dnswire.TC
    assert [len(dnswire.addresses(r, A) or ()) for r in (small, large, whole)] == [0, 60, 60]


@pytest.fixture(scope="module")
def ports() -> Iterator[int]:
    with dns_server() as server, cache(server.port) as port:
        yield port


@settings(deadline=None, max_examples=100)
@given(messages=st.lists(st.binary(max_size=60), max_size=5), framed=st.booleans())
def test_garbage_does_not_stop_it(ports: int, messages: list[bytes], framed: bool) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        for message in messages:
            udp.sendto(message, ("127.0.0.1", ports))
            udp.sendto(query()[: 2 + len(message)] + message, ("127.0.0.1", ports))
    with socket.create_connection(("127.0.0.1", ports)) as tcp:
        tcp.sendall(b"".join(dnswire.frame(m) if framed else m for m in messages))
    assert dns.message.from_wire(ask(ports, query(ident=77))[0]).id == 77
    assert dns.message.from_wire(ask(ports, query(ident=78), stream=True)[0]).id == 78


def test_the_process_is_ready_serves_and_ends_with_its_counts(tmp_path: Path) -> None:
    path, port = tmp_path / "config.json", free_ports()
    with dns_server() as server:
        config = {"listen": ["127.0.0.1"], "port": port, "upstream": "127.0.0.1", "upstream_port": server.port}
        path.write_text(json.dumps(config))
        command = [sys.executable, "-m", "loadgen.lab.nodelocal", str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            ask(port, query(qtype=A), query(qtype=AAAA))
            os.kill(process.pid, signal.SIGTERM)
            out, err = process.communicate(timeout=10)
    assert (process.returncode, err) == (0, "")
    assert msgspec.json.decode(out, type=NodeLocalStats).queries == {"A": 1, "AAAA": 1}
