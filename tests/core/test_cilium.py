"""Cilium's GC interval as tables, its batch sizes, and that every fact of a profile has a source."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from loadgen.core import cilium
from loadgen.core.cilium import GC_MAX_NS, PROFILES, SOURCES, GcInterval, batch_size, next_gc_interval, trajectory
from loadgen.core.errors import ConfigError
from loadgen.core.model import ApiLimit
from loadgen.core.units import NS_PER_S, Duration

OLD, NEW = PROFILES["1.16"], PROFILES["1.18"]


def s(seconds: float) -> int:
    return round(seconds * NS_PER_S)


@pytest.mark.parametrize(
    ("remembered_s", "ratio", "wait_s"),
    [
        (0, 0.0, 300),  # a fresh agent that deleted nothing starts with 5 minutes
        (0, 0.00012, 450),  # what 1.16 logged after its first 5 minutes: newInterval 7m30s
        (300, 0.0, 300),  # exactly zero deletions: unchanged, at any length
        (43_200, 0.0, 43_200),
        (300, 0.049, 450),  # below 5 %: half as long again
        (300, 0.05, 300),  # from 5 % up to and including 25 %: unchanged
        (300, 0.25, 300),
        (300, 0.38, 186),  # what 1.16 logged: 3m6s
        (300, 0.9, 30),
        (300, 1.0, 30),  # at most 90 % shorter
        (60, 0.9, 10),  # floor
        (10, 0.9, 10),
        (43_200, 0.01, 43_200),  # cap
        (30_000, 0.01, 43_200),
        (675, 0.01, 1013),  # 1012.5 s: halves are rounded up
        (5130, 0.035125732421875, 7695),  # an agent's log: 1h25m30s, then 2h8m15s
    ],
)
@pytest.mark.parametrize("of", [OLD, NEW], ids=["1.16", "1.18"])
def test_interval_rule(of, remembered_s, ratio, wait_s):
    assert next_gc_interval(of, s(remembered_s), ratio).wait_ns == s(wait_s)


def test_drift_to_twelve_hours_takes_thirteen_passes():
    waits, interval = [], GcInterval(cilium.GC_START_NS, cilium.GC_START_NS)
    while interval.wait_ns < GC_MAX_NS:
        interval = next_gc_interval(OLD, interval.remembered_ns, 0.001)
        waits.append(interval.wait_ns // NS_PER_S)
    assert waits == [450, 675, 1013, 1520, 2280, 3420, 5130, 7695, 11543, 17315, 25973, 38960, 43200]


@pytest.mark.parametrize("of", [OLD, NEW], ids=["1.16", "1.18"])
def test_fixed_interval_overrides_everything(of):
    for ratio in (0.0, 0.01, 0.9):
        assert next_gc_interval(of, s(300), ratio, fixed_ns=s(60), max_ns=s(5)).wait_ns == s(60)


def test_early_pass_has_its_ratio_scaled_up():
    # 4 % within a tenth of the time is worth 40 %.
    assert next_gc_interval(OLD, s(300), 0.04, elapsed_ns=s(30)).wait_ns == s(180)
    assert next_gc_interval(OLD, s(300), 0.04, elapsed_ns=s(301)).wait_ns == s(450)
    # The first pass of an agent has no expectation to be early for.
    assert next_gc_interval(OLD, 0, 0.04, elapsed_ns=s(1)).wait_ns == s(450)


def test_clamped_or_unclamped_value_is_remembered():
    assert next_gc_interval(OLD, s(300), 0.01, max_ns=s(320)) == GcInterval(s(320), s(450))
    assert next_gc_interval(NEW, s(300), 0.01, max_ns=s(320)) == GcInterval(s(320), s(320))


def test_partial_pass_leaves_the_full_one_its_time():
    assert next_gc_interval(OLD, s(300), 0.01, full_pass_in_ns=s(20)).wait_ns == s(450)
    assert next_gc_interval(NEW, s(300), 0.01, full_pass_in_ns=s(20)).wait_ns == s(20)


def test_negative_ratio_is_refused():
    with pytest.raises(ValueError, match="must not be negative"):
        next_gc_interval(OLD, s(300), -0.1)


@pytest.mark.parametrize(
    ("capacity", "rate", "settled_s"),
    [
        (16_777_216, 50, 17_315),
        (16_777_216, 200, 5_130),
        (16_777_216, 1_000, 1_013),
        (16_777_216, 4_000, 300),
        (524_288, 200, 300),
        (524_288, 4_000, 30),
        (131_072, 1_000, 30),
    ],
)
def test_interval_settles_where_a_pass_finds_5_to_25_percent(capacity, rate, settled_s):
    passes = trajectory(OLD, capacity, [(0, rate)], s(5 * 86_400))
    last = passes[-1]
    assert last.next_ns == s(settled_s)
    assert 0.05 <= last.ratio <= 0.25
    assert last.garbage == rate * settled_s


def test_quiet_node_then_storm_waits_half_a_day_for_its_pass():
    passes = trajectory(OLD, 16_777_216, [(0, 1), (120_000, 500)], s(60 * 3600))
    drifted = [p for p in passes if p.interval_ns == GC_MAX_NS]
    assert drifted[0].garbage == 16_777_216  # 500/s for hours is more than the table holds: the LRU evicts
    assert drifted[0].next_ns == s(4320)
    assert str(drifted[0]).endswith("after 12h 16,777,216 expired (100.0% of capacity), next in 1h12m")


def test_trajectory_of_a_fixed_interval_and_of_a_drifted_start():
    fixed = trajectory(OLD, 1_000_000, [(0, 100)], s(600), fixed_ns=s(60), start_ns=GC_MAX_NS)
    assert [p.garbage for p in fixed] == [5_000] + [6_000] * 9
    assert trajectory(OLD, 1_000_000, [(0, 100)], s(43_199), start_ns=GC_MAX_NS) == ()
    assert trajectory(OLD, 1_000_000, [(0, 0)], s(600), max_ns=s(100))[0].t_ns == s(100)
    assert all(a.t_ns + a.next_ns == b.t_ns for a, b in pairwise(fixed))


@pytest.mark.parametrize(
    ("max_entries", "size"),
    [(131_072, 512), (262_144, 1024), (524_288, 1024), (524_289, 2048), (16_777_216, 8192), (1024, 64), (1, 2)],
)
def test_batch_size(max_entries, size):
    assert batch_size(max_entries) == size


def test_every_field_of_a_profile_has_its_source():
    fields = {field.name for field in msgspec.structs.fields(cilium.Profile)}
    assert fields == set(SOURCES)
    assert all(PROFILES[name].version == name for name in PROFILES)


def test_profile_by_name():
    assert cilium.profile("1.18") is NEW
    with pytest.raises(ConfigError, match=r"no profile '1.13'; there are 1\.16, 1\.18"):
        cilium.profile("1.13")


def test_api_rate_limit_is_laid_over_the_defaults():
    limits = cilium.api_limits(OLD, {"endpoint-create": ApiLimit(rate_limit=0, max_wait_duration=Duration(5))})
    create = limits["endpoint-create"]
    assert (create.rate, create.max_wait_ns, create.parallel, create.estimate_ns) == (0, 5, 4, 2 * NS_PER_S)
    assert limits["endpoint-delete"] == OLD.limits["endpoint-delete"]
    with pytest.raises(ConfigError, match="no call 'endpoint-crate'; modelled are endpoint-create"):
        cilium.api_limits(OLD, {"endpoint-crate": ApiLimit()})


@pytest.mark.parametrize(("cpus", "override", "permits"), [(1, None, 2), (2, None, 2), (128, None, 128), (128, 3, 3)])
def test_build_permits(cpus, override, permits):
    assert cilium.build_permits(OLD, cpus, override) == permits


def test_a_quiet_nodes_interval_drifts_to_twelve_hours() -> None:
    passes = cilium.drift(cilium.profile("1.16"), 4_194_304, 12 * 3600 * NS_PER_S)
    assert [p.next_ns // NS_PER_S for p in passes[:3]] == [450, 675, 1013]
    assert passes[-1].next_ns == 12 * 3600 * NS_PER_S
    assert len(passes) == 13
    assert all(0 < p.ratio < 0.05 for p in passes)


def test_a_small_table_never_drifts_that_far() -> None:
    assert cilium.drift(cilium.profile("1.16"), 131_072, 12 * 3600 * NS_PER_S) == ()
