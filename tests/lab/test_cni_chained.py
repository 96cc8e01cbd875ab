"""The CNI plugin after another one: what it takes from prevResult, what it makes of it, and what it leaves alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loadgen.kernel import netns
from loadgen.kernel.links import Links
from tests.lab.agents import LIMITS_LIFTED, Agent
from tests.lab.test_cni import CONTAINER, PLUGIN

pytestmark = pytest.mark.kernel

ENDPOINT = f"/v1/endpoint/cni-attachment-id:{CONTAINER}:eth0"
POD = "10.9.0.5"


@pytest.fixture
def chained(lab_dir: Path, netns_factory: Callable[[str], Path]) -> Iterator[Callable[..., Agent]]:
    started: list[Agent] = []

    def start(**cilium: Any) -> Agent:
        node = netns_factory("node")
        place = {"chained": True, "pod_cidr": "", "gateway": "", "spans_by": "pod"}
        place["state_dir"] = str(lab_dir / "state" / node.name)
        started.append(Agent(lab_dir, node, attach=True, place=place, **cilium))
        return started[-1]

    yield start
    for agent in started:
        agent.close()


@pytest.fixture
def agent(chained: Callable[..., Agent]) -> Agent:
    return chained()


def call(agent: Agent, command: str, pod: Path | str, previous: object = None, **more: Any) -> tuple[int, Any]:
    config = {"cniVersion": "1.0.0", "name": "net", "agentSocket": str(agent.socket), "chained": True, **more}
    if previous is not None:
        config["prevResult"] = previous
    environment = {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": CONTAINER,
        "CNI_NETNS": str(pod),
        "CNI_IFNAME": "eth0",
        "CNI_ARGS": "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web",
    }
    done = netns.call(
        agent.netns,
        subprocess.run,
        [sys.executable, "-I", "-S", str(PLUGIN)],
        env=environment,
        input=json.dumps(config),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout) if done.stdout else None


def link(agent: Agent, pod: Path, host: str = "veth1") -> dict[str, Any]:
    """A veth pair as ptp makes it, and its result."""
    with Links(agent.netns) as links:
        links.veth(host, "eth0", pod)
    return result([{"name": host, "mac": "0a:00:00:00:00:01"}, {"name": "eth0", "sandbox": str(pod)}])


def result(interfaces: list[dict[str, str]], **more: Any) -> dict[str, Any]:
    ips = [{"address": f"{POD}/24", "gateway": "10.9.0.1", "interface": len(interfaces) - 1}]
    return {"cniVersion": "1.0.0", "interfaces": interfaces, "ips": ips, "dns": {"nameservers": ["1.1.1.1"]}, **more}


def filters(agent: Agent, ifname: str, direction: str = "ingress") -> list[str]:
    shown = netns.call(
        agent.netns,
        subprocess.run,
        ["tc", "-j", "filter", "show", "dev", ifname, direction],
        capture_output=True,
        check=True,
    )
    return [item["options"]["handle"] for item in json.loads(shown.stdout) if "handle" in item.get("options", {})]


def endpoint(agent: Agent) -> dict[str, Any]:
    status, found = agent.request("GET", ENDPOINT)
    assert status == 200
    return found["status"]


def test_add_check_and_del(agent, netns_factory):
    pod = netns_factory("pod")
    previous = link(agent, pod)
    assert call(agent, "ADD", pod, previous) == (0, previous)
    made = endpoint(agent)
    assert made["state"] == "ready"
    assert made["networking"] == {"addressing": [{"ipv4": POD}], "interface-name": "veth1"}
    assert [filters(agent, "veth1", way) for way in ("ingress", "egress")] == [["0x10ad"], ["0x10ad"]]
    assert {span.ref for span in agent.spans() if span.op == "endpoint-create"} == {"default/web"}
    assert call(agent, "CHECK", pod, previous) == (0, None)

    assert call(agent, "DEL", pod, previous) == (0, None)
    assert call(agent, "DEL", "") == (0, None)
    assert filters(agent, "veth1") == filters(agent, "veth1", "egress") == []
    assert agent.request("GET", ENDPOINT)[0] == 404
    with Links(agent.netns) as links:
        assert links.names() == ["lo", "veth1"]


@pytest.mark.parametrize("version", ["0.3.1", "0.4.0", "1.1.0"])
def test_prev_result_is_handed_on_in_the_version_asked_for(agent, netns_factory, version):
    pod = netns_factory("pod")
    previous = {**link(agent, pod), "cniVersion": version, "custom": {"kept": [1]}}
    if version < "1":
        previous["ips"][0]["version"] = "4"
    assert call(agent, "ADD", pod, previous, cniVersion=version) == (0, previous)
    assert call(agent, "DEL", pod, previous, cniVersion=version) == (0, None)


def test_of_bridges_interfaces_it_takes_the_veth(agent, netns_factory):
    pod = netns_factory("pod")
    made = link(agent, pod)
    netns.call(agent.netns, subprocess.run, ["ip", "link", "add", "cni0", "type", "bridge"], check=True)
    previous = {**made, "interfaces": [{"name": "cni0"}, *made["interfaces"]]}
    previous["ips"][0]["interface"] = 2
    assert call(agent, "ADD", pod, previous)[0] == 0
    assert endpoint(agent)["networking"]["interface-name"] == "veth1"
    assert filters(agent, "cni0") == []


def test_calicos_result_names_no_interface_of_the_pod(agent, netns_factory):
    pod = netns_factory("pod")
    link(agent, pod, "cali123")
    previous = {"cniVersion": "0.3.1", "interfaces": [{"name": "cali123"}], "ips": [{"version": "4", "address": POD}]}
    assert call(agent, "ADD", pod, previous, cniVersion="0.3.1") == (0, previous)
    assert endpoint(agent)["networking"] == {"addressing": [{"ipv4": POD}], "interface-name": "cali123"}


def test_of_two_addresses_it_takes_the_pods_ipv4(agent, netns_factory):
    pod = netns_factory("pod")
    previous = link(agent, pod)
    previous["interfaces"].append({"name": "net1", "sandbox": str(pod)})
    previous["ips"] = [
        {"address": "10.7.7.7/24", "interface": 2},
        {"address": "fd00::5/64", "interface": 1},
        {"address": f"{POD}/24", "interface": 1},
    ]
    assert call(agent, "ADD", pod, previous)[0] == 0
    assert endpoint(agent)["networking"]["addressing"] == [{"ipv4": POD}]


SANDBOX = {"name": "eth0", "sandbox": "/run/netns/x"}


@pytest.mark.parametrize(
    ("previous", "says"),
    [
        (None, "prevResult is missing"),
        (result([SANDBOX]), "names 0 veth interfaces on the host, not one; it has none"),
        (
            result([{"name": "gone9"}, SANDBOX]),
            "names 0 veth interfaces on the host, not one; it has gone9 (not there)",
        ),
        (result([{"name": "veth1"}, {"name": "veth2"}, SANDBOX]), "it has veth1 (veth), veth2 (veth)"),
        (result([{"name": "veth1"}, SANDBOX], ips=[]), "has no IPv4 address of eth0"),
        (result([{"name": "veth1"}, SANDBOX], ips=[{"address": "fd00::5/64"}]), "has no IPv4 address of eth0"),
    ],
)
def test_a_result_that_says_too_little_is_refused_before_the_agent_is_asked(agent, netns_factory, previous, says):
    pod = netns_factory("pod")
    for host in ("veth1", "veth2"):
        with Links(agent.netns) as links:
            links.veth(host, "eth0" if host == "veth1" else "eth1", pod)
    code, error = call(agent, "ADD", pod, previous)
    assert (code, error["code"]) == (1, 7)
    assert says in error["msg"]
    assert agent.request("GET", "/v1/endpoint") == (200, [])


def test_the_agent_gives_no_addresses_and_makes_no_links(agent):
    assert agent.request("GET", "/v1/config")[1]["status"]["ipam-mode"] == "delegated-plugin"
    for method, path in (("POST", "/v1/ipam"), ("POST", "/v1/ipam/10.0.0.1"), ("DELETE", "/v1/ipam/10.0.0.1")):
        assert agent.request(method, path)[0] == 501
    body = {"container-id": "c2", "netns": "/x", "ifname": "eth0", "ipv4": "10.0.0.1"}
    assert agent.request("POST", "/v1/loadgen/link", body)[0] == 501


def test_status_of_an_agent_that_runs(agent):
    assert call(agent, "STATUS", "", cniVersion="1.1.0") == (0, None)
    assert call(agent, "GC", "", cniVersion="1.1.0") == (0, None)


def test_endpoints_of_pods_that_are_still_there_outlive_a_restart(agent, netns_factory):
    pod, other = netns_factory("pod"), netns_factory("other")
    previous = link(agent, pod)
    assert call(agent, "ADD", pod, previous)[0] == 0
    path, body = agent.spec(9, ifname="veth9")
    link(agent, other, "veth9")
    assert agent.request("PUT", path, body)[0] == 201
    agent.terminate()
    with Links(agent.netns) as links:
        links.delete("veth9")
    agent.start()
    # Nothing was walked for it, and the programs are those of the process that runs now.
    assert agent.walks("endpoint-create") == agent.walks("endpoint-delete") == []
    assert endpoint(agent)["state"] == "ready"
    assert filters(agent, "veth1") == ["0x10ad"]
    assert agent.request("GET", path)[0] == 404
    assert "interface veth9 could not be found" in agent.log()
    # Numbers go on, and a DEL finds its endpoint.
    link(agent, netns_factory("third"), "veth3")
    assert agent.request("PUT", *agent.spec(3, ifname="veth3"))[0] == 201
    numbers = [found["id"] for found in agent.request("GET", "/v1/endpoint")[1]]
    assert len(set(numbers)) == 2
    assert call(agent, "DEL", pod) == (0, None)
    assert [span.outcome for span in agent.spans() if span.op == "endpoint-delete" and span.stage == "total"] == [
        "200"
    ]
    assert len(agent.walks("endpoint-delete", "default/web")) == 1
    agent.terminate()
    agent.start()
    assert agent.request("GET", ENDPOINT)[0] == 404


def test_an_address_given_out_again_takes_the_place_of_an_endpoint_whose_link_is_gone(agent, netns_factory):
    first = link(agent, netns_factory("first"))
    assert call(agent, "ADD", "/run/netns/first", first)[0] == 0
    pod = netns_factory("pod")
    second = link(agent, pod, "veth2")
    second["interfaces"][0]["name"] = "veth2"
    path, body = agent.spec(2, ifname="veth2")
    body["addressing"] = {"ipv4": POD}
    assert agent.request("PUT", path, body) == (400, f"IP ipv4:{POD} is already in use")
    with Links(agent.netns) as links:
        links.delete("veth1")
    assert agent.request("PUT", path, body)[0] == 201
    assert agent.request("GET", ENDPOINT)[0] == 404
    assert "Stale endpoint: interface veth1 could not be found" in agent.log()


def test_a_client_that_is_killed_leaves_no_endpoint(chained, netns_factory):
    agent, pod = chained(apiRateLimit=LIMITS_LIFTED), netns_factory("pod")
    previous = link(agent, pod)
    agent.fill(400_000)
    code, error = call(agent, "ADD", pod, previous, clientTimeout=0.25)
    assert (code, error["code"]) == (1, 101)
    agent.until(lambda state: not state.endpoints)
    assert filters(agent, "veth1") == []
