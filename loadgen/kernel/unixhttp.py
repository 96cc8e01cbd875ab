"""HTTP over a unix socket, for asking the agent."""

from __future__ import annotations

import http.client
import socket
from pathlib import Path


class UnixConnection(http.client.HTTPConnection):
    """http.client over AF_UNIX. A request that takes longer than `timeout` seconds raises TimeoutError."""

    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def get(path: Path, target: str, timeout: float = 10.0) -> bytes:
    """Body of a 200 answer. OSError when nobody answers, ValueError for any other status."""
    connection = UnixConnection(path, timeout)
    try:
        connection.request("GET", target)
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise ValueError(f"GET {target}: HTTP {response.status}")
    return body
