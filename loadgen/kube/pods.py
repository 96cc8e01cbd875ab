"""One pod of a churn as it is known at the moment, and the attempts that are reported of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from loadgen.core.ports import Attempt
from loadgen.core.samples import Outcome
from loadgen.kube.events import Said
from loadgen.kube.objects import Pod

OnAttempt = Callable[[Attempt], None]

REMOVAL = "pod removal"
UNDER_WAY = "still under way"


class Sandbox:
    """The sandbox of pod number `index`. It may be heard of before anybody waits for it (a Job's pod).

    `up` and `gone` are there to be waited for; `gone` holds when the API forgot the pod.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.uid = ""
        self.ref = ""
        """NAMESPACE/NAME, once the pod has been seen."""
        self.view: Pod | None = None
        self.asked_ns = 0
        """When its creation was asked for."""
        self.began_ns = 0
        """Start of the attempt under way: its scheduling, or the end of the attempt before. 0: not scheduled."""
        self.is_up = False
        self.stamped = False
        """Its condition says that it is up."""
        self.given_up = False
        self.deleted = False
        """By us."""
        self.up: asyncio.Future[None] = _quiet_future()
        self.gone: asyncio.Future[int] = _quiet_future()
        self._unheard: list[Attempt] = []
        self._on_attempt: OnAttempt = self._unheard.append
        self._removal_ns = 0
        self._on_removal: OnAttempt | None = None
        self._failed: set[str] = set()
        """Container ids of failed attempts."""

    def listen(self, on_attempt: OnAttempt) -> None:
        """Have attempts reported, those of the past first."""
        for attempt in self._unheard:
            on_attempt(attempt)
        self._unheard.clear()
        self._on_attempt = on_attempt

    # --- coming up ----------------------------------------------------------------------------------------------

    def came_up(self, now_ns: int) -> None:
        self.is_up = True
        self._on_attempt(Attempt(self.ref, self._start_ns(now_ns), now_ns, Outcome.OK))
        if not self.up.done():
            self.up.set_result(None)

    def fail(self, error: BaseException) -> None:
        """Whoever waits for it to come up, or will wait, gets `error`."""
        if not self.up.done():
            self.up.set_exception(error)

    def lose(self, error: BaseException) -> None:
        """Nothing more will be heard of it."""
        self.fail(error)
        if not self.gone.done():
            self.gone.set_exception(error)

    def give_up(self, now_ns: int) -> None:
        """Nobody waits any longer: the attempt under way stays open, later ones are not ours to measure."""
        if not self.given_up and not self.is_up and self.began_ns:
            self._on_attempt(Attempt(self.ref, self.began_ns, now_ns, Outcome.UNKNOWN, UNDER_WAY))
        self.given_up = True

    def add_failed(self, said: Said, times: int, now_ns: int) -> None:
        """`times` failed attempts became known at once; their ends are spread evenly up to now.

        The kubelet's event may come after the sandbox is up; the attempt counts all the same.
        """
        if self.given_up or (said.sandbox and said.sandbox in self._failed):
            return
        self._failed.add(said.sandbox)
        for start_ns, end_ns in _spread(self._start_ns(now_ns), now_ns, times):
            self._on_attempt(Attempt(self.ref, start_ns, end_ns, said.outcome, said.detail))
        if not self.is_up:
            self.began_ns = now_ns

    def _start_ns(self, now_ns: int) -> int:
        """Events and pods come by two watches: an event may be ahead of the pod's scheduling."""
        return min(self.began_ns or self.asked_ns or now_ns, now_ns)

    # --- going away ---------------------------------------------------------------------------------------------

    def removing(self, start_ns: int, on_attempt: OnAttempt) -> None:
        """Have its DELs reported: the first begins at `start_ns`."""
        self._removal_ns, self._on_removal = start_ns, on_attempt

    def del_failed(self, said: Said, times: int, now_ns: int) -> None:
        """As add_failed, for its removal; nobody measures the removal of a pod that was given up."""
        if self._on_removal is None:
            return
        for start_ns, end_ns in _spread(self._removal_ns, now_ns, times):
            detail = f"{REMOVAL}: {said.detail}"
            self._on_removal(Attempt(self.ref, start_ns, end_ns, said.outcome, detail, "DEL"))
        self._removal_ns = now_ns

    def removed(self, now_ns: int, outcome: Outcome, why: str = "") -> None:
        """The last DEL of its removal ended."""
        assert self._on_removal is not None
        detail = f"{REMOVAL}: {why}" if why else REMOVAL
        self._on_removal(Attempt(self.ref, self._removal_ns, max(now_ns, self._removal_ns), outcome, detail, "DEL"))
        self._on_removal = None


def _spread(start_ns: int, end_ns: int, times: int) -> Iterator[tuple[int, int]]:
    """Start and end of `times` equal parts of the time between."""
    cuts = [start_ns + (end_ns - start_ns) * n // times for n in range(times + 1)]
    return pairwise(cuts)


def _quiet_future() -> asyncio.Future[Any]:
    """A future whose exception nobody need ask for."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.add_done_callback(lambda f: f.cancelled() or f.exception())
    return future
