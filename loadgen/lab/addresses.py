"""The lab's plan of addresses and names. Everything in it exists only inside the lab's namespaces."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

NODE = "node"
DATANODES = "datanodes"

POD_CIDR = IPv4Network("10.244.0.0/22")
POD_GATEWAY = IPv4Address("10.244.0.1")
PAST_PODS = IPv4Network("10.244.200.0/26")
"""Addresses of pods that are long gone, as the leftovers in a filled table have them. Never given out again, so that
no scrub of a new pod shrinks the table that the others must walk."""
PAST_DATANODES = 500
"""How many datanodes those leftovers are spread over."""

DATANODE_NET = IPv4Network("10.128.0.0/17")
DATANODE_LINK = IPv4Network("10.127.0.0/30")
DATANODE_PORT = 50010

DNS_LINKS = (IPv4Network("10.127.1.0/30"), IPv4Network("10.127.1.4/30"))
SERVICE_CIDR = IPv4Network("10.96.0.0/12")
CLUSTER_DNS = IPv4Address("10.96.0.10")
NODELOCAL_DNS = IPv4Address("169.254.20.10")
DNS_PORT = 53


def pod_netns(index: int) -> str:
    return f"pod-{index}"


def dns_netns(index: int) -> str:
    return f"dns-{index}"


def link_ends(link: IPv4Network) -> tuple[IPv4Address, IPv4Address]:
    """The node's end and the far end of a /30."""
    return link[1], link[2]


def datanode(index: int) -> IPv4Address:
    """Address of datanode number `index`, from 0."""
    return DATANODE_NET[index + 1]


MAX_DATANODES = DATANODE_NET.num_addresses - 2
