"""The plugin on the node, compiled for real: what it sends, what it passes on, and how it does without a relay."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from loadgen.kube import relay
from loadgen.lab import testbed
from tests.kube.plugins import Done, call, compile_plugin, environment, start

Request = tuple[list[str], bytes]


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_plugin(tmp_path_factory.mktemp("plugin") / "loadgen-cni")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as threads:
        yield threads


def exactly(client: socket.socket, n: int) -> bytes:
    data = b""
    while len(data) < n:
        part = client.recv(min(4096, n - len(data)))
        assert part, "the plugin hung up"
        data += part
    return data


def block(client: socket.socket) -> bytes:
    return exactly(client, struct.unpack(">I", exactly(client, 4))[0])


class Server:
    """Takes one call and does with it what the test says."""

    def __init__(self, path: Path, pool: ThreadPoolExecutor, answer: Callable[[socket.socket], None]) -> None:
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(str(path))
        self.listening.listen()
        self.answer = answer
        self.request: Future[Request] = pool.submit(self.serve)

    def serve(self) -> Request:
        with self.listening, self.listening.accept()[0] as client:
            variables = block(client).decode().split("\0")
            config = block(client)
            self.answer(client)
        assert variables.pop() == ""
        return variables, config


def reply(code: int, text: bytes) -> bytes:
    return struct.pack(">II", code, len(text)) + text


def config(path: Path, **more: object) -> str:
    return json.dumps({"cniVersion": "1.0.0", "name": "net", "relaySocket": str(path), **more})


@pytest.mark.parametrize(("code", "text"), [(0, b'{"ips": []}\n'), (1, b'{"code": 100}\n'), (0, b"")])
def test_it_sends_its_call_and_passes_the_answer_on(plugin, tmp_path, pool, code, text):
    path = tmp_path / "sock"
    server = Server(path, pool, lambda client: client.sendall(reply(code, text)))
    variables = environment("ADD", "/run/netns/x")
    done = call(plugin, {**variables, "HOME": "/root"}, config(path))
    assert done == Done(code, text.decode())
    sent, body = server.request.result()
    assert sorted(sent) == sorted(f"{name}={value}" for name, value in variables.items())
    assert body == config(path).encode()


def test_an_answer_in_pieces(plugin, tmp_path, pool):
    text = b"x" * 70_000

    def dribble(client: socket.socket) -> None:
        whole = reply(0, text)
        for at in range(20):
            client.sendall(whole[at : at + 1])
        client.sendall(whole[20:40_000])
        client.sendall(whole[40_000:])

    path = tmp_path / "sock"
    Server(path, pool, dribble)
    assert call(plugin, environment("ADD"), config(path)) == Done(0, text.decode())


def test_a_config_of_a_mebibyte_arrives_whole_and_a_longer_one_is_refused(plugin, tmp_path, pool):
    path = tmp_path / "sock"
    server = Server(path, pool, lambda client: client.sendall(reply(0, b"")))
    body = config(path, pad="y" * ((1 << 20) - len(config(path, pad=""))))
    assert len(body) == relay.MAX_CONFIG
    assert call(plugin, environment("ADD"), body) == Done(0, "")
    assert server.request.result()[1] == body.encode()
    refused = call(plugin, environment("ADD"), body + " ")
    assert (refused.code, refused.json["code"]) == (1, 7)
    assert "longer than 1048576 bytes" in refused.json["msg"]


def test_an_environment_without_end_is_refused(plugin, tmp_path):
    done = call(plugin, {**environment("ADD"), "CNI_ARGS": "z" * 70_000}, config(tmp_path / "sock"))
    assert (done.code, done.json["code"]) == (1, 5)
    assert "CNI_* environment is longer than 65536 bytes" in done.json["msg"]


def test_an_answer_without_end_is_refused(plugin, tmp_path, pool):
    path = tmp_path / "sock"
    Server(path, pool, lambda client: client.sendall(struct.pack(">II", 0, (1 << 20) + 1)))
    done = call(plugin, environment("ADD"), config(path))
    assert (done.code, done.json["code"]) == (1, 5)


@pytest.mark.parametrize("answer", [b"", b"\0\0", reply(0, b"half of it")[:-3]])
def test_a_relay_that_ends_in_the_middle_is_an_error(plugin, tmp_path, pool, answer):
    path = tmp_path / "sock"
    Server(path, pool, lambda client: client.sendall(answer))
    done = call(plugin, environment("ADD"), config(path))
    assert (done.code, done.json["code"]) == (1, 100)
    assert done.json["msg"].startswith("the agent's pod ended")


def test_add_waits_for_a_relay_that_is_starting(plugin, tmp_path, pool):
    path = tmp_path / "sock"
    process = start(plugin, environment("ADD"))
    assert process.stdin is not None
    process.stdin.write(config(path))
    process.stdin.close()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.3)
    Server(path, pool, lambda client: client.sendall(reply(0, b"at last")))
    assert process.wait(timeout=10) == 0
    assert process.stdout is not None
    assert process.stdout.read() == "at last"


@pytest.mark.parametrize("listening", [False, True])
def test_without_a_relay_add_says_what_cni_py_says_without_an_agent(plugin, tmp_path, listening):
    path = tmp_path / "sock"
    if listening:  # a socket file that nobody listens on: the relay was killed
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    prev = {"cniVersion": "9", "connectTimeout": 0, "odd": ["]}", '"', "\\"]}
    network = config(path, agentSocket=str(path), connectTimeout=0.25, prevResult=prev)
    variables = environment("ADD", "/proc/self/ns/net")
    began = time.monotonic()
    done = call(plugin, variables, network)
    assert 0.25 <= time.monotonic() - began < 5
    assert done == call(testbed.PLUGIN, variables, network)
    assert "after 0.250000 seconds timeout" in done.json["msg"]
    assert ("connection refused" if listening else "no such file or directory") in done.json["msg"]


def test_the_wait_is_ciliums_half_minute_when_nothing_else_is_said(plugin, tmp_path):
    process = start(plugin, environment("ADD"))
    assert process.stdin is not None
    process.stdin.write(config(tmp_path / "sock", nested={"connectTimeout": 0}))
    process.stdin.close()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=1)
    process.kill()
    assert process.wait() < 0


@pytest.mark.parametrize(("command", "code"), [("DEL", 0), ("GC", 0), ("STATUS", 1)])
def test_without_a_relay_nothing_is_left_to_delete_and_nobody_is_ready(plugin, tmp_path, command, code):
    done = call(plugin, environment(command), config(tmp_path / "sock"))
    assert done.code == code
    assert (done.json["code"] == 50) if code else (done.out == "")


def test_version_needs_no_relay_and_says_what_cni_py_says(plugin):
    asked = '{"a": {"cniVersion": "7"}, "cniVersion" : "0.4.0"}'
    done = call(plugin, {"CNI_COMMAND": "VERSION"}, asked)
    assert done == call(testbed.PLUGIN, {"CNI_COMMAND": "VERSION"}, asked)
    assert done.json["cniVersion"] == "0.4.0"


@pytest.mark.parametrize("length", [0, 108])
def test_a_socket_path_that_cannot_be(plugin, length):
    done = call(plugin, environment("DEL"), json.dumps({"relaySocket": "s" * length}))
    assert (done.code, done.json["code"]) == (1, 7)


@pytest.mark.parametrize("text", ["", "{", "[1", '{"relaySocket', '{"relaySocket": "', '{"a": [}', "\0\0"])
def test_what_is_no_json_goes_to_the_compiled_in_socket(plugin, text):
    """Nobody listens there on this machine: a DEL is then done."""
    assert call(plugin, environment("DEL"), text) == Done(0, "")


def test_a_killed_plugin_hangs_up(plugin, tmp_path, pool):
    gone = threading.Event()

    def wait_for_the_end(client: socket.socket) -> None:
        process.kill()
        assert client.recv(1) == b""
        gone.set()

    path = tmp_path / "sock"
    process = start(plugin, environment("ADD"))
    server = Server(path, pool, wait_for_the_end)
    process.communicate(config(path), timeout=10)
    server.request.result(timeout=10)
    assert gone.is_set()
