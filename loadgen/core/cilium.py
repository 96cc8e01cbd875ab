"""What differs between Cilium versions, as data, and the arithmetic of its conntrack garbage collection.

Facts were read in Cilium's sources (1.16.15 and 1.18.3) and checked against running agents of both; each field of a
profile names its source in SOURCES. Nothing here knows a clock or a map.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from loadgen.core.errors import ConfigError
from loadgen.core.limiter import LimiterParams
from loadgen.core.model import ApiLimit
from loadgen.core.units import NS_PER_S, format_duration

GC_START_NS = 300 * NS_PER_S
"""First interval of every agent process, lost at a restart (pkg/defaults: ConntrackGCStartingInterval)."""
GC_MIN_NS = 10 * NS_PER_S
GC_MAX_NS = 12 * 3600 * NS_PER_S
CLOSE_TIMEOUT_S = 10
"""An entry is eligible for GC this long after both FINs, or after a RST (bpf-ct-timeout-regular-tcp-fin)."""

_ENDPOINT_LIMITS = MappingProxyType(
    {
        "endpoint-create": LimiterParams(
            estimate_ns=2 * NS_PER_S,
            auto_adjust=True,
            rate=0.5,
            burst=4,
            parallel=4,
            min_parallel=2,
            skip_initial=4,
            max_wait_ns=60 * NS_PER_S,
        ),
        "endpoint-delete": LimiterParams(estimate_ns=NS_PER_S // 5, auto_adjust=True, parallel=4, min_parallel=4),
        "endpoint-get": LimiterParams(
            estimate_ns=NS_PER_S // 5,
            auto_adjust=True,
            rate=4.0,
            burst=4,
            parallel=4,
            min_parallel=2,
            skip_initial=4,
            max_wait_ns=10 * NS_PER_S,
        ),
        "endpoint-list": LimiterParams(
            estimate_ns=300 * NS_PER_S // 1000, auto_adjust=True, rate=1.0, burst=4, parallel=2, min_parallel=2
        ),
    }
)


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """One Cilium minor version, as far as conntrack and endpoints are concerned. Sources: SOURCES, field by field."""

    version: str
    read_from: str
    batch_walk: bool
    """GC and scrubs read the table by BPF_MAP_LOOKUP_BATCH; otherwise key by key, two system calls an entry."""
    initial_scan_fatal: bool
    """The agent dies when its first GC pass takes longer than `initial_scan_timeout_ns`; otherwise it only warns."""
    initial_scan_timeout_ns: int = 30 * NS_PER_S
    early_run_scales_ratio: bool
    """A pass that ran before its time has its deletion ratio scaled up by expected / elapsed."""
    remembers_clamped: bool
    """The next interval grows from the clamped value (conntrackGCMaxInterval), not from the unclamped one."""
    partial_pass_keeps_timer: bool
    """A pass over one address family does not put off the full pass that is already due."""
    gc_interval_gauge: bool
    """Exports cilium_datapath_conntrack_gc_interval_seconds, unless the interval is fixed."""
    gc_duration_observed: bool
    """gc_duration_seconds holds real times; otherwise every observation is 0 s."""
    walk_restarts_counted: bool
    """gc_key_fallbacks_total and dump_resets_total move; batch walks never touch them."""
    min_build_permits: int = 2
    removal_limit_ns: int = 10 * NS_PER_S
    """A removal that takes longer is answered 206: its proxy completion context is over by then."""
    first_build_limit_ns: int = 330 * NS_PER_S
    client_timeout_ns: int = 90 * NS_PER_S
    connect_timeout_ns: int = 30 * NS_PER_S
    limits: Mapping[str, LimiterParams]


SOURCES: Mapping[str, str] = MappingProxyType(
    {
        "version": "the Helm chart's minor version",
        "read_from": "branch v1.16 at eb9aad64f439 (1.16.15), branch v1.18 at dd29cc335ec5 (1.18.3)",
        "batch_walk": "PR #36288, be4d573875 (1.18): BPF_MAP_LOOKUP_BATCH instead of NextKey + Lookup",
        "initial_scan_fatal": "fea19ec9c7 (1.17): log.Fatal became a warning; seen live on 1.16.15 with 16 M entries",
        "initial_scan_timeout_ns": "pkg/maps/ctmap/gc/gc.go: 30 s; seen live on 1.16.15",
        "early_run_scales_ratio": "4293d2b283 (1.15 and later): GetInterval takes the elapsed time",
        "remembers_clamped": "caa264c05c (1.18.3): loop variable; before, package variable cachedGCInterval",
        "partial_pass_keeps_timer": "529cdc9a96, caa264c05c (1.18.3): fixes #40820",
        "gc_interval_gauge": "82610768bf (1.18); seen live on 1.18.3 only",
        "gc_duration_observed": "pkg/maps/ctmap iterate() of 1.18 starts no clock; seen live: sum stays 0 on 1.18.3",
        "walk_restarts_counted": "the counters belong to DumpReliablyWithCallback, which 1.18 no longer calls",
        "min_build_permits": "daemon: max(2, NumCPU) endpoints regenerate at once; 2 seen on 2 CPUs, 57 on 128",
        "removal_limit_ns": "pkg/endpoint Delete: a context of 10 s begun before the scrub; 206 seen at 21.8 s",
        "first_build_limit_ns": "pkg/endpoint: EndpointGenerationTimeout",
        "client_timeout_ns": "pkg/api/const.go ClientTimeout; ADDs seen failing at 90.6-91.8 s",
        "connect_timeout_ns": "pkg/defaults ClientConnectTimeout; seen as `after 30.000000 seconds timeout`",
        "limits": "daemon/restapi/api_limits.go, same numbers in 1.14.16, 1.16, 1.18 and 1.20",
    }
)

PROFILES: Mapping[str, Profile] = MappingProxyType(
    {
        "1.16": Profile(
            version="1.16",
            read_from="1.16.15",
            batch_walk=False,
            initial_scan_fatal=True,
            early_run_scales_ratio=True,
            remembers_clamped=False,
            partial_pass_keeps_timer=False,
            gc_interval_gauge=False,
            gc_duration_observed=True,
            walk_restarts_counted=True,
            limits=_ENDPOINT_LIMITS,
        ),
        "1.18": Profile(
            version="1.18",
            read_from="1.18.3",
            batch_walk=True,
            initial_scan_fatal=False,
            early_run_scales_ratio=True,
            remembers_clamped=True,
            partial_pass_keeps_timer=True,
            gc_interval_gauge=True,
            gc_duration_observed=False,
            walk_restarts_counted=False,
            limits=_ENDPOINT_LIMITS,
        ),
    }
)


def profile(name: str) -> Profile:
    """The profile of that Cilium version, or ConfigError with the ones there are."""
    if name not in PROFILES:
        raise ConfigError(f"cilium.profile: no profile {name!r}; there are {', '.join(PROFILES)}")
    return PROFILES[name]


def api_limits(of: Profile, overrides: Mapping[str, ApiLimit]) -> dict[str, LimiterParams]:
    """The profile's limits with `apiRateLimit` laid over them. A 0 switches a limit off, as in Cilium."""
    unknown = sorted(set(overrides) - set(of.limits))
    if unknown:
        raise ConfigError(f"cilium.apiRateLimit: no call {unknown[0]!r}; modelled are {', '.join(of.limits)}")
    return {name: _overlaid(params, overrides.get(name, ApiLimit())) for name, params in of.limits.items()}


def _overlaid(params: LimiterParams, over: ApiLimit) -> LimiterParams:
    given = {
        "rate": over.rate_limit,
        "burst": over.rate_burst,
        "parallel": over.parallel_requests,
        "max_wait_ns": over.max_wait_duration,
        "auto_adjust": over.auto_adjust,
    }
    return msgspec.structs.replace(params, **{field: value for field, value in given.items() if value is not None})


def batch_size(max_entries: int) -> int:
    """Entries per BPF_MAP_LOOKUP_BATCH: the power of two next above sqrt(2 × max_entries) (Cilium pkg/bpf, 1.18)."""
    size = 1
    while size * size < 2 * max_entries:
        size *= 2
    return size


# --- the interval ---------------------------------------------------------------------------------------------


class GcInterval(msgspec.Struct, frozen=True):
    """`wait_ns`: until the next pass. `remembered_ns`: what the rule goes on from at that pass; 0 = the start."""

    wait_ns: int
    remembered_ns: int


def next_gc_interval(
    of: Profile,
    remembered_ns: int,
    deleted_ratio: float,
    *,
    elapsed_ns: int | None = None,
    fixed_ns: int = 0,
    max_ns: int = 0,
    full_pass_in_ns: int | None = None,
) -> GcInterval:
    """When a pass comes after one that deleted `deleted_ratio` of the table's *capacity*.

    elapsed_ns: time since the pass before (an early pass counts for more). fixed_ns, max_ns: conntrackGCInterval and
    conntrackGCMaxInterval, 0 = unset. full_pass_in_ns: given after a pass over one address family only; the time
    that was left until the full pass. Source: Cilium pkg/maps/ctmap GetInterval, calculateInterval.
    """
    if deleted_ratio < 0:
        raise ValueError(f"deleted_ratio must not be negative, is {deleted_ratio}")
    if fixed_ns:
        return GcInterval(fixed_ns, remembered_ns)
    expected_ns = remembered_ns or GC_START_NS
    ratio = deleted_ratio
    early = remembered_ns and elapsed_ns is not None and 0 < elapsed_ns < expected_ns
    if of.early_run_scales_ratio and early and elapsed_ns:
        ratio *= expected_ns / elapsed_ns
    grown_ns = _recalculated(expected_ns, ratio)
    wait_ns = min(grown_ns, max_ns) if max_ns else grown_ns
    if of.remembers_clamped:
        remembered_ns = wait_ns
    elif ratio:
        remembered_ns = grown_ns
    if of.partial_pass_keeps_timer and full_pass_in_ns is not None:
        wait_ns = min(wait_ns, full_pass_in_ns)
    return GcInterval(wait_ns, remembered_ns)


def _recalculated(interval_ns: int, ratio: float) -> int:
    """Above 25 % of capacity shorter by that share (at most 90 %), below 5 % half as long again, 0 unchanged."""
    if ratio > 0.25:
        return max(GC_MIN_NS, _to_seconds(interval_ns * (1 - min(ratio, 0.9))))
    if 0 < ratio < 0.05:
        return min(GC_MAX_NS, _to_seconds(interval_ns * 1.5))
    return interval_ns


def _to_seconds(ns: float) -> int:
    """Go's Duration.Round(time.Second): halves go away from zero (1012.5 s becomes 1013 s, not 1012)."""
    return (round(ns) + NS_PER_S // 2) // NS_PER_S * NS_PER_S


class GcPass(msgspec.Struct, frozen=True):
    """One periodic pass of a simulated agent. `garbage` entries had expired and were deleted."""

    t_ns: int
    interval_ns: int
    garbage: int
    ratio: float
    next_ns: int

    def __str__(self) -> str:
        at, wait, then = (format_duration(ns / NS_PER_S) for ns in (self.t_ns, self.interval_ns, self.next_ns))
        return f"{at}: after {wait} {self.garbage:,} expired ({self.ratio:.1%} of capacity), next in {then}"


def trajectory(
    of: Profile,
    capacity: int,
    rates: Sequence[tuple[float, float]],
    horizon_ns: int,
    *,
    fixed_ns: int = 0,
    max_ns: int = 0,
    start_ns: int = 0,
) -> tuple[GcPass, ...]:
    """The passes of an agent over `horizon_ns`, under traffic that closes its connections with FINs.

    rates: (from second, new entries per second), ascending, the first from 0; constant in between. start_ns: the
    interval already drifted to, 0 = a fresh agent. An entry is garbage CLOSE_TIMEOUT_S after it came; more than
    `capacity` cannot pile up, for the LRU evicts. Passes take no time here.
    """
    interval = GcInterval(fixed_ns or start_ns or GC_START_NS, start_ns)
    if max_ns and not fixed_ns:
        interval = GcInterval(min(interval.wait_ns, max_ns), start_ns)
    passes: list[GcPass] = []
    last_ns, now_ns = 0, interval.wait_ns
    while now_ns <= horizon_ns:
        garbage = min(capacity, _arrived(rates, _closed(last_ns), _closed(now_ns)))
        ratio = garbage / capacity
        following = next_gc_interval(
            of, interval.remembered_ns, ratio, elapsed_ns=now_ns - last_ns, fixed_ns=fixed_ns, max_ns=max_ns
        )
        passes.append(GcPass(now_ns, now_ns - last_ns, garbage, ratio, following.wait_ns))
        interval, last_ns, now_ns = following, now_ns, now_ns + following.wait_ns
    return tuple(passes)


QUIET_RATE = 1.0
"""New connections a second of a quiet node: few, but not none. (With none at all the interval stays.)"""


def drift(of: Profile, capacity: int, to_ns: int) -> tuple[GcPass, ...]:
    """How a fresh agent's interval gets to `to_ns` on a quiet node: its passes up to the one that sets it.

    Empty when the rule never takes it there with a table of this capacity.
    """
    passes = trajectory(of, capacity, [(0.0, QUIET_RATE)], _DRIFT_HORIZON_NS)
    for i, done in enumerate(passes, start=1):
        if done.next_ns >= to_ns:
            return passes[:i]
    return ()


_DRIFT_HORIZON_NS = 7 * 24 * 3600 * NS_PER_S


def _closed(t_ns: int) -> float:
    """Connections that came before this second have expired by t_ns."""
    return max(0.0, t_ns / NS_PER_S - CLOSE_TIMEOUT_S)


def _arrived(rates: Sequence[tuple[float, float]], start_s: float, end_s: float) -> int:
    ends = [at for at, _ in rates[1:]] + [float("inf")]
    spans = ((max(start_s, at), min(end_s, until), rate) for (at, rate), until in zip(rates, ends, strict=True))
    return round(sum(max(0.0, b - a) * rate for a, b, rate in spans))


def build_permits(of: Profile, cpus: int, override: int | None) -> int:
    """How many endpoints regenerate at once, and so how many can stand on a CT table's lock."""
    return override if override is not None else max(of.min_build_permits, cpus)


__all__ = [
    "CLOSE_TIMEOUT_S", "GC_MAX_NS", "GC_MIN_NS", "GC_START_NS", "PROFILES", "SOURCES", "GcInterval",
    "GcPass", "Profile", "api_limits", "batch_size", "build_permits", "drift", "next_gc_interval", "profile",
    "trajectory",
]  # fmt: skip
