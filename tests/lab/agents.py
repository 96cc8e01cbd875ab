"""A real agent in a network namespace of its own, with real tables, for the tests of the lab."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from loadgen.core.agentapi import AgentState, SpanPage
from loadgen.core.conntrack import CT_KEY_DTYPE, CT_VALUE_DTYPE
from loadgen.core.samples import Span
from loadgen.kernel import bpf
from loadgen.kernel.unixhttp import UnixConnection
from loadgen.native import ct_fill, ct_walk

LIMITS_LIFTED = {"endpoint-create": {"rate-limit": 0, "parallel-requests": 0, "auto-adjust": False}}
CAPACITY = {"ctTcpMax": 524_288, "ctAnyMax": 65_536}
DATANODE = int(IPv4Address("10.128.0.1"))

_numbers = itertools.count()


class Agent:
    """A running agent process. Requests are blocking; `pool` makes them at once."""

    def __init__(
        self, lab_dir: Path, netns: Path, *, attach: bool = False, place: dict[str, Any] | None = None, **cilium: Any
    ) -> None:
        """`place`: what else the configuration says, over what it says here."""
        name = f"agent-{next(_numbers)}"
        self.folder, self.pins, self.netns = lab_dir / name, lab_dir / "bpf" / name, netns
        self.folder.mkdir()
        self.socket = self.folder / "cilium.sock"
        self.capacity = CAPACITY["ctTcpMax"]
        config = {
            "socket": str(self.socket),
            "pin_dir": str(self.pins),
            "pod_cidr": "10.244.0.0/24",
            "gateway": "10.244.0.1",
            "cilium": {"bpf": CAPACITY, **cilium},
            "attach": attach,
            "netns": str(netns),
            **(place or {}),
        }
        self.config = self.folder / "agent.json"
        self.config.write_text(json.dumps(config))
        self.pool = ThreadPoolExecutor(max_workers=64)
        self.start()
        self.fds = {"tcp": bpf.obj_get(self.pins / bpf.TCP_MAP), "any": bpf.obj_get(self.pins / bpf.ANY_MAP)}

    def start(self) -> None:
        command = [sys.executable, "-m", "loadgen.lab.agent", str(self.config)]
        with (self.folder / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n", self.log()

    def log(self) -> str:
        return (self.folder / "agent.log").read_text()

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=10)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.pool.shutdown(cancel_futures=True)
        for fd in self.fds.values():
            os.close(fd)
        for pin in self.pins.iterdir():
            pin.unlink()

    # --- HTTP -------------------------------------------------------------------------------------------------

    def request(self, method: str, path: str, body: object = None, timeout: float = 60.0) -> tuple[int, Any]:
        """Status and decoded body; TimeoutError after hanging up on an answer that takes too long."""
        connection = self.send(method, path, body, timeout)
        try:
            return _answer(connection.getresponse())
        finally:
            connection.close()

    def send(self, method: str, path: str, body: object = None, timeout: float = 60.0) -> UnixConnection:
        """A request whose answer nobody has read yet; closing the connection is how a client leaves."""
        connection = UnixConnection(self.socket, timeout)
        connection.request(method, path, None if body is None else json.dumps(body).encode())
        return connection

    def state(self) -> AgentState:
        return msgspec.convert(self.request("GET", "/v1/loadgen/state")[1], AgentState)

    def spans(self) -> list[Span]:
        return msgspec.convert(self.request("GET", "/v1/loadgen/spans?after=0")[1], SpanPage).spans

    def walks(self, op: str, ref: str | None = None, table: str = "tcp") -> list[Span]:
        return [s for s in self.spans() if s.op == op and s.stage == f"walk {table}" and ref in (None, s.ref)]

    def until(self, reached: Callable[[AgentState], bool], limit_s: float = 30.0) -> AgentState:
        """Look at the state, again and again, until it is what is waited for."""
        deadline = time.monotonic() + limit_s
        while not reached(state := self.state()):
            assert time.monotonic() < deadline, f"not reached: {state}"
        return state

    # --- endpoints --------------------------------------------------------------------------------------------

    @staticmethod
    def spec(number: int, ifname: str = "lxc0") -> tuple[str, dict[str, Any]]:
        """Path and body of a PUT for container c<number> with address 10.244.0.<number>."""
        body = {
            "addressing": {"ipv4": f"10.244.0.{number}"},
            "container-id": f"c{number}",
            "container-interface-name": "eth0",
            "interface-name": ifname,
            "sync-build-endpoint": True,
        }
        return f"/v1/endpoint/cni-attachment-id:c{number}:eth0", body

    def create(self, number: int) -> int:
        return self.request("PUT", *self.spec(number))[0]

    def delete(self, number: int) -> int:
        return self.request("DELETE", self.spec(number)[0])[0]

    # --- tables -----------------------------------------------------------------------------------------------

    def fill(
        self, count: int, *, pod: int = int(IPv4Address("10.250.0.1")), table: str = "tcp", left_s: int = 3600
    ) -> None:
        """`count` entries of connections from the address `pod`, with `left_s` seconds to live."""
        keys, values = np.zeros(count, CT_KEY_DTYPE), np.zeros(count, CT_VALUE_DTYPE)
        order = np.arange(count)
        keys["daddr"], keys["saddr"] = pod, DATANODE + order // 50_000
        keys["dport"], keys["sport"] = 50_010, 1024 + order % 50_000
        keys["proto"] = 6 if table == "tcp" else 17
        values["lifetime"] = int(time.monotonic()) + left_s
        assert ct_fill(self.fds[table], keys.tobytes(), values.tobytes()) == count

    def entries(self, table: str = "tcp") -> int:
        return ct_walk(self.fds[table], capacity=self.capacity, batch=4096).seen


def _answer(response: http.client.HTTPResponse) -> tuple[int, Any]:
    text = response.read()
    return response.status, json.loads(text) if text and "json" in response.headers["Content-Type"] else text
