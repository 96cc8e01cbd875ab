"""What may have caused an incident: each hypothesis a pure function of the evidence, what speaks for and against.

A hypothesis is LIKELY when something decisive speaks for it and nothing decisive against, POSSIBLE when something
does, UNLIKELY when only something speaks against, and UNKNOWN when no file says anything about it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import msgspec

from loadgen.core import gostacks
from loadgen.core.incident import Evidence
from loadgen.core.readout import (
    Metric,
    conntrack_growth,
    events_of,
    gc_interval,
    metric_growth,
    metric_last,
    table_capacity,
    views,
)
from loadgen.core.units import format_count, format_duration

EXPIRED_SHARE = 0.5
"""More than half of the table expired: no pass has come for longer than the entries live."""
MANY_ENTRIES = 500_000
"""About one second of walking key by key (2 us an entry on Cilium 1.16; docs/fidelity.md)."""
PER_KEY_US, BATCH_US = 2.0, 0.5
CLIENT_TIMEOUT_S = 90.0
LONG_INTERVAL_S = 1800.0
HALF_SHARE = 0.25
FULL = 0.9
SECOND_SHARE, SECOND_LEAST = 0.8, 5
"""Five of five lost seconds are chance once in 32 captures."""


class Standing(Enum):
    LIKELY = "likely"
    POSSIBLE = "possible"
    UNLIKELY = "unlikely"
    UNKNOWN = "no evidence"


class Point(msgspec.Struct, frozen=True):
    """One observation and the file it is from. `decisive`: alone enough to call it likely, or not to."""

    says: str
    file: str
    decisive: bool = False


class Hypothesis(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    cause: str
    standing: Standing
    for_: tuple[Point, ...] = msgspec.field(name="for", default=())
    against: tuple[Point, ...] = ()
    confirm: str
    remedy: str
    reproduce: str
    """A loadgen command, or why there is none."""


def standing(for_: list[Point], against: list[Point]) -> Standing:
    if any(p.decisive for p in for_) and not any(p.decisive for p in against):
        return Standing.LIKELY
    if for_:
        return Standing.POSSIBLE
    return Standing.UNLIKELY if against else Standing.UNKNOWN


def _of_several(for_: list[Point], against: list[Point]) -> list[Point]:
    """`against`, where both are from files of one kind: a healthy node's table decides nothing about a sick one's."""
    sick = any(point.decisive for point in for_)
    return [msgspec.structs.replace(point, decisive=False) for point in against] if sick else against


def weigh(evidence: Evidence) -> tuple[Hypothesis, ...]:
    """Every hypothesis, the likeliest first; equal ones by how much speaks for them."""
    order = list(Standing)
    found = [hypothesis(evidence) for hypothesis in HYPOTHESES]
    return tuple(sorted(found, key=lambda h: (order.index(h.standing), -sum(1 + p.decisive for p in h.for_))))


def expired_table(evidence: Evidence) -> Hypothesis:
    """Seed of it all: an interval that drifted, a table of expired entries, a walk under one lock a create."""
    for_, against = _expired_points(evidence)
    for dump in evidence.goroutines:
        found = gostacks.roles(dump)
        if found.waits:
            minutes = f", the longest for {found.minutes} min" if found.minutes else ""
            says = f"{found.waits} goroutines wait for the CT lock, {found.holds} walk the table{minutes}"
            for_.append(Point(says, dump.file, decisive=found.waits >= 2))
        else:
            against.append(Point("no goroutine waits for the CT lock", dump.file))
        if found.creates:
            for_.append(Point(f"{found.creates} creates wait for their first regeneration", dump.file))
    interval, where = gc_interval(evidence)
    if interval is not None:
        says = f"the longest GC interval told is {format_duration(interval)}"
        (for_ if interval >= LONG_INTERVAL_S else against).append(Point(says, where))
    for log in evidence.logs:
        if log.ct_clean_max_s >= 1:
            says = f"a build waited {format_duration(log.ct_clean_max_s)} for its scrub (waitingForCTClean)"
            for_.append(Point(says, log.file, decisive=log.ct_clean_max_s >= 10))
    for_ += events_of(evidence, "client-timeout", Point) + events_of(evidence, "first-regeneration-timeout", Point)
    entries = max((v.entries for v in views(evidence)), default=2_000_000)
    return Hypothesis(
        id="expired-table",
        cause="The conntrack table is full of expired entries, and every pod create and delete walks all of it",
        standing=standing(for_, against),
        for_=tuple(for_),
        against=tuple(against),
        confirm="cilium-dbg bpf ct list global -d on the node, and a goroutine dump (gops stack) while creates hang: "
        "scrubIPsInConntrackTable waiting for a Mutex",
        remedy="conntrackGCInterval: 60s, then restart the agents; Cilium 1.18 and later walk about 4 times faster",
        reproduce=_spiral(evidence, entries, expired=1.0),
    )


def _expired_points(evidence: Evidence) -> tuple[list[Point], list[Point]]:
    for_: list[Point] = []
    against: list[Point] = []
    for view in views(evidence):
        if view.expired is None:
            continue
        share = view.expired / view.entries if view.entries else 0.0
        says = f"{format_count(view.expired)} of {format_count(view.entries)} entries ({share:.0%}) are expired"
        if view.oldest_s:
            says += f", the oldest for {format_duration(view.oldest_s)}"
        if share >= EXPIRED_SHARE and view.entries >= MANY_ENTRIES:
            walk = f"one walk takes about {format_duration(view.entries * PER_KEY_US / 1e6)} key by key"
            walk += f" (up to Cilium 1.17), {format_duration(view.entries * BATCH_US / 1e6)} in batches (from 1.18)"
            for_.append(Point(f"{says}; {walk}", view.file, decisive=True))
        elif share >= EXPIRED_SHARE:
            for_.append(Point(f"{says}, but so few are walked quickly", view.file))
        else:
            against.append(Point(says, view.file, decisive=view.entries < MANY_ENTRIES))
    return for_, _of_several(for_, against)


def half_closed(evidence: Evidence) -> Hypothesis:
    """Servers that never close: entries of 8000 s that no GC interval reclaims."""
    for_: list[Point] = []
    against: list[Point] = []
    for view in views(evidence):
        share = view.half_closed / view.tcp if view.tcp else 0.0
        says = (
            f"{format_count(view.half_closed)} of {format_count(view.tcp)} TCP entries ({share:.0%}) are half closed"
        )
        if share >= HALF_SHARE:
            for_.append(Point(says, view.file, decisive=view.half_closed >= MANY_ENTRIES))
        elif view.tcp:
            against.append(Point(says, view.file, decisive=True))
    against = _of_several(for_, against)
    entries = max((v.half_closed for v in views(evidence)), default=2_000_000)
    return Hypothesis(
        id="half-closed",
        cause="Connections that one side never closes fill the table: they live 8000 s (21600 s up to 1.14)",
        standing=standing(for_, against),
        for_=tuple(for_),
        against=tuple(against),
        confirm="ss -tan state close-wait in the pods of the top destinations",
        remedy="close the sockets there, or a shorter bpf-ct-timeout-regular-tcp; a GC interval does not help",
        reproduce=_spiral(evidence, max(entries, 1), expired=0.0),
    )


def api_limiter(evidence: Evidence) -> Hypothesis:
    """Creates wait in the API limiter, which slows down as they do."""
    for_ = events_of(evidence, "too-many-requests", Point, decisive=True)
    against: list[Point] = []
    for dump in evidence.goroutines:
        found = gostacks.roles(dump)
        if found.limited:
            says = f"{found.limited} goroutines wait in the API limiter, {found.waits} for the CT lock"
            for_.append(Point(says, dump.file, decisive=found.limited > found.waits))
        else:
            against.append(Point("no goroutine waits in the API limiter", dump.file))
    refused = Metric("cilium_api_limiter_processed_requests_total", outcome=("fail-limit-wait", "fail-parallel-wait"))
    grown = metric_growth(evidence, refused)
    if grown is not None:
        says = f"the limiter refused {format_count(grown[0])} calls between the metrics pages"
        (for_ if grown[0] > 0 else against).append(Point(says, grown[1], decisive=grown[0] > 0))
    return Hypothesis(
        id="api-limiter",
        cause="The agent's API limiter holds creates back, or refuses them with 429",
        standing=standing(for_, against),
        for_=tuple(for_),
        against=tuple(against),
        confirm="cilium_api_limiter_wait_duration_seconds and _adjustment_factor of endpoint-create during a burst",
        remedy="first what makes creates slow: the limiter slows down with them; then apiRateLimit (Helm, from 1.15)",
        reproduce="loadgen run ct-gc-spiral --set 'settings.cilium.apiRateLimit={}'",
    )


def table_full(evidence: Evidence) -> Hypothesis:
    """No room: inserts fail or evict live entries."""
    for_ = events_of(evidence, "insert-failed", Point)
    against: list[Point] = []
    capacity = table_capacity(evidence)
    for view in views(evidence):
        if capacity is None or not view.tcp:
            continue
        share = view.tcp / capacity
        says = f"{format_count(view.tcp)} TCP entries in a table of {format_count(capacity)} ({share:.0%})"
        (for_ if share >= FULL else against).append(Point(says, view.file, decisive=True))
    against = _of_several(for_, against)
    drops = metric_growth(evidence, Metric("cilium_drop_count_total", reason=("CT: Map insertion failed",)))
    if drops is not None:
        says = f"{format_count(drops[0])} packets dropped for `CT: Map insertion failed` between the metrics pages"
        (for_ if drops[0] > 0 else against).append(Point(says, drops[1], decisive=drops[0] > 0))
    pressure = metric_last(evidence, Metric("cilium_bpf_map_pressure", map_name=("ct4_global", "ct_any4_global")))
    if pressure is not None:
        says = f"cilium_bpf_map_pressure is {pressure[0]:.2f} (stale: set by the last walk)"
        (for_ if pressure[0] >= FULL else against).append(Point(says, pressure[1]))
    return Hypothesis(
        id="table-full",
        cause="The conntrack table is full: new connections evict others or are dropped",
        standing=standing(for_, against),
        for_=tuple(for_),
        against=tuple(against),
        confirm="the number of entries against the size in cilium status --verbose; "
        'cilium_drop_count_total{reason="CT: Map insertion failed"}',
        remedy="collect garbage sooner before making the table larger: a larger one makes every walk longer",
        reproduce=_spiral(evidence, capacity or 2_000_000, expired=1.0),
    )


def initial_scan(evidence: Evidence) -> Hypothesis:
    """Up to 1.16 an agent dies when its first walk takes over 30 s."""
    for_ = events_of(evidence, "initial-scan-timeout", Point, decisive=True)
    against = [
        Point("no such message in it", log.file) for log in evidence.logs if log.origin == "agent" and not for_
    ]
    return Hypothesis(
        id="initial-scan",
        cause="The agent cannot restart: its first walk of the table takes over 30 s (fatal up to 1.16)",
        standing=standing(for_, against),
        for_=tuple(for_),
        against=tuple(against),
        confirm="kubectl logs --previous of the agent: Timeout while waiting for initial conntrack scan",
        remedy="cilium-dbg bpf ct flush global before the restart (connections lose their state), or Cilium 1.17",
        reproduce="none built in: restarting the agent during a run is not part of a scenario",
    )


def dns_race(evidence: Evidence) -> Hypothesis:
    """One of A and AAAA lost, again and again; counters of the node that agree."""
    for_: list[Point] = []
    against: list[Point] = []
    for story in evidence.dns:
        if not story.pairs:
            continue
        says = f"of {format_count(story.pairs)} A/AAAA pairs from one port, {story.one_lost} lost one answer "
        says += f"(the second query's in {story.second_lost}), {story.both_lost} both"
        if not story.one_lost:
            against.append(Point(says, story.file, decisive=True))
        elif story.second_lost >= SECOND_SHARE * story.one_lost and story.one_lost >= SECOND_LEAST:
            for_.append(Point(says + _resolver(story.libc, story.retries), story.file, decisive=True))
        else:
            says += ": loss by chance looks the same"
            for_.append(Point(says + _resolver(story.libc, story.retries), story.file))
    against = _of_several(for_, against)
    growth = conntrack_growth(evidence)
    if growth is not None:
        counters, where = growth
        failed, dropped = counters.get("insert_failed", 0), counters.get("drop", 0)
        says = f"insert_failed rose by {failed}, drop by {dropped}"
        if failed and not dropped and "clash_resolve" not in counters:
            for_.append(Point(f"{says}; before Linux 5.10 insert_failed also counts resolved clashes", where))
        else:
            says += f", clash_resolve by {counters.get('clash_resolve', 0)}"
            (for_ if failed or dropped else against).append(Point(says, where, decisive=True))
    options = "" if not for_ else _libc_note(evidence)
    return Hypothesis(
        id="dns-race",
        cause="A and AAAA asked at once from one port race in nf_conntrack behind a DNAT, and one is dropped",
        standing=standing(for_, against),
        for_=tuple(for_),
        against=tuple(against),
        confirm="conntrack -S before and after (insert_failed and drop rise together with slow lookups); uname -r: "
        "kernels from 5.6 resolve it",
        remedy=f"options single-request-reopen, NodeLocal DNSCache, or a kernel from 5.6{options}",
        reproduce="loadgen run dns-race",
    )


def _resolver(libc: tuple[tuple[str, int], ...], retries: tuple[tuple[str, int], ...]) -> str:
    after = f"; asked again {retries[0][0]} ({retries[0][1]}x)" if retries else ""
    return after + (f": as {libc[0][0]} does" if libc else "")


def _libc_note(evidence: Evidence) -> str:
    musl = any(story.libc and story.libc[0][0] == "musl" for story in evidence.dns)
    return " (musl knows no such option)" if musl else ""


def dns_server(evidence: Evidence) -> Hypothesis:
    """Both of a pair unanswered, or single queries: the server or the way to it."""
    for_: list[Point] = []
    against: list[Point] = []
    for story in evidence.dns:
        lost = 2 * story.both_lost + story.other_lost
        says = (
            f"{format_count(lost)} of {format_count(story.queries)} queries unanswered beside those of broken pairs"
        )
        if story.queries and lost > story.one_lost:
            for_.append(Point(says, story.file, decisive=lost >= 0.01 * story.queries))
        elif story.queries:
            against.append(Point(says, story.file))
    return Hypothesis(
        id="dns-server",
        cause="The DNS server does not answer, or the way to it loses packets: not a race of two queries",
        standing=standing(for_, against),
        for_=tuple(for_),
        against=tuple(against),
        confirm="a capture at the server: do the queries arrive? coredns_dns_requests_total by type",
        remedy="the server's replicas, CPU limits and upstreams",
        reproduce="loadgen run dns-race --set settings.dns.loss=0.01",
    )


def nf_table_full(evidence: Evidence) -> Hypothesis:
    """The kernel's own table, which all of a node's namespaces share."""
    for_ = events_of(evidence, "nf-table-full", Point, decisive=True)
    kernels = [log for log in evidence.logs if log.origin == "kernel" and "nf-table-full" not in log.events]
    against = [Point("no `table full` in it", log.file) for log in kernels]
    growth = conntrack_growth(evidence)
    if growth is not None and (early := growth[0].get("early_drop", 0)):
        for_.append(Point(f"early_drop rose by {early}", growth[1]))
    return Hypothesis(
        id="nf-conntrack-full",
        cause="nf_conntrack's table is full: the kernel drops packets of new connections",
        standing=standing(for_, [] if for_ else against),
        for_=tuple(for_),
        against=() if for_ else tuple(against),
        confirm="sysctl net.netfilter.nf_conntrack_count and nf_conntrack_max; dmesg",
        remedy="net.netfilter.nf_conntrack_max, or NOTRACK for what needs no tracking",
        reproduce="none built in: the limit is shared with the machine that would run it",
    )


def _spiral(evidence: Evidence, entries: int, expired: float) -> str:
    size = max(table_capacity(evidence) or 0, 1 << max(entries - 1, 1).bit_length(), 4_194_304)
    size = min(size, 16_777_216)
    return (
        f"loadgen run ct-gc-spiral --set settings.cilium.bpf.ctTcpMax={size} "
        f"--set faults.leftovers.entries={min(entries, round(size * 0.95))}"
        + ("" if expired == 1.0 else f" --set faults.leftovers.expired={expired:g}")
    )


HYPOTHESES: tuple[Callable[[Evidence], Hypothesis], ...] = (
    expired_table,
    half_closed,
    api_limiter,
    table_full,
    initial_scan,
    dns_race,
    dns_server,
    nf_table_full,
)
