"""Runs an experiment: its variants and repeats one after the other, each into its own run directory."""

from __future__ import annotations

import asyncio
import datetime
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from loadgen import engine, store
from loadgen.core.errors import ConfigError, HarnessError
from loadgen.core.history import RUN_FORMAT, Ending, RunInfo
from loadgen.core.model import Scenario, Variant
from loadgen.core.ports import Clock, Testbed
from loadgen.core.samples import Message


class Plan(NamedTuple):
    """What is to be run. `raw` is the scenario as plain values, for run.json."""

    scenario: Scenario
    raw: dict[str, Any]
    variants: Sequence[str]
    repeat: int
    """Runs of each variant; at most so many when `enough` is given."""
    seed: int
    argv: Sequence[str]
    shuffled: bool = False
    """The order of the variants within each repeat is drawn from the seed; otherwise it is the file's."""
    enough: Callable[[int], bool] | None = None
    """Asked after each whole repeat, with the number of them: whether more would tell nothing new."""


class Observer(NamedTuple):
    """Who watches: called as each run begins, with each message, and as each run ends."""

    begin: Callable[[str, Variant, int, int], None]
    message: Callable[[Message], None]
    end: Callable[[str, Ending], None]


def choose_variants(scenario: Scenario, names: Sequence[str], *, factorial: bool) -> list[str]:
    """Variants to run, in the file's order: those named, or all but the partial ones (with `factorial` these too)."""
    unknown = [name for name in names if name not in scenario.variants]
    if unknown:
        raise ConfigError(
            f"--variant {unknown[0]}: {scenario.name} has no such variant; it has {', '.join(scenario.variants)}"
        )
    partial = {name for name, variant in scenario.variants.items() if variant.partial}
    if factorial and not partial:
        raise ConfigError(f"--factorial: {scenario.name} has no variants that are one fix of several")
    if names:
        return [name for name in scenario.variants if name in names or (factorial and name in partial)]
    return [name for name in scenario.variants if factorial or name not in partial]


def run_names(plan: Plan) -> list[tuple[str, str, int]]:
    """(directory, variant, repeat) of each run in order: ABAB, so that what drifts on the machine hits all alike."""
    draw = random.Random(plan.seed)
    pairs = []
    for repeat in range(plan.repeat):
        variants = list(plan.variants)
        if plan.shuffled:
            draw.shuffle(variants)
        pairs += [(variant, repeat) for variant in variants]
    return [(f"{i:02d}-{variant}", variant, repeat) for i, (variant, repeat) in enumerate(pairs, start=1)]


async def run(plan: Plan, testbed: Testbed, out: Path, clock: Clock, observer: Observer) -> Ending:
    """Make every run of `plan` into `out`, which must be new. Stops at the first run that does not complete.

    Raises ConfigError before anything is made, HarnessError when the harness broke; what was measured is kept.
    """
    testbed.check(plan.scenario)
    try:
        async with testbed.session(plan.scenario, [plan.scenario.variants[name] for name in plan.variants]):
            return await _run_all(plan, testbed, out, clock, observer)
    except asyncio.CancelledError:
        # Cancelled before the first run or after the last: whatever is in `out` stands.
        return Ending.INTERRUPTED


async def _run_all(plan: Plan, testbed: Testbed, out: Path, clock: Clock, observer: Observer) -> Ending:
    runs = run_names(plan)
    store.create(
        out,
        store.ExperimentInfo(
            format=RUN_FORMAT,
            kind="experiment",
            scenario=plan.raw,
            order=tuple(name for name, _, _ in runs),
            seed=plan.seed,
            testbed=testbed.name,
            argv=tuple(plan.argv),
            started=_now(),
        ),
    )
    for number, (name, variant, repeat) in enumerate(runs, start=1):
        ending = await _run_one(
            plan, testbed, out / "runs" / name, plan.scenario.variants[variant], repeat, clock, observer
        )
        if ending is not Ending.COMPLETE:
            return ending
        if _done(plan, number):
            break
    return Ending.COMPLETE


def _done(plan: Plan, runs: int) -> bool:
    """Whether so many runs are whole repeats, and enough of them."""
    repeats, rest = divmod(runs, len(plan.variants))
    return plan.enough is not None and not rest and plan.enough(repeats)


async def _run_one(
    plan: Plan, testbed: Testbed, path: Path, variant: Variant, repeat: int, clock: Clock, observer: Observer
) -> Ending:
    observer.begin(path.name, variant, repeat, plan.repeat)
    # The seed does not depend on the variant: all variants of a repeat get the same schedule.
    seed = plan.seed + repeat
    logs = path / "logs"
    with store.writing(logs):
        logs.mkdir(parents=True)
    ending = Ending.FAILED
    try:
        async with testbed.deploy(plan.scenario, variant, str(logs)) as deployment:
            info = RunInfo(
                format=RUN_FORMAT,
                scenario=plan.raw,
                variant=variant.name,
                baseline=variant.baseline,
                partial=variant.partial,
                repeat=repeat,
                seed=seed,
                testbed=testbed.name,
                environment=deployment.environment,
                emulated=deployment.emulated,
                argv=tuple(plan.argv),
                started=_now(),
                start_ns=clock.now_ns(),
            )
            writer = store.RunWriter(path, info)
            try:
                ending = await engine.run(plan.scenario, deployment, writer, clock, seed, observer.message)
            finally:
                writer.close(ending, clock.now_ns())
    except asyncio.CancelledError:
        # Cancelled while the testbed was being made or taken down: nothing of this run is lost that was measured.
        ending = Ending.INTERRUPTED
    except OSError as error:
        raise HarnessError(f"{path.name}: {error}; logs are in {logs}") from error
    finally:
        observer.end(path.name, ending)
    return ending


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
