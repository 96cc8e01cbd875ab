"""Sandbox latency by source, failed attempts by kind, and what the node counted: the tables of runs on clusters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from loadgen.core.agreement import QUANTILES, Source
from loadgen.core.ciliummetrics import shortcomings
from loadgen.core.histogram import Bounds
from loadgen.core.results import Results
from loadgen.core.stats import percentile_name, samples_needed
from loadgen.core.units import NS_PER_S, format_count, format_duration
from loadgen.report.tables import NONE, Cell, Table
from loadgen.report.view import VariantView

NODE_COUNTERS = (
    "kubelet.sandbox_errors", "containerd.cni_errors", "cilium.creates_refused", "cilium.deletes_refused",
    "cilium.ct.walks",
)  # fmt: skip
_NAMES = [percentile_name(q) for q in QUANTILES]


def bounds(found: Bounds) -> str:
    """`1.22s to 3.05s`, `>= 90s`, or one number where the source is exact."""
    if found.low == found.high:
        return format_duration(found.low)
    if math.isinf(found.high):
        return f">= {format_duration(found.low)}"
    return f"{format_duration(found.low)} to {format_duration(found.high)}"


def table(variants: Sequence[VariantView]) -> Table | None:
    """A row a run and source: what each says of the same sandboxes, and how wrong it can be."""
    rows = [
        [Cell(f"{run.name}, {source.name}", "text", title=source.what), *_numbers(source), _error(source)]
        for variant in variants
        for run in variant.runs
        if run.agreement
        for source in run.agreement.sources
    ]
    columns = ["measured phases", "n", "failed", "mean", *_NAMES, "known error"]
    note = "Buckets of a histogram say between which two values a percentile lies, and nothing more."
    return Table("Sandbox latency by source", columns, rows, note) if rows else None


def _numbers(source: Source) -> list[Cell]:
    if source.absent:
        return [Cell(NONE) for _ in range(3 + len(_NAMES))]
    cells = [Cell(format_count(source.n)), Cell(NONE if source.failed is None else format_count(source.failed))]
    cells.append(Cell(NONE if source.mean is None else format_duration(source.mean)))
    for q, name in zip(QUANTILES, _NAMES, strict=True):
        found = source.quantiles.get(name)
        cells.append(Cell(bounds(found)) if found else Cell(NONE, title=f"needs {samples_needed(q):,} of them"))
    return cells


def _error(source: Source) -> Cell:
    return Cell(f"absent: {source.absent}" if source.absent else source.error, "text")


def lines(variants: Sequence[VariantView]) -> Iterator[str]:
    """The same for a terminal: a line a run and source, then what must be known to read them."""
    for variant in variants:
        for run in variant.runs:
            if run.agreement is None:
                continue
            for source in run.agreement.sources:
                yield f"{run.name}, {source.name}: {_line(source)}"
            yield from (f"{run.name}: {note}" for note in run.agreement.notes)


def _line(source: Source) -> str:
    if source.absent:
        return f"absent: {source.absent}"
    parts = [f"n {format_count(source.n)}"]
    if source.failed:
        parts.append(f"{format_count(source.failed)} failed")
    if source.mean is not None:
        parts.append(f"mean {format_duration(source.mean)}")
    parts += [f"{name} {bounds(found)}" for name, found in source.quantiles.items()]
    return ", ".join(parts)


def failures(variants: Sequence[VariantView]) -> Table | None:
    """Attempts that did not end well, by what the events said; those given up count as well."""
    found = [_failures(v) for v in variants]
    kinds = sorted({kind for counts in found for kind in counts}, key=lambda k: -sum(c.get(k, 0) for c in found))
    rows = [[Cell(kind, "text"), *(Cell(format_count(counts.get(kind, 0))) for counts in found)] for kind in kinds]
    columns = ["measured phases", *(v.name for v in variants)]
    note = "By FailedCreatePodSandBox events; the last of a pod that was given up is still under way."
    return Table("Failed attempts by kind", columns, rows, note) if rows else None


def failure_lines(variants: Sequence[VariantView]) -> Iterator[str]:
    for variant in variants:
        counts = _failures(variant)
        if counts:
            told = ", ".join(f"{format_count(n)} x {kind}" for kind, n in counts.items())
            yield f"{variant.name}: {told}"


def _failures(variant: VariantView) -> dict[str, int]:
    counts: dict[str, int] = {}
    for run in variant.runs:
        for kind, n in (run.agreement.failures if run.agreement else {}).items():
            counts[kind] = counts.get(kind, 0) + n
    return dict(sorted(counts.items(), key=lambda pair: -pair[1]))


def notes(variants: Sequence[VariantView]) -> Table | None:
    """What must be known to read the numbers: of the sources, and what the run itself noted on its way."""
    rows = [
        [Cell(run.name, "text"), Cell(NONE), Cell(note, "text")]
        for variant in variants
        for run in variant.runs
        for note in (run.agreement.notes if run.agreement else ())
    ]
    rows += [
        [Cell(run.name, "text"), Cell(f"{(m.t_ns - run.data.info.start_ns) / NS_PER_S:.1f} s"), Cell(m.text, "text")]
        for variant in variants
        for run in variant.runs
        for m in sorted(run.data.marks, key=lambda mark: mark.t_ns)
        if m.kind == "note"
    ]
    return Table("Noted on the way", ["run", "at", "what"], rows) if rows else None


def untold(results: Results) -> Table | None:
    """What the metrics of the Cilium versions that were used do not tell."""
    networks = {run.data.info.environment.get("cni", "") for run in results.runs}
    versions = sorted(name.removeprefix("cilium ") for name in networks if name.startswith("cilium "))
    rows = [
        [Cell(version, "text"), Cell(s.metric, "text"), Cell(s.what, "text"), Cell(s.source, "text")]
        for version in versions
        for s in shortcomings(version)
    ]
    columns = ["version", "metric", "", "source"]
    return Table("What this Cilium's metrics do not tell", columns, rows) if rows else None
