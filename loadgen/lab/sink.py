"""`python -m loadgen.lab.sink CONFIG.json`: the datanodes, one server for every address of their namespace."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import msgspec

from loadgen.drivers.sink import serve_sink


class SinkConfig(msgspec.Struct, frozen=True):
    port: int
    request_bytes: int
    reply_bytes: int


def main() -> None:
    config = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=SinkConfig)
    stopped = False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True

    signal.signal(signal.SIGTERM, stop)
    serve_sink(
        config.port,
        config.request_bytes,
        config.reply_bytes,
        stopped=lambda: stopped,
        ready=lambda: print("ready", flush=True),  # noqa: T201 - the word that the lab waits for
    )


if __name__ == "__main__":
    main()
