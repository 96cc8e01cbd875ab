"""What walks cost on this machine, read out of a run directory of the lab."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from loadgen import store
from loadgen.core.cilium import profile
from loadgen.core.errors import ConfigError
from loadgen.core.history import RunData
from loadgen.core.model import Scenario
from loadgen.core.samples import Outcome
from loadgen.core.simulate.costs import Calibration, calibrate
from loadgen.core.simulate.fleet import Fleet
from loadgen.scenarios.loader import from_raw


def from_run(folder: Path) -> list[tuple[str, Calibration]]:
    """(variant, costs) of every run of an experiment's directory that walked enough; ConfigError when none did."""
    if not (folder / "runs").is_dir():
        raise ConfigError(f"--calibrate {folder}: not a run directory; name one that `loadgen run --out` has made")
    found, why = [], "it has no runs"
    for run in sorted((folder / "runs").iterdir()):
        try:
            data = store.read_run(run)
            found.append((data.info.variant, _one(data)))
        except ConfigError as error:
            why = str(error)
    if not found:
        raise ConfigError(f"--calibrate {folder}: {why}")
    return found


def _one(data: RunData) -> Calibration:
    scenario: Scenario = from_raw(dict(data.info.scenario), data.info.variant)
    cilium = scenario.variants[data.info.variant].settings.cilium
    attempts = data.samples.get("sandbox.attempt")
    good = attempts.rows[attempts.rows["outcome"] == Outcome.OK] if attempts else None
    took = (good["done_ns"] - good["sent_ns"]).astype(float) if good is not None else np.empty(0)
    capacities = {"tcp": cilium.bpf.ct_tcp_max, "any": cilium.bpf.ct_any_max}
    return calibrate(data.spans, capacities, took.tolist(), batch=profile(cilium.profile).batch_walk)


def applied(fleet: Fleet, found: list[tuple[str, Calibration]]) -> Fleet:
    """The fleet with measured costs for all its nodes.

    Of several runs the one whose walks came closest to a straight line counts for each kind of walk.
    """
    best = {}
    for _, calibration in sorted(found, key=lambda item: -item[1].residual):
        best[calibration.batch] = calibration
    nodes = {}
    for name, of in fleet.nodes.items():
        costs = of.costs
        for batch in (True, False):
            if batch in best:
                costs = best[batch].over(costs)
        if len(best) == 2:
            costs = msgspec.structs.replace(costs, per_entry_batch=best[True].over(of.costs).per_entry_batch)
        nodes[name] = msgspec.structs.replace(of, costs=costs)
    return msgspec.structs.replace(fleet, nodes=nodes)
