"""A pod's link: what is inside the pod, what on the node, and that nothing is left."""

from __future__ import annotations

import socket
import subprocess

import pytest

from loadgen.kernel import netns
from loadgen.kernel.links import Links
from loadgen.lab.agent.plumbing import host_name

pytestmark = pytest.mark.kernel


def link(agent, pod, container: str = "c2", ip: str = "10.244.0.2"):
    body = {"container-id": container, "netns": str(pod), "ifname": "eth0", "ipv4": ip}
    return agent.request("POST", "/v1/loadgen/link", body)


def links(path) -> list[str]:
    with Links(path) as found:
        return found.names()


def routes(path) -> str:
    command = ["ip", "-4", "route"]
    return netns.call(path, lambda: subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_pod_reaches_the_node_over_its_link(agent, netns_factory):
    pod = netns_factory("pod")
    status, made = link(agent, pod)
    assert (status, made["host"], made["pod"]) == (201, host_name("c2"), "eth0")
    inside = [route.split()[:5] for route in routes(pod).splitlines()]
    assert inside == [
        ["default", "via", "10.244.0.1", "dev", "eth0"],
        ["10.244.0.1", "dev", "eth0", "proto", "static"],
    ]
    assert f"10.244.0.2 dev {made['host']} " in routes(agent.netns)

    def send() -> bytes:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(5)
            client.sendto(b"hello", ("10.244.0.1", 4444))
            return client.recv(100)

    def echo(server: socket.socket) -> None:
        data, peer = server.recvfrom(100)
        server.sendto(data + str(peer[0]).encode(), peer)

    udp = netns.call(agent.netns, socket.socket, socket.AF_INET, socket.SOCK_DGRAM)
    with udp:
        udp.bind(("0.0.0.0", 4444))
        answered = agent.pool.submit(echo, udp)
        assert netns.call(pod, send) == b"hello10.244.0.2"
        answered.result()
    agent.request("DELETE", "/v1/loadgen/link/c2")


def test_disconnect_is_idempotent(agent, netns_factory):
    pod = netns_factory("pod")
    link(agent, pod)
    for _ in range(2):
        assert agent.request("DELETE", "/v1/loadgen/link/c2")[0] == 200
        assert links(agent.netns) == ["lo"]
        assert links(pod) == ["lo"]


def test_failure_says_why_and_leaves_nothing(agent, netns_factory):
    pod = netns_factory("pod")
    status, why = link(agent, pod.with_name("nowhere"))
    assert (status, "No such file" in why) == (500, True)
    with Links(pod) as inside:
        inside.address("lo", "10.244.0.9/32")
        inside.route("10.244.0.1/32", dev="lo")
    status, why = link(agent, pod)
    assert (status, why) == (500, "[Errno 17] route to 10.244.0.1/32: File exists")
    assert links(agent.netns) == ["lo"]


def test_datapath_records_the_pods_packets(start_agent, netns_factory):
    agent, pod = start_agent(attach=True), netns_factory("pod")
    _, made = link(agent, pod)
    path, body = agent.spec(2, ifname=made["host"])
    assert agent.request("PUT", path, body)[0] == 201

    def send() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.sendto(b"x", ("10.244.0.1", 4444))

    netns.call(pod, send)
    assert agent.entries("any") >= 1
    assert agent.state().created >= 1
    assert agent.state().create_failed == 0
    assert agent.delete(2) == 200
    assert agent.entries("any") == 0
