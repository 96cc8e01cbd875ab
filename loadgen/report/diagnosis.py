"""A diagnosis as plain text: what was read, what it says, the causes with what speaks for and against them."""

from __future__ import annotations

from collections.abc import Iterator

from loadgen.core.diagnosis import Diagnosis
from loadgen.core.hypotheses import Hypothesis, Standing


def render(diagnosis: Diagnosis) -> str:
    """The report. Text from the files is made printable: a log cannot steer the terminal."""
    return "".join(f"{_printable(line)}\n" for line in _lines(diagnosis))


def _printable(line: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in line)


def _lines(diagnosis: Diagnosis) -> Iterator[str]:
    yield "What was read"
    yield from (f"  {read.file}: {read.kind.value}" for read in diagnosis.read)
    if diagnosis.skipped:
        yield f"  and {diagnosis.skipped} members of archives that say nothing here"
    if diagnosis.problems:
        yield ""
        yield "What could not be read (the rest was)"
        for problem in diagnosis.problems:
            yield f"  {problem.file}: {problem.where + ': ' if problem.where else ''}{problem.what}"
    if diagnosis.facts:
        yield ""
        yield "What it says"
    for facts in diagnosis.facts:
        yield f"  {facts.file}"
        yield from (f"    {line}" for line in facts.lines)
    for standing in (Standing.LIKELY, Standing.POSSIBLE, Standing.UNLIKELY):
        for hypothesis in (h for h in diagnosis.hypotheses if h.standing is standing):
            yield ""
            yield from _hypothesis(hypothesis)
    unknown = [h.id for h in diagnosis.hypotheses if h.standing is Standing.UNKNOWN]
    if unknown:
        yield ""
        yield f"No evidence for or against: {', '.join(unknown)}"
    yield ""
    yield _conclusion(diagnosis)


def _hypothesis(h: Hypothesis) -> Iterator[str]:
    yield f"{h.standing.value.upper()}  {h.id}: {h.cause}"
    yield from (f"  for      {p.says} [{p.file}]" for p in h.for_)
    yield from (f"  against  {p.says} [{p.file}]" for p in h.against)
    if h.standing is not Standing.UNLIKELY:
        yield f"  confirm    {h.confirm}"
        yield f"  cure       {h.remedy}"
        yield f"  reproduce  {h.reproduce}"


def _conclusion(diagnosis: Diagnosis) -> str:
    causes = diagnosis.causes
    if not causes:
        return "No known cause: " + (
            "what was read speaks against those it bears on" if diagnosis.exit_code == 0 else "give more evidence"
        )
    return f"{causes[0].standing.value.capitalize()}: " + "; ".join(f"{h.id} ({h.cause})" for h in causes)
