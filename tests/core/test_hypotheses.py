"""Each cause from evidence that is as clear, as weak and as contrary as it comes; facts and exit codes with them."""

from __future__ import annotations

import shlex

import numpy as np
import pytest

from loadgen.core import diagnosis, facts, hypotheses, readout
from loadgen.core.ctlist import CtTable
from loadgen.core.dnscapture import DnsStory
from loadgen.core.hypotheses import Standing
from loadgen.core.incident import Conntrack, Event, Evidence, Goroutines, LogFacts, MetricsPage, Stack, Status
from loadgen.scenarios import loader

LIMITED = ("rate.(*APILimiter).wait", "daemon/cmd.(*putEndpointIDHandler).Handle")
WAITS = ("sync.(*Mutex).Lock", "ctmap.doGC4", "endpoint.scrubIPsInConntrackTable")


def table(expired: int, alive: int, half: int = 0) -> CtTable:
    rows = [(100, 7, expired), (9_000, 4, alive), (9_000, 6, half)]
    states = np.array(rows, dtype=[("expires", "u8"), ("state", "u8"), ("count", "u8")]).tobytes()
    return CtTable("ct", expired + alive + half, 0, 0, states, (("10.0.0.1", 3),), (), ((50010, 3),), 990, 1000)


def log(*names: str, origin: str = "agent", **fields: object) -> LogFacts:
    events = {name: Event(name, 3, 7, 9, "as it says") for name in names}
    return LogFacts("log", origin, 100, events, **fields)  # type: ignore[arg-type]


def dump(*stacks: tuple[int, tuple[str, ...]]) -> Goroutines:
    return Goroutines("gops", sum(n for n, _ in stacks), tuple(Stack(n, "select", frames) for n, frames in stacks))


def page(name: str, **samples: float) -> MetricsPage:
    labels = (("api_call", "endpoint-create"), ("outcome", "fail-limit-wait"), ("reason", "CT: Map insertion failed"))
    return MetricsPage(name, {(metric, labels): value for metric, value in samples.items()})


def story(one: int, both: int = 0, *, second: int | None = None, other: int = 0, libc: str = "glibc") -> DnsStory:
    second = one if second is None else second
    return DnsStory("pcap", 900, 400, 390, 200, one, second, both, other, (("after 5.0 s", one),), ((libc, one),))


def stat(file: str, **counters: int) -> Conntrack:
    return Conntrack(file, counters)


REFUSED, DROPS = "cilium_api_limiter_processed_requests_total", "cilium_drop_count_total"
STATUS = Status("status", 0.005, {"TCP connection tracking": 1_000_000})
CASES = [
    ("expired-table", Evidence(tables=(table(900_000, 10_000),)), Standing.LIKELY),
    ("expired-table", Evidence(tables=(table(900_000, 10_000), table(10, 900))), Standing.LIKELY),
    ("expired-table", Evidence(tables=(table(900, 10),)), Standing.POSSIBLE),
    ("expired-table", Evidence(tables=(table(10, 900),)), Standing.UNLIKELY),
    ("expired-table", Evidence(goroutines=(dump((56, WAITS)),)), Standing.LIKELY),
    ("expired-table", Evidence(goroutines=(dump((56, WAITS)),), tables=(table(1, 999),)), Standing.POSSIBLE),
    ("expired-table", Evidence(goroutines=(dump((56, LIMITED)),)), Standing.UNLIKELY),
    ("expired-table", Evidence(logs=(log(intervals_s=(450.0, 43_200.0)),)), Standing.POSSIBLE),
    ("expired-table", Evidence(logs=(log(intervals_s=(60.0,)),)), Standing.UNLIKELY),
    ("expired-table", Evidence(logs=(log(ct_clean_max_s=72.0),)), Standing.LIKELY),
    ("expired-table", Evidence(), Standing.UNKNOWN),
    ("half-closed", Evidence(tables=(table(0, 10_000, 900_000),)), Standing.LIKELY),
    ("half-closed", Evidence(tables=(table(0, 100, 900),)), Standing.POSSIBLE),
    ("half-closed", Evidence(tables=(table(0, 100),)), Standing.UNLIKELY),
    ("api-limiter", Evidence(logs=(log("too-many-requests"),)), Standing.LIKELY),
    ("api-limiter", Evidence(goroutines=(dump((41, LIMITED)),)), Standing.LIKELY),
    ("api-limiter", Evidence(goroutines=(dump((4, LIMITED), (56, WAITS)),)), Standing.POSSIBLE),
    ("api-limiter", Evidence(metrics=(page("a", **{REFUSED: 3}), page("b", **{REFUSED: 9}))), Standing.LIKELY),
    ("api-limiter", Evidence(metrics=(page("a", **{REFUSED: 3}), page("b", **{REFUSED: 3}))), Standing.UNLIKELY),
    ("api-limiter", Evidence(metrics=(page("a", **{REFUSED: 3}),)), Standing.UNKNOWN),
    ("table-full", Evidence(tables=(table(900_000, 99_000),), statuses=(STATUS,)), Standing.LIKELY),
    ("table-full", Evidence(tables=(table(900, 99),), statuses=(STATUS,)), Standing.UNLIKELY),
    ("table-full", Evidence(tables=(table(900_000, 99_000),)), Standing.UNKNOWN),
    ("table-full", Evidence(logs=(log("insert-failed"),)), Standing.POSSIBLE),
    ("table-full", Evidence(metrics=(page("a", **{DROPS: 3}), page("b", **{DROPS: 1}))), Standing.LIKELY),
    ("initial-scan", Evidence(logs=(log("initial-scan-timeout"),)), Standing.LIKELY),
    ("initial-scan", Evidence(logs=(log(),)), Standing.UNLIKELY),
    ("initial-scan", Evidence(logs=(log(origin="kubelet"),)), Standing.UNKNOWN),
    ("dns-race", Evidence(dns=(story(7),)), Standing.LIKELY),
    ("dns-race", Evidence(dns=(story(7, second=3),)), Standing.POSSIBLE),
    ("dns-race", Evidence(dns=(story(2),)), Standing.POSSIBLE),
    ("dns-race", Evidence(dns=(story(0),)), Standing.UNLIKELY),
    ("dns-race", Evidence(conntrack=(stat("a", insert_failed=1, drop=1), stat("b", insert_failed=9, drop=9))),
     Standing.LIKELY),
    ("dns-race", Evidence(conntrack=(stat("a", insert_failed=1), stat("b", insert_failed=9))), Standing.POSSIBLE),
    ("dns-race", Evidence(dns=(story(7),), conntrack=(stat("a", drop=1), stat("b", drop=1))), Standing.POSSIBLE),
    ("dns-race", Evidence(conntrack=(stat("a", drop=1),)), Standing.UNKNOWN),
    ("dns-server", Evidence(dns=(story(0, both=9),)), Standing.LIKELY),
    ("dns-server", Evidence(dns=(story(1, both=1),)), Standing.POSSIBLE),
    ("dns-server", Evidence(dns=(story(7),)), Standing.UNLIKELY),
    ("nf-conntrack-full", Evidence(logs=(log("nf-table-full", origin="kernel"),)), Standing.LIKELY),
    ("nf-conntrack-full", Evidence(logs=(log(origin="kernel"),)), Standing.UNLIKELY),
    ("nf-conntrack-full", Evidence(logs=(log(),)), Standing.UNKNOWN),
]  # fmt: skip


@pytest.mark.parametrize(("which", "evidence", "standing"), CASES)
def test_standing(which: str, evidence: Evidence, standing: Standing) -> None:
    found = {h.id: h for h in hypotheses.weigh(evidence)}[which]
    assert found.standing is standing, found
    assert bool(found.for_) == (standing in (Standing.LIKELY, Standing.POSSIBLE))


def test_no_evidence_makes_no_cause() -> None:
    nothing = diagnosis.diagnose(Evidence(), (), ())
    assert nothing.causes == ()
    assert nothing.exit_code == 5
    assert {h.standing for h in nothing.hypotheses} == {Standing.UNKNOWN}


@pytest.mark.parametrize(
    ("evidence", "code"),
    [
        (Evidence(tables=(table(900_000, 1),)), 1),
        (Evidence(tables=(table(9, 1),)), 5),
        (Evidence(tables=(table(0, 100),)), 0),
    ],
)
def test_exit_codes(evidence: Evidence, code: int) -> None:
    assert diagnosis.diagnose(evidence, (), ()).exit_code == code


@pytest.mark.parametrize("evidence", [Evidence(), *(evidence for _, evidence, _ in CASES)])
def test_every_command_it_gives_is_one_that_loadgen_takes(evidence: Evidence) -> None:
    for found in hypotheses.weigh(evidence):
        words = shlex.split(found.reproduce)
        if words[0] == "none":
            continue
        assert words[:2] == ["loadgen", "run"]
        assert set(words[3::2]) <= {"--set"}
        scenario = loader.load(words[2], words[4::2])
        assert scenario.name == words[2]


def test_a_counter_that_was_reset_counts_from_zero() -> None:
    pages = tuple(page(f"p{value}", **{DROPS: value}) for value in (100, 130, 5, 6))
    assert readout.metric_growth(Evidence(metrics=pages), readout.Metric(DROPS)) == (36, "p100 to p6")


def test_pages_of_different_agents_are_not_compared() -> None:
    one, two = page("one", **{DROPS: 5, "process_start_time_seconds": 100}), page("two", **{DROPS: 900})
    other = page("other", **{DROPS: 7, "process_start_time_seconds": 200})
    again = page("again", **{DROPS: 6, "process_start_time_seconds": 100})
    metric = readout.Metric(DROPS)
    assert readout.metric_growth(Evidence(metrics=(one, other, two)), metric) is None
    assert readout.metric_growth(Evidence(metrics=(one, other, again)), metric) == (1, "one to again")


def test_snapshots_of_different_members_are_not_compared() -> None:
    pages = tuple(Conntrack(f"s.zip:{name}", {"drop": drop}, f"s.zip:{name}") for name, drop in (("a", 1), ("b", 9)))
    assert readout.conntrack_growth(Evidence(conntrack=pages)) is None
    same = (pages[0], Conntrack("s.zip:a (2)", {"drop": 4}, "s.zip:a"))
    assert readout.conntrack_growth(Evidence(conntrack=same)) == ({"drop": 3}, "s.zip:a to s.zip:a (2)")


def test_facts_of_every_kind() -> None:
    evidence = Evidence(
        tables=(table(900, 100),),
        goroutines=(dump((56, WAITS)),),
        statuses=(STATUS,),
        metrics=(
            page("m1", cilium_bpf_map_pressure=0.5),
            page("m2", cilium_datapath_conntrack_gc_interval_seconds=60),
        ),
        logs=(log("nf-table-full"),),
        conntrack=(stat("before", drop=1), stat("after", drop=4)),
        dns=(story(7),),
    )
    said = {found.file: "\n".join(found.lines) for found in facts.of(evidence)}
    assert "expired: 900 (90.0%)" in said["ct"]
    assert "top ports: 50010 3" in said["ct"]
    assert "56 wait for its lock" in said["gops"]
    assert "TCP connection tracking: 1,000,000" in said["status"]
    assert "longest GC interval told: 1m (m2)" in said["m2"]
    assert "nf-table-full: 3x, lines 7 to 9" in said["log"]
    assert said["before to after"] == "drop +3"
    assert "7 lost one answer" in said["pcap"]
