"""PASS < INCONCLUSIVE < FAIL: one ordering, one `worst`, and the exit codes that follow from it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import msgspec

VERDICT_FORMAT = 1


class Verdict(Enum):
    PASS = "PASS"
    INCONCLUSIVE = "INCONCLUSIVE"
    FAIL = "FAIL"


_RANK = {Verdict.PASS: 0, Verdict.INCONCLUSIVE: 1, Verdict.FAIL: 2}


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of them. None at all is INCONCLUSIVE: no data is never a pass."""
    return max(verdicts, key=_RANK.__getitem__, default=Verdict.INCONCLUSIVE)


class Exit:
    """Exit codes of the command line, after pytest's."""

    PASS = 0
    FAIL = 1
    INTERRUPTED = 2
    HARNESS = 3
    USAGE = 4
    INCONCLUSIVE = 5


def exit_code(verdict: Verdict) -> int:
    return {Verdict.PASS: Exit.PASS, Verdict.FAIL: Exit.FAIL, Verdict.INCONCLUSIVE: Exit.INCONCLUSIVE}[verdict]


class Finding(msgspec.Struct, frozen=True):
    """One threshold held against one run. `observed` is None when there was nothing to observe."""

    metric: str
    aggregate: str
    op: str
    limit: float
    unit: str
    observed: float | None
    n: int
    censored: int
    status: Verdict
    why: str
    at_least: bool = False
    """`observed` is a lower bound: samples that were given up decide it."""


class VariantVerdict(msgspec.Struct, frozen=True):
    """A variant's verdict is that of its own thresholds, over all its runs."""

    name: str
    baseline: bool
    verdict: Verdict
    why: str
    emulated: tuple[str, ...]
    findings: tuple[Finding, ...]


class ExperimentVerdict(msgspec.Struct, frozen=True):
    """verdict.json. The contract that scripts rely on: fields are added, never renamed."""

    format: int
    scenario: str
    verdict: Verdict
    why: str
    variants: tuple[VariantVerdict, ...]
