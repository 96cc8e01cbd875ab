"""A node with two client pods and a server pod, wired as Cilium wires them: a /32 each, the node as their router."""

from __future__ import annotations

import itertools
import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from loadgen.core import conntrack
from loadgen.kernel import netns
from loadgen.kernel.bpf import ANY_MAP, TCP_MAP, CtDatapath
from loadgen.kernel.links import Links

GATEWAY = "10.244.0.1"
ADDRESSES = {"one": "10.244.0.2", "two": "10.244.0.3", "server": "10.244.0.4"}


class Rig(NamedTuple):
    node: Path
    pods: dict[str, Path]
    interfaces: dict[str, int]

    def attach(self, datapath: CtDatapath) -> None:
        for index in self.interfaces.values():
            netns.call(self.node, datapath.attach, index)

    def socket(self, pod: str, kind: socket.SocketKind, port: int = 0, protocol: int = 0) -> socket.socket:
        """A socket belongs to the namespace it was made in, whoever uses it."""
        made = netns.call(self.pods[pod], socket.socket, socket.AF_INET, kind, protocol)
        made.settimeout(5)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((ADDRESSES[pod], port))
        return made

    def listen(self, port: int) -> socket.socket:
        server = self.socket("server", socket.SOCK_STREAM, port)
        server.listen(64)
        return server

    def connect(self, pod: str, sport: int, server: socket.socket) -> tuple[socket.socket, socket.socket]:
        """A connection from `pod`'s port `sport`, with a byte sent and received: (client's end, server's end)."""
        client = self.socket(pod, socket.SOCK_STREAM, sport)
        client.connect(server.getsockname())
        accepted, _ = server.accept()
        client.sendall(b"q")
        accepted.recv(1)
        accepted.sendall(b"a")
        client.recv(1)
        return client, accepted


@pytest.fixture(scope="session")
def rig(lab_dir: Path) -> Iterator[Rig]:
    node = lab_dir / "netns" / "rig-node"
    pods = {name: lab_dir / "netns" / f"rig-{name}" for name in ADDRESSES}
    for path in (node, *pods.values()):
        netns.create(path)
    netns.sysctl(node, "net.ipv4.ip_forward", 1)
    with Links(node) as links:
        links.address("lo", f"{GATEWAY}/32")
        for name, path in pods.items():
            links.veth(f"lxc-{name}", "eth0", path)
            links.route(f"{ADDRESSES[name]}/32", dev=f"lxc-{name}")
            with Links(path) as inside:
                inside.up("eth0")
                inside.address("eth0", f"{ADDRESSES[name]}/32")
                inside.route(f"{GATEWAY}/32", dev="eth0")
                inside.route("default", via=GATEWAY)
        yield Rig(node, pods, {name: links.index(f"lxc-{name}") for name in pods})
    for path in (node, *pods.values()):
        netns.delete(path)


_pins = itertools.count()


@pytest.fixture
def pin_dir(lab_dir: Path) -> Iterator[Path]:
    """A directory of its own on the bpffs, empty again afterwards."""
    path = lab_dir / "bpf" / f"globals-{next(_pins)}"
    yield path
    for pin in path.glob("*"):
        pin.unlink()


@pytest.fixture
def datapath(rig: Rig, pin_dir: Path) -> Iterator[CtDatapath]:
    """Empty tables, attached to the rig's three pods."""
    with CtDatapath.load(pin_dir, 16_384, 16_384) as loaded:
        rig.attach(loaded)
        yield loaded


Table = dict[bytes, bytes]


@pytest.fixture
def table(pin_dir: Path) -> Callable[[str], Table]:
    """`table("tcp")` or `table("any")`: raw keys and values, as bpftool reads them."""

    def dump(kind: str) -> Table:
        pin = pin_dir / {"tcp": TCP_MAP, "any": ANY_MAP}[kind]
        command = ["bpftool", "map", "dump", "pinned", str(pin), "-j"]
        done = subprocess.run(command, capture_output=True, check=True)
        rows = json.loads(done.stdout)
        return {raw(row["key"]): raw(row["value"]) for row in rows}

    return dump


def raw(cells: list[str]) -> bytes:
    return bytes(int(cell, 16) for cell in cells)


def eventually(look: Callable[[], bool], seconds: float = 5) -> bool:
    """A packet may still be on its way when the system call that sent it is over."""
    deadline = time.monotonic() + seconds
    while not look():
        if time.monotonic() > deadline:
            return False
    return True


def key(pod: str, sport: int, peer: str, dport: int, flags: int, proto: int = conntrack.TCP) -> bytes:
    row = np.zeros(1, dtype=conntrack.CT_KEY_DTYPE)
    originator, responder = (int(IPv4Address(ADDRESSES.get(name, name))) for name in (pod, peer))
    row[0] = (originator, responder, dport, sport, proto, flags)
    return row.tobytes()
