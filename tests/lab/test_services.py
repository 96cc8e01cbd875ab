import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from loadgen.core.errors import HarnessError
from loadgen.kernel import netns, process
from loadgen.lab.services import Service
from loadgen.lab.sink import SinkConfig
from loadgen.lab.state import LabState

pytestmark = pytest.mark.kernel


@pytest.fixture
def state(lab_dir: Path, netns_factory: Callable[[str], Path]) -> LabState:
    """A lab's state within the tests' own mounts, with one namespace `here`."""
    found = LabState(lab_dir / "labs")
    found.netns = netns_factory("here").parent
    found.run = lab_dir / "labs" / found.id
    found.run.mkdir(parents=True)
    return found


def only_netns(state: LabState) -> str:
    return sorted(path.name for path in state.netns.iterdir() if path.name.startswith("here"))[-1]


async def started(state: LabState, name: str, netns: str, module: str, config: object, log_dir: Path) -> Service:
    service = await Service.spawn(state, name, netns, module, config, log_dir)
    await service.wait_ready()
    return service


def test_the_datanodes_serve_in_their_namespace_until_they_are_stopped(state: LabState, tmp_path: Path) -> None:
    place = only_netns(state)

    async def main() -> int:
        config = SinkConfig(port=50010, request_bytes=3, reply_bytes=5)
        service = await started(state, "datanodes", place, "loadgen.lab.sink", config, tmp_path)
        reply = await asyncio.to_thread(netns.call, state.netns / place, ask)
        assert len(reply) == 5
        assert process.children_of_lab(state.id) == [service.pid]
        await service.stop()
        await service.stop()
        return service.pid

    pid = asyncio.run(main())
    assert process.start_time(pid) is None


def ask() -> bytes:
    with socket.create_connection(("127.0.0.1", 50010), timeout=10) as connection:
        connection.sendall(b"abc")
        return connection.recv(100)


def test_a_service_that_breaks_says_why_with_its_log(state: LabState, tmp_path: Path) -> None:
    async def main() -> None:
        await started(state, "broken", only_netns(state), "loadgen.lab.sink", {"port": "x"}, tmp_path)

    with pytest.raises(HarnessError) as caught:
        asyncio.run(main())
    assert "broken ended with exit code 1" in str(caught.value)
    assert "ValidationError" in str(caught.value)
    assert str(tmp_path / "broken.log") in str(caught.value)


def test_a_killed_service_names_the_signal(state: LabState, tmp_path: Path) -> None:
    async def main() -> HarnessError:
        config = SinkConfig(port=50011, request_bytes=3, reply_bytes=5)
        service = await started(state, "victim", only_netns(state), "loadgen.lab.sink", config, tmp_path)
        os.kill(service.pid, signal.SIGKILL)
        await service.ended()
        return service.died()

    assert "victim was killed by SIGKILL" in str(asyncio.run(main()))


def test_a_process_dies_with_the_one_that_launched_it(state: LabState) -> None:
    """The parent is killed with SIGKILL: it cannot end its child, so the kernel must."""
    config = state.write_config("orphan", SinkConfig(port=50012, request_bytes=1, reply_bytes=1))
    launch = [sys.executable, "-m", "loadgen.lab.launch"]
    script = (
        "import os, subprocess, sys;"
        "child = subprocess.Popen([*sys.argv[1:4], str(os.getpid()), *sys.argv[4:]], stdout=subprocess.PIPE);"
        "child.stdout.readline(); print(child.pid, flush=True); child.wait()"
    )
    argv = [sys.executable, "-c", script, *launch, str(state.netns / only_netns(state)), "loadgen.lab.sink", config]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        fd = os.pidfd_open(child)
        parent.kill()
    try:
        # The descriptor becomes readable when the process has ended.
        assert select.select([fd], [], [], 30)[0] == [fd]
    finally:
        os.close(fd)
