"""How long 24 h of 10,000 nodes take, and how much memory: `python bench/simulate.py [--nodes N] [--jobs N]`.

The fleet: nine nodes of ten with 512 GiB, one with 2 TiB; every node has a trickle of pods and two or three batches
of 20 a day; Trino lands on one big node of ten, whose interval has drifted to 12 h. Once with the automatic interval
and once with 60 s. Prints wall time, CPU time, events, pods and the largest resident size of all processes together,
looked at twenty times a second.
"""

from __future__ import annotations

import argparse
import os
import resource
import threading
import time
from pathlib import Path

from loadgen.core.simulate.outcome import Simulation
from loadgen.simulation import fleetfile, fleetrun

FLEET = """
format: 1
name: bench
nodes:
  plain:
    count: {plain}
    memory: 512GiB
    cpus: 64
    uptime: 24h..96h
    settings: &settings
      profile: "1.16"
      bpf: {{mapDynamicSizeRatio: 0.005}}
    workloads: [base, trickle, batch]
  big:
    count: {big}
    memory: 2TiB
    cpus: 128
    uptime: 48h..96h
    settings: *settings
    workloads: [base, trickle, batch, trino]
workloads:
  base: {{connections: {{rate: 20, life: 5s, halfClosed: 0.001, open: 300}}, lookups: 40}}
  trickle: {{pods: {{burst: 1, every: 20m..60m, lifetime: 5m..4h}}}}
  batch: {{pods: {{burst: 20, every: 8h..12h, lifetime: 5m..40m}}}}
  trino: {{share: 0.1, start: 2h..12h, duration: 6h, connections: {{rate: 833}}, lookups: 20}}
policies:
  gc-60s: {{settings: {{conntrackGCInterval: 60s}}}}
"""


def resident_bytes() -> int:
    """This process and its children together, shared pages counted once each time they are mapped."""
    own = os.getpid()
    total = 0
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and own in (int(entry.name), int((entry / "stat").read_text().split()[3])):
                total += int((entry / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    big = max(1, args.nodes // 10)
    fleet = fleetfile.parse(FLEET.format(plain=args.nodes - big, big=big), "bench")
    for name, changed in fleetfile.policies(fleet).items():
        most, done = [0], threading.Event()

        def watch(most: list[int] = most, done: threading.Event = done) -> None:
            while not done.wait(0.05):
                most[0] = max(most[0], resident_bytes())

        watcher = threading.Thread(target=watch)
        watcher.start()
        began, cpu = time.monotonic(), _cpu_s()
        result = fleetrun.run({"current": changed}, seed=1, hours=args.hours, jobs=args.jobs, told=lambda _: None)
        took, used = time.monotonic() - began, _cpu_s() - cpu
        done.set()
        watcher.join()
        report(name, result, args.nodes, took, used, most[0])


def _cpu_s() -> float:
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def report(name: str, result: Simulation, nodes: int, took_s: float, cpu_s: float, resident: int) -> None:
    s = result.policies[0].summary
    passes = int(result.policies[0].nodes.rows["passes"].sum())
    print(
        f"{name}: {nodes:,} nodes, {result.hours:g} h: {took_s:.1f} s wall, {cpu_s:.1f} s CPU, "
        f"{resident / 2**20:.0f} MiB; {s.events:,} events, {s.pods:,} pods, {passes:,} passes, {s.late:,} pods late, "
        f"{s.spiralling_nodes} nodes spiral"
    )


if __name__ == "__main__":
    main()
