"""The lines of agent, kubelet, containerd and kernel logs that bear on conntrack, by name.

Wordings are those of Cilium 1.14 to 1.20, of the kubelet and of the kernel, seen on running ones. A new event is a
row.
"""

from __future__ import annotations

import re

from loadgen.core.incident import Event, LogFacts
from loadgen.core.units import Duration

EVENTS: dict[str, bytes] = {
    "client-timeout": rb"Cilium API client timeout exceeded",
    "too-many-requests": rb"(?:put|delete)EndpointIdTooManyRequests|(?:put|delete)EndpointID?TooManyRequests",
    "first-regeneration-timeout": rb"timeout while waiting for initial endpoint generation",
    "create-cancelled": rb"Cancelled endpoint create request due to receiving endpoint delete request",
    "initial-scan-timeout": rb"Timeout while waiting for initial conntrack scan",
    "interval": rb"Conntrack garbage collector interval recalculated",
    "ct-clean": rb"waitingForCTClean",
    "insert-failed": rb"CT: Map insertion failed",
    "sandbox-failed": rb"[Ff]ailed to create pod sandbox|FailedCreatePodSandBox|CreatePodSandbox\w* .*failed",
    "deadline": rb"context deadline exceeded",
    "nf-table-full": rb"nf_conntrack: table full, dropping packet",
    "out-of-memory": rb"Out of memory: Killed process|oom-kill:",
    "soft-lockup": rb"soft lockup - CPU#\d+ stuck",
}
_ANY = re.compile(b"|".join(b"(" + pattern + b")" for pattern in EVENTS.values()))
_NAMES = tuple(EVENTS)
_INTERVAL = re.compile(rb'newInterval="?([0-9.]+(?:ns|us|\xc2\xb5s|ms|s|m|h)(?:[0-9.]+(?:ms|s|m|h))*)')
_CT_CLEAN = re.compile(rb'waitingForCTClean="?([0-9.]+(?:ns|us|\xc2\xb5s|ms|s|m|h)(?:[0-9.]+(?:ms|s|m|h))*)')
_ORIGIN = re.compile(rb"(?P<agent>\bsubsys=|\bmodule=agent)|(?P<kubelet>\bkubelet\b|^[IWEF]\d{4} \d\d:)")
SAMPLE_CHARACTERS = 120


class LogReader:
    """Feed it lines; bounded, whatever comes."""

    def __init__(self, origin: str = "") -> None:
        self._origin = origin
        self._events: dict[str, Event] = {}
        self._intervals: list[float] = []
        self._ct_clean = 0.0
        self._lines = 0

    def line(self, number: int, line: bytes) -> None:
        """One line without its newline; `number` counts from 1."""
        self._lines += 1
        if not self._origin and (found := _ORIGIN.search(line)):
            self._origin = str(found.lastgroup)
        for found in _ANY.finditer(line):
            self._count(_NAMES[(found.lastindex or 1) - 1], number, line)

    def facts(self, file: str) -> LogFacts:
        return LogFacts(file, self._origin, self._lines, dict(self._events), tuple(self._intervals), self._ct_clean)

    def _count(self, name: str, number: int, line: bytes) -> None:
        before = self._events.get(name)
        if before is None:
            text = line.decode("utf-8", "replace").strip()[:SAMPLE_CHARACTERS]
            self._events[name] = Event(name, 1, number, number, "".join(c if c.isprintable() else "?" for c in text))
        else:
            self._events[name] = Event(name, before.count + 1, before.first, number, before.sample)
        if name == "interval" and len(self._intervals) < 1000 and (seconds := _seconds(_INTERVAL, line)) is not None:
            self._intervals.append(seconds)
        if name == "ct-clean":
            self._ct_clean = max(self._ct_clean, _seconds(_CT_CLEAN, line) or 0.0)


def _seconds(pattern: re.Pattern[bytes], line: bytes) -> float | None:
    found = pattern.search(line)
    if found is None:
        return None
    try:
        return Duration.parse(found[1].replace(b"\xc2\xb5", b"u").decode()).seconds
    except (ValueError, OverflowError):
        return None
