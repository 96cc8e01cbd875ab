"""What tests of the storm share: storms with defaults, a sink at work, and servers that are not under test."""

from __future__ import annotations

import itertools
import os
import resource
import socket
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

from loadgen.core.samples import SAMPLE_DTYPE, Outcome
from loadgen.native import STORM_DETAILS, Sink, Storm

MS = 1_000_000
S = 1_000 * MS
REQUEST, REPLY = 100, 70


def target(address: str, port: int) -> bytes:
    """As Storm takes it."""
    return socket.inet_aton(address) + port.to_bytes(2, "big")


def make_storm(
    port: int,
    *,
    targets: bytes | None = None,
    close: str = "fin",
    timeout_ns: int = 5 * S,
    max_open: int = 256,
    request_bytes: int = REQUEST,
    reply_bytes: int = REPLY,
) -> Storm:
    """`port`: of the one target, on loopback, when no `targets` are given."""
    return Storm(
        targets=target("127.0.0.1", port) if targets is None else targets,
        request_bytes=request_bytes,
        reply_bytes=reply_bytes,
        close=close,
        timeout_ns=timeout_ns,
        max_open=max_open,
    )


def rows(storm: Storm) -> np.ndarray:
    return np.frombuffer(storm.drain(), SAMPLE_DTYPE)


def outcomes(samples: np.ndarray) -> Counter[tuple[Outcome, str]]:
    return Counter((Outcome(row["outcome"]), STORM_DETAILS[row["detail"]]) for row in samples)


def due_in(ns: int, n: int = 1, every_ns: int = 0) -> array[int]:
    start = time.monotonic_ns() + ns
    return array("q", [start + i * every_ns for i in range(n)])


def run_to_the_end(storm: Storm, within_ns: int = 20 * S) -> np.ndarray:
    storm.run(time.monotonic_ns() + within_ns)
    assert (storm.open, storm.queued) == (0, 0)
    return rows(storm)


@contextmanager
def served(sink: Sink) -> Iterator[Sink]:
    """The sink at work in a thread."""
    done = threading.Event()

    def serve() -> None:
        while not done.is_set():
            sink.run(time.monotonic_ns() + 20 * MS)

    with ThreadPoolExecutor(1) as pool:
        server = pool.submit(serve)
        try:
            yield sink
        finally:
            done.set()
        server.result()


@contextmanager
def raw_server(serve: Callable[[socket.socket], bytes], backlog: int = 16) -> Iterator[tuple[int, Future[bytes]]]:
    """(port, what `serve` made of the first connection): a server that is not the code under test."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=backlog)

    def first() -> bytes:
        with listener.accept()[0] as connection:
            connection.settimeout(5)
            return serve(connection)

    with listener, ThreadPoolExecutor(1) as pool:
        yield listener.getsockname()[1], pool.submit(first)


@contextmanager
def mute_server(port: int = 0) -> Iterator[int]:
    """The port of a server whose kernel accepts connections and data, and which never says a word."""
    with socket.create_server(("127.0.0.1", port), backlog=64) as server:
        yield server.getsockname()[1]


@contextmanager
def closed_port() -> Iterator[int]:
    """A port that refuses connections and that nobody else gets meanwhile: bound, and not listening."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


def open_descriptors() -> set[str]:
    """Less the one that was open to list them."""
    return {name for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")}


@contextmanager
def descriptors_left(n: int) -> Iterator[None]:
    """This process can open `n` more descriptors."""
    taken = {int(name) for name in open_descriptors()}
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = (number for number in itertools.count() if number not in taken)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(itertools.islice(free, n, None)), limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def read_exactly(connection: socket.socket, n: int) -> bytes:
    got = b""
    while len(got) < n:
        part = connection.recv(n - len(got))
        assert part, f"the client closed after {len(got)} of {n} bytes"
        got += part
    return got
