"""The outcome of `loadgen diagnose` as one value, and its JSON. Fields are added, never renamed."""

from __future__ import annotations

import msgspec

from loadgen.core import facts, hypotheses
from loadgen.core.facts import Facts
from loadgen.core.hypotheses import Hypothesis, Standing
from loadgen.core.incident import Evidence, Kind, Problem
from loadgen.core.verdict import Exit

DIAGNOSIS_FORMAT = 1


class Read(msgspec.Struct, frozen=True):
    file: str
    kind: Kind


class Diagnosis(msgspec.Struct, frozen=True):
    format: int
    read: tuple[Read, ...]
    skipped: int
    problems: tuple[Problem, ...]
    facts: tuple[Facts, ...]
    hypotheses: tuple[Hypothesis, ...]

    @property
    def causes(self) -> tuple[Hypothesis, ...]:
        """The likely ones; else the possible ones."""
        for wanted in (Standing.LIKELY, Standing.POSSIBLE):
            if found := tuple(h for h in self.hypotheses if h.standing is wanted):
                return found
        return ()

    @property
    def exit_code(self) -> int:
        """1: a cause is likely. 5: nothing decisive was said. 0: what was said speaks against all it bears on."""
        standings = {h.standing for h in self.hypotheses}
        if Standing.LIKELY in standings:
            return Exit.FAIL
        decided = Standing.UNLIKELY in standings and Standing.POSSIBLE not in standings
        return Exit.PASS if decided else Exit.INCONCLUSIVE


def diagnose(
    evidence: Evidence, read: tuple[tuple[str, Kind], ...], problems: tuple[Problem, ...], skipped: int = 0
) -> Diagnosis:
    """Everything that follows from `evidence`."""
    return Diagnosis(
        format=DIAGNOSIS_FORMAT,
        read=tuple(Read(file, kind) for file, kind in read),
        skipped=skipped,
        problems=problems,
        facts=facts.of(evidence),
        hypotheses=hypotheses.weigh(evidence),
    )
