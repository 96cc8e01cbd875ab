"""Interfaces, addresses, routes and neighbours of one network namespace, over rtnetlink (pyroute2)."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Interface
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from loadgen.kernel import netns as namespaces

T = TypeVar("T")

# Names that the kernel gives these numbers in linux/rtnetlink.h, linux/if.h and linux/neighbour.h.
_IFF_UP = 1
_RT_TABLE_LOCAL = 255
_RT_SCOPE_HOST = 254
_RT_SCOPE_LINK = 253
_RT_SCOPE_UNIVERSE = 0
_NUD_PERMANENT = 0x80


class Links:
    """A context manager that holds one rtnetlink socket inside `netns` (None: the caller's namespace).

    pyroute2 opens a socket for each thread that calls it, in that thread's namespace, and cannot be called while an
    event loop runs in the thread. So everything here happens on one thread that has entered the namespace and ends
    with this object; callers may be on any thread, or in a coroutine, and wait for it (well below a millisecond,
    except for `delete`, which waits for an RCU grace period: tens of milliseconds).

    Every method raises OSError with the kernel's errno and the names it was about.
    """

    def __init__(self, netns: Path | None = None) -> None:
        self._netns = netns
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="links")
        self._route: IPRoute | None = None

    def __enter__(self) -> Links:
        try:
            self._run(self._open, f"rtnetlink in {self._netns or 'this namespace'}")
        except OSError:
            self._thread.shutdown()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the socket and the thread back. May be called twice."""
        route, self._route = self._route, None
        if route is not None:
            self._thread.submit(route.close).result()
        self._thread.shutdown()

    def veth(
        self, name: str, peer: str, peer_netns: Path, *, mac: str | None = None, peer_mac: str | None = None
    ) -> None:
        """A veth pair: `name` here, up; `peer` in `peer_netns`, to be brought up there.

        One message cannot do both: the kernel configures the peer before the pair is joined, and a veth without
        its other end refuses to open (drivers/net/veth.c, ENOTCONN).
        """
        fd = os.open(peer_netns, os.O_RDONLY | os.O_CLOEXEC)
        try:
            there: dict[str, Any] = {"ifname": peer, "net_ns_fd": fd}
            here: dict[str, Any] = {"ifname": name, "flags": _IFF_UP, "change": _IFF_UP}
            if peer_mac:
                there["address"] = peer_mac
            if mac:
                here["address"] = mac
            self._request(f"veth {name} – {peer}", "link", "add", kind="veth", peer=there, **here)
        finally:
            os.close(fd)

    def address(self, ifname: str, address: str) -> None:
        """Give `ifname` an address, `a.b.c.d/len`."""
        ip = IPv4Interface(address)
        self._request(
            f"address {address} on {ifname}",
            "addr",
            "add",
            index=self.index(ifname),
            address=str(ip.ip),
            prefixlen=ip.network.prefixlen,
        )

    def remove_address(self, ifname: str, address: str) -> None:
        """Take the address away again. One that is not there is no error."""
        ip = IPv4Interface(address)
        spec = {"index": self.index(ifname), "address": str(ip.ip), "prefixlen": ip.network.prefixlen}
        try:
            self._request(f"address {address} off {ifname}", "addr", "del", **spec)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise

    def up(self, ifname: str) -> None:
        self._request(f"{ifname} up", "link", "set", index=self.index(ifname), state="up")

    def route(self, dst: str, *, via: str | None = None, dev: str | None = None) -> None:
        """A route to `dst` ("default", or a.b.c.d/len) through a gateway, a device, or both."""
        spec: dict[str, Any] = {"dst": dst, "scope": _RT_SCOPE_UNIVERSE if via else _RT_SCOPE_LINK}
        if via:
            spec["gateway"] = via
        if dev:
            spec["oif"] = self.index(dev)
        self._request(f"route to {dst}", "route", "add", **spec)

    def local_route(self, dst: str, dev: str = "lo") -> None:
        """Make every address of `dst` an address of this namespace, without listing one."""
        self._request(
            f"local route {dst}",
            "route",
            "add",
            dst=dst,
            oif=self.index(dev),
            type="local",
            table=_RT_TABLE_LOCAL,
            scope=_RT_SCOPE_HOST,
        )

    def neighbour(self, ifname: str, ip: str, mac: str) -> None:
        """A permanent neighbour: no ARP for it. Replaces what is known of `ip`."""
        self._request(
            f"neighbour {ip} on {ifname}",
            "neigh",
            "replace",
            dst=ip,
            lladdr=mac,
            ifindex=self.index(ifname),
            state=_NUD_PERMANENT,
        )

    def index(self, ifname: str) -> int:
        """The interface's index; OSError(ENODEV) when there is none of that name."""
        return self._run(lambda: _index(ifname), f"interface {ifname}")

    def names(self) -> list[str]:
        return [name for _, name in self._run(socket.if_nameindex, "interfaces")]

    def delete(self, ifname: str) -> None:
        """Delete it, and with a veth its peer. One that is gone already is no error."""
        try:
            self._request(f"delete {ifname}", "link", "del", index=self.index(ifname))
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise

    def _open(self) -> None:
        if self._netns is not None:
            namespaces.enter(self._netns)
        self._route = IPRoute()

    def _request(self, about: str, family: str, command: str, **spec: Any) -> None:
        self._run(lambda: getattr(self._route, family)(command, **spec), about)

    def _run(self, function: Callable[[], T], about: str) -> T:
        try:
            return self._thread.submit(function).result()
        except NetlinkError as error:
            raise OSError(error.code, f"{about}: {os.strerror(error.code)}") from error
        except OSError as error:
            raise OSError(error.errno, f"{about}: {error.strerror}") from error


def _index(ifname: str) -> int:
    try:
        return socket.if_nametoindex(ifname)
    except OSError as error:
        # Python drops the errno here before 3.13 or so.
        raise OSError(error.errno or errno.ENODEV, "no such interface") from error
