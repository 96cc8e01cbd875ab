"""A real Locust master and its workers on loopback, as pods have them, with a real storm against a real datanode."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import msgspec
import numpy as np
import pytest

from loadgen.core.errors import HarnessError
from loadgen.core.model import Constant, Dns, Resolver, Storm
from loadgen.core.samples import Message, Outcome, Reading, SampleBatch, Tally
from loadgen.kube import exchange
from loadgen.kube.datanode import DatanodeConfig, Server
from loadgen.kube.exchange import Assignment, Config, Targets
from loadgen.kube.session import CLOCK_ERROR, Call, Session, missing

LOCUST = Path(sys.executable).with_name("locust")
LOCUSTFILE = Path(exchange.__file__).with_name(exchange.LOCUSTFILE)
PORT, PORTS = 23_000, 25
S, MS = 1_000_000_000, 1_000_000

pytestmark = pytest.mark.skipif(not LOCUST.exists(), reason="needs Locust: pip install -e '.[kube-image]'")


class Cluster:
    """One master, its workers and a datanode, each a process of its own."""

    def __init__(self, folder: Path, load: Storm | Dns) -> None:
        self.folder = folder
        self.web, self.bind = free_port(), free_port()
        self.ready = folder / "ready"
        assignment = Assignment(load=load, targets=Targets(("127.0.0.1", "127.0.0.2"), PORT, PORTS))
        if isinstance(load, Dns):
            assignment = Assignment(load=load, resolver=Resolver("timeout:1", ()), server="192.0.2.53")
        (folder / "generators.json").write_bytes(exchange.encode_config(Config({"load": assignment})))
        servers = DatanodeConfig((Server(PORT, PORTS, 100, 100),))
        (folder / "datanode.json").write_bytes(msgspec.json.encode(servers))
        module = [sys.executable, "-m", "loadgen.kube.datanode", str(folder / "datanode.json"), str(self.ready)]
        self.datanode = subprocess.Popen(module, stdout=subprocess.PIPE, text=True)
        self.pods = [f"generator-load-{i}" for i in range(load.pods)]
        users = str(load.pods)
        self.master = self._locust(
            *("--master", "--master-bind-port", str(self.bind), "--web-port", str(self.web)),
            *("--expect-workers", users, "--users", users, "--spawn-rate", users, "--autostart"),
        )
        self.workers: list[subprocess.Popen[bytes]] = []

    def start_workers(self, prefix: Sequence[str] = ()) -> None:
        for pod in self.pods:
            names = {"LOADGEN_LOAD": "load", "LOADGEN_POD": pod}
            config = {"LOADGEN_CONFIG": str(self.folder / "generators.json")}
            self.workers.append(
                self._locust("--worker", "--master-port", str(self.bind), prefix=prefix, **names, **config)
            )

    def _locust(self, *options: str, prefix: Sequence[str] = (), **env: str) -> subprocess.Popen[bytes]:
        with (self.folder / "locust.log").open("ab") as log:
            command = [*prefix, str(LOCUST), "-f", str(LOCUSTFILE), *options]
            return subprocess.Popen(
                command, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def served(self) -> int:
        """What the datanode answered until now; it ends with that."""
        self.datanode.terminate()
        return int(self.datanode.communicate(timeout=10)[0].split()[-1])

    def close(self) -> None:
        for process in [*self.workers, self.master, self.datanode]:
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def cluster(folder: Path, load: Storm | Dns, prefix: Sequence[str] = ()) -> Iterator[Cluster]:
    made = Cluster(folder, load)
    try:
        made.start_workers(prefix)
        yield made
    except BaseException:
        print((folder / "locust.log").read_text())
        raise
    finally:
        made.close()


Scene = Callable[[Session, Cluster], Awaitable[None]]


def play(at: Cluster, scene: Scene, around: Callable[[Call], Call] = lambda call: call) -> None:
    """Run `scene` with a session to the master, once all workers are there."""

    async def main() -> None:
        async with aiohttp.ClientSession() as http:

            async def call(
                method: str, path: str, body: bytes | None, params: Mapping[str, str], limit_s: float
            ) -> bytes:
                url, limit = f"http://127.0.0.1:{at.web}{path}", aiohttp.ClientTimeout(total=limit_s)
                try:
                    async with http.request(method, url, data=body, params=params, timeout=limit) as answer:
                        answer.raise_for_status()
                        return await answer.read()
                except (aiohttp.ClientError, TimeoutError) as error:
                    raise HarnessError(f"{url}: {error}") from error

            session = Session(around(call))
            try:
                await all_there(session, at)
                await scene(session, at)
            finally:
                await session.close()

    asyncio.run(main())


async def all_there(session: Session, at: Cluster) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                if not missing(at.pods, await session.workers()) and at.ready.exists():
                    return
            except HarnessError:
                pass  # the master is not up yet
            await asyncio.sleep(0.2)


class Seen:
    """What a load emitted."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def __call__(self, message: Message) -> None:
        self.messages.append(message)

    def rows(self, source: str) -> np.ndarray:
        batches = [m for m in self.messages if isinstance(m, SampleBatch) and m.source == source]
        return np.sort(np.concatenate([batch.array() for batch in batches]), order="seq")

    def created(self) -> dict[str, int]:
        return {m.source: m.created["storm.connect"] for m in self.messages if isinstance(m, Tally)}

    def check_counts(self, at: Cluster) -> int:
        """Every worker's samples are numbered without a gap and are as many as it created. Returned: all of them."""
        created = self.created()
        assert sorted(created) == [f"load@{pod}" for pod in at.pods]
        for source, n in created.items():
            assert self.rows(source)["seq"].tolist() == list(range(n))
        return sum(created.values())


async def work(session: Session, seen: Seen, seconds: float, phase: str = "main") -> int:
    """The whole life of a load; its start."""
    running = await session.prepare("load", phase, 7, seen)
    start_ns = time.monotonic_ns() + session.lead_ns
    running.go(start_ns, start_ns + int(seconds * S))
    await running.wait()
    await running.close()
    return start_ns


STORM = Storm(pace=Constant(rate=833.0), pods=2, targets=2 * PORTS)


def test_what_is_created_arrives_at_the_datanode_and_in_the_history(tmp_path: Path) -> None:
    seen = Seen()
    shown: list[dict] = []

    async def scene(session: Session, at: Cluster) -> None:
        start_ns = await work(session, seen, 3)
        for pod in at.pods:
            rows = seen.rows(f"load@{pod}")
            # One boot id, one clock: the first is due at the very start.
            assert rows["due_ns"][0] == start_ns
            assert set(rows["outcome"]) == {Outcome.OK}
        shown.append(await stats(at, total=seen.check_counts(at)))

    with cluster(tmp_path, STORM) as at:
        play(at, scene)
        assert seen.check_counts(at) == at.served() == 2 * 3 * 833
    entry = shown[0]["stats"][0]
    assert (entry["method"], entry["name"], entry["num_failures"]) == ("TCP", "storm.connect (load)", 0)
    assert 0 < entry["avg_response_time"] < entry["max_response_time"] < 1000
    assert shown[0]["errors"] == []
    assert [m.series for m in seen.messages if isinstance(m, Reading)] == ["generator.cpu"] * 2


async def stats(at: Cluster, total: int) -> dict:
    """Locust's own statistics once the workers' reports, every three seconds, have brought `total` requests."""
    url = f"http://127.0.0.1:{at.web}/stats/requests"
    async with asyncio.timeout(20), aiohttp.ClientSession() as http:
        while True:
            async with http.get(url) as answer:
                found = json.loads(await answer.read())
            if sum(entry["num_requests"] for entry in found["stats"][:-1]) == total:
                return found
            await asyncio.sleep(0.5)


def test_phases_overlap_on_the_same_workers(tmp_path: Path) -> None:
    """A phase's load is prepared and begins while the one before it has not ended."""
    first, second = Seen(), Seen()

    async def scene(session: Session, at: Cluster) -> None:
        one = await session.prepare("load", "one", 7, first)
        start_ns = time.monotonic_ns() + session.lead_ns
        one.go(start_ns, start_ns + 600 * S)
        await work(session, second, 1, "two")
        one.stop()
        await one.wait()

    with cluster(tmp_path, STORM) as at:
        play(at, scene)
        assert second.check_counts(at) == 2 * 833
        assert first.check_counts(at) + second.check_counts(at) == at.served()
    assert {m.phase for m in first.messages if isinstance(m, SampleBatch)} == {"one"}


def test_answers_that_are_late_or_lost_on_the_way_lose_and_double_nothing(tmp_path: Path) -> None:
    seen = Seen()
    asked = 0

    def bad_road(call: Call) -> Call:
        async def slow(
            method: str, path: str, body: bytes | None, params: Mapping[str, str], limit_s: float
        ) -> bytes:
            nonlocal asked
            answer = await call(method, path, body, params, limit_s)
            if path.endswith("/messages"):
                asked += 1
                await asyncio.sleep(0.7)
                if asked % 2:
                    raise HarnessError("connection reset on the way back")
            return answer

        return slow

    async def scene(session: Session, at: Cluster) -> None:
        await work(session, seen, 4)

    with cluster(tmp_path, STORM) as at:
        play(at, scene, bad_road)
        assert seen.check_counts(at) == at.served() == 2 * 4 * 833
    assert asked > 4


async def fails(session: Session, do: Callable[[], Coroutine[None, None, None]], match: str) -> None:
    running = await session.prepare("load", "main", 7, Seen())
    start_ns = time.monotonic_ns() + session.lead_ns
    running.go(start_ns, start_ns + 600 * S)
    await asyncio.sleep(1)
    await do()
    with pytest.raises(HarnessError, match=match):
        await asyncio.wait_for(running.wait(), 40)
    await running.close()


def test_a_killed_worker_is_a_lost_one(tmp_path: Path) -> None:
    async def scene(session: Session, at: Cluster) -> None:
        async def kill() -> None:
            at.workers[1].send_signal(signal.SIGKILL)

        await fails(session, kill, r"generator-load-1 is lost: its Locust worker has been silent for \d+ s")

    with cluster(tmp_path, STORM) as at:
        play(at, scene)


def child_of(pid: int) -> int:
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def test_a_killed_driver_process_is_told_at_once(tmp_path: Path) -> None:
    async def scene(session: Session, at: Cluster) -> None:
        async def kill() -> None:
            os.kill(child_of(at.workers[0].pid), signal.SIGKILL)

        begun = time.monotonic()
        await fails(session, kill, r"generator-load-0: its driver process was killed by SIGKILL")
        assert time.monotonic() - begun < 10

    with cluster(tmp_path, STORM) as at:
        play(at, scene)


def test_stop_in_the_ui_is_no_end_of_a_load(tmp_path: Path) -> None:
    async def scene(session: Session, at: Cluster) -> None:
        async def press_stop() -> None:
            async with aiohttp.ClientSession() as http, http.post(f"http://127.0.0.1:{at.web}/stop") as answer:
                assert answer.status == 200

        await fails(session, press_stop, r"generator-load-\d(: | is lost: )its user was stopped in Locust")

    with cluster(tmp_path, STORM) as at:
        play(at, scene)


def test_a_dead_master_is_an_error_and_not_an_endless_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.kube.session.PATIENCE_S", 2.0)

    async def scene(session: Session, at: Cluster) -> None:
        async def kill() -> None:
            at.master.send_signal(signal.SIGKILL)

        await fails(session, kill, "the Locust master has been out of reach for 2 s")

    with cluster(tmp_path, STORM) as at:
        play(at, scene)


def test_a_pod_whose_resolver_is_another_than_asked_for_says_so(tmp_path: Path) -> None:
    async def scene(session: Session, at: Cluster) -> None:
        with pytest.raises(HarnessError, match=r"generator-load-0: .*resolv\.conf is not what .* servers"):
            await session.prepare("load", "main", 7, Seen())

    with cluster(tmp_path, Dns(pods=1)) as at:
        play(at, scene)


def test_a_load_without_workers_is_refused_by_the_master(tmp_path: Path) -> None:
    async def scene(session: Session, at: Cluster) -> None:
        with pytest.raises(HarnessError, match="no worker is there for load other"):
            await session.prepare("other", "main", 7, Seen())

    with cluster(tmp_path, STORM) as at:
        play(at, scene)


def test_samples_of_another_clock_come_on_ours(tmp_path: Path) -> None:
    """The workers run in a time namespace, a day ahead, under a boot id of their own: another machine, to us."""
    (tmp_path / "boot_id").write_text("another-machine\n")
    enter = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'
    elsewhere = ["unshare", "--time", "--monotonic", "86400", "--fork", "--kill-child", "--mount", "sh", "-c", enter]
    seen = Seen()

    async def scene(session: Session, at: Cluster) -> None:
        start_ns = await work(session, seen, 2)
        error_ns = max(offset.error_ns for offset in (await session.offsets()).values())
        assert 0 < error_ns < 50 * MS
        for pod in at.pods:
            rows = seen.rows(f"load@{pod}")
            # Sent by our clock, shifted to theirs and back: what was due then is due now, to the nanosecond.
            assert rows["due_ns"][0] == start_ns
            assert np.diff(rows["due_ns"]).tolist() == pytest.approx([S / 833] * (len(rows) - 1), abs=2)
            # And it really took place between now and then, as far as the clocks are known.
            assert start_ns - error_ns < rows["sent_ns"].min()
            assert rows["done_ns"].max() < time.monotonic_ns() + error_ns
            assert (rows["done_ns"] - rows["sent_ns"] > 0).all()

    with cluster(tmp_path, STORM, [*elsewhere, str(tmp_path / "boot_id")]) as at:
        play(at, scene)
        assert seen.check_counts(at) == at.served()
    errors = [m.value for m in seen.messages if isinstance(m, Reading) and m.series == CLOCK_ERROR]
    assert len(errors) == 1
    assert 0 < errors[0] < 0.05
