"""The runtime against an API server that loses answers, and nodes that do what real ones only do by accident."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from loadgen.core.errors import ConfigError, HarnessError
from loadgen.core.ports import Attempt, NotUp
from loadgen.core.samples import Outcome
from loadgen.core.units import NS_PER_S
from loadgen.kube import runtime as module
from loadgen.kube.api import KubeApi
from loadgen.kube.runtime import ChurnConfig, KubeRuntime
from tests.kube.apiserver import status, talk
from tests.kube.fakecluster import NAMESPACE, FakeCluster, lose
from tests.kube.test_sightings import Heard

Story = Callable[["Stage"], Awaitable[Any]]


class Stage:
    def __init__(self, cluster: FakeCluster, runtime: KubeRuntime) -> None:
        self.cluster, self.runtime, self.heard = cluster, runtime, Heard()
        self.attempts: list[Attempt] = []
        runtime.listen(self.heard)

    async def start(self, index: int, limit_s: float = 30.0) -> bool:
        deadline_ns = time.monotonic_ns() + round(limit_s * NS_PER_S)
        await self.runtime.admit(index, deadline_ns)
        return await self.runtime.start_pod(index, deadline_ns, self.attempts.append)

    async def remove(self, index: int) -> bool:
        return await self.runtime.remove_pod(index, self.attempts.append)


async def until(holds: Callable[[], bool]) -> None:
    """The limit of `talk` ends a test in which it never does."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0)


def play(tmp_path: Path, cluster: FakeCluster, story: Story, **config: Any) -> Stage:
    """`story` with an open runtime, which is closed in the end."""

    async def conversation(_: KubeApi) -> Stage:
        settings = {"namespace": "x", "run": "r", "token": "abc", "node": "n", "image": "pause:3", **config}
        runtime = KubeRuntime(
            lambda: KubeApi.from_kubeconfig("test", str(tmp_path / "config")),
            ChurnConfig(**{"qps": 1000.0, "burst": 1000, **settings}),
        )
        await runtime.open()
        stage = Stage(cluster, runtime)
        try:
            await story(stage)
        finally:
            await runtime.close()
            await runtime.close()  # idempotent
        return stage

    return talk(tmp_path, cluster.__call__, conversation)


@pytest.fixture
def cluster() -> FakeCluster:
    """Every pod comes up at once."""
    fake = FakeCluster()
    fake.life = fake.come_up
    return fake


def test_pods_come_up_and_are_gone_at_the_end(tmp_path: Path, cluster: FakeCluster) -> None:
    async def story(stage: Stage) -> None:
        assert await asyncio.gather(*(stage.start(i) for i in range(23))) == [True] * 23
        assert len(cluster.pods) == 23

    stage = play(tmp_path, cluster, story)
    assert [attempt.outcome for attempt in stage.attempts] == [Outcome.OK] * 23
    assert {attempt.ref for attempt in stage.attempts} == {f"x/churn-abc-{i}" for i in range(23)}
    assert cluster.pods == {}
    assert cluster.asked.count(f"DELETE {NAMESPACE}/pods") == 1


def test_nothing_made_is_nothing_deleted(tmp_path: Path, cluster: FakeCluster) -> None:
    async def story(stage: Stage) -> None:
        return None

    play(tmp_path, cluster, story)
    assert not [call for call in cluster.asked if call.startswith("DELETE")]


@pytest.mark.parametrize("heard", [True, False])
def test_an_answer_that_gets_lost_makes_neither_no_pod_nor_two(
    tmp_path: Path, cluster: FakeCluster, heard: bool
) -> None:
    def broken(request: web.Request) -> web.StreamResponse:
        if heard:
            cluster.make({"kind": "Pod", "metadata": {"name": "churn-abc-0"}})
        return lose(cluster, request)

    cluster.answers = [broken]
    stage = play(tmp_path, cluster, lambda stage: stage.start(0))
    assert [attempt.outcome for attempt in stage.attempts] == [Outcome.OK]
    assert cluster.asked.count(f"POST {NAMESPACE}/pods") == 2


@pytest.mark.parametrize(("code", "reason"), [(409, "Conflict"), (500, "InternalError"), (503, "ServiceUnavailable")])
def test_what_may_pass_is_tried_again(tmp_path: Path, cluster: FakeCluster, code: int, reason: str) -> None:
    cluster.answers = [lambda _: status(code, reason, "Operation cannot be fulfilled on resourcequotas")]
    stage = play(tmp_path, cluster, lambda stage: stage.start(0))
    assert len(stage.attempts) == 1


@pytest.mark.parametrize(
    ("code", "reason", "error", "text"),
    [
        (404, "NotFound", HarnessError, 'cannot create churn-abc-0: .*namespaces "x" not found'),
        (422, "Invalid", HarnessError, "cannot create churn-abc-0: "),
        (403, "Forbidden", ConfigError, "forbidden"),
    ],
)
def test_what_cannot_be_is_said_at_once(
    tmp_path: Path, cluster: FakeCluster, code: int, reason: str, error: type[Exception], text: str
) -> None:
    cluster.answers = [lambda _: status(code, reason, 'namespaces "x" not found')]
    with pytest.raises(error, match=text):
        play(tmp_path, cluster, lambda stage: stage.start(0))


def test_the_kubelets_own_limit_is_in_the_words(tmp_path: Path) -> None:
    text = "Failed to create pod sandbox: rpc error: code = DeadlineExceeded desc = context deadline exceeded"
    cluster = FakeCluster()

    def life(name: str) -> None:
        cluster.set_status(name)
        cluster.say(name, "FailedCreatePodSandBox", text)

    cluster.life = life

    async def story(stage: Stage) -> None:
        starting = asyncio.create_task(stage.start(0))
        await until(lambda: bool(stage.attempts))
        cluster.come_up("churn-abc-0")
        assert await starting

    stage = play(tmp_path, cluster, story)
    assert [attempt.detail for attempt in stage.attempts] == ["kubelet deadline 30s", ""]
    assert stage.attempts[1].start_ns == stage.attempts[0].end_ns


def test_a_pod_that_is_not_up_in_time_is_given_up_and_deleted(tmp_path: Path) -> None:
    cluster = FakeCluster()
    cluster.life = cluster.set_status

    async def story(stage: Stage) -> None:
        assert not await stage.start(0, 0.3)
        assert cluster.asked[-1] == "GET /api/v1/nodes/n"
        await until(lambda: not cluster.pods)

    stage = play(tmp_path, cluster, story)
    assert [(a.outcome, a.detail) for a in stage.attempts] == [(Outcome.UNKNOWN, "still under way")]
    assert f"DELETE {NAMESPACE}/pods/churn-abc-0" in cluster.asked


def test_a_node_that_is_not_ready_is_no_measurement(tmp_path: Path) -> None:
    cluster = FakeCluster()
    cluster.life, cluster.ready = cluster.set_status, False

    async def story(stage: Stage) -> None:
        await asyncio.gather(*(stage.start(i, 0.3) for i in range(5)))

    with pytest.raises(HarnessError, match="node n is not Ready: Kubelet stopped posting node status"):
        play(tmp_path, cluster, story)
    assert cluster.asked.count("GET /api/v1/nodes/n") == 1  # one look serves all
    assert cluster.pods == {}


def test_a_pod_that_nobody_schedules(tmp_path: Path) -> None:
    cluster = FakeCluster()
    with pytest.raises(NotUp, match="not scheduled in time"):
        play(tmp_path, cluster, lambda stage: stage.start(0, 0.3))


def test_a_limit_of_our_own_that_is_too_low_is_said(tmp_path: Path, cluster: FakeCluster) -> None:
    async def story(stage: Stage) -> None:
        assert await stage.start(0)
        with pytest.raises(NotUp, match="held back by this client's own limit"):
            await stage.start(1, 0.2)

    stage = play(tmp_path, cluster, story, qps=0.5, burst=1)
    assert cluster.asked.count(f"POST {NAMESPACE}/pods") == 1
    first, second = stage.heard.waits
    assert first == 0.0
    assert 0.2 <= second < 1.0


def test_a_removal_lasts_until_the_api_has_forgotten_the_pod(tmp_path: Path, cluster: FakeCluster) -> None:
    name = "churn-abc-0"
    text = (
        'error killing pod: failed to "KillPodSandbox" for "u" with KillPodSandboxError: "rpc error: code = Unknown '
        "desc = failed to destroy network for sandbox: plugin type failed (delete): unable to delete endpoint: "
        '[DELETE /endpoint/{id}][429] deleteEndpointIdTooManyRequests"'
    )

    async def story(stage: Stage) -> None:
        await stage.start(0)
        cluster.stuck = True
        removing = asyncio.create_task(stage.remove(0))
        await until(lambda: f"DELETE {NAMESPACE}/pods/{name}" in cluster.asked)
        cluster.say(name, "FailedKillPod", text)
        await until(lambda: len(stage.attempts) == 2)
        assert not removing.done()
        cluster.vanish(name)
        assert await removing

    stage = play(tmp_path, cluster, story)
    _, failed, ended = stage.attempts
    assert (failed.op, failed.outcome, failed.detail) == ("DEL", Outcome.FAIL, "pod removal: 429 TooManyRequests")
    assert (ended.op, ended.outcome, ended.detail) == ("DEL", Outcome.OK, "pod removal")
    assert ended.start_ns == failed.end_ns


def test_a_removal_that_takes_too_long_stays_open(
    tmp_path: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REMOVAL_LIMIT_S", 0.2)

    async def story(stage: Stage) -> None:
        await stage.start(0)
        cluster.stuck = True
        assert not await stage.remove(0)
        cluster.stuck = False

    stage = play(tmp_path, cluster, story)
    assert stage.attempts[-1].outcome is Outcome.UNKNOWN
    assert stage.attempts[-1].detail == "pod removal: still under way"


def test_a_pod_that_somebody_else_removed(tmp_path: Path, cluster: FakeCluster) -> None:
    async def story(stage: Stage) -> None:
        await stage.start(0)
        cluster.vanish("churn-abc-0")
        await until(stage.runtime._seen.sandbox(0).gone.done)
        assert not await stage.remove(0)

    stage = play(tmp_path, cluster, story)
    assert stage.attempts[-1].detail == "pod removal: deleted by somebody else"


def test_pods_that_do_not_go_are_forced_and_it_is_said(
    tmp_path: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GONE_LIMIT_S", 0.2)

    async def story(stage: Stage) -> None:
        await asyncio.gather(*(stage.start(i) for i in range(3)))
        cluster.stuck = True

    stage = play(tmp_path, cluster, story)
    assert cluster.pods == {}
    assert len(stage.heard.notes) == 1
    assert (
        "3 pods were still Terminating 0.2 s after the end and were removed from the API by force"
        in (stage.heard.notes[0])
    )


def test_a_batch_is_one_job_made_once_and_removed_whole(tmp_path: Path, cluster: FakeCluster) -> None:
    late = "churn-abc-1-2-abcde"
    cluster.life = lambda name: cluster.come_up(name) if name != late else None

    async def story(stage: Stage) -> None:
        starts = [asyncio.create_task(stage.start(i)) for i in range(10)]
        await asyncio.gather(*(start for i, start in enumerate(starts) if i != 7))
        assert cluster.jobs == {"churn-abc-0": 5, "churn-abc-1": 5}
        removing = asyncio.create_task(stage.remove(8))
        assert await asyncio.gather(stage.remove(0), stage.remove(1)) == [True, True]
        assert not removing.done()  # its Job still has a pod under way
        cluster.come_up(late)
        assert await starts[7]
        assert await removing
        assert cluster.pods == {}

    stage = play(tmp_path, cluster, story, batch=5)
    assert len([a for a in stage.attempts if a.op == "ADD"]) == 10
    assert [a.detail for a in stage.attempts if a.op == "DEL"] == ["pod removal"] * 3
    # One token a Job.
    assert stage.heard.waits == [0.0] * 10


def test_a_cluster_that_cannot_be_reached_is_said_before_anything_begins(tmp_path: Path) -> None:
    async def nobody() -> None:
        config = ChurnConfig(namespace="x", run="r", token="a", node="n", image="i", qps=1, burst=1)
        runtime = KubeRuntime(lambda: KubeApi.from_kubeconfig("test", str(tmp_path / "none")), config)
        try:
            await runtime.open()
        finally:
            await runtime.close()

    with pytest.raises(ConfigError):
        asyncio.run(nobody())
