"""serve_sink: ready once it listens, serves until it is told to stop, and leaves nothing open."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from loadgen.drivers.sink import serve_sink
from tests.ports import free_ports


def test_it_serves_from_ready_until_stopped() -> None:
    port, ready, stop = free_ports(), threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        server = pool.submit(serve_sink, port, 10, 4, stop.is_set, ready.set)
        assert ready.wait(30)
        for _ in range(23):
            with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
                client.sendall(b"x" * 10)
                client.shutdown(socket.SHUT_WR)
                assert client.makefile("rb").read() == b"yyyy"
        stop.set()
        assert server.result(30) == 23
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_it_serves_every_port_of_a_range() -> None:
    first, stop, ready = free_ports(2), threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        server = pool.submit(serve_sink, first, 10, 4, stop.is_set, ready.set, ports=2)
        assert ready.wait(30)
        for port in (first, first + 1):
            with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
                client.sendall(b"x" * 10)
                client.shutdown(socket.SHUT_WR)
                assert client.makefile("rb").read() == b"yyyy"
        stop.set()
        assert server.result(30) == 2


def test_a_taken_port_is_an_error_and_never_ready() -> None:
    ready = threading.Event()
    with socket.create_server(("0.0.0.0", 0)) as other, pytest.raises(OSError, match="in use"):
        serve_sink(other.getsockname()[1], 10, 4, lambda: True, ready.set)
    assert not ready.is_set()
