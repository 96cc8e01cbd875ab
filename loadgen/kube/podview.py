"""What a pod's object says about its sandbox. Pure: a Pod as the API sends it in, an answer out."""

from __future__ import annotations

from collections.abc import Iterator

from loadgen.core.units import NS_PER_S
from loadgen.kube import events
from loadgen.kube.objects import ContainerStatus, Pod

SANDBOX_READY = "PodReadyToStartContainers"
"""True once the sandbox and its network are there. On by default from Kubernetes 1.29."""

_PULL_REASONS = frozenset({"ErrImageNeverPull", "ErrImagePull", "ImagePullBackOff", "InvalidImageName"})


def sandbox_up(pod: Pod) -> bool:
    """The sandbox stands. Without the condition (older clusters): it has an address, or a container has started."""
    condition = pod.condition(SANDBOX_READY)
    if condition is not None:
        return condition.true
    return bool(pod.status.pod_i_p) or any(_started(status) for status in pod.status.container_statuses)


def _started(status: ContainerStatus) -> bool:
    return status.state.running is not None or status.state.terminated is not None


def condition_to_come(pod: Pod) -> bool:
    """The kubelet speaks of the condition, and has not said yet that it holds."""
    condition = pod.condition(SANDBOX_READY)
    return not condition.true if condition is not None else pod.condition("Ready") is None


def stamped_ns(pod: Pod) -> int | None:
    """From creation until the condition, by the cluster's own stamps of one second each; None: not stamped."""
    condition, created = pod.condition(SANDBOX_READY), pod.metadata.creation_timestamp
    if condition is None or not condition.true or condition.last_transition_time is None or created is None:
        return None
    return round((condition.last_transition_time - created).total_seconds()) * NS_PER_S


def scheduled(pod: Pod) -> bool:
    return bool(pod.spec.node_name)


def no_room(pod: Pod) -> str:
    """Why the scheduler finds no place for it; empty when it has found one or has not looked yet."""
    condition = pod.condition("PodScheduled")
    if condition is None or condition.true or condition.reason != "Unschedulable":
        return ""
    return events.scheduling(condition.message)


def ended(pod: Pod) -> str:
    """Why a pod is over before anything of it ran (refused by the kubelet, evicted); empty while it is not."""
    if pod.status.phase not in ("Failed", "Succeeded"):
        return ""
    return f"refused: {pod.status.reason}" if pod.status.reason else f"ended: {pod.status.phase}"


def image_problem(pod: Pod) -> str:
    """What keeps the container from its image; its sandbox stands all the same."""
    return next(iter(_image_problems(pod)), "")


def _image_problems(pod: Pod) -> Iterator[str]:
    for status in pod.status.container_statuses:
        waiting = status.state.waiting
        if waiting is not None and waiting.reason in _PULL_REASONS:
            yield waiting.reason
