"""Churn through a real API server: every pod and every attempt counted once, whatever happens to the connections.

The tests play scheduler and kubelet themselves, so that what should be measured is known exactly.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from e2e.apiserver import ApiServer, binaries
from e2e.played import NEVER, PlayedNode, make_namespace
from e2e.proxy import CuttingProxy
from e2e.told import ATTEMPT, CONDITION, DELETE, SETUP, STAMP, Told
from loadgen.core.errors import HarnessError
from loadgen.core.model import Burst, Churn, Constant
from loadgen.core.samples import Outcome
from loadgen.core.units import NS_PER_S, Duration, enc_hook
from loadgen.kube.api import KubeApi
from loadgen.kube.churn import ChurnSpec
from loadgen.kube.local import LocalLoad

LIMIT_S = 60.0

Meanwhile = Callable[[KubeApi, PlayedNode, LocalLoad], Awaitable[None]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    folder = binaries()
    if folder is None:
        pytest.fail("etcd and kube-apiserver are missing: python -m e2e.machine build, or LOADGEN_K8S_BIN=FOLDER")
    server = ApiServer(tmp_path_factory.mktemp("apiserver"), folder)
    server.start()
    yield server
    server.stop()


def seconds(value: float) -> Duration:
    return Duration(round(value * NS_PER_S))


class Run(Told):
    """One churn worker against the played node, and all that it said."""

    def __init__(self, server: ApiServer, tmp_path: Path, namespace: str, load: Churn, **spec: Any) -> None:
        super().__init__()
        self.load, self._server, self._folder, self._namespace = load, server, tmp_path, namespace
        self._direct = server.kubeconfig(tmp_path / "direct")
        self._spec = {"qps": 1000.0, "burst": 1000, "node": "played", **spec}
        self.left: list[str] = []
        """Pods that are still there at the end."""
        self.proxy: CuttingProxy | None = None

    def go(self, meanwhile: Meanwhile | None = None, *, window_s: float = 60.0, **node: Any) -> Run:
        asyncio.run(self._main(meanwhile, window_s, node))
        return self

    async def _main(self, meanwhile: Meanwhile | None, window_s: float, options: dict[str, Any]) -> None:
        async with (
            asyncio.timeout(LIMIT_S),
            KubeApi.from_kubeconfig("real", self._direct) as api,
            CuttingProxy(self._server.port) as self.proxy,
        ):
            await make_namespace(api, self._namespace)
            node = PlayedNode(api, self._namespace, **options)
            playing = asyncio.create_task(node.run())
            load = await LocalLoad.start(
                "loadgen.kube.churn", self.spec(self.proxy.url), self._folder, self.said.append
            )
            try:
                await load.ready()
                start_ns = time.monotonic_ns() + NS_PER_S // 20
                load.go(start_ns, start_ns + round(window_s * NS_PER_S))
                beside = asyncio.create_task(meanwhile(api, node, load)) if meanwhile else None
                try:
                    await load.wait()
                finally:
                    if beside is not None:
                        beside.cancel()
                        await asyncio.gather(beside, return_exceptions=True)
            finally:
                await load.close()
                pods = await api.get(f"/api/v1/namespaces/{self._namespace}/pods")
                self.left = [pod["metadata"]["name"] for pod in pods["items"]]
                playing.cancel()
                await asyncio.gather(playing, return_exceptions=True)

    def spec(self, url: str) -> ChurnSpec:
        return ChurnSpec(
            context="real",
            kubeconfig=self._server.kubeconfig(self._folder / "proxied", server=url),
            namespace=self._namespace,
            run="e2e",
            image="pause",
            load=self.load,
            phase="burst",
            source="pods",
            seed=1,
            **self._spec,
        )


def test_a_burst_of_fifty_is_counted_exactly(server: ApiServer, tmp_path: Path) -> None:
    run = Run(server, tmp_path, "burst", Churn(pace=Burst(size=50))).go(failures=lambda i: i % 3)
    failed = sum(i % 3 for i in range(50))
    assert run.created == {SETUP: 50, ATTEMPT: 50 + failed, DELETE: 0, CONDITION: 50, STAMP: 50}
    run.check_numbers()
    setup = run.rows(SETUP)
    assert set(setup["outcome"]) == {Outcome.OK}
    assert Counter(setup["tries"].tolist()) == {1: 17, 2: 17, 3: 16}
    assert run.details(ATTEMPT) == {"": 50, "429 TooManyRequests": failed}
    assert len(set(run.refs(SETUP))) == 50
    assert {ref.split("/")[0] for ref in run.refs(SETUP)} == {"burst"}
    assert sorted(run.refs(STAMP)) == sorted(run.refs(SETUP))
    # The first sign of a sandbox comes before the condition, which is read off a later status.
    first = dict(zip(run.refs(SETUP), setup["done_ns"].tolist(), strict=True))
    later = dict(zip(run.refs(CONDITION), run.rows(CONDITION)["done_ns"].tolist(), strict=True))
    assert first.keys() == later.keys()
    assert all(later[ref] - first[ref] > 0.05 * NS_PER_S for ref in first)
    # Stamps have whole seconds.
    stamp = run.rows(STAMP)
    assert set((stamp["done_ns"] - stamp["due_ns"]) % NS_PER_S) == {0}
    assert run.readings("client.throttle") == [0.0] * 50
    assert run.left == []


def test_cut_connections_and_a_compacted_past_lose_and_double_nothing(server: ApiServer, tmp_path: Path) -> None:
    load = Churn(pace=Constant(rate=20.0), delete_after=seconds(0.5))
    run = Run(server, tmp_path, "cuts", load)

    async def cut(api: KubeApi, node: PlayedNode, load: LocalLoad) -> None:
        for _ in range(12):
            await asyncio.sleep(0.4)
            assert run.proxy is not None
            server.compact()
            run.proxy.cut()

    run.go(cut, window_s=8.0, failures=lambda i: i % 4)
    assert run.proxy is not None
    assert run.proxy.cuts >= 12
    failed = sum(i % 4 for i in range(160))
    assert (run.created[SETUP], run.created[ATTEMPT]) == (160, 160 + failed)
    run.check_numbers()
    assert set(run.rows(SETUP)["outcome"]) == {Outcome.OK}
    assert run.details(ATTEMPT) == {"": 160, "429 TooManyRequests": failed}
    removed = run.rows(DELETE)
    assert set(removed["outcome"]) == {Outcome.OK}
    assert run.details(DELETE) == {"pod removal": len(removed)}
    assert len(removed) > 50
    assert run.left == []


def test_a_cut_in_the_middle_of_the_creates_makes_no_pod_twice(server: ApiServer, tmp_path: Path) -> None:
    run = Run(server, tmp_path, "halves", Churn(pace=Burst(size=200)))
    served: set[str] = set()

    async def cut(api: KubeApi, node: PlayedNode, load: LocalLoad) -> None:
        for _ in range(8):
            await asyncio.sleep(0.1)
            assert run.proxy is not None
            run.proxy.cut()
        while True:
            served.update(node.served)
            await asyncio.sleep(0.05)

    run.go(cut)
    assert run.created[SETUP] == run.created[ATTEMPT] == 200
    assert len(served) == 200
    assert run.left == []


def test_one_event_that_counts_up_is_as_many_attempts(server: ApiServer, tmp_path: Path) -> None:
    run = Run(server, tmp_path, "counts", Churn(pace=Burst(size=7))).go(failures=lambda _: 4, repeat=True)
    assert run.details(ATTEMPT) == {"": 7, "sandbox name reserved": 28}
    assert set(run.rows(SETUP)["tries"]) == {5}


def test_pods_that_never_come_up_are_censored_and_deleted(server: ApiServer, tmp_path: Path) -> None:
    load = Churn(pace=Burst(size=11), timeout=seconds(2))
    run = Run(server, tmp_path, "never", load).go(failures=lambda i: NEVER if i < 3 else 0)
    assert run.created == {SETUP: 11, ATTEMPT: 11, DELETE: 0, CONDITION: 8, STAMP: 8}
    setup = run.rows(SETUP)
    lost = setup[setup["outcome"] == Outcome.UNKNOWN]
    assert len(lost) == 3
    assert (lost["done_ns"] - lost["due_ns"] >= 2 * NS_PER_S).all()
    assert run.details(SETUP) == {"": 8, "not up in time": 3}
    assert run.details(ATTEMPT) == {"": 8, "still under way": 3}
    assert run.left == []


def test_a_pod_deleted_by_somebody_else_has_failed(server: ApiServer, tmp_path: Path) -> None:
    async def meddle(api: KubeApi, node: PlayedNode, load: LocalLoad) -> None:
        path = "/api/v1/namespaces/meddled/pods"
        while True:
            for pod in (await api.get(path))["items"]:
                if pod["metadata"]["name"].endswith("-3") and pod["spec"].get("nodeName"):
                    await api.delete(f"{path}/{pod['metadata']['name']}")
                    return
            await asyncio.sleep(0.05)

    run = Run(server, tmp_path, "meddled", Churn(pace=Burst(size=5)))
    run.go(meddle, failures=lambda i: NEVER if i == 3 else 0)
    assert run.details(SETUP) == {"": 4, "deleted by somebody else": 1}
    assert Counter(run.rows(SETUP)["outcome"].tolist()) == {Outcome.OK: 4, Outcome.FAIL: 1}


def test_a_node_without_room_is_no_measurement(server: ApiServer, tmp_path: Path) -> None:
    full = "0/2 nodes are available: 1 Too many pods, 1 node(s) didn't satisfy plugin(s) [NodeAffinity]."
    run = Run(server, tmp_path, "full", Churn(pace=Burst(size=3), timeout=seconds(1)))
    with pytest.raises(HarnessError, match="node played takes no more pods: Too many pods; make the load smaller"):
        run.go(full=full)
    assert run.left == []


def test_our_own_limit_is_told_and_counts_as_the_generators_delay(server: ApiServer, tmp_path: Path) -> None:
    run = Run(server, tmp_path, "slow", Churn(pace=Burst(size=10)), qps=10.0, burst=4).go()
    waits = run.readings("client.throttle")
    assert waits[:4] == [0.0] * 4
    assert np.allclose(waits[4:], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], atol=0.05)
    setup = run.rows(SETUP)
    lag = np.sort(setup["sent_ns"] - setup["due_ns"]) / NS_PER_S
    assert np.allclose(lag[4:], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], atol=0.1)
    assert ((setup["done_ns"] - setup["due_ns"]) > (setup["sent_ns"] - setup["due_ns"])).all()


def test_a_server_that_goes_away_for_a_while(server: ApiServer, tmp_path: Path) -> None:
    async def restart(api: KubeApi, node: PlayedNode, load: LocalLoad) -> None:
        await asyncio.sleep(0.5)
        server.stop("kube-apiserver")
        await asyncio.to_thread(server.start)

    # The node is played through the same server: its hands are tied meanwhile, ours must not be.
    run = Run(server, tmp_path, "away", Churn(pace=Constant(rate=5.0)))
    run.go(restart, window_s=8.0, failures=lambda _: 0)
    assert run.created[SETUP] == run.created[ATTEMPT] == 40
    assert set(run.rows(SETUP)["outcome"]) == {Outcome.OK}
    assert run.left == []


def test_a_load_that_is_closed_early_leaves_no_pods(server: ApiServer, tmp_path: Path) -> None:
    async def close(api: KubeApi, node: PlayedNode, load: LocalLoad) -> None:
        while len(node.served) < 20:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await load.close()

    run = Run(server, tmp_path, "closed", Churn(pace=Constant(rate=50.0)))
    with pytest.raises(HarnessError, match="it was told to end before its work was done"):
        run.go(close)
    assert len(run.rows(SETUP)) >= 1
    assert run.left == []


def test_a_worker_whose_owner_is_killed_removes_its_pods(server: ApiServer, tmp_path: Path) -> None:
    run = Run(server, tmp_path, "orphan", Churn(pace=Constant(rate=20.0)))
    (tmp_path / "owned.json").write_bytes(msgspec.json.encode(run.spec(server.url), enc_hook=enc_hook))
    pods = "/api/v1/namespaces/orphan/pods"

    async def main() -> None:
        async with (
            asyncio.timeout(LIMIT_S),
            KubeApi.from_kubeconfig("real", server.kubeconfig(tmp_path / "c")) as api,
        ):
            await make_namespace(api, "orphan")
            node = PlayedNode(api, "orphan")
            playing = asyncio.create_task(node.run())
            owner = await asyncio.create_subprocess_exec(sys.executable, "-c", OWNER, str(tmp_path / "owned.json"))
            while len(node.served) < 20:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            assert (await api.get(pods))["items"]
            owner.kill()
            await owner.wait()
            while (await api.get(pods))["items"]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            # Nothing comes after them.
            served = len(node.served)
            await asyncio.sleep(0.5)
            assert len(node.served) == served
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)

    asyncio.run(main())


OWNER = """
import asyncio, sys, time
from pathlib import Path
import msgspec
from loadgen.core.units import dec_hook
from loadgen.kube.churn import ChurnSpec
from loadgen.kube.local import LocalLoad

async def main():
    path = Path(sys.argv[1])
    spec = msgspec.json.decode(path.read_bytes(), type=ChurnSpec, dec_hook=dec_hook)
    load = await LocalLoad.start("loadgen.kube.churn", spec, path.parent, lambda message: None)
    await load.ready()
    now = time.monotonic_ns()
    load.go(now, now + 60_000_000_000)
    await load.wait()

asyncio.run(main())
"""
