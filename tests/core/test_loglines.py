"""Log lines by name, in the words of 1.16 and of 1.18, of the kubelet and of the kernel."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import night
from loadgen.core.incident import LogFacts
from loadgen.core.loglines import EVENTS, LogReader


def read(text: str, origin: str = "") -> LogFacts:
    reader = LogReader(origin)
    for number, line in enumerate(text.encode().splitlines(), 1):
        reader.line(number, line)
    return reader.facts("f")


def test_the_agents_log() -> None:
    facts = read(night.agent_log())
    assert facts.origin == "agent"
    assert len(facts.intervals_s) == 13
    assert facts.intervals_s[0] == 450
    assert facts.intervals_s[-1] == 43_200
    assert facts.ct_clean_max_s == pytest.approx(72.2)
    event = facts.events["first-regeneration-timeout"]
    assert (event.count, event.first, event.last) == (9, 14, 22)
    assert "endpointID=0" in event.sample


def test_the_kubelets_log() -> None:
    facts = read(night.kubelet_log())
    assert facts.origin == "kubelet"
    assert facts.events["client-timeout"].count == 9


@pytest.mark.parametrize(
    ("line", "event"),
    [
        ("[putEndpointIdTooManyRequests]", "too-many-requests"),
        ('level=fatal msg="Timeout while waiting for initial conntrack scan" subsys=ct-gc', "initial-scan-timeout"),
        ("nf_conntrack: nf_conntrack: table full, dropping packet", "nf-table-full"),
        ("xx drop (CT: Map insertion failed) flow", "insert-failed"),
        ("watchdog: BUG: soft lockup - CPU#3 stuck for 22s!", "soft-lockup"),
        ("Out of memory: Killed process 77 (cilium-agent)", "out-of-memory"),
    ],
)
def test_events(line: str, event: str) -> None:
    assert set(read(line).events) == {event}


def test_a_slog_line_of_1_18() -> None:
    line = (
        'time=2025-11-01T02:00:00Z level=info source=/x.go:1 msg="Conntrack garbage collector interval recalculated" '
    )
    facts = read(line + 'module=agent.datapath newInterval=7m30s deleteRatio=0.01 waitingForCTClean="31.5µs"')
    assert facts.intervals_s == (450.0,)
    assert facts.origin == "agent"


def test_terminal_codes_of_a_log_do_not_reach_the_sample() -> None:
    assert "\x1b" not in read("\x1b[2Jsoft lockup - CPU#1 stuck").events["soft-lockup"].sample


@given(
    st.lists(st.sampled_from([p.replace(b"\\", b"") for p in EVENTS.values()]) | st.binary(max_size=80), max_size=9)
)
def test_any_lines(lines: list[bytes]) -> None:
    reader = LogReader()
    for number, line in enumerate(lines, 1):
        reader.line(number, line)
    assert reader.facts("f").lines == len(lines)
