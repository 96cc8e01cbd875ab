"""Looks at the node, once a second, from inside its network namespace.

A probe is a row of looks, each at one part of the node: the agent model, netfilter, the lab's DNS servers, the CT
tables. Which of them there are depends on the place: a real Cilium has tables and no model, a plain cluster neither.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from loadgen import native
from loadgen.core import agentapi, dnswire
from loadgen.core.cilium import batch_size
from loadgen.core.errors import HarnessError
from loadgen.core.ports import Emit, Window
from loadgen.core.samples import Mark, Reading, Span
from loadgen.core.units import NS_PER_S, format_count, format_duration
from loadgen.kernel import bpf, nfct, nft, unixhttp

EVERY_S = 1.0
COUNT_SHARE = 0.05
"""Counting a table is a walk of our own. All counts together may take this share of one CPU."""

T = TypeVar("T")
Seen = Reading | Mark | Span

DNS_TIMEOUT_S = 1.0

TABLES = {"tcp": bpf.TCP_MAP, "any": bpf.ANY_MAP}


class Look(Protocol):
    """One part of the node. What is not there is left out of the readings, never made up."""

    def look(self, *, now: bool) -> Iterator[Seen]:
        """What can be said at the moment; with `now` also what is rarely looked at, for it costs something."""
        ...


class NodeProbe:
    """ports.Driver without operations: `run` looks until it is stopped.

    It raises HarnessError when an agent that should be there does not answer.
    """

    def __init__(self, looks: Sequence[Look]) -> None:
        self._looks = looks

    def run(self, window: Window, emit: Emit) -> dict[str, int]:
        while True:
            # Asked before the look: the last look comes after the stop, so that the end of the run is seen too.
            stopped = window.stopped()
            began = time.monotonic()
            for message in self._look(last=stopped):
                emit(message)
            if stopped:
                return {}
            time.sleep(max(0.05, EVERY_S - (time.monotonic() - began)))

    def _look(self, *, last: bool) -> Iterator[Seen]:
        """What a GC pass left, and what the run ends with, must not wait for the next count's turn."""
        passes = 0
        for look in self._looks:
            for message in look.look(now=last or passes > 0):
                passes += isinstance(message, Mark)
                yield message


class AgentLook:
    """The agent model: its state, its spans, and a mark at the end of each GC pass. First in the row of looks."""

    def __init__(self, socket_path: Path) -> None:
        self._socket = socket_path
        self._spans_seen = 0

    def look(self, *, now: bool) -> Iterator[Seen]:  # noqa: ARG002 - the protocol's
        yield from self._state()
        yield from self._spans()

    def _state(self) -> Iterator[Reading]:
        state = self._ask("/v1/loadgen/state", agentapi.AgentState)
        values = {
            "agent.gc.interval": state.gc.interval_ns / NS_PER_S,
            "agent.gc.runs": state.gc.runs,
            "agent.lock.waiters": state.lock_waiters,
            "agent.build.waiters": state.build_waiters,
            "agent.endpoints": sum(state.endpoints.values()),
            "ct.created": state.created,
            "ct.create_failed": state.create_failed,
        }
        for series, value in values.items():
            yield Reading(state.t_ns, series, float(value))

    def _spans(self) -> Iterator[Mark | Span]:
        page = self._ask(f"/v1/loadgen/spans?after={self._spans_seen}", agentapi.SpanPage)
        if page.first > self._spans_seen:
            raise HarnessError(f"the agent dropped spans {self._spans_seen} to {page.first}; the probe was too slow")
        self._spans_seen = page.next
        for span in page.spans:
            yield span
            if span.op == "gc" and span.stage == "total":
                took = format_duration((span.end_ns - span.start_ns) / NS_PER_S)
                yield Mark(span.end_ns, "gc", span.ref, f"{format_count(span.deleted)} entries deleted in {took}")

    def _ask(self, target: str, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(unixhttp.get(self._socket, target), type=kind)
        except (OSError, ValueError) as error:
            raise HarnessError(f"the agent does not answer GET {target}: {error}") from error


class NetfilterLook:
    """nf_conntrack's counters, and those of the emulated race: `race` is its nft table and counter, if it may be."""

    def __init__(self, race: tuple[str, str] | None) -> None:
        self._race = race

    def look(self, *, now: bool) -> Iterator[Seen]:  # noqa: ARG002 - the protocol's
        t_ns = time.monotonic_ns()
        with contextlib.suppress(FileNotFoundError):
            found = nfct.read(None)
            for name in ("entries", "insert_failed", "drop", "clash_resolve", "early_drop"):
                yield Reading(t_ns, f"nfct.{name}", float(getattr(found, name)))
        if self._race is None:
            return
        table, counter = self._race
        # The table is the fault's: before it is injected and after it is healed there is nothing to read.
        with contextlib.suppress(HarnessError):
            counters = nft.counters(None, table)
            if counter in counters:
                yield Reading(t_ns, "race.drops", float(counters[counter].packets))


class DnsServersLook:
    """The lab's DNS servers, each of which counts its queries. One too slow to answer in time is left out."""

    def __init__(self, servers: Sequence[tuple[str, int]]) -> None:
        self._servers = servers

    def look(self, *, now: bool) -> Iterator[Seen]:  # noqa: ARG002 - the protocol's
        t_ns = time.monotonic_ns()
        try:
            found = [dns_stats(server) for server in self._servers]
        except TimeoutError:
            return
        for series, qtype in (("dns.server.a", "A"), ("dns.server.aaaa", "AAAA")):
            yield Reading(t_ns, series, float(sum(s.queries.get(qtype, 0) for s in found)))


def dns_stats(server: tuple[str, int]) -> dnswire.ServerStats:
    """What one of the lab's DNS servers has counted. TimeoutError when it does not say so within a second."""
    asked = dnswire.query(1, dnswire.STATS_NAME, dnswire.TXT, qclass=dnswire.CH)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(DNS_TIMEOUT_S)
        sock.connect(server)
        sock.send(asked.wire)
        text = dnswire.strings(sock.recv(4096))
    if isinstance(text, dnswire.Malformed):
        raise HarnessError(f"DNS server {server[0]} answers its own statistics with garbage: {text.why}")
    return msgspec.json.decode(text, type=dnswire.ServerStats)


class TablesLook:
    """The CT tables pinned in a folder. After AgentLook: a GC pass that it has seen makes a count due."""

    def __init__(self, pins: Path) -> None:
        self._counters = {name: TableCounter(pins / pin) for name, pin in TABLES.items()}

    def look(self, *, now: bool) -> Iterator[Seen]:
        for name, counter in self._counters.items():
            yield from counter.readings(name, now=now)


class TableCounter:
    """Counts a pinned table now and then: the bigger the table, the rarer."""

    def __init__(self, pin: Path) -> None:
        self._pin = pin
        self._next = 0.0

    def readings(self, name: str, *, now: bool) -> Iterator[Reading]:
        """Entries and the share of them that has expired, when a count is due or `now`, and there is a table."""
        if time.monotonic() < self._next and not now:
            return
        began = time.monotonic()
        try:
            fd = bpf.obj_get(self._pin)
        except FileNotFoundError:
            return
        try:
            capacity = bpf.map_info(fd).max_entries
            walk = native.ct_walk(fd, capacity=capacity, batch=batch_size(capacity), now=int(time.monotonic()))
        finally:
            os.close(fd)
        took = time.monotonic() - began
        self._next = began + max(EVERY_S / 2, took / COUNT_SHARE)
        t_ns = time.monotonic_ns()
        yield Reading(t_ns, f"ct.{name}.entries", float(walk.seen))
        yield Reading(t_ns, f"ct.{name}.expired_share", walk.expired / walk.seen if walk.seen else 0.0)
