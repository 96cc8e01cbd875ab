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
from loadgen.core.simulate.costs import Calibration, Costs, calibrate
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

    For each kind of walk that run counts whose walks came closest to what was fitted.
    """
    best: dict[bool, Calibration] = {}
    for _, calibration in sorted(found, key=lambda item: -item[1].residual):
        best[calibration.batch] = calibration
    nodes = {name: msgspec.structs.replace(of, costs=_measured(of.costs, best)) for name, of in fleet.nodes.items()}
    return msgspec.structs.replace(fleet, nodes=nodes)


def _measured(costs: Costs, best: dict[bool, Calibration]) -> Costs:
    if len(best) == 2:
        in_batches = best[True].over(costs).per_entry_batch
        return msgspec.structs.replace(best[False].over(costs), per_entry_batch=in_batches)
    for calibration in best.values():
        return calibration.over(costs)
    return costs
