#!/usr/bin/python3 -IS
"""A CNI plugin that calls the agent as cilium-cni does: one file, standard library only, spec 0.3.1 to 1.1.0.

Configuration (stdin), besides the spec's keys: `agentSocket` (needed), `clientTimeout` (90) and `connectTimeout` (30)
in seconds; Cilium's are pkg/api ClientTimeout and pkg/defaults ClientConnectTimeout. Errors are the spec's JSON on
stdout with exit code 1. A failed ADD gives back the address and the link; the agent may still be at work on the
endpoint, and removes it by itself once it notices that nobody waits.

With `chained` it comes after another plugin, as Cilium's generic-veth chaining does: that one has made the link and
chosen the address, both are in prevResult; here the endpoint is made, and prevResult handed on as it came.
"""

from __future__ import annotations

import sys

# http.client would import ssl, an eighth of this program's whole CPU time, for an HTTPS that is never spoken here.
sys.modules["ssl"] = None  # type: ignore[assignment]

import array  # noqa: E402
import fcntl  # noqa: E402
import http.client  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import socket  # noqa: E402
import struct  # noqa: E402
import time  # noqa: E402
from typing import Any  # noqa: E402

VERSIONS = ["0.3.1", "0.4.0", "1.0.0", "1.1.0"]
ERROR_VERSION = "1.0.0"

# Error codes of the CNI spec, section 4; from 100 on they are the plugin's own.
INCOMPATIBLE_VERSION, BAD_ENVIRONMENT, IO_FAILURE, BAD_JSON, BAD_CONFIG, NOT_AVAILABLE = 1, 4, 5, 6, 7, 50
AGENT_UNREACHABLE, AGENT_REFUSED, CHECK_FAILED = 100, 101, 102

RETRY_S = 0.1
OPERATIONS = {429: "TooManyRequests", 500: "Failed", 400: "Invalid", 404: "NotFound"}


class CniError(Exception):
    def __init__(self, code: int, msg: str, details: str = "") -> None:
        super().__init__(msg)
        self.code, self.msg, self.details = code, msg, details


class AgentError(Exception):
    """The agent's answer was not what was asked for. `status` 0: there was none in time."""

    def __init__(self, status: int, msg: str) -> None:
        super().__init__(msg)
        self.status = status


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Agent:
    """The agent's API, each call on a connection of its own, so that a timeout hangs up on that call alone."""

    def __init__(self, config: dict) -> None:
        self.socket = config["agentSocket"]
        self.timeout = float(config.get("clientTimeout", 90))
        self.connect_timeout = float(config.get("connectTimeout", 30))

    def call(self, method: str, path: str, body: object = None) -> Any:
        connection = UnixConnection(self.socket, self.timeout)
        try:
            payload = None if body is None else json.dumps(body).encode()
            connection.request(method, path, payload, {"Content-Type": "application/json"} if payload else {})
            response = connection.getresponse()
            text = response.read().decode()
        except TimeoutError:
            raise AgentError(0, "Cilium API client timeout exceeded") from None
        except http.client.HTTPException as error:
            raise AgentError(0, f"{method} {path}: {error!r}") from None
        finally:
            connection.close()
        value = json.loads(text) if text else None
        if response.status >= 300:
            raise AgentError(response.status, str(value or response.reason))
        return value

    def connect(self) -> dict:
        """The agent's configuration, asked for until it answers or the connect timeout is over."""
        deadline = time.monotonic() + self.connect_timeout
        while True:
            try:
                return self.call("GET", "/v1/config")
            except OSError as error:
                if time.monotonic() >= deadline:
                    raise CniError(AGENT_UNREACHABLE, self.unreachable(error)) from None
                time.sleep(RETRY_S)
            except AgentError as error:
                raise CniError(AGENT_UNREACHABLE, f"unable to connect to Cilium agent: {error}") from None

    def unreachable(self, error: OSError) -> str:
        return (
            f"unable to connect to Cilium agent: failed to create cilium agent client after {self.connect_timeout:f} "
            f'seconds timeout: Get "http://localhost/v1/config": dial unix {self.socket}: connect: '
            f"{(error.strerror or str(error)).lower()}"
        )


class Call:
    """One invocation: the environment and the configuration, checked as far as its command needs them."""

    def __init__(self, environment: dict, config: dict) -> None:
        self.command = environment["CNI_COMMAND"]
        self.container_id = environment.get("CNI_CONTAINERID", "")
        self.netns = environment.get("CNI_NETNS", "")
        self.ifname = environment.get("CNI_IFNAME", "")
        args = environment.get("CNI_ARGS", "")
        self.args = dict(pair.split("=", 1) for pair in args.split(";") if "=" in pair)
        self.config = config
        self.version = config["cniVersion"]
        of_pod = self.command not in COMMANDS_OF_1_1
        needed = {"CNI_CONTAINERID": self.container_id, "CNI_IFNAME": self.ifname} if of_pod else {}
        if self.command in ("ADD", "CHECK"):  # a repeated DEL may come without a namespace
            needed["CNI_NETNS"] = self.netns
        missing = [name for name, value in needed.items() if not value]
        if missing:
            raise CniError(BAD_ENVIRONMENT, f"required env variables {missing} missing")
        if not config.get("agentSocket"):
            raise CniError(BAD_CONFIG, "agentSocket is missing", "name the agent's unix socket in the network config")
        self.chained = bool(config.get("chained"))

    @property
    def pod(self) -> dict:
        return {name: self.args.get(f"K8S_POD_{name}", "") for name in ("NAMESPACE", "NAME")}

    @property
    def endpoint(self) -> str:
        """The id that cilium-cni uses since 1.15."""
        return f"cni-attachment-id:{self.container_id}:{self.ifname}"


def add(call: Call) -> dict:
    if call.chained:
        return add_chained(call)
    agent = Agent(call.config)
    agent.connect()
    owner = f"{call.pod['NAMESPACE']}/{call.pod['NAME']}"
    try:
        ipam = agent.call("POST", f"/v1/ipam?family=ipv4&owner={owner}")
    except AgentError as error:
        raise CniError(AGENT_REFUSED, f"unable to allocate IP via local cilium agent: {error}") from None
    address = ipam["address"]["ipv4"]
    link = None
    try:
        link = make_link(agent, call, address)
        create_endpoint(agent, call, address, link)
    except (CniError, OSError):
        give_back(agent, call, address)
        raise
    return result(call, address, ipam["ipv4"]["gateway"], link)


def make_link(agent: Agent, call: Call, address: str) -> dict:
    request = {"container-id": call.container_id, "netns": call.netns, "ifname": call.ifname, "ipv4": address}
    try:
        return agent.call("POST", "/v1/loadgen/link", request)
    except AgentError as error:
        raise CniError(IO_FAILURE, f"unable to set up veth pair: {error}") from None


def create_endpoint(agent: Agent, call: Call, address: str, link: dict) -> None:
    """Returns when the endpoint has been built (sync-build-endpoint)."""
    request = {
        "addressing": {"ipv4": address},
        "container-id": call.container_id,
        "container-interface-name": call.ifname,
        "interface-name": link["host"],
        "host-mac": link["host_mac"],
        "mac": link["pod_mac"],
        "k8s-namespace": call.pod["NAMESPACE"],
        "k8s-pod-name": call.pod["NAME"],
        "state": "waiting-for-identity",
        "sync-build-endpoint": True,
    }
    try:
        agent.call("PUT", f"/v1/endpoint/{call.endpoint}", request)
    except AgentError as error:
        raise CniError(AGENT_REFUSED, f"unable to create endpoint: {describe('PUT', error)}", str(error)) from None


def describe(method: str, error: AgentError) -> str:
    """As Cilium's generated client prints it: `[PUT /endpoint/{id}][429] putEndpointIdTooManyRequests`."""
    if error.status == 0:
        return str(error)
    operation = f"{method.lower()}EndpointId{OPERATIONS.get(error.status, '')}"
    return f"[{method} /endpoint/{{id}}][{error.status}] {operation}"


def give_back(agent: Agent, call: Call, address: str) -> None:
    """After a failed ADD. What cannot be given back now is what the DEL is for."""
    for path in (f"/v1/ipam/{address}", f"/v1/loadgen/link/{call.container_id}"):
        try:
            agent.call("DELETE", path)
        except (AgentError, OSError):
            continue


def result(call: Call, address: str, gateway: str, link: dict) -> dict:
    ip = {"address": f"{address}/32", "gateway": gateway, "interface": 1}
    if call.version.startswith("0."):
        ip["version"] = "4"
    return {
        "cniVersion": call.version,
        "interfaces": [
            {"name": link["host"], "mac": link["host_mac"]},
            {"name": link["pod"], "mac": link["pod_mac"], "sandbox": call.netns},
        ],
        "ips": [ip],
        "routes": [{"dst": f"{gateway}/32"}, {"dst": "0.0.0.0/0", "gw": gateway}],
        "dns": {},
    }


def add_chained(call: Call) -> dict:
    """Nothing is given back after a failure: the runtime's DEL goes through the whole chain."""
    previous = call.config.get("prevResult")
    if not isinstance(previous, dict):
        raise CniError(
            BAD_CONFIG, "prevResult is missing", "chained, this plugin comes after the one that makes the pod's link"
        )
    link, address = pod_link(call, previous), pod_address(call, previous)
    agent = Agent(call.config)
    agent.connect()
    create_endpoint(agent, call, address, link)
    return {**previous, "cniVersion": call.version}


def pod_address(call: Call, previous: dict) -> str:
    """The IPv4 address of the pod's own interface; without an `interface` an address is taken to be of it."""
    interfaces = previous.get("interfaces") or []
    for ip in previous.get("ips") or []:
        index = ip.get("interface")
        if index is not None and 0 <= index < len(interfaces) and not is_pods(call, interfaces[index]):
            continue
        address = str(ip.get("address", "")).split("/")[0]
        if "." in address:
            return address
    raise CniError(BAD_CONFIG, f"prevResult has no IPv4 address of {call.ifname}", "IPv6 alone is not modelled")


def is_pods(call: Call, interface: dict) -> bool:
    return bool(interface.get("sandbox")) and interface.get("name") == call.ifname


def pod_link(call: Call, previous: dict) -> dict:
    """The host's end of the pod's veth pair.

    ptp names it beside the pod's end, bridge names the bridge too, Calico names it alone: it is the only veth among
    the interfaces outside of a sandbox.
    """
    interfaces = previous.get("interfaces") or []
    outside = [interface for interface in interfaces if not interface.get("sandbox")]
    drivers = {str(interface.get("name")): driver(str(interface.get("name"))) for interface in outside}
    veths = [interface for interface in outside if drivers[str(interface.get("name"))] == "veth"]
    if len(veths) != 1:
        found = ", ".join(f"{name} ({kind or 'not there'})" for name, kind in drivers.items()) or "none"
        raise CniError(
            BAD_CONFIG,
            f"prevResult names {len(veths)} veth interfaces on the host, not one; it has {found}",
            "this plugin can be chained after ptp, bridge and others that give a pod one veth pair",
        )
    pods = [interface for interface in interfaces if is_pods(call, interface)]
    return {
        "host": veths[0]["name"],
        "host_mac": veths[0].get("mac", ""),
        "pod_mac": pods[0].get("mac", "") if pods else "",
    }


SIOCETHTOOL, ETHTOOL_GDRVINFO = 0x8946, 3


def driver(name: str) -> str:
    """The driver of an interface of this namespace ("veth", "bridge"), "" when there is no such interface."""
    info = array.array("B", struct.pack("=I", ETHTOOL_GDRVINFO) + bytes(192))
    request = struct.pack("16sP16x", name.encode()[:15], info.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            fcntl.ioctl(any_socket, SIOCETHTOOL, request)
        except OSError:
            return ""
    return info.tobytes()[4:36].partition(b"\0")[0].decode()


def delete(call: Call) -> None:
    """Idempotent: what is gone already is no error, nor is an absent agent (its endpoints went with it)."""
    agent = Agent(call.config)
    try:
        agent.call("DELETE", f"/v1/endpoint/{call.endpoint}")
    except AgentError as error:
        if error.status != 404:
            raise CniError(AGENT_REFUSED, f"unable to delete endpoint: {describe('DELETE', error)}") from None
    except OSError:
        return
    if call.chained:
        return
    try:
        agent.call("DELETE", f"/v1/loadgen/link/{call.container_id}")
    except AgentError as error:
        raise CniError(IO_FAILURE, f"unable to delete veth pair: {error}") from None


def check(call: Call) -> None:
    agent = Agent(call.config)
    agent.connect()
    try:
        endpoint = agent.call("GET", f"/v1/endpoint/{call.endpoint}")
    except AgentError as error:
        raise CniError(CHECK_FAILED, f"endpoint {call.endpoint}: {error}") from None
    status = endpoint["status"]
    if status["state"] != "ready":
        raise CniError(CHECK_FAILED, f"endpoint {call.endpoint} is not ready: {status['state']}")
    has = {entry["ipv4"] for entry in status["networking"]["addressing"]}
    ips = (call.config.get("prevResult") or {}).get("ips", [])
    strange = [ip["address"] for ip in ips if ip["address"].split("/")[0] not in has]
    if strange:
        raise CniError(CHECK_FAILED, f"endpoint {call.endpoint} does not have the address {strange[0]}")


def status(call: Call) -> None:
    """Whether an ADD would find the agent; asked often, so it does not wait for one."""
    try:
        Agent(call.config).call("GET", "/v1/healthz")
    except (AgentError, OSError) as error:
        raise CniError(NOT_AVAILABLE, f"the agent is not running: {error}") from None


def collect_garbage(_: Call) -> None:
    """The runtime sends a DEL for every attachment that it knows; the agent keeps nothing else."""


COMMANDS = {"ADD": add, "DEL": delete, "CHECK": check, "STATUS": status, "GC": collect_garbage}
COMMANDS_OF_1_1 = ("STATUS", "GC")


def parse(text: str) -> dict:
    try:
        config = json.loads(text)
    except ValueError as error:
        raise CniError(BAD_JSON, f"the network config on stdin is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise CniError(BAD_CONFIG, "the network config on stdin is not an object")
    return config


def run(environment: dict, text: str) -> dict | None:
    command = environment.get("CNI_COMMAND", "")
    if command == "VERSION":
        return {"cniVersion": parse(text).get("cniVersion", ERROR_VERSION), "supportedVersions": VERSIONS}
    if command not in COMMANDS:
        raise CniError(BAD_ENVIRONMENT, f"unknown CNI_COMMAND: {command!r}", f"one of {', '.join(COMMANDS)}, VERSION")
    config = parse(text)
    if config.get("cniVersion") not in VERSIONS:
        raise CniError(
            INCOMPATIBLE_VERSION, f"incompatible CNI version {config.get('cniVersion')!r}", f"supported: {VERSIONS}"
        )
    return COMMANDS[command](Call(environment, config))


def main() -> int:
    text = sys.stdin.read()
    try:
        answer = run(dict(os.environ), text)
    except (CniError, OSError) as error:
        code = error.code if isinstance(error, CniError) else IO_FAILURE
        failure = {"cniVersion": ERROR_VERSION, "code": code, "msg": str(error)}
        details = getattr(error, "details", "")
        print(json.dumps({**failure, "details": details} if details else failure))
        return 1
    if answer is not None:
        print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
