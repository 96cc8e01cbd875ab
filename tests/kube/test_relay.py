"""The relay with the compiled plugin at its other end: calls in parallel, calls killed, calls that are none."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import struct
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from loadgen.kube import relay
from loadgen.kube.relay import Relay
from tests.kube.plugins import CONTAINER, Done, call, compile_plugin, environment

ECHO = "import json, os, sys; print(json.dumps([dict(os.environ), sys.stdin.read()])); sys.exit(3)"
WAIT = "import os, pathlib, signal, sys; pathlib.Path({!r}).write_text(str(os.getpid())); signal.pause()"
MEET = """
import os, pathlib, time
place = pathlib.Path({!r})
(place / os.environ["CNI_CONTAINERID"]).touch()
while len(list(place.iterdir())) < 8:
    time.sleep(0.01)
print("all here")
"""


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_plugin(tmp_path_factory.mktemp("plugin") / "loadgen-cni")


class Rig:
    """A relay of this process whose program is `code`, and plugins that call it."""

    def __init__(self, plugin: Path, socket: Path, code: str) -> None:
        self.plugin, self.socket = plugin, socket
        self.relay = Relay((sys.executable, "-c", code))
        self.stop = asyncio.Event()

    async def start(self, container: str = CONTAINER) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            str(self.plugin), env=environment("ADD", container=container), stdin=-1, stdout=-1
        )
        assert process.stdin is not None
        process.stdin.write(self.config.encode())
        process.stdin.close()
        return process

    @property
    def config(self) -> str:
        return json.dumps({"cniVersion": "1.0.0", "name": "net", "relaySocket": str(self.socket)})

    async def call(self, container: str = CONTAINER) -> Done:
        process = await self.start(container)
        assert process.stdout is not None
        out = await process.stdout.read()
        return Done(await process.wait(), out.decode())


def run(plugin: Path, tmp_path: Path, code: str, body: Callable[[Rig], Awaitable[None]]) -> None:
    async def serve() -> None:
        rig = Rig(plugin, tmp_path / "relay.sock", code)
        serving = asyncio.create_task(rig.relay.serve(rig.socket, rig.stop))
        async with asyncio.timeout(30):
            await body(rig)
            rig.stop.set()
            await serving
        assert not rig.socket.exists()

    asyncio.run(serve())


async def until(reached: Callable[[], bool]) -> None:
    while not reached():  # noqa: ASYNC110 - another process is looked at
        await asyncio.sleep(0)


def alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def test_environment_and_config_arrive_and_code_and_output_come_back(plugin, tmp_path):
    async def body(rig: Rig) -> None:
        code, out = await rig.call()
        assert code == 3
        variables, config = json.loads(out)
        assert {name: variables[name] for name in environment("ADD")} == environment("ADD")
        assert set(variables) - set(environment("ADD")) <= {"LC_CTYPE"}  # Python's own
        assert config == rig.config

    run(plugin, tmp_path, ECHO, body)


def test_calls_run_side_by_side(plugin, tmp_path):
    place = tmp_path / "place"
    place.mkdir()

    async def body(rig: Rig) -> None:
        done = await asyncio.gather(*(rig.call(f"c{i}") for i in range(8)))
        assert done == [Done(0, "all here\n")] * 8

    run(plugin, tmp_path, MEET.format(str(place)), body)


def test_a_killed_plugin_takes_its_program_along_and_the_relay_goes_on(plugin, tmp_path, caplog):
    noted = tmp_path / "pid"

    async def body(rig: Rig) -> None:
        for _ in range(2):
            noted.write_text("")
            process = await rig.start()
            await until(lambda: noted.read_text() != "")
            process.send_signal(signal.SIGKILL)
            await process.wait()
            await until(lambda: not alive(int(noted.read_text())))
        await until(lambda: caplog.text.count("ended by SIGKILL") >= 2)
        assert caplog.text.count(f"ADD {CONTAINER[:12]}: ended by SIGKILL, its plugin was killed") == 2

    run(plugin, tmp_path, WAIT.format(str(noted)), body)


def test_the_end_of_the_relay_ends_its_calls(plugin, tmp_path):
    noted = tmp_path / "pid"

    async def body(rig: Rig) -> None:
        process = await rig.start()
        await until(lambda: noted.exists() and noted.read_text() != "")
        rig.stop.set()
        assert process.stdout is not None
        said = json.loads(await process.stdout.read())
        assert (await process.wait(), said["code"]) == (1, 100)
        await until(lambda: not alive(int(noted.read_text())))

    run(plugin, tmp_path, WAIT.format(str(noted)), body)


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (
            struct.pack(">I", relay.MAX_ENVIRONMENT + 1),
            "the environment of a call has 65537 bytes; 65536 are allowed",
        ),
        (struct.pack(">II", 0, relay.MAX_CONFIG + 1), "the network config of a call has 1048577 bytes"),
        (b"\0\0", ""),
        (struct.pack(">I", 10) + b"abc", ""),
    ],
)
def test_what_is_no_call_is_hung_up_on(plugin, tmp_path, caplog, sent, says):
    async def body(rig: Rig) -> None:
        await until(rig.socket.exists)
        reader, writer = await asyncio.open_unix_connection(rig.socket)
        writer.write(sent)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        assert says in caplog.text
        assert (await rig.call()).code == 3

    run(plugin, tmp_path, ECHO, body)


def test_as_a_process_it_runs_cni_py_for_root_alone(plugin, tmp_path):
    socket = tmp_path / "run" / "cni.sock"
    socket.parent.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "loadgen.kube.relay", str(socket)], stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        assert "listening on" in process.stderr.readline()
        config = {"cniVersion": "1.1.0", "relaySocket": str(socket), "agentSocket": str(tmp_path / "nobody")}
        done = call(plugin, environment("CHECK", "/x"), json.dumps({**config, "connectTimeout": 0.1}))
        assert (done.code, done.json["code"]) == (1, 100)
        assert "dial unix" in done.json["msg"]
        done = call(plugin, environment("STATUS"), json.dumps(config))
        assert (done.code, done.json["code"]) == (1, 50)
        assert done.json["msg"] == "the agent is not running: [Errno 2] No such file or directory"
        assert stat.S_IMODE(socket.stat().st_mode) == 0o700
        process.terminate()
        assert process.wait(timeout=10) == 0
        assert not socket.exists()
    finally:
        process.kill()
        _, said = process.communicate()
    assert "STATUS ffffffffffff: {" in said


def test_a_socket_that_cannot_be_made_is_said(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "loadgen.kube.relay", str(tmp_path / "no" / "cni.sock")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert "No such file or directory" in done.stderr.splitlines()[-1]
    assert relay.main(["relay"]) == 4
