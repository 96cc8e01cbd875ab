from __future__ import annotations

from typing import Any

import pytest

from loadgen.core.units import NS_PER_S
from loadgen.kube import podview
from tests.kube.podviews import condition, pod, up

READY, NOT = "PodReadyToStartContainers", "False"
RUNNING = {"name": "pause", "state": {"running": {"startedAt": "2026-11-03T10:00:05Z"}}}


@pytest.mark.parametrize(
    ("status", "stands"),
    [
        ({}, False),
        ({"conditions": [condition(READY, "True")]}, True),
        ({"conditions": [condition(READY, NOT)]}, False),
        # A sandbox that was torn down again still has an address in the status.
        ({"conditions": [condition(READY, NOT)], "podIP": "10.0.0.7", "containerStatuses": [RUNNING]}, False),
        # Clusters that do not know the condition.
        ({"podIP": "10.0.0.7"}, True),
        ({"containerStatuses": [RUNNING]}, True),
        ({"containerStatuses": [{"name": "pause", "state": {"terminated": {"reason": "Completed"}}}]}, True),
        ({"containerStatuses": [{"name": "pause", "state": {"waiting": {"reason": "ContainerCreating"}}}]}, False),
        ({"conditions": [condition("PodScheduled", "True")]}, False),
    ],
)
def test_when_a_sandbox_stands(status: dict[str, Any], stands: bool) -> None:
    assert podview.sandbox_up(pod(node="n", **status)) is stands


def test_the_clusters_own_stamps() -> None:
    assert podview.stamped_ns(up(at="2026-11-03T10:01:07Z")) == 67 * NS_PER_S
    assert podview.stamped_ns(pod(conditions=[condition(READY, NOT)])) is None
    assert podview.stamped_ns(pod(podIP="10.0.0.7")) is None


def test_why_a_pod_waits_for_room() -> None:
    full = {"reason": "Unschedulable", "message": "0/1 nodes are available: 1 Insufficient cpu."}
    assert podview.no_room(pod(conditions=[condition("PodScheduled", NOT, **full)])) == "Insufficient cpu"
    assert podview.no_room(pod(conditions=[condition("PodScheduled", NOT, reason="SchedulingGated")])) == ""
    assert podview.no_room(pod(conditions=[condition("PodScheduled", "True")])) == ""
    assert podview.no_room(pod()) == ""


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({"phase": "Pending"}, ""),
        ({"phase": "Running"}, ""),
        ({"phase": "Failed", "reason": "OutOfpods"}, "refused: OutOfpods"),
        ({"phase": "Failed"}, "ended: Failed"),
        ({"phase": "Succeeded"}, "ended: Succeeded"),
    ],
)
def test_pods_that_ended_before_they_began(status: dict[str, Any], why: str) -> None:
    assert podview.ended(pod(**status)) == why


def test_a_missing_image() -> None:
    def waiting(reason: str) -> list[dict[str, Any]]:
        return [{"name": "pause", "state": {"waiting": {"reason": reason}}}]

    assert podview.image_problem(pod(containerStatuses=waiting("ErrImageNeverPull"))) == "ErrImageNeverPull"
    assert podview.image_problem(pod(containerStatuses=waiting("ContainerCreating"))) == ""
    assert podview.image_problem(pod()) == ""


def test_whether_the_condition_is_still_to_come() -> None:
    assert podview.condition_to_come(pod())
    assert podview.condition_to_come(pod(conditions=[condition(READY, NOT)]))
    assert not podview.condition_to_come(up())
    assert not podview.condition_to_come(pod(conditions=[condition("Ready", NOT)]))  # it has no such condition
