"""The diagnosis as text: complete, in order, and harmless to a terminal."""

from __future__ import annotations

from loadgen.core import diagnosis
from loadgen.core.dnscapture import DnsStory
from loadgen.core.incident import Evidence, Kind, Problem
from loadgen.report.diagnosis import render

STORY = DnsStory("\x1b[2Jpcap", 900, 400, 393, 200, 7, 7, 0, 0, (("after 2.5 s", 7),), (("musl", 7),))


def test_everything_is_said_and_nothing_steers_the_terminal() -> None:
    problem = Problem("torn.txt", "line 7", "a torn conntrack entry")
    found = diagnosis.diagnose(Evidence(dns=(STORY,)), ((STORY.file, Kind.CAPTURE),), (problem,), skipped=3)
    text = render(found)
    assert "\x1b" not in text
    assert "torn.txt: line 7: a torn conntrack entry" in text
    assert "and 3 members of archives" in text
    assert "LIKELY  dns-race" in text
    assert "as musl does" in text
    assert "musl knows no such option" in text
    assert "reproduce  loadgen run dns-race" in text
    assert "No evidence for or against: expired-table" in text
    assert text.splitlines()[-1].startswith("Likely: dns-race")


def test_nothing_known() -> None:
    assert render(diagnosis.diagnose(Evidence(), (), ())).endswith("No known cause: give more evidence\n")
