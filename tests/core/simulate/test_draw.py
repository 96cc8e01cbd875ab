"""A node's own luck."""

import msgspec

from loadgen.core.simulate.draw import plan
from loadgen.core.simulate.fleet import Connections, Pods, Workload, times
from loadgen.core.units import NS_PER_S, Duration
from tests.core.simulate.worlds import node_type, settings

HORIZON_NS = 24 * 3600 * NS_PER_S
WORKLOADS = {
    "some": Workload(
        share=0.3, start=times(3600, 7200), duration=Duration.parse("2h"), connections=Connections(rate=1)
    ),
    "pods": Workload(pods=Pods(burst=3, every=times(3600, 7200))),
}


def test_luck_depends_on_seed_type_and_number_alone() -> None:
    of = node_type(settings(), "some", "pods", spread=0.2, uptime=times(3600, 7200))
    changed = msgspec.structs.replace(of, settings=settings(gc_interval=Duration.parse("60s")))
    one = plan(1, "a", 7, of, WORKLOADS, HORIZON_NS)
    assert one == plan(1, "a", 7, changed, WORKLOADS, HORIZON_NS)
    others = [plan(s, t, n, of, WORKLOADS, HORIZON_NS) for s, t, n in ((2, "a", 7), (1, "b", 7), (1, "a", 8))]
    assert all(other.arrivals != one.arrivals and other.rate != one.rate for other in others)


def test_shares_times_and_bursts_are_as_asked_for() -> None:
    of = node_type(settings(), "some", "pods", uptime=times(3600, 7200))
    plans = [plan(1, "a", n, of, WORKLOADS, HORIZON_NS) for n in range(1000)]
    landed = [landing for p in plans for landing in p.landings if landing.number == 0]
    assert 250 < len(landed) < 350
    assert all(3600 <= w.start_ns / NS_PER_S <= 7200 and w.end_ns - w.start_ns == 7200 * NS_PER_S for w in landed)
    assert all(-7200 <= p.booted_ns / NS_PER_S <= -3600 for p in plans)
    pods = [len(p.arrivals) for p in plans]
    assert {n % 3 for n in pods} == {0}
    assert 15 < sum(pods) / 3 / 1000 < 18
