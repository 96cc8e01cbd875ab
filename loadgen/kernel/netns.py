"""Network namespaces, kept alive by a bind mount as iproute2 does, and threads that work inside them.

A namespace belongs to a thread, not to a process. A thread that has entered one must never serve anybody else, so
every entry here uses a thread that ends there, or is the caller's own decision for good (`enter`).
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from loadgen.kernel import libc

P = ParamSpec("P")
T = TypeVar("T")

# Of this thread: /proc/net and /proc/self/net are those of the process's first thread.
PROC_NET = Path("/proc/thread-self/net")

_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
_IFREQ_FLAGS = struct.Struct("16sh22x")


def create(path: Path) -> None:
    """Make a namespace and bind it to `path` (FileExistsError if that exists): lo is up, IPv6 is off.

    Without IPv6 no interface waits for duplicate address detection, and a lookup's packets are IPv4 only.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(exist_ok=False)
    try:
        fresh_thread(_make, path)
    except OSError:
        path.unlink()
        raise


def delete(path: Path) -> None:
    """Unbind it; the kernel frees it once no process and no socket is left inside. A missing path is no error."""
    try:
        libc.umount(path, libc.MNT_DETACH)
    except FileNotFoundError:
        return
    except OSError as error:
        # EINVAL: nothing is mounted there, a create() was cut short between the file and the mount.
        if error.errno != errno.EINVAL:
            raise
    path.unlink(missing_ok=True)


def enter(path: Path) -> None:
    """Move the calling thread into the namespace, for good."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc.setns(fd, libc.CLONE_NEWNET)
    finally:
        os.close(fd)


def call(path: Path | None, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `function` on a new thread inside the namespace and return or raise what it does; None: right here.

    It must end by itself: the caller waits. A child that it starts with PR_SET_PDEATHSIG dies with the thread,
    so workers are started elsewhere and enter by themselves.
    """
    if path is None:
        return function(*args, **kwargs)

    def inside() -> T:
        enter(path)
        return function(*args, **kwargs)

    return fresh_thread(inside)


def fresh_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `function` on a thread that does nothing before and nothing after."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="netns") as thread:
        return thread.submit(function, *args, **kwargs).result()


def sysctl(path: Path | None, name: str, value: int | str) -> None:
    """Set `net.…` inside the namespace, e.g. sysctl(node, "net.ipv4.ip_forward", 1)."""
    call(path, _write_sysctl, name, value)


def _write_sysctl(name: str, value: int | str) -> None:
    Path("/proc/sys", *name.split(".")).write_text(f"{value}\n")


def _make(path: Path) -> None:
    libc.unshare(libc.CLONE_NEWNET)
    _disable_ipv6()
    loopback_up()
    libc.mount("/proc/thread-self/ns/net", path, None, libc.MS_BIND)


def _disable_ipv6() -> None:
    for scope in ("all", "default"):
        try:
            _write_sysctl(f"net.ipv6.conf.{scope}.disable_ipv6", 1)
        except FileNotFoundError:
            return  # a kernel without IPv6


def loopback_up() -> None:
    """Bring up lo in the calling thread's namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = _IFREQ_FLAGS.pack(b"lo", 0)
        _, flags = _IFREQ_FLAGS.unpack(fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, _IFREQ_FLAGS.pack(b"lo", flags | _IFF_UP))
