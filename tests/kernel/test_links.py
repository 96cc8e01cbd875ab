"""What is made over rtnetlink, as iproute2 sees it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading

import pytest

from loadgen.kernel import netns
from loadgen.kernel.links import Links

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("no_new_threads")]


def ip(path, *words):
    """iproute2 sees what we have made."""
    done = netns.call(path, subprocess.run, ["ip", "-j", "-d", *words], capture_output=True, check=True)
    return json.loads(done.stdout or "[]")


@pytest.fixture
def pair(netns_factory):
    """Two namespaces joined by a veth pair."""
    node, pod = netns_factory("node"), netns_factory("pod")
    with Links(node) as here, Links(pod) as there:
        here.veth("lxc0", "eth0", pod, mac="02:00:00:00:00:01", peer_mac="02:00:00:00:00:02")
        there.up("eth0")
        yield node, here, pod, there


def test_veth(pair):
    node, here, pod, there = pair
    (outer,), (inner,) = ip(node, "link", "show", "lxc0"), ip(pod, "link", "show", "eth0")
    assert (outer["address"], inner["address"]) == ("02:00:00:00:00:01", "02:00:00:00:00:02")
    assert {"UP", "LOWER_UP"} <= set(outer["flags"]) & set(inner["flags"])
    assert outer["link_index"] == inner["ifindex"] == there.index("eth0")
    assert here.names() == ["lo", "lxc0"]


def test_address_and_routes(pair):
    _, _, pod, there = pair
    there.address("eth0", "10.244.0.2/32")
    there.route("10.244.0.1/32", dev="eth0")
    there.route("default", via="10.244.0.1")
    there.local_route("10.128.0.0/16")

    (link,) = ip(pod, "addr", "show", "eth0")
    assert [(a["local"], a["prefixlen"]) for a in link["addr_info"]] == [("10.244.0.2", 32)]
    routes = {route["dst"]: route for route in ip(pod, "route")}
    assert (routes["10.244.0.1"]["dev"], routes["10.244.0.1"]["scope"]) == ("eth0", "link")
    assert routes["default"]["gateway"] == "10.244.0.1"
    (local,) = ip(pod, "route", "show", "table", "local", "root", "10.128.0.0/16")
    assert (local["type"], local["dst"], local["dev"]) == ("local", "10.128.0.0/16", "lo")


def test_an_address_is_taken_away_again(pair):
    _, _, pod, there = pair
    there.address("lo", "169.254.20.10/32")
    there.remove_address("lo", "169.254.20.10/32")
    there.remove_address("lo", "169.254.20.10/32")
    (lo,) = ip(pod, "-4", "addr", "show", "dev", "lo")
    assert [found["local"] for found in lo["addr_info"]] == ["127.0.0.1"]


def test_neighbour_replaces(pair):
    _, _, pod, there = pair
    for mac in ("02:00:00:00:00:03", "02:00:00:00:00:04"):
        there.neighbour("eth0", "10.244.0.1", mac)
    (neighbour,) = ip(pod, "neigh")
    assert (neighbour["dst"], neighbour["lladdr"]) == ("10.244.0.1", "02:00:00:00:00:04")
    assert neighbour["state"] == ["PERMANENT"]


def test_delete_takes_the_peer_and_is_idempotent(pair):
    _, here, _, there = pair
    here.delete("lxc0")
    here.delete("lxc0")
    assert there.names() == ["lo"]


def test_an_error_says_what_it_was_about(pair):
    _, here, pod, _ = pair
    with pytest.raises(FileExistsError, match="veth lxc0 – eth9: File exists"):
        here.veth("lxc0", "eth9", pod)
    with pytest.raises(OSError, match=r"route to 10.9.0.0/16: Network is unreachable"):
        here.route("10.9.0.0/16", via="10.10.0.1")
    with pytest.raises(OSError, match="interface nope: no such interface"):
        here.index("nope")
    with pytest.raises(FileNotFoundError), Links(pod.with_name("nowhere")):
        pass


def test_from_other_threads_and_inside_an_event_loop(pair):
    node, here, pod, _ = pair

    async def in_a_coroutine():
        here.veth("lxc1", "eth1", pod)

    asyncio.run(in_a_coroutine())
    makers = [threading.Thread(target=here.veth, args=(f"lxc{n}", f"eth{n}", pod)) for n in range(2, 6)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert {link["ifname"] for link in ip(node, "link")} == {"lo", *(f"lxc{n}" for n in range(6))}


def test_without_a_namespace_it_is_the_callers(netns_factory):
    node, pod = netns_factory("node"), netns_factory("pod")

    def make():
        with Links() as links:
            links.veth("lxc0", "eth0", pod)
            return links.names()

    assert netns.call(node, make) == ["lo", "lxc0"]
