"""What is seen of a churn's pods through the API: states and events, made into attempts and ends of its sandboxes.

No I/O of its own. The watches tell every state once and in order; whatever they miss in a break shows in the next
state, so that a sandbox comes up once and each failed attempt is counted once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from loadgen.core.ports import NotUp
from loadgen.core.samples import Outcome
from loadgen.kube import events, podbody, podview
from loadgen.kube.events import About, Said
from loadgen.kube.objects import Event, Pod
from loadgen.kube.pods import Sandbox
from loadgen.kube.watch import Kind

ROUTINE = ("Scheduled", "Created", "Started", "Killing")
"""Reasons of events that every healthy pod has and from which nothing is to be learnt."""


class Listener(Protocol):
    """What a runtime on a cluster says besides attempts."""

    def throttled(self, wait_s: float) -> None:
        """A pod's creation had to wait so long for this client's own limit."""

    def stamped(self, ref: str, asked_ns: int, received_ns: int, length_ns: int) -> None:
        """The condition of a sandbox was received; by their stamps it came `length_ns` after the pod's creation."""

    def lagged(self, made_ns: int, received_ns: int) -> None:
        """An event that its source made at `made_ns` of its own clock was received."""

    def note(self, text: str) -> None:
        """Something a reader of the run should know."""


class Sightings:
    """All sandboxes of one worker, by their numbers. `batch`: pods a Job, 0 when they are pods of their own."""

    def __init__(self, token: str, batch: int, node: str, image: str) -> None:
        self._prefix = podbody.name(token, "")
        self._batch, self._node, self._image = batch, node, image
        self.listener: Listener | None = None
        self.deadline_s: float | None = None
        """The kubelet's limit of an attempt, where it is known."""
        self.failure: BaseException | None = None
        """Why nothing more will be seen."""
        self._sandboxes: dict[int, Sandbox] = {}
        self._by_uid: dict[str, Sandbox] = {}
        self._ledger = events.Ledger()
        self._early: dict[str, list[tuple[Said, int, int]]] = {}
        """Events of pods that have not been seen yet."""
        self._noted: set[str] = set()

    def sandbox(self, index: int) -> Sandbox:
        """Number `index`, known or new. Raises the failure when nothing more will be seen."""
        if self.failure is not None:
            raise self.failure
        if index not in self._sandboxes:
            self._sandboxes[index] = Sandbox(index)
        return self._sandboxes[index]

    def __iter__(self) -> Iterator[Sandbox]:
        return iter(self._sandboxes.values())

    def fail(self, error: BaseException) -> None:
        self.failure = self.failure or error
        for sandbox in self:
            sandbox.lose(error)

    # --- pods ---------------------------------------------------------------------------------------------------

    def on_pod(self, kind: Kind, pod: Pod, received_ns: int) -> None:
        """A new state of a pod, from a watch by label."""
        uid = pod.metadata.uid
        index = self._index(pod)
        sandbox = None if index is None or self.failure else self.sandbox(index)
        if sandbox is None or sandbox.uid not in ("", uid):
            return  # not known by its name, or a Job's second pod for the same index
        if not sandbox.uid:
            self._meet(sandbox, pod, received_ns)
        sandbox.view = pod
        if not sandbox.is_up and not sandbox.given_up:
            self._follow(sandbox, kind, pod, received_ns)
        if sandbox.is_up and not sandbox.stamped:
            self._stamp(sandbox, pod, received_ns)
        if problem := podview.image_problem(pod):
            self._note_image(problem)
        if kind == "DELETED" and not sandbox.gone.done():
            sandbox.gone.set_result(received_ns)

    def _follow(self, sandbox: Sandbox, kind: Kind, pod: Pod, received_ns: int) -> None:
        if podview.sandbox_up(pod):
            sandbox.came_up(received_ns)
        elif kind == "DELETED" or (pod.metadata.deletion_timestamp and not sandbox.deleted):
            sandbox.fail(NotUp(Outcome.FAIL, "deleted by somebody else"))
        elif why := podview.ended(pod):
            sandbox.fail(NotUp(Outcome.FAIL, why))
        elif not sandbox.began_ns and podview.scheduled(pod):
            sandbox.began_ns = received_ns

    def _stamp(self, sandbox: Sandbox, pod: Pod, received_ns: int) -> None:
        length_ns = podview.stamped_ns(pod)
        if length_ns is not None:
            sandbox.stamped = True
            if self.listener is not None:
                self.listener.stamped(sandbox.ref, sandbox.asked_ns, received_ns, length_ns)

    def to_be_stamped(self) -> bool:
        """There are sandboxes that are up and whose condition does not say so yet."""
        standing = (sandbox for sandbox in self if sandbox.is_up and not (sandbox.stamped or sandbox.gone.done()))
        return any(sandbox.view is None or podview.condition_to_come(sandbox.view) for sandbox in standing)

    def _index(self, pod: Pod) -> int | None:
        """Its number: of its own name, or of its Job's name and its completion index."""
        metadata = pod.metadata
        if not self._batch:
            number = metadata.name.removeprefix(self._prefix)
            return int(number) if number.isdecimal() else None
        job = metadata.labels.get(podbody.JOB, "").removeprefix(self._prefix)
        index = metadata.annotations.get(podbody.INDEX, "")
        return int(job) * self._batch + int(index) if job.isdecimal() and index.isdecimal() else None

    def _meet(self, sandbox: Sandbox, pod: Pod, received_ns: int) -> None:
        sandbox.uid = pod.metadata.uid
        sandbox.ref = f"{pod.metadata.namespace}/{pod.metadata.name}"
        if self._batch or not sandbox.asked_ns:
            sandbox.asked_ns = received_ns  # a Job's pods come when its controller makes them
        self._by_uid[sandbox.uid] = sandbox
        if podview.scheduled(pod):
            # Seen late, after a break: at work since we do not know when, but not before it was asked for.
            sandbox.began_ns = sandbox.asked_ns
        for said, times, at_ns in self._early.pop(sandbox.uid, ()):
            self._attempt(sandbox, said, times, at_ns)

    # --- events -------------------------------------------------------------------------------------------------

    def on_event(self, kind: Kind, event: Event, received_ns: int) -> None:
        """A new state of an event of the namespace, whoever it is about."""
        about = event.involved_object
        if kind == "DELETED" or not about.name.startswith(self._prefix):
            return
        series = event.series.count if event.series else None
        times = self._ledger.fresh(event.metadata.uid, event.count, series)
        said = events.classify(event.reason, event.message, deadline_s=self.deadline_s) if times else None
        if said is None:
            return
        if said.about in (About.IMAGE, About.SCHEDULING, About.OTHER):
            self._note_event(said)
        elif (made_ns := events.made_ns(event.metadata.name)) and self.listener is not None:
            self.listener.lagged(made_ns, received_ns)
        if said.about in (About.SCHEDULING, About.OTHER):
            return
        if about.uid in self._by_uid:
            self._attempt(self._by_uid[about.uid], said, times, received_ns)
        else:
            self._early.setdefault(about.uid, []).append((said, times, received_ns))

    def _attempt(self, sandbox: Sandbox, said: Said, times: int, received_ns: int) -> None:
        if said.about is About.ADD:
            sandbox.add_failed(said, times, received_ns)
        elif said.about is About.DEL:
            sandbox.del_failed(said, times, received_ns)
        elif not (sandbox.is_up or sandbox.given_up or sandbox.up.done()):
            # The kubelet cares for a container's image right after the sandbox. The condition comes with the next
            # status, after all containers have been started.
            sandbox.came_up(received_ns)

    # --- notes --------------------------------------------------------------------------------------------------

    def _note_event(self, said: Said) -> None:
        if said.about is About.IMAGE:
            self._note_image(said.detail)
        elif said.about is About.SCHEDULING:
            self.note(f"pods wait for room on {self._node}: {said.detail}")
        else:
            self.note(f"pods on {self._node}: {said.detail}")

    def _note_image(self, problem: str) -> None:
        self.note(
            f"{self._node} does not have the image {self._image} ({problem}): containers do not start, sandboxes are "
            "measured all the same"
        )

    def note(self, text: str) -> None:
        """Tell it, once."""
        if text not in self._noted and self.listener is not None:
            self._noted.add(text)
            self.listener.note(text)
