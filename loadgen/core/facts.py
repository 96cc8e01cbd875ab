"""What each file of an incident says by itself, in short sentences, before anything is concluded from it."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from loadgen.core import ctlist, gostacks
from loadgen.core.ctlist import CtTable
from loadgen.core.gostacks import Role
from loadgen.core.incident import Evidence, Goroutines
from loadgen.core.readout import Metric, conntrack_growth, gc_interval, metric_growth, metric_last
from loadgen.core.units import format_count, format_duration

TOP_STACKS = 3
_RUNS = "cilium_datapath_conntrack_gc_runs_total"


class Facts(msgspec.Struct, frozen=True):
    file: str
    lines: tuple[str, ...]


def of(evidence: Evidence) -> tuple[Facts, ...]:
    """The facts of every file with evidence in it, in the order of kinds."""
    found = [Facts(table.file, tuple(_table(table, evidence.uptime_s))) for table in evidence.tables]
    found += [Facts(dump.file, tuple(_goroutines(dump))) for dump in evidence.goroutines]
    for status in evidence.statuses:
        sizes = [
            f"{name}: {format_count(size)}" for name, size in status.sizes.items() if "connection tracking" in name
        ]
        dynamic = "off or not said" if status.ratio is None else f"on, ratio {status.ratio:g}"
        found.append(Facts(status.file, (f"dynamic sizing: {dynamic}", *sizes)))
    if evidence.metrics:
        found.append(Facts(evidence.metrics[-1].file, tuple(_metrics(evidence))))
    for log in evidence.logs:
        events = [f"{e.name}: {e.count}x, lines {e.first} to {e.last}" for e in log.events.values()]
        found.append(Facts(log.file, (f"{format_count(log.lines)} lines", *events)))
    growth = conntrack_growth(evidence)
    if growth is not None:
        rises = ", ".join(f"{name} +{rise}" for name, rise in growth[0].items() if rise) or "no counter rose"
        found.append(Facts(growth[1], (rises,)))
    elif evidence.conntrack:
        found.append(Facts(evidence.conntrack[0].file, ("one snapshot: give one from before and one from after",)))
    for story in evidence.dns:
        says = f"{format_count(story.queries)} queries, {format_count(story.answered)} answered; "
        says += f"{format_count(story.pairs)} pairs of A and AAAA from one port: {story.one_lost} lost one answer, "
        says += f"{story.both_lost} both"
        retries = [f"asked again {how}: {count}x" for how, count in story.retries[:5]]
        votes = ", ".join(f"{name} ({count} retries)" for name, count in story.libc)
        found.append(Facts(story.file, (says, *retries, *([f"retries as of {votes}"] if votes else []))))
    return tuple(found)


def _table(table: CtTable, uptime_s: int | None) -> Iterator[str]:
    view = ctlist.view(table, uptime_s)
    now = "unknown" if view.now_s is None else view.now_s
    yield f"{format_count(view.entries)} entries; now is {now} s ({view.how})"
    if uptime_s is not None and view.entries and table.last_report > uptime_s * 1.05 + 60:
        yield f"an entry reports a packet at {table.last_report}, later: wrong --uptime, or bpfClockProbe (jiffies)"
    if view.expired is not None and view.entries:
        yield f"expired: {format_count(view.expired)} ({view.expired / view.entries:.1%})"
        ages = ", ".join(f"{name} {format_count(count)}" for name, count in view.ages if count)
        if ages:
            yield f"expired since: {ages}"
    half = f"half closed {format_count(view.half_closed)}"
    if view.half_closed_alive is not None:
        half += f" ({format_count(view.half_closed_alive)} not expired)"
    yield (
        f"TCP {format_count(view.tcp)}: established {format_count(view.established)}, {half}, closed on both sides "
        f"{format_count(view.closed)}, only SYN {format_count(view.syn)}"
    )
    rest = (("service", view.service), ("related", view.related), ("not TCP", view.other))
    yield ", ".join(f"{name} {format_count(count)}" for name, count in rest)
    for title, pairs in (
        ("top sources", table.sources),
        ("top peers", table.destinations),
        ("top ports", table.ports),
    ):
        if pairs:
            yield f"{title}: " + ", ".join(f"{name} {format_count(count)}" for name, count in pairs[:5])


def _goroutines(dump: Goroutines) -> Iterator[str]:
    roles = gostacks.roles(dump)
    yield f"{format_count(dump.total)} goroutines at {len(dump.stacks)} stacks"
    yield f"{roles.holds} walk the CT table, {roles.waits} wait for its lock" + (
        f" (the longest {roles.minutes} min)" if roles.minutes else ""
    )
    yield f"{roles.creates} creates wait, {roles.limited} in the API limiter, {roles.permits} for a build permit"
    known = [(stack, role) for stack in dump.stacks if (role := gostacks.role(stack)) is not Role.OTHER]
    for stack, role in known[:TOP_STACKS]:
        short = " < ".join(frame.rsplit("/", 1)[-1] for frame in stack.frames[:6])
        yield f"{stack.count}x {role.value}: {short}"


def _metrics(evidence: Evidence) -> Iterator[str]:
    if len(evidence.metrics) < 2:
        yield "one page: rates need a second one"
    for family in ("ipv4", "ipv6"):
        for protocol in ("TCP", "non-TCP"):
            for status in ("completed", "uncompleted"):
                runs = Metric(_RUNS, family=(family,), protocol=(protocol,), status=(status,))
                grown = metric_growth(evidence, runs)
                if grown is not None and any(runs.of(page) for page in evidence.metrics):
                    what = f"table walks, {family} {protocol} {status}"
                    yield f"{what}: +{format_count(grown[0])} (GC and endpoints alike)"
    interval, where = gc_interval(evidence)
    if interval is not None:
        yield f"longest GC interval told: {format_duration(interval)} ({where})"
    for name, metric in (
        ("alive after the last walk", Metric("cilium_datapath_conntrack_gc_entries", status=("alive",))),
        ("deleted by the last walk", Metric("cilium_datapath_conntrack_gc_entries", status=("deleted",))),
        (
            "pressure of the fullest CT map",
            Metric("cilium_bpf_map_pressure", map_name=("ct4_global", "ct_any4_global")),
        ),
        (
            "limiter's adjustment of endpoint-create",
            Metric("cilium_api_limiter_adjustment_factor", api_call=("endpoint-create",)),
        ),
    ):
        last = metric_last(evidence, metric)
        if last is not None:
            yield f"{name}: {format_count(last[0])}"
