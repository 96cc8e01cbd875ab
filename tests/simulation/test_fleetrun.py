"""Fleets: the story, and the same outcome on any number of processes."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from loadgen.core.simulate.outcome import Simulation, ranked
from loadgen.simulation import fleetfile, fleetrun

SMALL = """
format: 1
name: small
nodes:
  one: {count: 110, memory: 64GiB, cpus: 8, uptime: 1h..2h, workloads: [base, pods]}
  two: {count: 15, memory: 8GiB, cpus: 2, workloads: [pods]}
workloads:
  base: {connections: {rate: 50}, lookups: 5}
  pods: {pods: {burst: 4, every: 30m..60m, lifetime: 5m}}
policies:
  fixed: {settings: {conntrackGCInterval: 60s}}
"""


def silent(_: str) -> None:
    pass


def test_outcome_does_not_depend_on_the_number_of_processes() -> None:
    fleets = fleetfile.policies(fleetfile.parse(SMALL, "small"))
    one, two = (fleetrun.run(fleets, seed=3, hours=2.0, jobs=jobs, told=silent) for jobs in (1, 2))
    for a, b in zip(one.policies, two.policies, strict=True):
        assert a.summary == b.summary
        assert np.array_equal(a.nodes.pods, b.nodes.pods)
        assert np.array_equal(a.nodes.rows, b.nodes.rows)
        assert np.array_equal(a.nodes.grid, b.nodes.grid)
    assert len(one.policies[0].nodes.rows) == 125
    assert one.counts == (110, 15)


@cache
def story() -> Simulation:
    fleet = fleetfile.load("trino-lands", ["nodes.big.count=3", "nodes.small.count=1", "workloads.trino.share=1"])
    policies = fleetfile.policies(fleet, ["gc-60s", "max-15m", "table-1M", "cilium-1.18"])
    return fleetrun.run(policies, seed=1, hours=16.0, jobs=1, told=silent)


def by_policy() -> dict[str, int]:
    return {o.summary.policy: o.summary.late for o in story().policies}


@pytest.mark.slow
def test_story_quiet_nodes_have_drifted_to_12_hours_before_trino_lands() -> None:
    current = story().policies[0].nodes.of_type(0)
    assert (current.intervals[:, 0] == 12 * 3600).all()
    assert (current.grid[:, 0] < 100_000).all()


@pytest.mark.slow
def test_story_tables_fill_and_bursts_spiral() -> None:
    current = story().policies[0]
    big = current.nodes.of_type(0).rows
    assert (big["peak_entries"] > 10_000_000).all()
    assert current.by_type["big"].spiralling_nodes == 3
    assert current.by_type["big"].timeouts > 100


@pytest.mark.slow
def test_story_sixty_seconds_cure_it_and_every_other_change_helps_less() -> None:
    late = by_policy()
    assert late["gc-60s"] == 0
    assert ranked(story().policies)[0].summary.policy == "gc-60s"
    assert late["current"] > 300
    for policy in ("max-15m", "table-1M", "cilium-1.18"):
        assert 0 < late[policy] < 0.8 * late["current"]
    peaks = {o.summary.policy: o.summary.peak_entries for o in story().policies}
    assert peaks["gc-60s"] < 200_000 < peaks["table-1M"] <= 1_048_576
    assert peaks["max-15m"] < 2_000_000 < peaks["cilium-1.18"]
