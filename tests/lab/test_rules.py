import json
import socket
import subprocess
from collections.abc import Callable
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from loadgen.kernel import nft
from loadgen.kernel.links import Links
from loadgen.kernel.netns import call, sysctl
from loadgen.lab import addresses as plan
from loadgen.lab import rules

BACKENDS = [IPv4Address("10.127.1.2"), IPv4Address("10.127.1.6")]


def test_a_probability_of_nothing_leaves_a_counter_and_no_rule() -> None:
    assert not [r for r in rules.race_drop(0, 53) if "rule" in r["add"]]
    assert [r for r in rules.race_drop(0, 53) if "counter" in r["add"]]


def test_a_probability_of_one_draws_nothing() -> None:
    assert "numgen" not in json.dumps(rules.race_drop(1, 53))
    assert '"right": 5000' in json.dumps(rules.race_drop(0.005, 53))


@pytest.mark.kernel
def test_the_kernel_takes_every_rule(netns_factory: Callable[[str], Path]) -> None:
    node = netns_factory("node")
    nft.apply(node, rules.kube_proxy(plan.CLUSTER_DNS, 53, BACKENDS))
    nft.apply(node, rules.untracked(plan.DATANODE_NET))
    nft.apply(node, rules.untracked_nodelocal(plan.NODELOCAL_DNS, 53))
    nft.apply(node, rules.race_drop(0.005, 53))
    listed = call(node, subprocess.run, ["nft", "list", "ruleset"], capture_output=True, text=True).stdout
    assert "dnat to numgen random mod 2 map { 0 : 10.127.1.2, 1 : 10.127.1.6 }" in listed
    assert "ip daddr 169.254.20.10 udp dport 53 notrack" in listed
    drop = "ct state new ct status confirmed numgen random mod 1000000 < 5000 counter name"
    assert drop in listed
    assert nft.counters(node, rules.RACE)[rules.RACE_COUNTER].packets == 0


@pytest.mark.kernel
def test_only_the_second_query_of_an_unanswered_pair_is_dropped(netns_factory: Callable[[str], Path]) -> None:
    """Two datagrams from one socket, before an answer: the second goes. From two sockets, or after one: none."""
    client, node, server = (netns_factory(name) for name in ("client", "node", "server"))
    sysctl(node, "net.ipv4.ip_forward", 1)
    with Links(node) as links:
        for far, ifname, net in ((client, "c0", "10.1.1"), (server, "s0", "10.1.2")):
            links.veth(ifname, "eth0", far)
            links.address(ifname, f"{net}.1/24")
            with Links(far) as there:
                there.up("eth0")
                there.address("eth0", f"{net}.2/24")
                there.route("default", via=f"{net}.1")
    nft.apply(node, rules.kube_proxy(plan.CLUSTER_DNS, 53, [IPv4Address("10.1.2.2")]))
    nft.apply(node, rules.race_drop(1, 53))
    service = (str(plan.CLUSTER_DNS), 53)

    def udp(bind: tuple[str, int] | None = None) -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.settimeout(5)
        if bind:
            made.bind(bind)
        return made

    listener = call(server, udp, ("10.1.2.2", 53))
    one, two = call(client, udp), call(client, udp)
    with listener, one, two:
        one.sendto(b"A", service)
        one.sendto(b"AAAA", service)
        two.sendto(b"other port", service)
        first, sender = listener.recvfrom(100)
        assert (first, listener.recv(100)) == (b"A", b"other port")
        assert nft.counters(node, rules.RACE)[rules.RACE_COUNTER].packets == 1
        listener.sendto(b"answer", sender)
        assert one.recv(100) == b"answer"
        one.sendto(b"after the answer", service)
        assert listener.recv(100) == b"after the answer"
    assert nft.counters(node, rules.RACE)[rules.RACE_COUNTER].packets == 1
