"""What the node under test did in a stretch of a run, from its metrics: the surroundings of one slow sandbox.

These are a node's numbers, between the looks around the stretch (some seconds apart), and not the sandbox's own: in a
queue that all of them stand in, they tell what it stands for. What belongs to one sandbox alone is in the spans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import msgspec
import numpy as np

from loadgen.core import histogram
from loadgen.core.histogram import COUNT, SUM
from loadgen.core.history import RunData, Series
from loadgen.core.pages import STARTED
from loadgen.core.units import NS_PER_S, format_count, format_duration

REGENERATION = "cilium.regeneration."
CT_CLEAN = "waitingForCTClean"
LIMITER_WAIT, LIMITER_PROCESSING = "cilium.limiter.wait", "cilium.limiter.processing"
REFUSED = "cilium.creates_refused"
WALKS = "cilium.ct.walks"
CNI = "containerd.set_up_pod"
_TOTAL = "total"
_SMALL = 0.05
"""A stage below this share of a whole regeneration is left out of the sentence."""


class Meanwhile(msgspec.Struct, frozen=True, omit_defaults=True):
    """Seconds and counts of one stretch; None or absent: not read."""

    cni_adds: int | None = None
    cni_s: float | None = None
    """Mean of the CNI ADDs that ended."""
    limiter_wait_s: float | None = None
    """Largest of the means that the limiter of endpoint creates showed, each over its last calls."""
    limiter_processing_s: float | None = None
    regenerations: int | None = None
    stages: dict[str, float] = {}
    """Mean seconds of each stage (Cilium's scopes) in the regenerations that succeeded; `total` is the whole."""
    entries: float | None = None
    """Most entries in the TCP table."""
    walks: int | None = None
    """Walks of a CT table: GC passes, creates and deletes."""
    passes: int | None = None
    """GC passes, where the agent tells them apart."""
    refused: int | None = None
    """Endpoint creates that the agent answered 429."""

    def sentence(self) -> str:
        """Empty when nothing is known."""
        return ", ".join(self._parts())

    def _parts(self) -> Iterator[str]:
        if self.cni_adds:
            yield f"{format_count(self.cni_adds)} CNI ADDs ended, {format_duration(self.cni_s or 0.0)} each"
        if self.limiter_wait_s:
            yield f"creates waited up to {format_duration(self.limiter_wait_s)} in the API limiter"
        if self.limiter_processing_s:
            yield f"and then took {format_duration(self.limiter_processing_s)}"
        if self.regenerations:
            stages = ", ".join(f"{name} {format_duration(s)}" for name, s in self._largest())
            yield f"{format_count(self.regenerations)} endpoints regenerated ({stages} each)"
        if self.entries is not None:
            yield f"{format_count(round(self.entries))} CT entries"
        if self.passes:
            yield f"{format_count(self.passes)} GC pass" + ("es" if self.passes != 1 else "")
        if self.walks:
            yield f"{format_count(self.walks)} table walks"
        if self.refused:
            yield f"{format_count(self.refused)} creates refused (429)"

    def _largest(self) -> list[tuple[str, float]]:
        whole = self.stages.get(_TOTAL, 0.0)
        parts = [(name, s) for name, s in self.stages.items() if name != _TOTAL and s >= _SMALL * whole]
        return sorted(parts, key=lambda p: -p[1])[:3] or [(_TOTAL, whole)]


def around(data: RunData) -> Callable[[int, int], Meanwhile | None]:
    """What the node did from one instant to another, as a function of both."""
    return partial(_meanwhile, data)


def _meanwhile(data: RunData, start_ns: int, end_ns: int) -> Meanwhile | None:
    readings = data.readings
    cni = _mean(readings, CNI, start_ns, end_ns)
    names = {scope: REGENERATION + scope for scope in scopes(readings)}
    stages = {scope: found for scope, name in names.items() if (found := _mean(readings, name, start_ns, end_ns))}
    whole = stages.get(_TOTAL)
    entries = readings.get("ct.tcp.entries", readings.get("cilium.ct.alive"))
    passes = [m for m in data.marks if m.kind == "gc" and start_ns <= m.t_ns <= end_ns]
    found = Meanwhile(
        cni_adds=cni[0] if cni else None,
        cni_s=cni[1] if cni else None,
        limiter_wait_s=_most(readings.get(LIMITER_WAIT), start_ns, end_ns),
        limiter_processing_s=_most(readings.get(LIMITER_PROCESSING), start_ns, end_ns),
        regenerations=whole[0] if whole else None,
        stages={scope: s for scope, (_, s) in stages.items()},
        entries=_most(entries, start_ns, end_ns),
        walks=_count(readings, WALKS, start_ns, end_ns),
        passes=len(passes) or None,
        refused=_count(readings, REFUSED, start_ns, end_ns),
    )
    return found if found != Meanwhile() else None


def scopes(readings: Mapping[str, Series]) -> list[str]:
    """Stages of an endpoint's regeneration that the agent told of."""
    names = (name.removeprefix(REGENERATION) for name in readings if name.startswith(REGENERATION))
    return sorted(name.removesuffix(SUM) for name in names if name.endswith(SUM))


def _mean(readings: Mapping[str, Series], series: str, start_ns: int, end_ns: int) -> tuple[int, float] | None:
    """Count and mean of what a histogram saw; None when it saw nothing."""
    count, total = (_grown(readings, series + part, start_ns, end_ns) for part in (COUNT, SUM))
    return (round(count), total / count) if count and total is not None else None


def _count(readings: Mapping[str, Series], series: str, start_ns: int, end_ns: int) -> int | None:
    found = _grown(readings, series, start_ns, end_ns)
    return None if found is None else round(found)


def _grown(readings: Mapping[str, Series], series: str, start_ns: int, end_ns: int) -> float | None:
    """How far a counter went; one that appeared on a page that had been read before went there from 0."""
    found = readings.get(series)
    if found is None or not len(found.t_ns):
        return None
    grown = histogram.increase(found, start_ns, end_ns)
    page = readings.get(series.partition(".")[0] + STARTED)
    born = page is not None and len(page.t_ns) > 0 and page.t_ns[0] < found.t_ns[0]
    if born and start_ns < found.t_ns[0] <= end_ns:
        return (grown or 0.0) + float(found.values[0])
    return grown


def _most(series: Series | None, start_ns: int, end_ns: int) -> float | None:
    """Largest reading of the stretch, or the one just before it."""
    if series is None or not len(series.t_ns):
        return None
    first = max(int(np.searchsorted(series.t_ns, start_ns, side="right")) - 1, 0)
    last = int(np.searchsorted(series.t_ns, end_ns, side="right"))
    inside = series.values[first:last]
    return float(inside.max()) if len(inside) and series.t_ns[first] <= end_ns else None


# --- look by look ----------------------------------------------------------------------------------------------


def mean_by_look(readings: Mapping[str, Series], series: str) -> Series | None:
    """A histogram's mean between one look and the next, at the first of the two; 0 where nothing was seen."""
    count, total = readings.get(series + COUNT), readings.get(series + SUM)
    if count is None or total is None or len(count.t_ns) < 2 or len(count.t_ns) != len(total.t_ns):
        return None
    seen, took = _steps(count.values), _steps(total.values)
    means = np.divide(took, seen, out=np.zeros_like(took), where=seen > 0)
    return Series(count.t_ns, np.append(means, means[-1]))


def rate_by_look(series: Series) -> Series | None:
    """How fast a counter grew from one look to the next, a second, at the first of the two."""
    if len(series.t_ns) < 2:
        return None
    rates = _steps(series.values) / np.maximum(np.diff(series.t_ns) / NS_PER_S, 1e-9)
    return Series(series.t_ns, np.append(rates, rates[-1]))


def _steps(values: np.ndarray) -> np.ndarray:
    """Growth from each reading to the next; one that fell began anew at 0."""
    steps = np.diff(values)
    return np.where(steps < 0, values[1:], steps)
