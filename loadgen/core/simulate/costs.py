"""What work costs on a node: walks, loads, plugin calls; from measurements, or read out of a run of the lab."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from loadgen.core.errors import ConfigError
from loadgen.core.model import Record, default, seconds
from loadgen.core.samples import Span
from loadgen.core.units import Duration

MIN_WALKS = 5
MIN_SEEN = 10_000
MAX_GAP_NS = 500_000_000
"""Requests that come further apart do not belong to one burst."""


class Costs(Record, frozen=True):
    """Times of single pieces of work. Defaults: an idle machine under real Cilium (docs/simulate.md)."""

    per_entry: Duration = msgspec.field(name="perEntry", default_factory=lambda: seconds(2.05e-6))
    """One entry, walked key by key (up to 1.17): 1.16.15 with 1 to 16 M entries; seed machines need up to 5us."""
    per_entry_batch: Duration = msgspec.field(name="perEntryBatch", default_factory=lambda: seconds(0.49e-6))
    """One entry, walked in batches (from 1.18): 1.18.3 with 1 to 16 M entries."""
    per_slot: Duration = msgspec.field(name="perSlot", default_factory=lambda: seconds(3e-9))
    """One place of the table, used or not: 0.045 s for an empty one of 16,777,216."""
    per_delete: Duration = msgspec.field(name="perDelete", default_factory=lambda: seconds(1.8e-6))
    """On top, for each entry deleted: a system call of its own and its NAT entry's look-up."""
    plugin: Duration = default(lambda: seconds(0.06))
    """Sandbox and CNI plugin before the agent is asked."""
    start_gap: Duration = msgspec.field(name="startGap", default_factory=lambda: seconds(0.05))
    """Kubelet and container runtime start no two sandboxes closer together, however many are due."""
    load: Duration = default(lambda: seconds(0.12))
    """What the agent does with a new endpoint besides the scrub: policy, programs, maps."""

    def entry_ns(self, *, batch: bool) -> int:
        return self.per_entry_batch if batch else self.per_entry


class Calibration(NamedTuple):
    """What a run's walks say. `residual` is the median relative error of the fitted durations."""

    batch: bool
    walks: int
    entry_ns: float
    slot_ns: float
    delete_ns: float
    plugin_ns: float
    load_ns: float
    start_gap_ns: float | None
    residual: float

    def over(self, costs: Costs) -> Costs:
        """These costs with the measured ones in place.

        One kind of walk was measured; the other keeps its ratio to it, for both are bound by the same memory.
        """
        ratio = costs.per_entry_batch / costs.per_entry
        key_ns, batch_ns = (
            (self.entry_ns / ratio, self.entry_ns) if self.batch else (self.entry_ns, self.entry_ns * ratio)
        )
        return Costs(
            per_entry=Duration(max(1, round(key_ns))),
            per_entry_batch=Duration(max(1, round(batch_ns))),
            per_slot=Duration(round(self.slot_ns)),
            per_delete=Duration(round(self.delete_ns)) if self.delete_ns else costs.per_delete,
            plugin=Duration(round(self.plugin_ns)),
            load=Duration(round(self.load_ns)),
            start_gap=costs.start_gap if self.start_gap_ns is None else Duration(round(self.start_gap_ns)),
        )


def calibrate(
    spans: Sequence[Span], capacities: Mapping[str, int], attempts_ns: Sequence[float], *, batch: bool
) -> Calibration:
    """Costs from an agent's spans: durations of walks over entries seen, entries deleted and places.

    capacities: entries of the tables `tcp` and `any`. attempts_ns: how long the successful CNI ADDs took;
    less the agent's part this is the plugin's.
    ConfigError when there are too few walks over too few entries to tell.
    """
    walks = [s for s in spans if s.stage.startswith("walk ") and s.stage.removeprefix("walk ") in capacities]
    large = [s for s in walks if s.n >= MIN_SEEN]
    if len(large) < MIN_WALKS:
        raise ConfigError(
            f"only {len(large)} walks of at least {MIN_SEEN:,} entries; {MIN_WALKS} are needed to tell what one costs"
        )
    slots = np.array([_slots(capacities[s.stage.removeprefix("walk ")]) for s in walks], dtype=float)
    seen = np.array([s.n for s in walks], dtype=float)
    deleted = np.array([s.deleted for s in walks], dtype=float)
    took = np.array([max(1, s.end_ns - s.start_ns) for s in walks], dtype=float)
    entry_ns, slot_ns, delete_ns = _fit(seen, slots, deleted, took)
    fitted = entry_ns * seen + slot_ns * slots + delete_ns * deleted
    totals = [s.end_ns - s.start_ns for s in spans if s.op == "endpoint-create" and s.outcome == "201"]
    loads = [s.end_ns - s.start_ns for s in spans if s.stage == "load"]
    plugin_ns = max(0.0, _median(attempts_ns) - _median(totals)) if totals and len(attempts_ns) else 0.0
    big = seen >= MIN_SEEN
    return Calibration(
        batch=batch,
        walks=len(walks),
        entry_ns=entry_ns,
        slot_ns=slot_ns,
        delete_ns=delete_ns,
        plugin_ns=plugin_ns,
        load_ns=_median(loads) if loads else 0.0,
        start_gap_ns=_start_gap(spans),
        residual=float(np.median(np.abs(fitted[big] / took[big] - 1))),
    )


def _fit(seen: np.ndarray, slots: np.ndarray, deleted: np.ndarray, took: np.ndarray) -> tuple[float, float, float]:
    """Medians, one after the other: they stand outliers, and no cost can come out negative.

    Empty walks give a place's cost; large walks that delete little, an entry's; those that delete much, a deletion's.
    """
    empty = seen <= slots / 1000
    slot_ns = float(np.median(took[empty] / slots[empty])) if empty.any() else 0.0
    rest = np.maximum(took - slot_ns * slots, 0.0)
    plain = (seen >= MIN_SEEN) & (deleted <= seen / 100)
    if not plain.any():
        plain = seen >= MIN_SEEN
        return float(np.median(rest[plain] / (seen + deleted)[plain])), slot_ns, 0.0
    entry_ns = float(np.median(rest[plain] / seen[plain]))
    deleting = deleted >= MIN_SEEN
    over = np.maximum(rest - entry_ns * seen, 0.0)
    return entry_ns, slot_ns, float(np.median(over[deleting] / deleted[deleting])) if deleting.any() else 0.0


def _start_gap(spans: Sequence[Span]) -> float | None:
    """Time between requests of one burst, as the agent sees them come: what plugins need of the CPUs they share."""
    came = np.sort([s.start_ns for s in spans if s.op == "endpoint-create" and s.stage == "total"])
    gaps = np.diff(came)
    near = gaps[gaps < MAX_GAP_NS]
    return float(np.median(near)) if len(near) >= MIN_WALKS else None


def _median(values: Sequence[float]) -> float:
    return float(np.median(np.asarray(values, dtype=float)))


def _slots(capacity: int) -> int:
    """Buckets of the kernel's hash table: the power of two from the capacity on."""
    return 1 << (capacity - 1).bit_length()


def walk_ns(costs: Costs, capacity: int, entries: float, deleted: float, *, batch: bool) -> int:
    """How long one walk of a table takes."""
    work = costs.entry_ns(batch=batch) * entries + costs.per_slot * _slots(capacity) + costs.per_delete * deleted
    return round(work)
