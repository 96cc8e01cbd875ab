"""Veth pairs, addresses and routes of pods, and the datapath on their host ends."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import socket
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address
from pathlib import Path

import msgspec

from loadgen.core.errors import HarnessError
from loadgen.kernel import bpf
from loadgen.kernel.bpf import CtDatapath, CtStats
from loadgen.kernel.links import Links

_THREADS = 4


class PodLink(msgspec.Struct, frozen=True):
    """A pod's veth pair: the names and MACs of both ends."""

    host: str
    host_mac: str
    pod: str
    pod_mac: str


def host_name(container_id: str) -> str:
    """The host end's name; Cilium's are `lxc` and hex digits of a hash as well (15 characters at most)."""
    return "lxc" + hashlib.sha256(container_id.encode()).hexdigest()[:12]


def _mac(text: str) -> str:
    """A locally administered unicast MAC."""
    return ":".join(f"{byte:02x}" for byte in (0x0A, *hashlib.sha256(text.encode()).digest()[:5]))


class Plumbing:
    """Makes links in the network namespace of the process that it lives in.

    In Cilium the CNI plugin does this itself. Here the plugin asks the agent's process: importing pyroute2 would cost
    every plugin process about 100 ms of CPU, and a burst of 50 pods would measure Python's imports.

    Without a gateway the links are made by another plugin: only the datapath is put on them, and taken off again, for
    such a link may outlive its endpoint.
    """

    def __init__(self, gateway: IPv4Address | None, datapath: CtDatapath | None) -> None:
        self._gateway = gateway
        self._datapath = datapath
        self._make, self._remove = Links(), Links()
        self._threads = ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="plumbing")

    def open(self) -> None:
        """Take the gateway's address, as Cilium's router address, unless the namespace has it already."""
        self._make.__enter__()
        self._remove.__enter__()
        if self._gateway is None:
            return
        try:
            self._make.address("lo", f"{self._gateway}/32")
        except OSError as error:
            if error.errno != errno.EEXIST:
                raise

    def stats(self) -> CtStats:
        """The datapath's own counters; zeros without one."""
        return self._datapath.stats() if self._datapath else CtStats(0, 0)

    def close(self) -> None:
        self._threads.shutdown()
        self._make.close()
        self._remove.close()

    async def connect(self, container_id: str, netns: Path, ifname: str, address: IPv4Address) -> PodLink:
        """A veth pair with address, routes and neighbours on both ends. OSError says what failed; nothing is left."""
        link = PodLink(
            host_name(container_id), _mac(f"host {container_id}"), ifname, _mac(f"pod {container_id}{ifname}")
        )
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._threads, self._connect, link, netns, address)
        return link

    async def disconnect(self, container_id: str) -> None:
        """Delete the pair; one that is gone is no error."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._threads, self._remove.delete, host_name(container_id))

    async def attach(self, ifname: str) -> bool:
        """Put the datapath on a host end; False when it has gone meanwhile (its pod has been given up)."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._attach, ifname)

    async def detach(self, ifname: str) -> None:
        """Take the datapath off a host end that is another plugin's. Ours goes soon, and the datapath with it."""
        if self._gateway is None and self._datapath is not None:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._threads, _detach, ifname)

    def present(self, ifname: str) -> bool:
        """Whether there is such an interface on the node."""
        return _index(ifname) is not None

    def _connect(self, link: PodLink, netns: Path, address: IPv4Address) -> None:
        self._make.veth(link.host, link.pod, netns, mac=link.host_mac, peer_mac=link.pod_mac)
        try:
            with Links(netns) as pod:
                pod.up(link.pod)
                pod.address(link.pod, f"{address}/32")
                # Neighbours are known on both ends: a pod's first packet waits for no ARP.
                pod.neighbour(link.pod, str(self._gateway), link.host_mac)
                pod.route(f"{self._gateway}/32", dev=link.pod)
                pod.route("default", via=str(self._gateway), dev=link.pod)
            self._make.route(f"{address}/32", dev=link.host)
            self._make.neighbour(link.host, str(address), link.pod_mac)
        except OSError:
            self._remove.delete(link.host)
            raise

    def _attach(self, ifname: str) -> bool:
        if self._datapath is None:
            return True
        index = _index(ifname)
        if index is None:
            return False
        try:
            self._datapath.attach(index)
        except HarnessError:
            if _index(ifname) is None:
                return False
            raise
        return True


def _detach(ifname: str) -> None:
    index = _index(ifname)
    if index is not None:
        bpf.detach(index)


def _index(ifname: str) -> int | None:
    try:
        return socket.if_nametoindex(ifname)
    except OSError:
        return None
