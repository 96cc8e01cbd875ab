"""The churn worker as a process: connected before it is ready, exact in what it says, gone with its pods."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from loadgen.core.errors import HarnessError
from loadgen.core.model import Burst, Churn, Constant
from loadgen.core.samples import Mark, Message, Reading, SampleBatch, Tally
from loadgen.core.units import NS_PER_S
from loadgen.kube.api import KubeApi
from loadgen.kube.churn import ChurnSpec
from loadgen.kube.local import LocalLoad
from tests.kube.apiserver import talk
from tests.kube.fakecluster import FakeCluster


def spec(config: Path, load: Churn, **more: Any) -> ChurnSpec:
    fixed = {"namespace": "x", "run": "r", "node": "n", "image": "pause:3", "qps": 100.0, "burst": 100}
    return ChurnSpec(
        context="test", kubeconfig=str(config), load=load, phase="burst", source="pods", seed=1, **{**fixed, **more}
    )


def run(tmp_path: Path, cluster: FakeCluster, load: Churn, *, stop_after: int | None = None) -> list[Message]:
    said: list[Message] = []

    async def conversation(_: KubeApi) -> None:
        worker = await LocalLoad.start("loadgen.kube.churn", spec(tmp_path / "config", load), tmp_path, said.append)
        try:
            await worker.ready()
            now = time.monotonic_ns()
            worker.go(now, now + 30 * NS_PER_S)
            waiting = asyncio.create_task(worker.wait())
            if stop_after is not None:
                while len(cluster.pods) < stop_after:  # noqa: ASYNC110 - the limit of `talk` ends it
                    await asyncio.sleep(0)
                await worker.close()
            await waiting
        finally:
            await worker.close()

    talk(tmp_path, cluster.__call__, conversation)
    return said


@pytest.fixture
def cluster() -> FakeCluster:
    fake = FakeCluster()

    def life(name: str) -> None:
        fake.set_status(name)
        fake.say(name, "Pulled", "Container image already present on machine")
        fake.come_up(name)

    fake.life = life
    return fake


@pytest.mark.parametrize("via", ["pod", "job"])
def test_what_it_says_is_what_it_made(tmp_path: Path, cluster: FakeCluster, via: Any) -> None:
    said = run(tmp_path, cluster, Churn(pace=Burst(size=7), via=via))
    (tally,) = (m for m in said if isinstance(m, Tally))
    counted = {
        name: sum(len(m.array()) for m in said if isinstance(m, SampleBatch) and m.metric == name)
        for name in tally.created
    }
    assert counted == tally.created
    assert tally.created == {
        "sandbox.setup": 7,
        "sandbox.attempt": 7,
        "sandbox.delete": 0,
        "sandbox.condition": 0,  # the played kubelet puts no stamps on it
        "sandbox.stamp": 0,
    }
    assert [m.value for m in said if isinstance(m, Reading) and m.series == "client.throttle"] == [0.0] * 7
    assert len(cluster.jobs) == (via == "job")
    assert cluster.pods == {}


def test_a_note_is_in_the_history(tmp_path: Path, cluster: FakeCluster) -> None:
    def life(name: str) -> None:
        cluster.set_status(name)
        cluster.say(name, "Failed", "Error: ErrImageNeverPull")
        cluster.come_up(name)

    cluster.life = life
    said = run(tmp_path, cluster, Churn(pace=Burst(size=3)))
    (note,) = (m for m in said if isinstance(m, Mark))
    assert (note.kind, note.name) == ("note", "pods")
    assert note.text.startswith("n does not have the image pause:3 (ErrImageNeverPull)")


def test_told_to_end_it_removes_its_pods_first(tmp_path: Path, cluster: FakeCluster) -> None:
    with pytest.raises(HarnessError, match="it was told to end before its work was done"):
        run(tmp_path, cluster, Churn(pace=Constant(rate=50.0)), stop_after=5)
    assert cluster.pods == {}


def test_a_cluster_that_cannot_be_reached_is_said_before_it_is_ready(tmp_path: Path) -> None:
    async def main() -> None:
        worker = await LocalLoad.start(
            "loadgen.kube.churn", spec(tmp_path / "none", Churn()), tmp_path, lambda message: None
        )
        try:
            await worker.ready()
        finally:
            await worker.close()

    with pytest.raises(HarnessError, match=r"pods in phase burst: ConfigError: .*none: no kubeconfig there"):
        asyncio.run(main())
