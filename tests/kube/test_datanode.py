"""The datanode pod's server: many ports, several storms, and what happens when it cannot have a port."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from loadgen.kube.datanode import DatanodeConfig, Server, serve
from loadgen.kube.exchange import Targets
from tests.ports import free_ports


def ask(address: str, port: int, request: int) -> bytes:
    with socket.create_connection((address, port), timeout=5) as client:
        client.sendall(b"x" * request)
        client.shutdown(socket.SHUT_WR)
        return client.makefile("rb").read()


def test_every_storm_has_its_ports_and_its_sizes(tmp_path: Path) -> None:
    first = free_ports(5)
    config = DatanodeConfig((Server(first, 3, 10, 4), Server(first + 3, 2, 20, 6)))
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(config))
    ready = tmp_path / "ready"
    command = [sys.executable, "-m", "loadgen.kube.datanode", str(tmp_path / "config.json"), str(ready)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            while not ready.exists():
                assert process.poll() is None
            for address, port in Targets(("127.0.0.1", "127.0.0.2"), first, 3).pairs(5):
                assert ask(str(address), port, 10) == b"yyyy"
            assert ask("127.0.0.1", first + 4, 20) == b"y" * 6
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=10)[0] == "served 6\n"
        assert process.returncode == 0


def test_one_port_that_is_taken_ends_all_and_is_never_ready(tmp_path: Path) -> None:
    first = free_ports(5)
    ready = tmp_path / "ready"
    with socket.create_server(("0.0.0.0", first + 4)), pytest.raises(OSError, match="in use"):
        serve(DatanodeConfig((Server(first, 3, 1, 1), Server(first + 3, 2, 1, 1))), ready, threading.Event())
    assert not ready.exists()


def test_pairs_are_all_different_and_spread_over_the_addresses() -> None:
    pairs = Targets(("10.0.0.1", "10.0.0.2", "10.0.0.3"), 50010, 167).pairs(500)
    assert len(set(pairs)) == 500
    assert {port for _, port in pairs} == set(range(50010, 50010 + 167))
    per_address = [sum(str(address) == f"10.0.0.{n}" for address, _ in pairs) for n in (1, 2, 3)]
    assert per_address == [167, 167, 166]
