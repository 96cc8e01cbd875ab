"""Our plugin after real ones: from the runtime's call to the entries of a pod's connections in the pinned tables."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from loadgen.kernel import bpf, netns
from loadgen.kernel.links import Links
from tests.kernel.conftest import eventually
from tests.kube.chains import PLUGINS, Node, bridge, ptp
from tests.kube.plugins import compile_plugin, environment, start
from tests.lab.agents import LIMITS_LIFTED, Agent

pytestmark = pytest.mark.kernel

Start = Callable[..., Node]


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert (PLUGINS / "ptp").exists(), "install Debian's containernetworking-plugins"
    return compile_plugin(tmp_path_factory.mktemp("plugin") / "loadgen-cni")


@pytest.fixture
def start_node(plugin: Path, lab_dir: Path, tmp_path: Path, netns_factory: Callable[[str], Path]) -> Iterator[Start]:
    nodes: list[Node] = []

    def begin(chain: Callable[[Path], list[dict[str, Any]]], version: str = "1.0.0", **cilium: Any) -> Node:
        path = netns_factory("node")
        place = {"chained": True, "spans_by": "pod", "state_dir": str(tmp_path / "endpoints")}
        agent = Agent(lab_dir, path, attach=True, place=place, **cilium)
        nodes.append(Node(agent, plugin, tmp_path, chain(tmp_path / "ipam"), version))
        return nodes[-1]

    yield begin
    for node in nodes:
        node.close()
        node.agent.close()


def address(result: Any) -> str:
    return result["ips"][0]["address"].split("/")[0]


def talk(node: Node, pod: Path, to: str) -> None:
    """A TCP connection from a pod to the node, closed by both."""
    server = netns.call(node.agent.netns, socket.create_server, (to, 8080))

    def client() -> None:
        with socket.create_connection((to, 8080), timeout=5):
            pass

    with server:
        netns.call(pod, client)
        server.accept()[0].close()


def entries(node: Node) -> list[dict[str, Any]]:
    """As bpftool dumps the pinned table."""
    command = ["bpftool", "-j", "map", "dump", "pinned", str(node.agent.pins / bpf.TCP_MAP)]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


@pytest.mark.parametrize("chain", [ptp, bridge])
@pytest.mark.parametrize("version", ["0.3.1", "1.0.0"])
def test_connections_of_a_pod_are_in_the_pinned_table(start_node: Start, netns_factory, chain, version):
    node = start_node(chain, version)
    with Links(node.agent.netns) as links:
        before = links.names()
    pod = netns_factory("pod")
    code, out = node.add("c1", pod)
    assert code == 0, out
    result = json.loads(out)
    assert result["cniVersion"] == version
    talk(node, pod, result["ips"][0]["gateway"])
    assert eventually(lambda: node.agent.entries() == 1)
    (entry,) = entries(node)
    octets = bytes(int(byte, 16) for byte in entry["key"][:4])
    assert socket.inet_ntoa(octets) == address(result)
    assert {done.code for done in node.delete("c1", pod)} == {0}
    assert node.agent.entries() == 0
    assert {done.code for done in node.delete("c1", "")} == {0}
    with Links(node.agent.netns) as links:
        assert [name for name in links.names() if name not in before] == (["cni0"] if chain is bridge else [])


def test_twenty_pods_at_once_and_a_restart_of_the_agent_in_between(start_node: Start, netns_factory, tmp_path):
    node = start_node(ptp, apiRateLimit=LIMITS_LIFTED)
    pods = {f"c{i:02d}": netns_factory("pod") for i in range(20)}
    with ThreadPoolExecutor(20) as pool:
        done = list(pool.map(node.add, pods, pods.values()))
    assert [d.code for d in done] == [0] * 20, done
    assert len({address(d.json) for d in done}) == 20
    assert node.agent.state().endpoints == {"ready": 20}
    assert node.agent.terminate() == 0
    waiting = netns_factory("late")
    with ThreadPoolExecutor(20) as pool:
        late = pool.submit(node.add, "late", waiting)
        node.agent.start()
        assert late.result().code == 0
        assert node.agent.state().endpoints == {"ready": 21}
        for deleted in pool.map(node.delete, pods, pods.values()):
            assert {d.code for d in deleted} == {0}
    assert node.agent.state().endpoints == {"ready": 1}
    assert len(list((tmp_path / "endpoints").iterdir())) == 1


def test_a_plugin_killed_by_the_runtime_ends_at_the_agent(start_node: Start, netns_factory):
    node = start_node(ptp, apiRateLimit=LIMITS_LIFTED)
    node.agent.fill(400_000)
    pod = netns_factory("pod")
    first, *_, ours = node.chain
    made = node.call("ADD", first, "c1", pod, None).json
    network = {**ours, "cniVersion": "1.0.0", "name": "cluster-net", "prevResult": made}
    process = start(node.paths["loadgen-cni"], environment("ADD", pod, "c1"))
    assert process.stdin is not None
    process.stdin.write(json.dumps(network))
    process.stdin.close()
    node.agent.until(lambda state: state.endpoints == {"regenerating": 1})
    process.send_signal(signal.SIGKILL)
    process.wait()
    node.agent.until(lambda state: not state.endpoints)
    assert {done.code for done in node.delete("c1", pod)} == {0}
    outcomes = {span.outcome for span in node.agent.spans() if span.op == "endpoint-create" and span.stage == "total"}
    assert outcomes == {"500"}
