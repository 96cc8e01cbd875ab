"""What a simulation leaves on disk.

OUT/simulation.json     what was asked for, and the summary of each policy, best first
OUT/fleet.json          the fleet with overrides and calibration applied: give it to `loadgen simulate` again
OUT/pods.parquet        a row a pod and policy       OUT/nodes.parquet       a row a node and policy
OUT/timeline.parquet    entries and GC interval over the fleet's nodes, every 15 minutes
OUT/close.parquet       the tables of the nodes that were looked at closely
OUT/report.html
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from loadgen import __version__, store
from loadgen.core.errors import ConfigError, HarnessError
from loadgen.core.simulate.fleet import Fleet, enc_hook
from loadgen.core.simulate.outcome import (
    NODE_DTYPE,
    POD_DTYPE,
    STATES,
    PolicyOutcome,
    PolicySummary,
    Simulation,
    ranked,
)

SIMULATION_FORMAT = 1


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Where the numbers come from."""

    fleet: str
    argv: tuple[str, ...]
    calibrated: tuple[str, ...] = ()
    """One line for each run that costs were read from."""


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """simulation.json. Fields are added, never renamed."""

    format: int = SIMULATION_FORMAT
    loadgen: str = __version__
    name: str
    seed: int
    hours: float
    goal_s: float
    argv: tuple[str, ...]
    calibrated: tuple[str, ...]
    policies: tuple[PolicySummary, ...]
    by_type: dict[str, dict[str, PolicySummary]]
    """Policy, then node type."""


def document(simulation: Simulation, asked: Asked) -> Document:
    order = ranked(simulation.policies)
    return Document(
        name=simulation.name,
        seed=simulation.seed,
        hours=simulation.hours,
        goal_s=simulation.goal_s,
        argv=asked.argv,
        calibrated=asked.calibrated,
        policies=tuple(o.summary for o in order),
        by_type={o.summary.policy: dict(o.by_type) for o in order},
    )


def claim(out: Path) -> None:
    """Make the directory; ConfigError when it holds something or cannot be made. Before the work, not after it."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        occupied = any(out.iterdir())
    except OSError as error:
        raise ConfigError(f"--out {out}: not writable: {error.strerror}") from None
    if occupied:
        raise ConfigError(f"--out {out}: the directory is not empty; name one that does not exist yet")


def write(out: Path, simulation: Simulation, fleet: Fleet, asked: Asked, html: str) -> None:
    """Everything but the directory itself. HarnessError when the disk is full."""
    fleet_text = msgspec.json.format(msgspec.json.encode(fleet, enc_hook=enc_hook), indent=2).decode()
    store.write_text(out / "fleet.json", fleet_text + "\n")
    _write_tables(out / "pods.parquet", simulation, _pods)
    _write_tables(out / "nodes.parquet", simulation, _nodes)
    _write_tables(out / "timeline.parquet", simulation, _timeline)
    _write_tables(out / "close.parquet", simulation, _close)
    store.write_text(out / "report.html", html)
    store.write_json(out / "simulation.json", document(simulation, asked))


def _write_tables(path: Path, simulation: Simulation, make: Callable[[Simulation, PolicyOutcome], pa.Table]) -> None:
    """One row group and more a policy, so that only one policy's rows are there twice."""
    with store.writing(path):
        writer: pq.ParquetWriter | None = None
        try:
            for outcome in simulation.policies:
                table = make(simulation, outcome)
                writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd")
                writer.write_table(table)
        except pa.ArrowException as error:
            raise HarnessError(f"cannot write {path}: {error}") from error
        finally:
            if writer is not None:
                writer.close()


def _pods(simulation: Simulation, outcome: PolicyOutcome) -> pa.Table:
    rows = outcome.nodes.pods
    named: dict[str, Any] = {
        "policy": _constant(outcome.summary.policy, len(rows)),
        "type": _dictionary(rows["type"], simulation.types),
        "workload": _dictionary(rows["workload"], simulation.workloads),
        "state": _dictionary(rows["state"], STATES),
    }
    return _table(rows, POD_DTYPE.names or (), named)


def _nodes(simulation: Simulation, outcome: PolicyOutcome) -> pa.Table:
    rows = outcome.nodes.rows
    named = {
        "policy": _constant(outcome.summary.policy, len(rows)),
        "type": _dictionary(rows["type"], simulation.types),
    }
    return _table(rows, NODE_DTYPE.names or (), named)


def _timeline(simulation: Simulation, outcome: PolicyOutcome) -> pa.Table:
    """Lowest, middle and highest over the nodes of a type."""
    parts = []
    for i, name in enumerate(simulation.types):
        nodes = outcome.nodes.of_type(i)
        columns = {
            "policy": _constant(outcome.summary.policy, len(simulation.looks_s)),
            "type": _constant(name, len(simulation.looks_s)),
            "t_s": pa.array(simulation.looks_s, pa.float64()),
        }
        for what, values in (("entries", nodes.grid), ("interval_s", nodes.intervals)):
            for which, found in zip(("min", "p50", "max"), np.percentile(values, (0, 50, 100), axis=0), strict=True):
                columns[f"{what}_{which}"] = pa.array(found.astype(np.float64))
        parts.append(pa.table(columns))
    return pa.concat_tables(parts)


def _close(simulation: Simulation, outcome: PolicyOutcome) -> pa.Table:
    parts = []
    for name in simulation.types:
        number, node = outcome.close[name]
        course = node.close.table if node.close else []
        parts.append(
            pa.table(
                {
                    "policy": _constant(outcome.summary.policy, len(course)),
                    "type": _constant(name, len(course)),
                    "node": pa.array([number] * len(course), pa.int32()),
                    **{
                        column: pa.array([row[i] for row in course], pa.float64())
                        for i, column in enumerate(("t_s", "entries", "expired"))
                    },
                }
            )
        )
    return pa.concat_tables(parts)


def _table(rows: np.ndarray, names: Iterable[str], named: dict[str, Any]) -> pa.Table:
    plain = {name: pa.array(np.ascontiguousarray(rows[name])) for name in names if name not in named}
    return pa.table({**named, **plain})


def _constant(text: str, count: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([text]))


def _dictionary(codes: np.ndarray, names: tuple[str, ...]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(list(names)))
