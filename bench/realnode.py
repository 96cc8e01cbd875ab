"""The agent model beside real Cilium: the cases that were measured on a real node, run in the lab.

    sudo .venv/bin/python bench/realnode.py OUT [--quick]

Prints Markdown tables. "Real" numbers are of Cilium 1.16.15 and 1.18.3 on real Kubernetes, on a machine of this kind
(2 CPUs, Linux 6.18), with tables of 16,777,216; "expected" is the real number times this machine's walk time an entry
divided by the real one's. Every case is an ordinary scenario, kept below OUT with all its samples and spans.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from loadgen import experiment, store
from loadgen.clock import MonotonicClock
from loadgen.core.history import MetricSamples, RunData
from loadgen.core.samples import Outcome
from loadgen.core.units import NS_PER_S
from loadgen.lab.state import LabState, exclusive
from loadgen.lab.testbed import Lab
from loadgen.scenarios import loader

LIFTED = {
    "endpoint-create": {"rate-limit": 1000, "rate-burst": 1000, "parallel-requests": 1000, "auto-adjust": False},
    "endpoint-delete": {"parallel-requests": 1000, "auto-adjust": False},
}


class Single(NamedTuple):
    """One pod at a time over a table of `entries` live entries: real ADD and DEL, s (midpoints of ranges)."""

    profile: str
    entries: int
    add_s: float
    del_s: float


REAL_US_PER_ENTRY = {"1.16": 2.05, "1.18": 0.49}
SINGLES = [
    Single("1.16", 0, 0.23, 0.115),
    Single("1.16", 100_000, 0.45, 0.36),
    Single("1.16", 1_000_000, 2.6, 2.45),
    Single("1.16", 4_000_000, 7.75, 7.4),
    Single("1.16", 8_000_000, 16.6, 15.3),
    Single("1.16", 16_000_000, 34.3, 34.6),
    Single("1.18", 0, 0.285, 0.12),
    Single("1.18", 100_000, 0.27, 0.16),
    Single("1.18", 1_000_000, 0.625, 0.53),
    Single("1.18", 4_000_000, 2.05, 1.9),
    Single("1.18", 8_000_000, 3.95, 3.75),
    Single("1.18", 16_000_000, 8.75, 8.75),
]


class Burst(NamedTuple):
    """Fifty pods at once; `real` is what real Cilium did, in words."""

    title: str
    entries: int
    lifted: bool
    watch_s: int
    real: str


BURSTS = [
    Burst("N = 0, default limits", 0, False, 120, "all up after 20–40 s; ADD p50 5.7–23.4 s; none failed"),
    Burst(
        "N = 1 M, default limits",
        1_000_000,
        False,
        180,
        "all up after 448 s; 149 failed ADDs: 144 × 429, 5 × 90 s; ADD p50 47.6, p90 62.6 s",
    ),
    Burst(
        "N = 1 M, limits lifted",
        1_000_000,
        True,
        240,
        "50 × 201, 9 × 500 after 112 s on average; 9 × 90 s; ADD p50 40.8, p90 82.3 s; 61 walks",
    ),
]


def scenario(profile: str, entries: int, pods: dict[str, Any], lifted: bool) -> dict[str, Any]:
    """A scenario of one variant: fill, then pods, with Cilium's table size of the real measurements."""
    watch_s = pods.pop("watch_s")
    return {
        "name": "realnode",
        "hypothesis": "the model does what real Cilium was measured to do",
        "settings": {
            "cilium": {
                "profile": profile,
                "bpf": {"ctTcpMax": 16_777_216, "ctAnyMax": 262_144},
                "conntrackGCInterval": "12h",
                "apiRateLimit": LIFTED if lifted else {},
            }
        },
        "variants": {"model": {}},
        "faults": {"live": {"kind": "ct-fill", "entries": entries, "expired": 0.0}},
        "loads": {"pods": {"driver": "churn", "timeout": f"{watch_s}s", **pods}},
        "phases": [
            {"name": "pods", "duration": f"{watch_s + 5}s", "loads": ["pods"], "faults": ["live"], "until": "pods"}
        ],
        "thresholds": ["sandbox.setup count >= 1"],
    }


def run(lab: Lab, out: Path, raw: dict[str, Any]) -> RunData:
    parsed = loader.from_raw(raw, "realnode")
    plan = experiment.Plan(parsed, loader.to_raw(parsed), ["model"], 1, 7, ["bench/realnode.py"])
    silent = experiment.Observer(*[lambda *_: None] * 3)
    asyncio.run(experiment.run(plan, lab, out, MonotonicClock(), silent))
    return store.read_run(out / "runs" / "01-model")


def seconds(samples: MetricSamples | None, *outcomes: Outcome) -> np.ndarray:
    if samples is None:
        return np.empty(0)
    rows = samples.rows[np.isin(samples.rows["outcome"], outcomes)]
    return (rows["done_ns"] - rows["sent_ns"]) / NS_PER_S


def us_per_entry(data: RunData) -> float:
    walks = [s for s in data.spans if s.stage == "walk tcp" and s.op != "gc" and s.n]
    return sum(s.end_ns - s.start_ns for s in walks) / 1000 / max(1, sum(s.n for s in walks))


def single_rows(lab: Lab, out: Path, cases: Sequence[Single]) -> Iterator[str]:
    yield "| profile | N | ADD real | expected | model | DEL real | expected | model | µs an entry |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for case in cases:
        hold_s = 1.0 + 2.5e-6 * case.entries
        pods = {
            "pace": {"kind": "burst", "size": 1, "every": f"{round(2 * hold_s + 3)}s", "count": 2},
            "deleteAfter": "1s",
            "watch_s": round(4 * hold_s + 20),
        }
        data = run(lab, out / f"{case.profile}-{case.entries}", scenario(case.profile, case.entries, pods, False))
        rate = us_per_entry(data)
        factor = rate / REAL_US_PER_ENTRY[case.profile] if case.entries >= 100_000 else 1.0
        added = seconds(data.samples.get("sandbox.attempt"), Outcome.OK)
        deleted = seconds(data.samples.get("sandbox.delete"), Outcome.OK)
        cells = [f"{case.add_s:g}", f"{case.add_s * factor:.2f}", f"{added.mean():.2f}"]
        cells += [f"{case.del_s:g}", f"{case.del_s * factor:.2f}", f"{deleted.mean():.2f}"]
        shown = f"{rate:.2f}" if case.entries else "–"
        yield f"| {case.profile} | {case.entries:,} | {' | '.join(cells)} | {shown} |"


def burst_rows(lab: Lab, out: Path, cases: Sequence[Burst]) -> Iterator[str]:
    yield "| 50 pods at once, profile 1.16 | real | model |"
    yield "|---|---|---|"
    for number, case in enumerate(cases):
        pods = {"pace": {"kind": "burst", "size": 50}, "watch_s": case.watch_s}
        data = run(lab, out / f"burst-{number}", scenario("1.16", case.entries, pods, case.lifted))
        yield f"| {case.title} | {case.real} | {burst_text(data, case)} |"


def burst_text(data: RunData, case: Burst) -> str:
    setup = data.samples["sandbox.setup"]
    up = seconds(setup, Outcome.OK)
    attempts = data.samples["sandbox.attempt"]
    added = seconds(attempts, Outcome.OK)
    bad = attempts.rows[attempts.rows["outcome"] != Outcome.OK]
    reasons = Counter(attempts.details[i] for i in bad["detail"])
    answers = Counter((s.op, s.outcome) for s in data.spans if s.stage == "total" and s.op.startswith("endpoint"))
    walks = sum(s.stage == "walk tcp" and s.op != "gc" for s in data.spans)
    parts = [f"{len(up)} of {len(setup.rows)} up, the last after {up.max():.0f} s (watched {case.watch_s} s)"]
    parts.append(
        f"ADD p50 {np.percentile(added, 50):.1f}, p90 {np.percentile(added, 90):.1f}, max {added.max():.1f} s"
    )
    parts += [f"{count} × {reason or 'failed'}" for reason, count in reasons.most_common()]
    parts.append(
        ", ".join(f"{n} × {op.removeprefix('endpoint-')} {code}" for (op, code), n in sorted(answers.items()))
    )
    return "; ".join([*parts, f"{walks} walks at {us_per_entry(data):.2f} µs an entry"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path, help="a directory that does not exist yet")
    parser.add_argument("--quick", action="store_true", help="tables up to 1 M entries, one burst")
    options = parser.parse_args()
    with exclusive():
        state = LabState()
        state.claim()
        try:
            lab = Lab(state)
            singles = [c for c in SINGLES if not options.quick or c.entries <= 1_000_000]
            for line in single_rows(lab, options.out, singles):
                print(line, flush=True)
            print()
            for line in burst_rows(lab, options.out, BURSTS[:1] if options.quick else BURSTS):
                print(line, flush=True)
        finally:
            state.release()


if __name__ == "__main__":
    main()
