"""How many connections a process may hold."""

from __future__ import annotations

import resource

MAX_OPEN = 65_536
SPARE = 64
"""Descriptors left for everything that is no connection: pipes, logs, epoll."""


def raise_open_files() -> int:
    """Raise this process's RLIMIT_NOFILE to what its hard limit allows; returns how many connections fit in it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN + SPARE if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN + SPARE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return MAX_OPEN if soft == resource.RLIM_INFINITY else max(1, min(MAX_OPEN, soft - SPARE))
