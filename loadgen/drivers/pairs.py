"""Lookups in C, by the ten thousand a second: glibc's or musl's pair of queries for names as they stand.

`loadgen.native.Pairs` has the sockets and the clock. It does what `core.glibc` and `core.musl` do, without the search
list, TCP and further servers; whatever would need one of these is refused before anything is sent. This module says
when lookups are due, a slice of 100 ms ahead, and hands on what has ended.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Sequence
from contextlib import closing

from loadgen.core import dnswire, resolvconf
from loadgen.core.errors import ConfigError
from loadgen.core.lookup import Mode
from loadgen.core.model import Dns, Resolver
from loadgen.core.pacing import Schedule, pacer
from loadgen.core.ports import Emit, Window
from loadgen.core.resolvconf import ResolvConf
from loadgen.core.samples import SampleBatch
from loadgen.core.units import NS_PER_S
from loadgen.drivers.limits import raise_open_files
from loadgen.native import PAIRS_DETAILS, Pairs

METRIC = "dns.lookup"
SLICE_NS = 100_000_000
EMIT_NS = 250_000_000
GRACE_NS = 250_000_000
MOST_PORTS = 65_536
"""That many lookups can be under way to one server at most."""
FIRST_RELEASE = (2, 34)
"""Of glibc: from here on the wire is the same, but for `strict-error`."""


class PairsDriver:
    """ports.Driver of a Dns load with `via: fast`. Runs in the network namespace of the thread that calls `run`.

    Samples are those of DnsDriver, with the same details. ConfigError when the C loop cannot do what is asked for.
    """

    def __init__(self, load: Dns, resolver: Resolver, servers: Sequence[str], source: str, *, port: int = 53) -> None:
        self._load, self._source = load, source
        self._conf = resolvconf.from_settings(resolver, servers)
        self._stub = resolver.stub
        for why in refusals(load, resolver, self._conf):
            raise ConfigError(f"loads.{source}.via: fast: {why}; use via: wire")
        self._server = ipaddress.IPv4Address(servers[0]).packed + port.to_bytes(2, "big")

    def run(self, window: Window, emit: Emit) -> dict[str, int]:
        """Look up what is due in the window; return when every lookup has ended or was given up."""
        schedule = Schedule(pacer(self._load.pace, window.seed), window.start_ns, window.end_ns, time.monotonic_ns())
        with closing(self._open(window.seed)) as pairs:
            outlet = _Outlet(pairs, window.phase, self._source, emit)
            while not schedule.is_over:
                now_ns = time.monotonic_ns()
                if window.stopped():
                    schedule.end()
                pairs.push(schedule.take_before(now_ns + SLICE_NS, now_ns))
                outlet.run_until(now_ns + SLICE_NS)
                if not pairs.open and not schedule.is_over:
                    time.sleep(max(0, now_ns + SLICE_NS - time.monotonic_ns()) / NS_PER_S)
            last_ns = max(schedule.last_due_ns, time.monotonic_ns())
            give_up_ns = last_ns + int(self._load.timeout) + GRACE_NS
            while (pairs.open or pairs.queued) and (now_ns := time.monotonic_ns()) < give_up_ns:
                outlet.run_until(min(now_ns + SLICE_NS, give_up_ns))
            pairs.abandon()
            outlet.send()
        return {METRIC: schedule.created}

    def _open(self, seed: int) -> Pairs:
        conf, musl = self._conf, self._stub.startswith("musl")
        queries = [_queries(name, conf, plain=musl) for name in self._load.names]
        mode = Mode.REOPEN if conf.single_request_reopen else Mode(int(conf.single_request))
        return Pairs(
            queries=b"".join(dnswire.frame(wire) for of_name in queries for wire in of_name),
            per_lookup=len(queries[0]),
            server=self._server,
            resolver=("musl-1.2.3" if self._stub == "musl-1.2.3" else "musl") if musl else "glibc",
            mode=mode,
            remembers=self._load.state == "long-lived",
            recycles=True,
            round_ns=conf.timeout * NS_PER_S // (conf.attempts if musl else 1),
            attempts=conf.attempts,
            limit_ns=int(self._load.timeout),
            max_open=min(raise_open_files(), MOST_PORTS),
            seed=seed & (1 << 64) - 1,
        )


def refusals(load: Dns, resolver: Resolver, conf: ResolvConf) -> list[str]:
    """What of this the C loop does not do."""
    reads = resolvconf.dialect(resolver.stub)
    known = resolver.stub.startswith(("glibc-", "musl-"))
    why = [] if known else [f"resolver.stub {resolver.stub} is not done in C, only glibc and musl are"]
    if reads.release and reads.release < FIRST_RELEASE:
        why.append(f"{reads.name} is not done in C, only glibc 2.34 and later are")
    if conf.use_vc or conf.strict_error:
        why.append("use-vc and strict-error are not done in C")
    if len(conf.servers) != 1 or ":" in conf.servers[0]:
        why.append("it asks one IPv4 server")
    if not load.names:
        why.append("there is no name to look up")
    for name in load.names:
        known_name = dnswire.name(name)
        if isinstance(known_name, dnswire.Malformed):
            why.append(f"names: {known_name.why}")
        elif not name.endswith("."):
            why.append(f"names: {name!r} would go through the search list; write {name + '.'!r}")
    return why


def _queries(name: str, conf: ResolvConf, *, plain: bool) -> list[bytes]:
    qname = dnswire.name(name)
    assert qname
    types = (dnswire.A,) if conf.no_aaaa else (dnswire.A, dnswire.AAAA)
    edns, authentic = conf.edns0 and not plain, conf.trust_ad and not plain
    return [dnswire.query(0, qname, qtype, edns=edns, authentic=authentic).wire for qtype in types]


class _Outlet:
    """Lets the C loop run, and passes its samples on every quarter of a second."""

    def __init__(self, pairs: Pairs, phase: str, source: str, emit: Emit) -> None:
        self._pairs, self._phase, self._source, self._emit = pairs, phase, source, emit
        self._next_ns = 0

    def run_until(self, until_ns: int) -> None:
        self._pairs.run(until_ns)
        if until_ns >= self._next_ns:
            self._next_ns = until_ns + EMIT_NS
            self.send()

    def send(self) -> None:
        rows = self._pairs.drain()
        if rows:
            self._emit(SampleBatch(METRIC, self._phase, self._source, rows, PAIRS_DETAILS))
