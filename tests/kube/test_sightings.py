"""What is made of the states and events that a watch tells: each sandbox once, each attempt once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from loadgen.core.errors import HarnessError
from loadgen.core.ports import Attempt, NotUp
from loadgen.core.samples import Outcome
from loadgen.core.units import NS_PER_S
from loadgen.kube.sightings import Sightings
from tests.kube.podviews import condition, event, pod, up

REFUSED = (
    'Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox "{}": plugin '
    'type="cilium-cni" failed (add): unable to create endpoint: [PUT /endpoint/{{id}}][429] '
    "putEndpointIdTooManyRequests"
)
P = "churn-abc-0"


class Heard:
    """sightings.Listener."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.stamps: list[tuple[str, int, int, int]] = []
        self.lags: list[tuple[int, int]] = []
        self.notes: list[str] = []

    def throttled(self, wait_s: float) -> None:
        self.waits.append(wait_s)

    def stamped(self, ref: str, asked_ns: int, received_ns: int, length_ns: int) -> None:
        self.stamps.append((ref, asked_ns, received_ns, length_ns))

    def lagged(self, made_ns: int, received_ns: int) -> None:
        self.lags.append((made_ns, received_ns))

    def note(self, text: str) -> None:
        self.notes.append(text)


class Scene:
    def __init__(self, batch: int = 0) -> None:
        self.heard, self.attempts = Heard(), []
        self.seen = Sightings("abc", batch, "node-1", "pause:3")
        self.seen.listener = self.heard
        self.pod, self.event = self.seen.on_pod, self.seen.on_event

    def listen(self, index: int) -> None:
        self.seen.sandbox(index).listen(self.attempts.append)

    @property
    def ends(self) -> list[tuple[int, Outcome]]:
        return [(attempt.end_ns, attempt.outcome) for attempt in self.attempts]


def play(story: Callable[[Scene], Awaitable[None]], batch: int = 0) -> Scene:
    async def main() -> Scene:
        scene = Scene(batch)
        scene.listen(0)
        await story(scene)
        return scene

    return asyncio.run(main())


def test_a_pod_from_creation_to_removal() -> None:
    async def story(scene: Scene) -> None:
        scene.seen.sandbox(0).asked_ns = 5
        scene.pod("ADDED", pod(P), 10)
        scene.pod("MODIFIED", pod(P, node="n"), 20)
        scene.pod("MODIFIED", pod(P, node="n", conditions=[condition("PodReadyToStartContainers", "False")]), 30)
        scene.event("ADDED", event(P, "FailedCreatePodSandBox", REFUSED.format("a" * 64)), 40)
        scene.pod("MODIFIED", up(P, at="2026-11-03T10:00:03Z"), 50)
        scene.pod("MODIFIED", up(P, podIP="10.0.0.1"), 60)
        scene.pod("DELETED", up(P), 70)
        assert await scene.seen.sandbox(0).gone == 70

    scene = play(story)
    assert scene.attempts == [
        Attempt(f"x/{P}", 20, 40, Outcome.FAIL, "429 TooManyRequests"),
        Attempt(f"x/{P}", 40, 50, Outcome.OK),
    ]
    assert scene.heard.stamps == [(f"x/{P}", 5, 50, 3 * NS_PER_S)]
    assert scene.heard.notes == []


def test_the_first_sign_of_a_sandbox_counts_and_its_condition_comes_after() -> None:
    async def story(scene: Scene) -> None:
        scene.seen.sandbox(0).asked_ns = 5
        scene.pod("ADDED", pod(P), 8)
        scene.pod("MODIFIED", pod(P, node="n", conditions=[condition("PodReadyToStartContainers", "False")]), 10)
        assert not scene.seen.to_be_stamped()
        image = event(
            P, "Pulled", 'Container image "pause:3" already present on machine', name=f"{P}.1877a5b2c3d4e5f6"
        )
        scene.event("ADDED", image, 30)
        assert scene.seen.sandbox(0).is_up
        assert scene.seen.to_be_stamped()
        scene.event("ADDED", image, 31)
        scene.pod("MODIFIED", up(P, at="2026-11-03T10:00:03Z"), 50)
        assert not scene.seen.to_be_stamped()
        scene.pod("MODIFIED", up(P, podIP="10.0.0.1"), 60)

    scene = play(story)
    assert scene.attempts == [Attempt(f"x/{P}", 10, 30, Outcome.OK)]
    assert scene.heard.stamps == [(f"x/{P}", 5, 50, 3 * NS_PER_S)]
    assert scene.heard.lags == [(0x1877A5B2C3D4E5F6, 30)]


def test_an_older_cluster_has_no_condition_to_wait_for() -> None:
    async def story(scene: Scene) -> None:
        scene.pod("ADDED", pod(P, node="n", podIP="10.0.0.1", conditions=[condition("Ready", "True")]), 10)
        assert scene.seen.sandbox(0).is_up
        assert not scene.seen.to_be_stamped()

    assert play(story).heard.stamps == []


def test_events_of_a_pod_that_has_not_been_seen_yet_are_kept_for_it() -> None:
    async def story(scene: Scene) -> None:
        scene.event("ADDED", event(P, "FailedCreatePodSandBox", REFUSED.format("a" * 64)), 40)
        scene.event("ADDED", event("churn-abc-9", "FailedCreatePodSandBox", REFUSED.format("b" * 64)), 41)
        assert scene.attempts == []
        scene.pod("ADDED", up(P), 50)

    assert play(story).ends == [(40, Outcome.FAIL), (50, Outcome.OK)]


def test_a_break_that_hid_everything_between_first_and_last_state() -> None:
    async def story(scene: Scene) -> None:
        scene.seen.sandbox(0).asked_ns = 5
        scene.pod("ADDED", up(P), 500)
        assert scene.seen.sandbox(0).is_up

    assert play(story).attempts == [Attempt(f"x/{P}", 5, 500, Outcome.OK)]


def test_an_event_told_again_with_the_same_count_is_not_counted_again() -> None:
    async def story(scene: Scene) -> None:
        scene.pod("ADDED", pod(P, node="n"), 10)
        for count, now in ((1, 20), (1, 30), (4, 60), (4, 70)):
            message = 'Failed to create pod sandbox: failed to reserve sandbox name "x": name "x" is reserved for "y"'
            scene.event("MODIFIED", event(P, "FailedCreatePodSandBox", message, uid="one", count=count), now)
        scene.event("DELETED", event(P, "FailedCreatePodSandBox", "x", uid="two"), 80)

    scene = play(story)
    assert [end for end, _ in scene.ends] == [20, 33, 46, 60]
    assert {attempt.detail for attempt in scene.attempts} == {"sandbox name reserved"}


def test_what_is_not_ours_is_left_alone() -> None:
    async def story(scene: Scene) -> None:
        scene.event("ADDED", event("web-0", "FailedCreatePodSandBox", REFUSED.format("a" * 64)), 40)
        scene.pod("ADDED", up("churn-abc-x"), 50)

    scene = play(story)
    assert (scene.attempts, scene.heard.notes) == ([], [])


@pytest.mark.parametrize(
    ("kind", "view", "why"),
    [
        ("DELETED", pod(P, node="n"), "deleted by somebody else"),
        ("MODIFIED", pod(P, metadata={"deletionTimestamp": "2026-11-03T10:00:09Z"}), "deleted by somebody else"),
        ("MODIFIED", pod(P, node="n", phase="Failed", reason="OutOfpods"), "refused: OutOfpods"),
    ],
)
def test_pods_that_end_before_they_are_up(kind: str, view: object, why: str) -> None:
    async def story(scene: Scene) -> None:
        scene.pod("ADDED", pod(P, node="n"), 10)
        scene.pod(kind, view, 20)  # type: ignore[arg-type]
        with pytest.raises(NotUp) as failed:
            await scene.seen.sandbox(0).up
        assert (failed.value.outcome, failed.value.why) == (Outcome.FAIL, why)

    play(story)


def test_a_pod_that_we_delete_ourselves_has_not_failed() -> None:
    async def story(scene: Scene) -> None:
        scene.pod("ADDED", pod(P, node="n"), 10)
        sandbox = scene.seen.sandbox(0)
        sandbox.deleted = True
        scene.pod("MODIFIED", pod(P, node="n", metadata={"deletionTimestamp": "2026-11-03T10:00:09Z"}), 20)
        assert not sandbox.up.done()

    play(story)


def test_a_jobs_pods_are_known_by_their_index_and_counted_once_each() -> None:
    def of_job(name: str, job: int, index: int, *, standing: bool = False, uid: str = "") -> object:
        labels = {"job-name": f"churn-abc-{job}"}
        metadata = {"labels": labels, "annotations": {"batch.kubernetes.io/job-completion-index": str(index)}}
        return (up if standing else pod)(name, metadata=metadata, uid=uid)

    async def story(scene: Scene) -> None:
        scene.pod("ADDED", of_job("churn-abc-1-2-xk2f9", 1, 2), 10)  # type: ignore[arg-type]
        scene.listen(12)
        scene.pod("MODIFIED", of_job("churn-abc-1-2-xk2f9", 1, 2, standing=True), 30)  # type: ignore[arg-type]
        # Somebody deleted it: the Job makes another, which is nobody's sample.
        scene.pod("ADDED", of_job("churn-abc-1-2-qqqqq", 1, 2, standing=True), 90)  # type: ignore[arg-type]

    scene = play(story, batch=10)
    assert scene.ends == [(30, Outcome.OK)]
    assert scene.heard.stamps == [("x/churn-abc-1-2-xk2f9", 10, 30, 0)]


def test_what_a_reader_should_know_is_said_once() -> None:
    full = "0/2 nodes are available: 1 Too many pods, 1 node(s) didn't satisfy plugin(s) [NodeAffinity]."

    async def story(scene: Scene) -> None:
        waiting = [{"name": "pause", "state": {"waiting": {"reason": "ErrImageNeverPull"}}}]
        for index in range(3):
            name = f"churn-abc-{index}"
            scene.pod("ADDED", up(name, containerStatuses=waiting), 10)
            scene.event("ADDED", event(name, "Failed", "Error: ErrImageNeverPull", uid=f"{name} image"), 20)
            scene.event("ADDED", event(name, "FailedScheduling", full, uid=f"{name} room"), 20)
            scene.event("ADDED", event(name, "SandboxChanged", "Pod sandbox changed", uid=f"{name} new"), 30)

    scene = play(story)
    assert scene.heard.notes == [
        "node-1 does not have the image pause:3 (ErrImageNeverPull): containers do not start, sandboxes are measured "
        "all the same",
        "pods wait for room on node-1: Too many pods",
        "pods on node-1: sandbox changed",
    ]
    assert [outcome for _, outcome in scene.ends] == [Outcome.OK]


def test_a_broken_watch_is_told_to_all_who_wait_and_all_who_come() -> None:
    async def story(scene: Scene) -> None:
        sandbox = scene.seen.sandbox(0)
        scene.seen.fail(HarnessError("broken for 60 s"))
        for future in (sandbox.up, sandbox.gone):
            with pytest.raises(HarnessError, match="broken for 60 s"):
                await future
        with pytest.raises(HarnessError, match="broken for 60 s"):
            scene.seen.sandbox(1)
        scene.pod("ADDED", up(P), 10)

    assert play(story).attempts == []
