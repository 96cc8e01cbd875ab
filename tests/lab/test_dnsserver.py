"""The server on real sockets: UDP and TCP, late answers, garbage, and the process around it."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import dns.message
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadgen.core import dnswire
from loadgen.core.dnswire import AAAA, CH, TXT, A, ServerStats
from loadgen.core.units import Duration
from loadgen.lab import dnsserver
from loadgen.lab.dnsserver import DnsServer, DnsServerConfig
from loadgen.lab.dnszone import Rule
from tests.realdns import NAME, ask, dns_server, logged, query

MS = 1_000_000
STATS = dnswire.query(9, dnswire.STATS_NAME, TXT, qclass=CH).wire


def stats(port: int, *, stream: bool = False) -> ServerStats:
    (reply,) = ask(port, STATS, stream=stream)
    return msgspec.json.decode(dnswire.strings(reply) or b"", type=ServerStats)


def test_a_stop_that_comes_too_late_writes_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """`run` may see the flag and end before `stop` gets to wake it."""
    write = os.eventfd_write
    written: list[str] = []

    def late(fd: int, value: int) -> None:
        ask(server.port, query())  # wakes it
        thread.join()
        written.append(os.readlink(f"/proc/self/fd/{fd}"))
        write(fd, value)

    server = DnsServer(DnsServerConfig(names=(NAME,), port=0, address="127.0.0.1"))
    thread = threading.Thread(target=server.run)
    thread.start()
    monkeypatch.setattr(os, "eventfd_write", late)
    server.stop()
    assert written == ["anon_inode:[eventfd]"]  # still its own, no other file that took the number
    monkeypatch.undo()
    server.stop()


def test_a_port_that_is_free_in_one_protocol_only_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    bind, tried = dnsserver._bind_both, list[int]()

    def taken_twice(address: str, port: int) -> tuple[socket.socket, socket.socket]:
        tried.append(port)
        if len(tried) < 3:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        return bind(address, port)

    monkeypatch.setattr(dnsserver, "_bind_both", taken_twice)
    with dns_server() as server:
        assert ask(server.port, query())
        assert tried == [0, 0, 0]
        with pytest.raises(OSError, match="in use"):
            DnsServer(DnsServerConfig(names=(NAME,), port=server.port, address="127.0.0.1"))


@pytest.mark.parametrize("stream", [False, True])
def test_a_pair_from_one_socket_is_answered_and_counted(stream: bool) -> None:
    with dns_server() as server:
        replies = ask(server.port, query(qtype=A, ident=1), query(qtype=AAAA, ident=2), stream=stream)
        assert [dns.message.from_wire(r).id for r in replies] == [1, 2]
        assert all(dnswire.addresses(r, t) for r, t in zip(replies, (A, AAAA), strict=True))
        one_each = {"A": 1, "AAAA": 1}
        assert stats(server.port) == stats(server.port, stream=True) == ServerStats(one_each, one_each)


@pytest.mark.parametrize("stream", [False, True])
def test_a_late_answer_does_not_hold_up_the_next(stream: bool) -> None:
    with dns_server(delay=Duration(50 * MS)) as server:
        began = time.monotonic_ns()
        assert len(ask(server.port, *(query(ident=i) for i in range(40)), stream=stream)) == 40
        took = time.monotonic_ns() - began
        assert 50 * MS <= took < 40 * 50 * MS


def test_lost_queries_are_counted_and_logged(tmp_path: Path) -> None:
    log = tmp_path / "queries.jsonl"
    with dns_server(log=str(log), rules=(Rule("drop", "AAAA"),)) as server:
        assert len(ask(server.port, query(qtype=A, ident=7))) == 1
        with pytest.raises(TimeoutError):
            ask(server.port, query(qtype=AAAA, ident=8), limit=0.1)
        assert stats(server.port) == ServerStats({"A": 1, "AAAA": 1}, {"A": 1})
    seen = logged(log)
    assert [(q.transport, q.id, q.name, q.qtype, q.answered) for q in seen] == [
        ("udp", 7, NAME, A, True),
        ("udp", 8, NAME, AAAA, False),
    ]
    assert len({q.port for q in seen}) == 2


def test_a_tcp_client_may_end_its_half_before_the_answer_comes() -> None:
    with dns_server(delay=Duration(30 * MS)) as server, socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.settimeout(5)
        sock.sendall(dnswire.frame(query()))
        sock.shutdown(socket.SHUT_WR)
        stream = sock.makefile("rb").read()  # to the end, which the server makes
        assert len(dnswire.unframe(bytearray(stream))) == 1


def test_a_tcp_client_that_goes_away_disturbs_nobody() -> None:
    with dns_server(delay=Duration(20 * MS)) as server:
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", server.port)) as sock:
                sock.sendall(dnswire.frame(query()) * 3)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close sends a RST
        assert len(ask(server.port, query(), stream=True)) == 1


def test_the_oldest_connection_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dnsserver, "MAX_CONNECTIONS", 2)
    with dns_server() as server:
        clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3)]
        for client in clients:
            client.settimeout(5)
        clients[2].sendall(dnswire.frame(query()))
        assert clients[2].recv(500)
        assert clients[0].recv(500) == b""
        for client in clients:
            client.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
@given(st.lists(st.binary(max_size=60), max_size=5), st.booleans())
def test_garbage_does_not_stop_it(port: int, messages: list[bytes], framed: bool) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        for message in messages:
            udp.sendto(message, ("127.0.0.1", port))
            udp.sendto(query()[: 2 + len(message)] + message, ("127.0.0.1", port))
    with socket.create_connection(("127.0.0.1", port)) as tcp:
        try:
            tcp.sendall(b"".join(dnswire.frame(m) if framed else m for m in messages))
        except ConnectionError:
            pass  # it need not hear us out
    assert dns.message.from_wire(ask(port, query(ident=77))[0]).id == 77
    assert dns.message.from_wire(ask(port, query(ident=78), stream=True)[0]).id == 78


@pytest.fixture(scope="module")
def port() -> object:
    with dns_server() as server:
        yield server.port


def start(tmp_path: Path, **config: object) -> subprocess.Popen[str]:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"address": "127.0.0.1", **config}))
    command = [sys.executable, "-m", "loadgen.lab.dnsserver", str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_process_is_ready_serves_and_ends_with_its_counts(tmp_path: Path) -> None:
    with dns_server() as probe:
        port = probe.port  # free again in a moment
    with start(tmp_path, port=port, names=[NAME], delay="1ms", loss=0.0, seed=3) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        ask(port, query(qtype=A), query(qtype=AAAA))
        os.kill(process.pid, signal.SIGTERM)
        out, err = process.communicate(timeout=10)
    assert json.loads(out) == {"queries": {"A": 1, "AAAA": 1}, "answers": {"A": 1, "AAAA": 1}}
    assert (process.returncode, err) == (0, "")


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"loss": 2}, "`float` <= 1.0 - at `$.loss`"),
        ({"lost": 1}, "unknown field `lost`"),
        ({"names": ["a..b"]}, "empty label"),
        ({"address": "192.0.2.1"}, "Cannot assign requested address"),
    ],
)
def test_a_process_that_cannot_serve_says_why_in_a_line(tmp_path: Path, config: dict[str, object], says: str) -> None:
    with start(tmp_path, **{"port": 0, **config}) as process:
        out, err = process.communicate(timeout=10)
    assert (process.returncode, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("dnsserver: ")
    assert says in err


def test_no_thread_is_left() -> None:
    before = threading.active_count()
    with dns_server():
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
