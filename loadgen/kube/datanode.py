"""`python -m loadgen.kube.datanode CONFIG.json READY`: the storm's server in a datanode pod.

The lab has a datanode for each target. Here a few pods listen on many ports each, and a target is a pair of address
and port. To conntrack that is the same: the key of an entry is both addresses and both ports, so connections to 500
pairs spread over a hash table, collide and run out of source ports (28,000 a pair) just as those to 500 addresses do.
What it does not show is what grows with the number of peers' addresses: routes, neighbours, Cilium's ipcache.
"""

from __future__ import annotations

import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from loadgen.drivers.sink import serve_sink


class Server(msgspec.Struct, frozen=True):
    """The peers of one storm."""

    port: int
    ports: int
    request_bytes: int
    reply_bytes: int


class DatanodeConfig(msgspec.Struct, frozen=True):
    servers: tuple[Server, ...]


def serve(config: DatanodeConfig, ready: Path, stopped: threading.Event) -> int:
    """Serve until `stopped`; the file `ready` appears once all ports are open. Returned: replies served.

    Raises what a server raises, after the others were stopped as well.
    """
    waiting = threading.Barrier(len(config.servers), action=ready.touch)

    def open_all() -> None:
        waiting.wait()

    def one(server: Server) -> int:
        try:
            return serve_sink(
                server.port,
                server.request_bytes,
                server.reply_bytes,
                stopped.is_set,
                open_all,
                ports=server.ports,
            )
        except threading.BrokenBarrierError:
            return 0  # another server failed before all were ready, and says why
        finally:
            # One that ended of itself ends all: a pod with half of its ports must not go on.
            stopped.set()
            waiting.abort()

    with ThreadPoolExecutor(len(config.servers)) as pool:
        return sum(list(pool.map(one, config.servers)))


def main() -> None:
    config = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=DatanodeConfig)
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    served = serve(config, Path(sys.argv[2]), stopped)
    print(f"served {served}", flush=True)  # noqa: T201 - the pod's log


if __name__ == "__main__":
    main()
