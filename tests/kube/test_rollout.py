from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.core.errors import HarnessError
from loadgen.kube import rollout
from loadgen.kube.api import KubeApi
from loadgen.kube.rollout import Rollout
from tests.kube.apiserver import Talk, talk
from tests.kube.daemonsets import Controller


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller goes by looks, not by seconds."""
    monkeypatch.setattr(rollout, "_POLL_S", 0.0)


def of(api: KubeApi) -> Rollout:
    return Rollout(api, "kube-system", "cilium", "k8s-app=cilium")


def restart() -> Talk:
    return lambda api: of(api).restart()


@pytest.mark.parametrize("slow", [0, 1, 5])
@pytest.mark.parametrize("start", [1, 4])
def test_a_restart_is_over_when_every_node_has_a_new_ready_pod(tmp_path: Path, slow: int, start: int) -> None:
    """However long the controller takes to notice, and whatever its counters still say until then."""
    controller = Controller(nodes=3, slow=slow, start=start)
    talk(tmp_path, controller.handle, restart())
    assert [int(pod["uid"][4:]) > 3 for pod in controller.pods] == [True] * 3
    assert all(controller._ready(pod) for pod in controller.pods)
    assert list(controller.annotations) == [rollout.MARK]


def test_nothing_of_ours_is_left_once_the_mark_is_gone(tmp_path: Path) -> None:
    controller = Controller()

    async def work(api: KubeApi) -> list[str | None]:
        found = of(api)
        marks = [await found.mark()]
        await found.unmark(await found.snapshot())
        assert controller.made == 2
        await found.restart()
        marks.append(await found.mark())
        await found.unmark(await found.snapshot())
        return [*marks, await found.mark()]

    first, second, third = talk(tmp_path, controller.handle, work)
    assert (first, third) == (None, None)
    assert second is not None
    assert (controller.annotations, controller.made) == ({}, 6)


def test_a_change_that_restarts_the_pods_by_itself_is_waited_for_and_not_repeated(tmp_path: Path) -> None:
    controller = Controller()

    async def work(api: KubeApi) -> None:
        found = of(api)
        since = await found.snapshot()
        path = "/apis/apps/v1/namespaces/kube-system/daemonsets/cilium"
        await api.patch(path, {"spec": {"template": {"metadata": {"annotations": {"checksum": "other"}}}}})
        await found.restart(since)

    talk(tmp_path, controller.handle, work)
    assert (controller.annotations, controller.made) == ({"checksum": "other"}, 4)


def test_pods_that_are_only_replaced_by_hand_are_deleted_one_after_the_other(tmp_path: Path) -> None:
    controller = Controller(nodes=3, on_delete=True)
    talk(tmp_path, controller.handle, restart())
    assert controller.deleted == ["cilium-1", "cilium-2", "cilium-3"]
    assert not controller.both_gone
    assert controller.made == 6


def test_agents_that_crash_are_told_at_once_with_their_last_words(tmp_path: Path) -> None:
    controller = Controller()
    controller.dies = "CrashLoopBackOff"
    controller.log = "level=info starting\nlevel=fatal msg=too-big\nlevel=info bye\n"
    with pytest.raises(HarnessError) as raised:
        talk(tmp_path, controller.handle, restart())
    assert str(raised.value).startswith("DaemonSet kube-system/cilium: ")
    assert "cilium-3 on node-0: cilium-agent: CrashLoopBackOff: level=fatal msg=too-big" in str(raised.value)


def test_an_image_that_is_nowhere_is_given_some_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout, "PROBLEM_LIMIT_S", 0.2)
    controller = Controller()
    controller.dies = "ImagePullBackOff"
    with pytest.raises(HarnessError, match=r"cilium-agent: ImagePullBackOff: back-off"):
        talk(tmp_path, controller.handle, restart())


def test_waiting_ends_when_nothing_gets_better(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout, "STALL_LIMIT_S", 0.2)
    controller = Controller(start=10**9)
    with pytest.raises(
        HarnessError, match=r"0 of 2 pods are new and Ready after \d+ s: cilium-3 on node-0: Running,"
    ):
        talk(tmp_path, controller.handle, restart())


def test_a_daemonset_that_no_node_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout, "STALL_LIMIT_S", 0.1)
    with pytest.raises(HarnessError, match="no node takes its pods"):
        talk(tmp_path, Controller(nodes=0).handle, lambda api: of(api).ready())
