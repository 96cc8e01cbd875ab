"""The seams: what the engine asks of a testbed, and what a testbed asks of its drivers, probes and faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from loadgen.core.model import Load, Scenario, Variant
from loadgen.core.samples import Message, Outcome

Emit = Callable[[Message], None]


class Clock(Protocol):
    """Monotonic time. The engine has no other; tests drive it by hand."""

    def now_ns(self) -> int: ...

    async def sleep_until(self, t_ns: int) -> None: ...


class Window(Protocol):
    """The stretch in which a driver's operations are due, and the request to stop early."""

    phase: str
    start_ns: int
    end_ns: int
    seed: int

    def stopped(self) -> bool: ...


class Driver(Protocol):
    """Makes operations from inside the place it runs in (a pod's namespace). Lives in a worker process.

    `run` returns when all that was due in the window has ended or been given up. It emits every operation exactly
    once and raises only when the harness is broken. Returned: operations created, by metric.
    """

    def run(self, window: Window, emit: Emit) -> dict[str, int]: ...


class Attempt(msgspec.Struct, frozen=True):
    """One CNI call for a pod's sandbox. `ref` is the name that spans know it by: container id, or NAMESPACE/NAME."""

    ref: str
    start_ns: int
    end_ns: int
    outcome: Outcome
    detail: str = ""
    """Why it failed, in a few words with no ids in them: `agent timeout 90s`, `429 TooManyRequests`.

    Of a DEL also which one it was: `failed ADD`, `pod removal`.
    """
    op: str = "ADD"
    """ADD or DEL."""


class NotUp(Exception):
    """Why a sandbox is not up, from a runtime that knows more than that its time is over."""

    def __init__(self, outcome: Outcome, why: str) -> None:
        super().__init__(why)
        self.outcome, self.why = outcome, why


class PodRuntime(Protocol):
    """Whoever brings sandboxes up: the lab's kubelet model, or a real kubelet behind the API server."""

    async def admit(self, index: int, deadline_ns: int) -> None:
        """Wait until this client may ask for one more pod. What that takes is the generator's own delay."""
        ...

    async def start_pod(self, index: int, deadline_ns: int, on_attempt: Callable[[Attempt], None]) -> bool:
        """Try, as the kubelet does, until the sandbox is up (True) or the deadline has passed (False).

        NotUp when there is more to say. An attempt that became known late is reported even after the return.
        """
        ...

    async def remove_pod(self, index: int, on_attempt: Callable[[Attempt], None]) -> bool:
        """Tear the sandbox down; True when the DEL succeeded."""
        ...

    async def close(self) -> None:
        """Give up whatever is under way and leave nothing behind."""
        ...


class Running(Protocol):
    """A load at work, as the engine sees it: one or more workers, ready to begin."""

    def go(self, start_ns: int, end_ns: int) -> None:
        """Begin: operations are due from `start_ns` until before `end_ns`."""

    def stop(self) -> None:
        """Let nothing more become due; what is in flight may end."""

    async def wait(self) -> None:
        """Return when every worker has delivered its tally; raise HarnessError when one is lost."""

    async def close(self) -> None:
        """End what is left of the workers, tally or not. Idempotent."""


class ActiveFault(Protocol):
    emulated: str
    """What of it is not the real thing, for the report; empty when it is."""

    async def inject(self) -> str:
        """Put the fault in place; returns a sentence on what was done."""
        ...

    async def heal(self) -> None:
        """Take it away again. Idempotent: it also runs first, for what a killed run may have left."""
        ...


class Deployment(Protocol):
    """A testbed with one variant applied. The engine starts loads on it and listens to what it says."""

    emulated: tuple[str, ...]
    environment: dict[str, str]
    disposable: bool
    """True when the testbed is destroyed after the run: its faults go with it and need no healing at the end."""

    @property
    def lead_ns(self) -> int:
        """How long before the first due time `go` is said, so that a wake-up is not a lag of the first operation."""
        ...

    async def prepare(self, name: str, load: Load, phase: str, seed: int, emit: Emit) -> Running:
        """Start the load's workers where they belong; they wait for `go`. What they say goes to `emit`."""
        ...

    def fault(self, name: str) -> ActiveFault: ...

    async def watch(self, emit: Emit) -> None:
        """Run the probes until cancelled; raise HarnessError when a part of the testbed has died."""


class Testbed(Protocol):
    name: str

    def check(self, scenario: Scenario) -> None:
        """Raise ConfigError or NotSupported for what can be known before anything is made."""

    def session(self, scenario: Scenario, variants: Sequence[Variant]) -> AbstractAsyncContextManager[None]:
        """Around all runs of an experiment: what they share is made, and what was there before is put back.

        Entering it raises ConfigError or NotSupported when the place itself says no; nothing has changed then.
        """
        ...

    def deploy(
        self, scenario: Scenario, variant: Variant, log_dir: str
    ) -> AbstractAsyncContextManager[Deployment]: ...


class History(Protocol):
    """Where the engine puts what happens, as it happens."""

    def add(self, message: Message) -> None: ...

    def flush(self) -> None: ...
