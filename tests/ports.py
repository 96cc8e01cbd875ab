"""Ports for servers of tests that have to be told one: none that the kernel gives to connections meanwhile."""

from __future__ import annotations

import random
import socket

_FIRST, _END = 20_000, 32_000
"""Below Linux's default net.ipv4.ip_local_port_range."""


def free_ports(n: int = 1) -> int:
    """The first of `n` ports in a row that were free a moment ago, in TCP and in UDP."""
    for _ in range(1000):
        first = random.randrange(_FIRST, _END - n)
        taken: list[socket.socket] = []
        try:
            for port in range(first, first + n):
                taken.append(socket.create_server(("0.0.0.0", port)))
                taken.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                taken[-1].bind(("0.0.0.0", port))
        except OSError:
            continue
        finally:
            for server in taken:
                server.close()
        return first
    raise AssertionError("no free ports")
