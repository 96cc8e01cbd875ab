"""The numbers of the HTML report as tables of text. Every one comes from the results; a dash says there is none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from loadgen.core.attribute import Attribution
from loadgen.core.cilium import QUIET_RATE
from loadgen.core.history import Series
from loadgen.core.metrics import METRICS
from loadgen.core.results import Results
from loadgen.core.stats import PERCENTILES, Value, percentile_name, samples_needed
from loadgen.core.units import NS_PER_S, format_count, format_duration
from loadgen.core.verdict import Finding, Verdict
from loadgen.report import wording
from loadgen.report.view import SLOWEST, VariantView, duration_s, expired_entries, gc_passes, table_entries

NONE = "–"
LOOKUP_COUNTERS = (
    "race.drops", "nfct.clash_resolve", "nfct.insert_failed", "nfct.drop", "nfct.early_drop", "dns.server.a",
    "dns.server.aaaa",
)  # fmt: skip
CT_COUNTERS = ("ct.created", "ct.create_failed")
"""Series that only grow: shown as last reading minus first."""
SLOWEST_OF_MANY = 2


class Cell(NamedTuple):
    """`kind`: num, text, or a status (pass, inconclusive, fail, muted). `small` is a second, smaller line."""

    text: str
    kind: str = "num"
    small: str = ""
    title: str = ""


class Table(NamedTuple):
    """Rows begin with their name, a header. `kinds` of the columns follow those of the first row's cells."""

    title: str
    columns: list[str]
    rows: list[list[Cell]]
    note: str = ""


def _word(text: str, title: str = "") -> Cell:
    return Cell(text, "text", title=title)


def _count(value: float | None) -> Cell:
    return Cell(NONE if value is None else format_count(value))


def _status(finding: Finding, asked: bool) -> str:
    """A status that nobody asked for is muted: what a baseline breaks is no alarm."""
    return finding.status.value.lower() if asked or finding.status is Verdict.PASS else "muted"


def _asked(variant: VariantView) -> bool:
    return not variant.baseline and not variant.partial


# --- findings and effects --------------------------------------------------------------------------------------


def matrix(variants: Sequence[VariantView]) -> Table:
    """Thresholds down, variants across: what each observed, and whether the threshold holds there."""
    rows = []
    for column in zip(*(v.verdict.findings for v in variants), strict=True):
        cells = [Cell(wording.observed(f), f.status.value.lower(), f.status.value, f.why) for f in column]
        rows.append([_word(wording.threshold(column[0])), *cells])
    heads = [f"{v.name} ({wording.role(v)})" if wording.role(v) else v.name for v in variants]
    return Table("Every threshold in every variant", ["threshold", *heads], rows)


def findings(variant: VariantView) -> Table:
    rows = [
        [
            _word(f.metric, METRICS[f.metric].meaning if f.metric in METRICS else ""),
            _word(f.aggregate),
            Cell(wording.observed(f)),
            Cell(wording.limit(f)),
            _count(f.n),
            _count(f.censored),
            Cell(f.status.value, _status(f, _asked(variant))),
            _word(f.why),
        ]
        for f in variant.verdict.findings
    ]
    columns = ["metric", "aggregate", "observed", "limit", "n", "given up", "status", "why"]
    return Table(f"{variant.name}: {wording.status(variant)}", columns, rows, variant.describe)


def effects(results: Results, variants: Sequence[VariantView]) -> Table | None:
    """Percentiles down, variants across: which variant moved which number."""
    changes = wording.changes(results.effects, variants)
    baseline = next((v for v in variants if v.baseline), None)
    others = [v for v in variants if any(c.effect.variant == v.name for c in changes)]
    if baseline is None or not others:
        return None
    by_row: dict[tuple[str, str], dict[str, wording.Change]] = {}
    for change in changes:
        by_row.setdefault((change.effect.metric, change.aggregate), {})[change.effect.variant] = change
    rows = []
    for (metric, aggregate), by_variant in by_row.items():
        before = Cell(wording.value(next(iter(by_variant.values())).before))
        rows.append([_word(f"{metric} {aggregate}"), before, *(_change(by_variant.get(v.name)) for v in others)])
    return Table(
        "How far each variant moved each percentile",
        ["metric", baseline.name, *(v.name for v in others)],
        rows,
        "In brackets the 95 % bootstrap interval of the ratio of percentiles; p is of a two-sided Mann–Whitney test "
        "on all samples. Grey: no clear change.",
    )


def _change(change: wording.Change | None) -> Cell:
    if change is None:
        return Cell(NONE)
    small = f"{change.factor() if change.clear else 'no clear change'} [{change.interval()}], {change.p()}"
    return Cell(wording.value(change.after), "num" if change.clear else "muted num", small)


# --- latencies -------------------------------------------------------------------------------------------------


def percentiles(variants: Sequence[VariantView], metrics: Iterable[str]) -> Table | None:
    """One row a metric and variant; a percentile that so few samples cannot give is a dash."""
    rows = []
    for metric, variant in _pooled(variants, metrics):
        pool = variant.pools[metric]
        s = pool.summary
        slowest = Value(s.max, bool(pool.latencies.censored[-1]))
        cells = [_percentile(pool.percentile(q), q) for q in PERCENTILES]
        counts = [_count(c) for c in (s.n, s.ok, s.failed, s.censored)]
        rows.append([_word(f"{metric}, {variant.name}"), *counts, *cells, Cell(wording.value(slowest))])
    names = [percentile_name(q) for q in PERCENTILES]
    columns = ["measured phases", "n", "ok", "failed", "given up", *names, "max"]
    return Table("Latency percentiles", columns, rows) if rows else None


def _percentile(found: Value | None, q: float) -> Cell:
    return Cell(wording.value(found)) if found else Cell(NONE, title=f"needs {samples_needed(q):,} samples")


def accounts(variants: Sequence[VariantView], metrics: Iterable[str]) -> Table | None:
    """What was offered and in time, what it took: retries, lost queries, and the reasons given."""
    rows = []
    for metric, variant in _pooled(variants, metrics):
        s = variant.pools[metric].summary
        reasons = ", ".join(f"{count:,} × {text}" for text, count in sorted(s.reasons.items(), key=lambda r: -r[1]))
        rows.append(
            [
                _word(f"{metric}, {variant.name}"),
                Cell(f"{s.due_rate:,.4g}/s" if s.due_rate else "at once"),
                Cell(f"{s.achieved:.2%}"),
                Cell(format_duration(s.lag_p99)),
                _count(s.retries),
                _count(s.lost),
                _word(reasons or NONE),
            ]
        )
    columns = ["measured phases", "due", "started in time", "lag p99", "retries", "lost queries", "reasons given"]
    return Table("Offered load, retries and reasons", columns, rows) if rows else None


def _pooled(variants: Sequence[VariantView], metrics: Iterable[str]) -> list[tuple[str, VariantView]]:
    return [(metric, v) for metric in metrics for v in variants if metric in v.pools]


# --- the table, the agent, the kernel --------------------------------------------------------------------------


def ct_table(variants: Sequence[VariantView]) -> Table | None:
    """The key numbers behind the picture of the table and of its queue."""
    rows = []
    for variant in variants:
        entries = _all(table_entries(r.data) for r in variant.runs)
        expired = _all(expired_entries(r.data) for r in variant.runs)
        walks = variant.walks
        if len(entries):
            rows.append(
                [
                    _word(variant.name),
                    *(_count(float(x)) for x in (entries[0], entries.max(), entries[-1])),
                    *(
                        _count(x)
                        for x in ((round(expired.max()), round(expired[-1])) if len(expired) else (None, None))
                    ),
                    _count(sum(len(gc_passes(r.data)) for r in variant.runs)),
                    _count(_most(variant.values("agent.lock.waiters"))),
                    _count(walks.walks),
                    Cell(format_duration(walks.longest_s) if walks.walks else NONE),
                    Cell(f"{walks.us_per_entry:.3g} µs" if walks.entries else NONE),
                ]
            )
    columns = ["all phases", "entries at first", "most", "at the end", "expired, most", "at the end", "GC passes"]
    columns += ["most lock waiters", "walks", "longest", "per entry"]
    return Table("The TCP table and its walks", columns, rows) if rows else None


def _all(found: Iterable[Series]) -> np.ndarray:
    return np.concatenate([series.values for series in found])


def _most(values: np.ndarray) -> float | None:
    return float(values.max()) if len(values) else None


def counters(variants: Sequence[VariantView], names: Sequence[str]) -> Table | None:
    """How far each of these counters went, over all phases."""
    rows = []
    for name in names:
        totals = [v.total(name) for v in variants]
        if any(total is not None for total in totals):
            meaning = METRICS[name].meaning.removesuffix(", since the start")
            rows.append([_word(meaning, name), *(_count(total) for total in totals)])
    columns = ["last reading minus first, all phases", *(v.name for v in variants)]
    return Table("Counted on the way", columns, rows) if rows else None


def slowest(variants: Sequence[VariantView]) -> Table | None:
    """Where the time of the slowest sandboxes went, in the agent's own spans; fewer of each of many variants."""
    each = SLOWEST if len(variants) <= 2 else SLOWEST_OF_MANY
    rows = [[_word(v.name), *_attribution(a)] for v in variants for a in v.slowest[:each]]
    pods = any("/" in a.ref for v in variants for a in v.slowest)
    columns = ["", "pod" if pods else "container", "took", "attempts", "state", "of which"]
    return Table("Where the slowest sandboxes' time went", columns, rows) if rows else None


def _attribution(a: Attribution) -> list[Cell]:
    ids = a.ref.split()
    # A pod is known by NAMESPACE/NAME and has one name for all its attempts; a container id is long.
    name = ids[0].partition("/")[2] or ids[0][:13] if ids else NONE
    shown = name + (f"\N{NO-BREAK SPACE}+{len(ids) - 1}" if len(ids) > 1 else "")
    told = a.sentence().partition(": ")[2]
    took = wording.value(Value(a.seconds, not a.up))
    return [_word(shown, a.ref), Cell(took), _count(a.tries), _word("up" if a.up else "not up"), _word(told)]


def drift(results: Results) -> Table | None:
    """The passes by which Cilium's own rule takes a quiet node's interval to where the run's agent started."""
    rows = [
        [
            _word(f"{name}, pass {number}"),
            *(Cell(format_duration(ns / NS_PER_S)) for ns in (done.t_ns, done.interval_ns)),
            _count(done.garbage),
            Cell(f"{done.ratio:.2%}"),
            Cell(format_duration(done.next_ns / NS_PER_S)),
        ]
        for name, passes in results.drifts.items()
        for number, done in enumerate(passes, start=1)
    ]
    columns = ["", "after", "interval", "entries deleted", "of capacity", "next interval"]
    note = f"Computed, not run: {QUIET_RATE:g} new connection a second, each closed by FINs."
    return Table("How the GC interval drifted", columns, rows, note) if rows else None


def gauges(variants: Sequence[VariantView]) -> Table | None:
    """Every gauge of every run, in the measured phases."""
    rows = [
        [_word(f"{name}, {r.name}", METRICS[name].meaning if name in METRICS else "")]
        + [_count(x) for x in (g.n, g.min, g.mean, g.max, g.last)]
        for name in sorted({n for v in variants for r in v.runs for n in r.summary.gauges})
        for v in variants
        for r in v.runs
        if (g := r.summary.gauges.get(name))
    ]
    columns = ["measured phases", "readings", "min", "mean", "max", "last"]
    return Table("Every gauge", columns, rows) if rows else None


# --- how it was made -------------------------------------------------------------------------------------------


def runs(results: Results) -> Table:
    """Every run in the order in which they were made."""
    rows = [
        [
            _word(r.name),
            _word(r.data.info.variant),
            _count(r.data.info.repeat + 1),
            _word(r.data.info.started),
            Cell(format_duration(round(duration_s(r.data), 1))),
            _word(r.summary.ending),
            _word("; ".join(r.problems) or "none"),
        ]
        for r in results.runs
    ]
    columns = ["run", "variant", "repeat", "started", "lasted", "ending", "problems"]
    return Table("Runs, in the order in which they were made", columns, rows)


def faults(results: Results) -> Table | None:
    """What was put in place and taken away, when, in the words of the fault itself."""
    rows = [
        [
            _word(r.name),
            Cell(f"{(m.t_ns - r.data.info.start_ns) / NS_PER_S:.1f} s"),
            _word(m.name),
            _word(m.text or m.kind),
        ]
        for r in results.runs
        for m in sorted(r.data.marks, key=lambda mark: mark.t_ns)
        if m.kind in ("fault", "heal")
    ]
    return Table("Faults", ["run", "at", "fault", "what was done"], rows) if rows else None


def environment(results: Results) -> Table:
    """Where it ran. A value that differs between runs shows all of them."""
    infos = [r.data.info for r in results.runs]
    rows = [
        [_word("seed"), _word(str(results.seed))],
        [_word("testbed"), _word(results.testbed)],
        [_word("started"), _word(results.started)],
        *([_word("command"), _word(command)] for command in dict.fromkeys(" ".join(i.argv) for i in infos)),
    ]
    for key in sorted({key for i in infos for key in i.environment}):
        found = sorted({i.environment.get(key, "unknown") for i in infos})
        rows.append([_word(key), Cell(" / ".join(found), "text" if len(found) == 1 else "text inconclusive")])
    return Table("Environment", ["", "value"], rows)
