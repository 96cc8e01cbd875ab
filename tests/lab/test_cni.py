"""The CNI plugin as a runtime calls it: a process, environment and stdin in, JSON and exit code out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadgen.kernel.links import Links
from tests.lab.agents import LIMITS_LIFTED

PLUGIN = Path(__file__).parents[2] / "loadgen" / "lab" / "cni.py"
CONTAINER = "f" * 64


def call(
    command: str, socket: Path | str, netns: Path | str = "", stdin: str | None = None, **config: Any
) -> tuple[int, Any]:
    """Exit code and decoded stdout; nothing is ever said on stderr."""
    environment = {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": config.pop("container", CONTAINER),
        "CNI_NETNS": str(netns),
        "CNI_IFNAME": "eth0",
        "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web",
    }
    network = {"cniVersion": "1.0.0", "name": "net", "agentSocket": str(socket), **config}
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(PLUGIN)],
        env=environment,
        input=json.dumps(network) if stdin is None else stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout) if done.stdout else None


def names(netns: Path) -> list[str]:
    with Links(netns) as links:
        return links.names()


@pytest.mark.kernel
def test_add_check_and_del_from_end_to_end(start_agent, netns_factory):
    agent, pod = start_agent(attach=True), netns_factory("pod")
    code, result = call("ADD", agent.socket, pod)
    assert code == 0
    host, inside = result["interfaces"]
    assert (inside["name"], inside["sandbox"]) == ("eth0", str(pod))
    assert result["ips"] == [{"address": "10.244.0.2/32", "gateway": "10.244.0.1", "interface": 1}]
    assert result["routes"] == [{"dst": "10.244.0.1/32"}, {"dst": "0.0.0.0/0", "gw": "10.244.0.1"}]
    assert (names(pod), names(agent.netns)) == (["lo", "eth0"], ["lo", host["name"]])
    endpoint = f"cni-attachment-id:{CONTAINER}:eth0"
    assert agent.request("GET", f"/v1/endpoint/{endpoint}")[1]["status"]["state"] == "ready"

    assert call("CHECK", agent.socket, pod, prevResult=result) == (0, None)
    moved = {"ips": [{"address": "10.244.0.9/32"}]}
    code, error = call("CHECK", agent.socket, pod, prevResult=moved)
    assert (code, error["code"]) == (1, 102)
    assert "does not have the address 10.244.0.9/32" in error["msg"]

    assert call("DEL", agent.socket, pod) == (0, None)
    assert call("DEL", agent.socket, "") == (0, None)
    assert (names(pod), names(agent.netns)) == (["lo"], ["lo"])
    assert agent.request("DELETE", "/v1/ipam/10.244.0.2")[0] == 404
    code, error = call("CHECK", agent.socket, pod)
    assert (code, error["code"]) == (1, 102)


@pytest.mark.kernel
def test_older_results_name_the_ip_version(agent, netns_factory):
    code, result = call("ADD", agent.socket, netns_factory("pod"), cniVersion="0.4.0")
    assert (code, result["cniVersion"], result["ips"][0]["version"]) == (0, "0.4.0", "4")
    assert call("DEL", agent.socket, cniVersion="0.4.0") == (0, None)


@pytest.mark.kernel
def test_client_timeout_fails_the_add_and_leaves_nothing(start_agent, netns_factory):
    agent, pod = start_agent(attach=True, apiRateLimit=LIMITS_LIFTED), netns_factory("pod")
    agent.fill(400_000)
    code, error = call("ADD", agent.socket, pod, clientTimeout=0.25)
    assert (code, error["code"]) == (1, 101)
    assert error["msg"] == "unable to create endpoint: Cilium API client timeout exceeded"
    agent.until(lambda state: not state.endpoints)
    assert len(agent.walks("endpoint-create")) == len(agent.walks("endpoint-delete")) == 1
    assert call("DEL", agent.socket, pod) == (0, None)
    assert (names(pod), names(agent.netns)) == (["lo"], ["lo"])
    assert agent.request("DELETE", "/v1/ipam/10.244.0.2")[0] == 404


@pytest.mark.kernel
def test_refusal_by_the_limiter_is_worded_as_ciliums_client_does(start_agent, netns_factory):
    limits = {"rate-limit": 0.001, "rate-burst": 1, "max-wait-duration": "1s", "auto-adjust": False}
    agent = start_agent(apiRateLimit={"endpoint-create": limits})
    for number in range(100, 105):
        agent.create(number)
    code, error = call("ADD", agent.socket, netns_factory("pod"))
    assert (code, error["code"]) == (1, 101)
    assert error["msg"] == "unable to create endpoint: [PUT /endpoint/{id}][429] putEndpointIdTooManyRequests"
    assert "would have to wait too long" in error["details"]


@pytest.mark.kernel
def test_namespace_that_is_not_there(agent, tmp_path):
    code, error = call("ADD", agent.socket, tmp_path / "gone")
    assert (code, error["code"]) == (1, 5)
    assert error["msg"].startswith("unable to set up veth pair: [Errno 2]")


def test_no_agent(tmp_path):
    code, error = call("ADD", tmp_path / "sock", "/proc/self/ns/net", connectTimeout=0.2)
    assert (code, error["code"]) == (1, 100)
    assert error["msg"] == (
        "unable to connect to Cilium agent: failed to create cilium agent client after 0.200000 seconds timeout: "
        f'Get "http://localhost/v1/config": dial unix {tmp_path}/sock: connect: no such file or directory'
    )
    assert call("DEL", tmp_path / "sock") == (0, None)


def test_version():
    code, answer = call("VERSION", "", stdin='{"cniVersion": "0.4.0"}')
    versions = ["0.3.1", "0.4.0", "1.0.0", "1.1.0"]
    assert (code, answer) == (0, {"cniVersion": "0.4.0", "supportedVersions": versions})


@pytest.mark.parametrize(
    ("command", "kwargs", "code", "says"),
    [
        ("ADD", {"stdin": "{"}, 6, "is not JSON"),
        ("ADD", {"stdin": "[]"}, 7, "not an object"),
        ("ADD", {"cniVersion": "0.2.0"}, 1, "incompatible CNI version '0.2.0'"),
        ("ADD", {}, 4, "['CNI_NETNS'] missing"),
        ("DEL", {"container": ""}, 4, "['CNI_CONTAINERID'] missing"),
        ("DEL", {"agentSocket": ""}, 7, "agentSocket is missing"),
        ("ADD", {"chained": True}, 4, "['CNI_NETNS'] missing"),
        ("UPDATE", {}, 4, "unknown CNI_COMMAND: 'UPDATE'"),
        ("STATUS", {}, 50, "the agent is not running: [Errno 2] No such file or directory"),
    ],
)
def test_errors_have_the_specs_codes(command, kwargs, code, says):
    exit_code, error = call(command, "/nowhere/sock", **kwargs)
    assert (exit_code, error["code"]) == (1, code)
    assert says in error["msg"]
    assert error["cniVersion"] == "1.0.0"


def test_the_file_can_be_executed_by_itself():
    assert PLUGIN.stat().st_mode & 0o111 == 0o111
    assert PLUGIN.read_text().startswith("#!/usr/bin/python3 -IS\n")
