"""What one node does, on numbers that can be worked out by hand, and held against bursts of real Cilium."""

import msgspec
import numpy as np
import pytest

from loadgen.core.cilium import drift, profile
from loadgen.core.simulate.costs import Costs
from loadgen.core.simulate.fleet import AgentSettings, Connections, Sizes, Workload, times
from loadgen.core.simulate.outcome import GIVEN_UP, UP, WAITING
from loadgen.core.units import NS_PER_S, Duration
from tests.core.simulate.worlds import burst, node_type, of_burst, run, settings, standing, took


def test_one_pod_costs_plugin_and_walk() -> None:
    assert took(of_burst(1, 1_000_000)) == [1.1]


def test_burst_queues_on_the_lock_walk_by_walk() -> None:
    assert took(of_burst(5, 1_000_000)) == [1.1, 2.1, 3.1, 4.1, 5.1]


def test_batch_walks_are_cheaper() -> None:
    assert took(of_burst(2, 1_000_000, profile="1.18")) == [0.35, 0.6]


def test_timeouts_are_removed_with_a_walk_and_retried() -> None:
    """Walks of 40 s, one permit: one pod is up at 40.1 s, one at 80.1. The third gives up at 90.1 s, its walk goes on
    until 120.1, its removal's until 160.1, and its next ADD comes 12 to 15 s after its DEL was answered."""
    slow = msgspec.structs.replace(node_type(settings(build_permits=1), "old", "burst"), costs=_costs(40_000))
    out = run(slow, {"old": standing(1_000_000), "burst": burst(3)}, 1.0)
    first, second, third = took(out)
    assert (first, second) == (40.1, 80.1)
    assert out.pods["timeouts"].sum() == 1
    assert 160.1 + 12 + 40.1 <= third <= 160.2 + 15 + 40.1
    assert out.row["walks"][0] == 2 * 5  # four creates and a removal, each over both tables


def _costs(entry_ns: int) -> Costs:
    return msgspec.structs.replace(node_type(settings()).costs, per_entry=Duration(entry_ns))


def test_pod_that_is_given_up_and_one_that_still_waits() -> None:
    slow = msgspec.structs.replace(node_type(settings(), "old", "burst"), costs=_costs(200_000))
    workloads = {"old": standing(1_000_000), "burst": burst(1, give_up="30m")}
    out = run(slow, workloads, 1.0)
    assert (out.pods["state"][0], took(out)) == (GIVEN_UP, [1800.0])
    assert out.pods["timeouts"][0] == out.pods["attempts"][0] - (out.pods["attempts"][0] > out.pods["timeouts"][0])
    out = run(slow, workloads, 0.25)
    assert (out.pods["state"][0], took(out)) == (WAITING, [899.0])


def test_deleted_pods_walk_too() -> None:
    workloads = {"old": standing(1_000_000), "burst": burst(3, lifetime="10m")}
    out = run(node_type(settings(), *workloads), workloads, 1.0)
    assert out.row["scrub_s"][0] == pytest.approx(6.0, rel=1e-3)
    assert out.row["walks"][0] == 2 * 6


def test_quiet_node_drifts_to_12_hours_as_the_rule_says() -> None:
    of = settings(gc_interval=None)
    quiet = {"base": Workload(connections=Connections(rate=1.0, life=Duration(0)))}
    out = run(node_type(of, "base"), quiet, 72.0, closely=True)
    assert out.close is not None
    expected = [p.next_ns / NS_PER_S for p in drift(profile("1.16"), 1_048_576, 12 * 3600 * NS_PER_S)]
    assert [p.next_s for p in out.close.passes][: len(expected)] == expected
    assert out.row["interval_s"][0] == 12 * 3600


def test_fixed_interval_keeps_the_table_at_rate_times_interval() -> None:
    storm = {"storm": Workload(connections=Connections(rate=1000.0, life=Duration(0)))}
    out = run(node_type(settings(gc_interval=Duration.parse("60s")), "storm"), storm, 6.0)
    assert out.row["peak_entries"][0] == pytest.approx(1000 * 70, rel=0.01)
    assert out.row["passes"][0] == pytest.approx(6 * 60, abs=2)


def test_half_closed_connections_stay_for_the_whole_tcp_lifetime() -> None:
    storm = {"storm": Workload(connections=Connections(rate=100.0, life=Duration(0), half_closed=0.1))}
    out = run(node_type(settings(gc_interval=Duration.parse("60s")), "storm"), storm, 6.0)
    assert out.row["peak_entries"][0] == pytest.approx(90 * 70 + 10 * 8060, rel=0.01)


def test_max_interval_bounds_the_drift() -> None:
    of = settings(gc_interval=None, gc_max_interval=Duration.parse("15m"))
    quiet = {"base": Workload(connections=Connections(rate=1.0))}
    out = run(node_type(of, "base"), quiet, 48.0)
    assert max(out.intervals) == 900.0


@pytest.mark.parametrize("leaves", ["nothing", "entries"])
def test_workload_that_ends_takes_its_entries_along_unless_told_otherwise(leaves: str) -> None:
    storm = Workload(
        start=times(60), duration=Duration.parse("30m"), connections=Connections(rate=100.0), leaves=leaves
    )
    out = run(node_type(settings(), "storm"), {"storm": storm}, 1.0)
    assert out.grid[2] == pytest.approx(100 * 1740, rel=0.01)
    assert out.grid[-1] == pytest.approx(0.0 if leaves == "nothing" else 100 * 1800, abs=1)


def test_skipping_alike_passes_changes_nothing() -> None:
    """Connections that open for an instant, every 5 s, leave no room for a skip: the passes must be the same."""
    of = settings(gc_interval=Duration.parse("7s"))
    storm = {"storm": Workload(connections=Connections(rate=500.0))}
    free = run(node_type(of, "storm"), storm, 3.0)
    news = {
        f"news-{i}": Workload(
            start=times(5 * i), duration=Duration.parse("1ms"), leaves="entries", connections=Connections(rate=1e-6)
        )
        for i in range(1, 3 * 720)
    }
    held = run(node_type(of, "storm", *news), {"storm": storm["storm"], **news}, 3.0)
    assert held.row["events"][0] > 10 * free.row["events"][0]
    assert free.row["passes"][0] == pytest.approx(3 * 3600 / 7, abs=4)
    assert free.row["passes"][0] == held.row["passes"][0]
    assert free.row["peak_entries"][0] == pytest.approx(held.row["peak_entries"][0], rel=0.01)
    assert free.row["gc_s"][0] == pytest.approx(held.row["gc_s"][0], rel=0.01)


def test_same_seed_same_outcome() -> None:
    one, two = (of_burst(20, 800_000) for _ in range(2))
    assert np.array_equal(one.pods, two.pods)
    assert np.array_equal(one.row, two.row)


# --- real Cilium 1.16, 2 CPUs, table of 16,777,216 (docs/simulate.md) ------------------------------------------


def real(size: int, entries: int, *, limits_lifted: bool, seconds: float, entry_ns: int = 2050) -> np.ndarray:
    limits = settings().api_rate_limit if limits_lifted else {}
    of = AgentSettings(
        gc_interval=Duration.parse("12h"),
        bpf=Sizes(ct_tcp_max=16_777_216, ct_any_max=262_144),
        api_rate_limit=limits,
    )
    workloads = {"old": standing(max(1, entries)), "burst": burst(size)}
    costs = Costs(per_entry=Duration(entry_ns))
    outcome = run(node_type(of, *workloads, costs=costs), workloads, seconds / 3600)
    return outcome.pods


def test_fifty_pods_over_a_million_entries_as_real_cilium_made_them() -> None:
    """Measured: all up in the end, 9 ADDs failed at 90 s, ADD p50 40.8 s, p90 82.3 s, max 88.5 s."""
    pods = real(50, 1_000_000, limits_lifted=True, seconds=900)
    assert (pods["state"] == UP).all()
    assert pods["timeouts"].sum() == pytest.approx(9, abs=2)
    assert np.median(pods["add_s"]) == pytest.approx(40.8, rel=0.2)
    assert np.quantile(pods["add_s"], 0.9) == pytest.approx(82.3, rel=0.2)
    assert pods["add_s"].max() == pytest.approx(88.5, rel=0.05)


def test_fifty_pods_with_default_limits_take_minutes() -> None:
    """Measured while walks took 2.0 to 3.5 s: 448 s until 50 were up."""
    pods = real(50, 1_000_000, limits_lifted=False, seconds=1200, entry_ns=2700)
    assert (pods["state"] == UP).all()
    assert pods["took_s"].max() == pytest.approx(448, rel=0.2)


def test_twelve_pods_over_sixteen_million_entries_are_a_livelock() -> None:
    """Measured: after 420 s one pod of twelve was up, all other ADDs had failed."""
    pods = real(12, 16_000_000, limits_lifted=False, seconds=420)
    assert 1 <= (pods["state"] == UP).sum() <= 2
    assert (pods["timeouts"] + pods["refused"])[pods["state"] == WAITING].min() >= 1
