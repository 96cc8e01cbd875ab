"""Sandboxes as the kubelet brings them up and down: attempts, time-outs, clean-ups, pauses, give-ups.

The rules and their numbers are those of lab/kubelet.py, which was held against a real kubelet and containerd. An ADD
cannot reach the kubelet's own limit of 240 s here, for the plugin gives up after 90 s.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from loadgen.core.simulate.agent import OK, Agent, Endpoint
from loadgen.core.simulate.events import Event, Then
from loadgen.core.units import NS_PER_S


class Delays(NamedTuple):
    """Seen on real nodes; see lab/kubelet.py. All in ns."""

    client_timeout_ns: int = 90 * NS_PER_S
    cleanup_ns: int = NS_PER_S * 3 // 100
    retry_ns: tuple[int, int] = (12 * NS_PER_S, 15 * NS_PER_S)
    delete_tries: int = 2


class Pod:
    """One pod from due until up, given up or still waiting at the end."""

    __slots__ = (
        "add_ns", "asked_ns", "attempts", "done_ns", "due_ns", "endpoint", "give_up_ns", "lifetime_ns", "on_removed",
        "refused", "state", "timeouts", "timers", "workload",
    )  # fmt: skip

    def __init__(
        self,
        workload: int,
        due_ns: int,
        give_up_ns: int,
        lifetime_ns: int | None,
        on_removed: Then | None = None,
    ) -> None:
        """lifetime_ns: from up to its deletion; None stays. on_removed: when the scrub of its removal is over."""
        self.workload, self.due_ns, self.give_up_ns, self.lifetime_ns = workload, due_ns, give_up_ns, lifetime_ns
        self.on_removed = on_removed
        self.state = "pending"
        self.attempts = self.timeouts = self.refused = 0
        self.done_ns = self.asked_ns = self.add_ns = 0
        self.endpoint: Endpoint | None = None
        self.timers: list[Event] = []
        """Its give-up, and the time-out of its ADD."""


class Kubelet:
    """Starts and deletes pods through the agent of its node."""

    def __init__(self, agent: Agent, delays: Delays, draw: random.Random, changed: Then) -> None:
        """`changed` is called whenever a pod is up or given up."""
        self._agent, self._delays, self._draw, self._changed = agent, delays, draw, changed
        self._timeline = agent.timeline
        self._next_start_ns = self._timeline.now_ns
        self.waiting = 0
        """Sandboxes under way."""
        self.most_waiting = 0

    def start(self, pod: Pod) -> None:
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        pod.timers = [self._timeline.at(pod.due_ns + pod.give_up_ns, self._give_up, pod)]
        self._add(pod)

    def _add(self, pod: Pod) -> None:
        if pod.state == "pending":
            pod.attempts += 1
            start_ns = max(self._timeline.now_ns, self._next_start_ns)
            self._next_start_ns = start_ns + self._agent.costs.start_gap
            self._timeline.at(start_ns + self._agent.costs.plugin, self._put, pod)

    def _put(self, pod: Pod) -> None:
        endpoint = Endpoint(lambda code: self._answered(pod, endpoint, code), pod.on_removed)
        pod.endpoint, pod.asked_ns = endpoint, self._timeline.now_ns
        pod.timers[1:] = [self._timeline.after(self._delays.client_timeout_ns, self._timed_out, pod, endpoint)]
        self._agent.create(endpoint)

    def _answered(self, pod: Pod, endpoint: Endpoint, code: int) -> None:
        if endpoint is not pod.endpoint or endpoint.gone:
            return  # nobody listens any more
        if code != OK:
            pod.refused += 1
            self._failed(pod, endpoint)
        elif pod.state != "pending":
            self._delete(pod, endpoint, 1)  # given up while its ADD was under way
        else:
            self._up(pod, endpoint)

    def _timed_out(self, pod: Pod, endpoint: Endpoint) -> None:
        if endpoint is not pod.endpoint or endpoint.built or pod.state == "up":
            return
        pod.timeouts += 1
        self._agent.hang_up(endpoint)
        self._failed(pod, endpoint)

    def _failed(self, pod: Pod, endpoint: Endpoint) -> None:
        """The DEL of a failed ADD, a pause, and the next ADD with a new sandbox."""
        pod.endpoint = None
        self._cancel(pod.timers[1:])
        self._timeline.after(self._delays.cleanup_ns, self._clean_up, pod, endpoint)

    def _clean_up(self, pod: Pod, endpoint: Endpoint) -> None:
        self._client(endpoint, lambda _: self._timeline.after(self._pause_ns(), self._add, pod))

    def _client(self, endpoint: Endpoint, ended: Callable[[bool], object]) -> None:
        """One DEL: `ended(True)` when it was answered in time, `ended(False)` when its client gave up."""
        over = False
        timer: Event | None = None

        def answered(_: int) -> None:
            nonlocal over
            if not over:
                over = True
                if timer is not None:
                    self._timeline.cancel(timer)
                ended(True)

        def timed_out() -> None:
            nonlocal over
            over = True
            hang_up()
            ended(False)

        hang_up = self._agent.delete(endpoint, answered)
        if not over:
            timer = self._timeline.after(self._delays.client_timeout_ns, timed_out)

    def _up(self, pod: Pod, endpoint: Endpoint) -> None:
        pod.state, pod.done_ns = "up", self._timeline.now_ns
        pod.add_ns = pod.done_ns - pod.asked_ns + self._agent.costs.plugin
        self.waiting -= 1
        self._cancel(pod.timers)
        self._changed()
        if pod.lifetime_ns is not None:
            self._timeline.after(pod.lifetime_ns, self._delete, pod, endpoint, 1)

    def _give_up(self, pod: Pod) -> None:
        if pod.state == "pending":
            pod.state, pod.done_ns = "given up", self._timeline.now_ns
            self.waiting -= 1
            self._changed()

    def stop(self, pod: Pod) -> None:
        """Delete a pod: what is up by a DEL, what is not by giving it up."""
        if pod.state == "up" and pod.endpoint is not None:
            self._delete(pod, pod.endpoint, 1)
        elif pod.state == "pending":
            self._give_up(pod)
            if pod.on_removed is not None:
                pod.on_removed()

    def _delete(self, pod: Pod, endpoint: Endpoint, attempt: int) -> None:
        def ended(in_time: bool) -> None:
            if not in_time and attempt < self._delays.delete_tries:
                self._timeline.after(self._pause_ns(), self._delete, pod, endpoint, attempt + 1)

        self._client(endpoint, ended)

    def _cancel(self, timers: list[Event]) -> None:
        """Nobody waits for these any more; a clock without them has less to do."""
        for timer in timers:
            self._timeline.cancel(timer)

    def _pause_ns(self) -> int:
        return round(self._draw.uniform(*self._delays.retry_ns))
