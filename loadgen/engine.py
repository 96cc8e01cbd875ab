"""The interpreter of phases: the only loop and the only cancellation. It sees ports, never an adapter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from loadgen.core.errors import HarnessError
from loadgen.core.history import Ending
from loadgen.core.model import Phase, Scenario
from loadgen.core.ports import ActiveFault, Clock, Deployment, History, Running
from loadgen.core.samples import Log, Mark, Message
from loadgen.core.units import NS_PER_S

FLUSH_EVERY_NS = 5 * NS_PER_S
DRAIN_NS = 300 * NS_PER_S
"""No operation may outlast its phase by more: a worker that does is lost."""


async def run(
    scenario: Scenario,
    deployment: Deployment,
    history: History,
    clock: Clock,
    seed: int,
    observe: Callable[[Message], None],
) -> Ending:
    """Run every phase of `scenario` on `deployment` into `history`.

    Returns how it ended: COMPLETE, or INTERRUPTED when the task was cancelled (what was measured is in the history).
    Raises HarnessError when a part of the harness broke; faults are healed and workers ended in every case.
    """
    interpreter = _Interpreter(scenario, deployment, history, clock, seed, observe)
    try:
        await interpreter.run_phases()
    except asyncio.CancelledError:
        return Ending.INTERRUPTED
    finally:
        await interpreter.close()
    return Ending.COMPLETE


class _Interpreter:
    def __init__(
        self,
        scenario: Scenario,
        deployment: Deployment,
        history: History,
        clock: Clock,
        seed: int,
        observe: Callable[[Message], None],
    ) -> None:
        self._scenario = scenario
        self._deployment = deployment
        self._history = history
        self._clock = clock
        self._seed = seed
        self._observe = observe
        self._faults: dict[str, ActiveFault] = {name: deployment.fault(name) for name in scenario.faults}
        self._active: list[str] = []
        self._draining: list[Running] = []
        self._waits: list[asyncio.Task[None]] = []
        self._watch: asyncio.Task[None] | None = None
        self._flush: asyncio.Task[None] | None = None

    def emit(self, message: Message) -> None:
        if isinstance(message, Log):
            raise HarnessError(message.error)
        self._history.add(message)
        self._observe(message)

    def _mark(self, kind: str, name: str, text: str = "") -> None:
        self.emit(Mark(self._clock.now_ns(), kind, name, text))

    async def run_phases(self) -> None:
        for fault in self._faults.values():
            await fault.heal()
        self._watch = asyncio.create_task(self._deployment.watch(self.emit))
        self._flush = asyncio.create_task(self._flush_regularly())
        for phase in self._scenario.phases:
            await self._run_phase(phase)
        if self._waits and not await self._reach(self._waits, self._clock.now_ns() + DRAIN_NS):
            raise HarnessError("a worker did not end: its operations outlast every limit they have")

    async def _run_phase(self, phase: Phase) -> None:
        await self._switch_faults(phase.faults)
        running = {}
        for name in phase.loads:
            load = self._scenario.loads[name]
            running[name] = await self._deployment.prepare(name, load, phase.name, self._seed, self.emit)
            self._draining.append(running[name])
        start_ns = self._clock.now_ns() + self._deployment.lead_ns
        end_ns = start_ns + phase.duration
        for load in running.values():
            load.go(start_ns, end_ns)
        self._mark("phase", phase.name, "measured" if phase.measured else "")
        waits = {name: asyncio.create_task(load.wait()) for name, load in running.items()}
        self._waits.extend(waits.values())
        await self._reach([waits[phase.until]] if phase.until else [], end_ns)
        for load in running.values():
            load.stop()
        self._mark("phase-end", phase.name)

    async def _reach(self, goal: Sequence[asyncio.Task[None]], end_ns: int) -> bool:
        """Wait until every task of `goal` is done (True), or `end_ns` has come (False; always, for no goal).

        A failure anywhere in the harness ends it at once.
        """
        timer = asyncio.create_task(self._clock.sleep_until(end_ns))
        try:
            while not timer.done():
                if goal and all(task.done() for task in goal):
                    return True
                pending = [task for task in (timer, *self._tasks()) if not task.done()]
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                self._raise_failures()
            return bool(goal) and all(task.done() for task in goal)
        finally:
            timer.cancel()

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [task for task in (self._watch, self._flush, *self._waits) if task]

    def _raise_failures(self) -> None:
        for task in self._tasks():
            if task.done() and not task.cancelled():
                error = task.exception()
                if error is not None:
                    raise error
        if self._watch and self._watch.done():
            raise HarnessError("the testbed's probes ended before the run did")

    async def _flush_regularly(self) -> None:
        while True:
            await self._clock.sleep_until(self._clock.now_ns() + FLUSH_EVERY_NS)
            self._history.flush()

    async def _switch_faults(self, wanted: Sequence[str]) -> None:
        for name in [n for n in self._active if n not in wanted]:
            await self._heal(name)
        for name in wanted:
            if name not in self._active:
                self._active.append(name)
                self._mark("fault", name, await self._faults[name].inject())

    async def _heal(self, name: str) -> None:
        await self._faults[name].heal()
        self._active.remove(name)
        self._mark("heal", name)

    async def close(self) -> None:
        """End workers and tasks, heal faults. Runs after success, failure and cancellation alike."""
        for load in self._draining:
            await load.close()
        for task in self._tasks():
            task.cancel()
        await asyncio.gather(*self._tasks(), return_exceptions=True)
        if not self._deployment.disposable:
            await self._switch_faults(())
