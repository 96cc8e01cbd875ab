"""The storm's server: what a datanode is to an HDFS client, less the data."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

from loadgen.drivers.limits import raise_open_files
from loadgen.native import Sink

TURN_NS = 100_000_000


def serve_sink(
    port: int,
    request_bytes: int,
    reply_bytes: int,
    stopped: Callable[[], bool],
    ready: Callable[[], None] | None = None,
    *,
    ports: int = 1,
) -> int:
    """Serve in this thread's network namespace until `stopped()`, asked every 100 ms, says so.

    It listens on all addresses and on `ports` ports from `port` on.

    `ready` is called once connections will be accepted. Returned: replies served. Raises OSError when a port is
    taken, or when descriptors run out without a connection whose end could free one.
    """
    raise_open_files()
    with closing(Sink(port, request_bytes, reply_bytes, ports=ports)) as sink:
        if ready is not None:
            ready()
        while not stopped():
            sink.run(time.monotonic_ns() + TURN_NS)
        return sink.served
