"""A small simulation for the tests of what is made of one."""

from __future__ import annotations

from functools import cache

from loadgen.core.simulate.fleet import Fleet
from loadgen.core.simulate.outcome import Simulation
from loadgen.simulation import fleetfile, fleetrun

TEXT = """
format: 1
name: tiny <&> fleet
describe: two nodes & a <b>burst</b>
goal: 10s
nodes:
  one:
    count: 2
    memory: 64GiB
    cpus: 2
    settings: {conntrackGCInterval: 1h, bpf: {ctTcpMax: 1048576}}
    workloads: [storm, pods]
  alone: {memory: 8GiB, cpus: 2, workloads: [storm]}
workloads:
  storm: {connections: {rate: 300}}
  pods: {start: 50m, pods: {burst: 20, every: 10h, lifetime: 20m}}
policies:
  fixed: {describe: "one minute <now>", settings: {conntrackGCInterval: 60s}}
"""


def fleet() -> Fleet:
    return fleetfile.parse(TEXT, "tiny")


@cache
def simulation() -> Simulation:
    return fleetrun.run(fleetfile.policies(fleet()), seed=5, hours=2.0, jobs=1, told=lambda _: None)
