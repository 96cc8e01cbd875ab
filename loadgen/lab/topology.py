"""Builds the lab's network: node, datanodes, DNS back ends and their links. Client pods come later, through CNI."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from loadgen.kernel import netns, nft
from loadgen.kernel.links import Links
from loadgen.lab import addresses as plan
from loadgen.lab import rules
from loadgen.lab.state import LabState

_BACKLOG = 4096
"""Listen and SYN backlog of the servers' namespaces; the kernel's default of 4096 is not the same everywhere."""


def build(state: LabState, *, nodelocal: bool) -> None:
    """Make the namespaces, links, routes and rules of the lab. Blocking; everything ends with the lab's mounts."""
    node = state.netns / plan.NODE
    netns.create(node)
    for name, value in (("net.ipv4.ip_forward", 1), ("net.ipv4.conf.all.rp_filter", 0)):
        netns.sysctl(node, name, value)
    with Links(node) as links:
        _attach(links, state.netns / plan.DATANODES, "datanodes0", plan.DATANODE_LINK)
        links.route(str(plan.DATANODE_NET), via=str(plan.link_ends(plan.DATANODE_LINK)[1]), dev="datanodes0")
        for i, link in enumerate(plan.DNS_LINKS):
            _attach(links, state.netns / plan.dns_netns(i), f"dns{i}", link)
        # The node's own packets to a Service need a route before OUTPUT can turn them round to a back end.
        links.route(str(plan.SERVICE_CIDR), dev="dns0")
        if nodelocal:
            links.address("lo", f"{plan.NODELOCAL_DNS}/32")
    with Links(state.netns / plan.DATANODES) as links:
        links.local_route(str(plan.DATANODE_NET))
    nft.apply(node, _rules(dns_backends(), nodelocal=nodelocal))


def dns_backends() -> tuple[IPv4Address, ...]:
    return tuple(plan.link_ends(link)[1] for link in plan.DNS_LINKS)


def _attach(node_links: Links, far: Path, ifname: str, link: IPv4Network) -> None:
    """A server's namespace at the far end of a veth pair, with its default route through the node."""
    netns.create(far)
    for name in ("net.core.somaxconn", "net.ipv4.tcp_max_syn_backlog"):
        netns.sysctl(far, name, _BACKLOG)
    near_ip, far_ip = plan.link_ends(link)
    node_links.veth(ifname, "eth0", far)
    node_links.address(ifname, f"{near_ip}/{link.prefixlen}")
    with Links(far) as links:
        links.up("eth0")
        links.address("eth0", f"{far_ip}/{link.prefixlen}")
        links.route("default", via=str(near_ip))


def _rules(backends: Sequence[IPv4Address], *, nodelocal: bool) -> list[rules.Rule]:
    found = rules.kube_proxy(plan.CLUSTER_DNS, plan.DNS_PORT, backends) + rules.untracked(plan.DATANODE_NET)
    if nodelocal:
        found += rules.untracked_nodelocal(plan.NODELOCAL_DNS, plan.DNS_PORT)
    return found
