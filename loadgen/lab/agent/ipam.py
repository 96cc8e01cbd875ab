"""Addresses of the node's pods."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network


class Ipam:
    """Hands out the addresses of a CIDR in turn, so that one given back is not reused before all others have been.

    Cilium's host-scope allocator draws at random, with the same aim. Network, broadcast and gateway stay out.
    """

    def __init__(self, cidr: IPv4Network, gateway: IPv4Address) -> None:
        self.cidr, self.gateway = cidr, gateway
        self._owners: dict[IPv4Address, str] = {}
        self._turn = 1

    @property
    def used(self) -> int:
        return len(self._owners)

    def allocate(self, owner: str) -> IPv4Address | None:
        """The next free address, or None when there is none."""
        size = self.cidr.num_addresses
        for step in range(size):
            offset = 1 + (self._turn + step - 1) % max(1, size - 2)
            address = self.cidr[offset]
            if address != self.gateway and address not in self._owners:
                self._turn = offset + 1
                self._owners[address] = owner
                return address
        return None

    def reserve(self, address: IPv4Address, owner: str) -> bool:
        """Take this very address; False when it has been given out or cannot be."""
        if address in self._owners or address == self.gateway or address not in self.cidr:
            return False
        self._owners[address] = owner
        return True

    def release(self, address: IPv4Address) -> bool:
        """Give it back; False when nobody had it."""
        return self._owners.pop(address, None) is not None
