"""The lab's name server on a thread, questions to it, and a window for drivers."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np

from loadgen.core import dnswire
from loadgen.core.samples import SAMPLE_DTYPE, SampleBatch
from loadgen.kernel import netns
from loadgen.lab.dnsserver import DnsServer, DnsServerConfig, LoggedQuery

NAME = "datanode.hdfs.svc.cluster.local."


@contextmanager
def dns_server(
    address: str = "127.0.0.1", *, port: int = 0, namespace: Path | None = None, **config: object
) -> Iterator[DnsServer]:
    """A running server; port 0 is any that is free for UDP and TCP."""
    whole = DnsServerConfig(address=address, port=port, **{"names": (NAME,), **config})
    server = netns.call(namespace, bound, whole)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()


def bound(config: DnsServerConfig) -> DnsServer:
    for _ in range(20):
        try:
            return DnsServer(config)
        except OSError as error:  # somebody else has the TCP port of that number
            if config.port or error.errno != errno.EADDRINUSE:
                raise
    raise AssertionError("no free port")


def logged(path: Path) -> list[LoggedQuery]:
    return [msgspec.json.decode(line, type=LoggedQuery) for line in path.read_bytes().splitlines()]


def query(name: str = NAME, qtype: int = dnswire.A, ident: int = 1, **options: object) -> bytes:
    qname = dnswire.name(name)
    assert qname
    return dnswire.query(ident, qname, qtype, **options).wire


def ask(
    port: int, *messages: bytes, address: str = "127.0.0.1", stream: bool = False, limit: float = 5
) -> list[bytes]:
    """Send all from one socket; the replies in the order they come, as many as there are messages."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM if stream else socket.SOCK_DGRAM) as sock:
        sock.settimeout(limit)
        sock.connect(("127.0.0.1", port))
        if not stream:
            for message in messages:
                sock.send(message)
            return [sock.recv(65535) for _ in messages]
        sock.sendall(b"".join(map(dnswire.frame, messages)))
        buffer, replies = bytearray(), []
        while len(replies) < len(messages):
            data = sock.recv(65535)
            if not data:
                break
            buffer += data
            replies += dnswire.unframe(buffer)
        return replies


class Window:
    """ports.Window that begins now."""

    def __init__(self, seconds: float, *, seed: int = 7) -> None:
        self.phase = "measure"
        self.seed = seed
        self.start_ns = time.monotonic_ns()
        self.end_ns = self.start_ns + int(seconds * 1e9)
        self.stop = threading.Event()

    def stopped(self) -> bool:
        return self.stop.is_set()


class Samples:
    """What a driver emitted: rows in order of `seq`, and their details as words."""

    def __init__(self, batches: list[SampleBatch]) -> None:
        rows = np.concatenate([np.zeros(0, SAMPLE_DTYPE), *(b.array() for b in batches)])
        details = [b.details[d] for b in batches for d in b.array()["detail"]]
        order = np.argsort(rows["seq"])
        self.rows = rows[order]
        self.details = [details[i] for i in order]
