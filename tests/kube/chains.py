"""A node of namespaces with a real CNI chain: Debian's plugins, then ours, compiled, its relay and its agent."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadgen.kernel import netns
from tests.kube.plugins import Done, environment
from tests.lab.agents import Agent

PLUGINS = Path("/usr/lib/cni")
"""Debian's containernetworking-plugins."""
SUBNET = "10.77.0.0/24"


_PORTMAP = {"type": "portmap", "capabilities": {"portMappings": True}}


def ptp(data: Path) -> list[dict[str, Any]]:
    """kind's own network, as kindnet configures it."""
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": SUBNET}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": str(data),
    }
    return [{"type": "ptp", "ipMasq": False, "ipam": ipam}, _PORTMAP]


def bridge(data: Path) -> list[dict[str, Any]]:
    first, *rest = ptp(data)
    return [{**first, "type": "bridge", "bridge": "cni0", "isGateway": True}, *rest]


class Node:
    """The runtime's part: a chain's plugins one after the other, the last result into the next one's config."""

    def __init__(
        self, agent: Agent, plugin: Path, folder: Path, chain: Sequence[dict[str, Any]], version: str
    ) -> None:
        self.agent, self.version = agent, version
        self.paths = {"loadgen-cni": plugin}
        self.socket = folder / "cni.sock"
        ours = {
            "type": "loadgen-cni",
            "chained": True,
            "agentSocket": str(agent.socket),
            "relaySocket": str(self.socket),
        }
        self.chain = [*chain, ours]
        self.results: dict[str, Any] = {}
        netns.sysctl(agent.netns, "net.ipv4.ip_forward", 1)
        command = [sys.executable, "-m", "loadgen.kube.relay", str(self.socket)]
        self.relay = netns.call(agent.netns, subprocess.Popen, command, stderr=subprocess.PIPE, text=True)
        assert "listening on" in self.relay.stderr.readline()

    def close(self) -> None:
        self.relay.kill()
        self.relay.communicate()

    def add(self, container: str, pod: Path) -> Done:
        """ADD of the whole chain; a failure ends it there."""
        result = None
        done = Done(0, "")
        for config in self.chain:
            done = self.call("ADD", config, container, pod, result)
            if done.code:
                return done
            result = done.json
        self.results[container] = result
        return done

    def delete(self, container: str, pod: Path | str) -> list[Done]:
        """DEL of the whole chain, from its end."""
        previous = self.results.get(container)
        return [self.call("DEL", config, container, pod, previous) for config in reversed(self.chain)]

    def call(self, command: str, config: dict[str, Any], container: str, pod: Path | str, previous: Any) -> Done:
        network = {**copy.deepcopy(config), "cniVersion": self.version, "name": "cluster-net"}
        if previous is not None:
            network["prevResult"] = previous
        path = self.paths.get(config["type"], PLUGINS / config["type"])
        variables = {**environment(command, pod, container), "PATH": "/usr/sbin:/usr/bin"}
        done = netns.call(
            self.agent.netns,
            subprocess.run,
            [str(path)],
            env=variables,
            input=json.dumps(network),
            capture_output=True,
            text=True,
            check=False,
        )
        return Done(done.returncode, done.stdout)
