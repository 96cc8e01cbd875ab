"""The agent as a process: ready, restarted, terminated in the middle of a walk, refused."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadgen.core import cilium
from loadgen.core.agentapi import AgentState
from loadgen.core.cilium import PROFILES
from loadgen.core.model import Bpf, Cilium, seconds
from loadgen.core.units import NS_PER_S
from loadgen.kernel import bpf, netns
from loadgen.lab.agent import __main__ as program
from loadgen.lab.agent.config import settings_text
from tests.lab.agents import CAPACITY, Agent

pytestmark = pytest.mark.kernel


def test_sigterm_ends_it_in_the_middle_of_a_walk(start_agent):
    agent = start_agent(buildPermits=8)
    agent.fill(400_000)
    clients = [agent.send("PUT", *agent.spec(number)) for number in range(2, 5)]
    agent.until(lambda state: state.tables["tcp"].locked and state.tables["tcp"].waiters == 2)
    assert agent.terminate() == 0
    assert not agent.socket.exists()
    assert "Traceback" not in agent.log()
    for client in clients:
        client.close()


def test_entries_outlive_the_agent(start_agent):
    agent = start_agent()
    agent.fill(1_000)
    assert agent.terminate() == 0
    agent.start()
    assert agent.state().tables["tcp"].entries == 1_000


@pytest.mark.parametrize(("size", "kept"), [(CAPACITY["ctTcpMax"], 1_000), (65_536, 0)])
def test_a_table_of_another_size_begins_anew(start_agent, size, kept):
    """The other table, whose size stays, is the same map after both restarts."""
    agent = start_agent()
    agent.fill(1_000)
    before = {name: bpf.map_info(fd).id for name, fd in agent.fds.items()}
    agent.terminate()
    config = json.loads(agent.config.read_text())
    config["cilium"]["bpf"]["ctTcpMax"] = size
    agent.config.write_text(json.dumps(config))
    agent.start()
    now = {name: pinned_id(agent, pin) for name, pin in (("tcp", bpf.TCP_MAP), ("any", bpf.ANY_MAP))}
    assert now["any"] == before["any"]
    assert (now["tcp"] == before["tcp"]) is bool(kept)
    table = agent.state().tables["tcp"]
    assert (table.capacity, table.entries) == (size, kept)


def pinned_id(agent: Agent, name: str) -> int:
    fd = bpf.obj_get(agent.pins / name)
    try:
        return bpf.map_info(fd).id
    finally:
        os.close(fd)


def over_tcp(agent: Agent, path: str, method: str = "GET") -> tuple[int, bytes]:
    def ask() -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", 9962, timeout=10)
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read()

    return netns.call(agent.netns, ask)


def test_readings_are_served_over_tcp_and_nothing_that_changes_anything(start_agent):
    cilium_settings: dict[str, Any] = {"conntrackGCInterval": "60s", "profile": "1.18"}
    agent = start_agent(place={"metrics_listen": ":9962"}, **cilium_settings)
    agent.create(2)
    assert over_tcp(agent, "/v1/healthz")[0] == 200
    status, text = over_tcp(agent, "/metrics")
    assert status == 200
    assert b'cilium_endpoint_state{endpoint_state="ready"} 1.0' in text
    state = msgspec.json.decode(over_tcp(agent, "/v1/loadgen/state")[1], type=AgentState)
    settings = Cilium(profile="1.18", gc_interval=seconds(60), bpf=Bpf(*CAPACITY.values()))
    assert state.settings == settings_text(settings)
    for method, path in (("DELETE", "/v1/endpoint/container-id:c2"), ("POST", "/v1/loadgen/gc"), ("PUT", "/metrics")):
        assert over_tcp(agent, path, method)[0] in (404, 405)


def test_a_port_that_is_taken_ends_it(start_agent):
    agent = start_agent(place={"metrics_listen": "127.0.0.1:9962"})
    config = {**json.loads(agent.config.read_text()), "socket": str(agent.socket) + "2"}
    second = agent.folder / "second.json"
    second.write_text(json.dumps(config))
    done = subprocess.run(
        [sys.executable, "-m", "loadgen.lab.agent", str(second)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert "('127.0.0.1', 9962): address already in use" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(("profile", "code"), [("1.16", 1), ("1.18", 0)])
def test_initial_pass_that_takes_too_long(start_agent, monkeypatch, profile, code):
    """Per key a pass over 400,000 takes half a second; the limit of 30 s is cut to what the test can wait for."""
    agent = start_agent(profile=profile)
    agent.fill(400_000)
    agent.terminate()
    short = (
        "import sys, msgspec; from loadgen.core import cilium; from loadgen.lab.agent.__main__ import main\n"
        f"p = msgspec.structs.replace(cilium.PROFILES[{profile!r}], initial_scan_timeout_ns=10_000_000)\n"
        f"cilium.PROFILES = {{{profile!r}: p}}\n"
        "sys.exit(main(sys.argv))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", short, str(agent.config)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == ("" if code else "ready\n")
    process.terminate()
    _, said = process.communicate(timeout=20)
    assert process.returncode == code
    assert ("Timeout while waiting for initial conntrack scan" in said.splitlines()[-1]) is bool(code)
    assert ("going on without it" in said) is not bool(code)


def test_bad_configuration_is_one_line_and_exit_code_4(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "loadgen.lab.agent", str(tmp_path / "none.json")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 4
    assert len(done.stderr.splitlines()) == 1
    assert "none.json" in done.stderr


def test_usage(capsys):
    assert program.main(["loadgen.lab.agent"]) == 4
    assert cilium.profile("1.16") is PROFILES["1.16"]
    assert PROFILES["1.16"].initial_scan_timeout_ns == 30 * NS_PER_S
