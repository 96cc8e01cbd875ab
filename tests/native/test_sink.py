"""Sink against clients of the test's own: what it answers, when it hangs up, and what it counts."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from loadgen.core.samples import Outcome
from loadgen.native import Sink
from tests.storms import (
    MS,
    REPLY,
    REQUEST,
    descriptors_left,
    due_in,
    make_storm,
    outcomes,
    read_exactly,
    run_to_the_end,
    served,
    target,
)


@pytest.fixture
def sink() -> Iterator[Sink]:
    """A sink at work. Its counters are exact once `served` has ended: it counts just after its peer may go on."""
    with closing(Sink(0, REQUEST, REPLY)) as made, served(made):
        yield made


def test_it_answers_each_request_and_closes_after_its_peer() -> None:
    with closing(Sink(0, REQUEST, REPLY)) as sink:
        with served(sink), socket.create_connection(("127.0.0.1", sink.port), timeout=5) as client:
            for part in (b"x" * 30, b"x" * 70, b"x" * 250):
                client.sendall(part)
            assert read_exactly(client, 3 * REPLY) == b"y" * 3 * REPLY
            assert select.select([client], [], [], 0.02)[0] == []  # half a request is no request; nobody hangs up
            client.shutdown(socket.SHUT_WR)
            assert client.recv(1) == b""
        assert (sink.accepted, sink.served, sink.open) == (1, 3, 0)


def test_it_answers_a_peer_that_has_said_its_last_word(sink: Sink) -> None:
    with socket.create_connection(("127.0.0.1", sink.port)) as client:
        client.settimeout(5)
        client.sendall(b"x" * REQUEST)
        client.shutdown(socket.SHUT_WR)
        assert read_exactly(client, REPLY) == b"y" * REPLY
        assert client.recv(1) == b""


def test_a_sink_out_of_descriptors_accepts_again_when_a_peer_leaves() -> None:
    with closing(Sink(0, 1, 1)) as sink, ExitStack() as clients_open:
        clients = [socket.create_connection(("127.0.0.1", sink.port), timeout=5) for _ in range(6)]
        for client in clients:
            clients_open.enter_context(client).sendall(b"x")
        with descriptors_left(2):
            sink.run(time.monotonic_ns() + 20 * MS)
            assert (sink.accepted, sink.served, sink.open) == (2, 2, 2)
            assert select.select(clients[2:], [], [], 0)[0] == []
        for client in clients[:2]:
            client.close()
        sink.run(time.monotonic_ns() + 20 * MS)
        assert (sink.accepted, sink.open) == (6, 4)
        assert [client.recv(1) for client in clients[2:]] == [b"y"] * 4


def test_a_port_that_is_taken_is_an_os_error(sink: Sink) -> None:
    with pytest.raises(OSError, match="in use"):
        Sink(sink.port, 1, 1)


@pytest.fixture
def ports() -> Iterator[int]:
    """The first of three ports in a row that were free a moment ago."""
    for first in range(20_011, 30_000, 3):
        with ExitStack() as taken:
            try:
                for port in range(first, first + 3):
                    taken.enter_context(socket.create_server(("0.0.0.0", port)))
            except OSError:
                continue
        yield first
        return


def test_every_port_of_its_range_is_served(ports: int) -> None:
    with closing(Sink(ports, REQUEST, REPLY, ports=3)) as sink:
        targets = b"".join(target("127.0.0.1", port) for port in range(ports, ports + 3))
        with served(sink), closing(make_storm(0, targets=targets)) as storm:
            storm.push(due_in(0, 23))
            assert outcomes(run_to_the_end(storm)) == {(Outcome.OK, ""): 23}
        assert (sink.port, sink.accepted, sink.served) == (ports, 23, 23)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", ports + 3), timeout=5)


def test_out_of_descriptors_no_port_accepts_until_a_peer_leaves(ports: int) -> None:
    with closing(Sink(ports, 1, 1, ports=3)) as sink, ExitStack() as clients_open:
        clients = [socket.create_connection(("127.0.0.1", ports + i % 3), timeout=5) for i in range(6)]
        for client in clients:
            clients_open.enter_context(client).sendall(b"x")
        with descriptors_left(2):
            sink.run(time.monotonic_ns() + 20 * MS)
            assert (sink.accepted, sink.served) == (2, 2)
        for client in clients:
            if select.select([client], [], [], 0)[0]:
                client.close()
        sink.run(time.monotonic_ns() + 20 * MS)
        assert (sink.accepted, sink.open) == (6, 4)


def test_a_port_of_the_range_that_is_taken_is_an_os_error_and_frees_the_others(ports: int) -> None:
    with socket.create_server(("0.0.0.0", ports + 2)), pytest.raises(OSError, match="in use"):
        Sink(ports, 1, 1, ports=3)
    with closing(Sink(ports, 1, 1, ports=3)) as sink:
        assert sink.port == ports


@pytest.mark.parametrize(("port", "n"), [(0, 2), (65_535, 2), (9, 0)])
def test_a_range_of_ports_that_cannot_be(port: int, n: int) -> None:
    with pytest.raises(ValueError, match="ports is"):
        Sink(port, 1, 1, ports=n)


def test_a_closed_sink_keeps_its_counters() -> None:
    with closing(Sink(0, REQUEST, REPLY)) as sink:
        with served(sink), closing(make_storm(sink.port)) as storm:
            storm.push(due_in(0, 23))
            assert len(run_to_the_end(storm)) == 23
        sink.close()
        assert (sink.accepted, sink.served, sink.open) == (23, 23, 0)
        with pytest.raises(ValueError, match="closed"):
            sink.run(0)
