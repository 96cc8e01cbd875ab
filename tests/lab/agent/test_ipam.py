"""Addresses in turn."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

from loadgen.lab.agent.ipam import Ipam


def ipam(cidr: str = "10.244.0.0/29") -> Ipam:
    network = IPv4Network(cidr)
    return Ipam(network, network[1])


def test_every_address_once_and_then_none():
    pool = ipam()
    got = [str(pool.allocate("a/b")) for _ in range(5)]
    assert got == [f"10.244.0.{i}" for i in (2, 3, 4, 5, 6)]
    assert pool.allocate("a/b") is None
    assert pool.used == 5


def test_one_given_back_is_the_last_to_be_reused():
    pool = ipam()
    first, second = pool.allocate("a"), pool.allocate("b")
    assert first is not None
    assert pool.release(first)
    assert not pool.release(first)
    assert [str(pool.allocate("c")) for _ in range(4)] == [f"10.244.0.{i}" for i in (4, 5, 6, 2)]
    assert second is not None


def test_reserving_a_certain_address():
    pool = ipam()
    assert pool.reserve(IPv4Address("10.244.0.2"), "x")
    assert not pool.reserve(IPv4Address("10.244.0.2"), "x")
    assert not pool.reserve(IPv4Address("10.244.0.1"), "x")  # the gateway
    assert not pool.reserve(IPv4Address("10.250.0.2"), "x")
    assert str(pool.allocate("y")) == "10.244.0.3"
