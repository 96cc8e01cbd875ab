"""The stub resolvers by name, and the processes that use them: whose state a lookup has, and whether it has to wait.

glibc-2.31 … 2.42   getaddrinfo; a state for each thread
musl-1.2.3, -1.2.5  getaddrinfo; remembers nothing (1.2.5 stands for 1.2.4 and later)
go                  net.Resolver without cgo
c-ares              ares_getaddrinfo, one channel
node                dns.lookup: glibc's getaddrinfo in libuv's pool of four threads, two of them at once
node-resolve        dns.promises.resolve4 and resolve6 at once: c-ares
java                InetAddress: glibc's getaddrinfo, and a cache in front of it
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec

from loadgen.core import cares, dialects, glibc, golang, musl, resolvconf
from loadgen.core.lookup import Dialogue, Error, Result, Steps
from loadgen.core.resolvconf import ResolvConf
from loadgen.core.units import NS_PER_S

State = glibc.ResolverState | golang.GoState | cares.Channel

NODE_THREADS, NODE_AT_ONCE = 4, 2
"""UV_THREADPOOL_SIZE, and libuv's limit for slow work, half of it: the other threads are kept for files."""
JAVA_POSITIVE_S, JAVA_NEGATIVE_S = 30, 10
"""networkaddress.cache.ttl and its negative twin, as they are when nobody sets them."""


def parse(stub: str, content: str, environ: Mapping[str, str] | None = None) -> ResolvConf:
    """A resolv.conf as this resolver reads it; some look at RES_OPTIONS and LOCALDOMAIN of `environ` as well."""
    reads = resolvconf.dialect(stub)
    if reads.release:
        return resolvconf.parse(content, reads.release, environ)
    if reads is resolvconf.MUSL:
        return dialects.parse_musl(content)
    return dialects.parse_go(content) if reads is resolvconf.GO else dialects.parse_cares(content, environ)


def new_state(stub: str) -> State:
    """What a new thread, process or channel knows."""
    if stub == "go":
        return golang.GoState()
    return cares.Channel() if stub in ("c-ares", "node-resolve") else glibc.ResolverState()


def lookup(stub: str, name: str, conf: ResolvConf, state: State, rng: random.Random) -> Dialogue:
    """One lookup by this resolver; `state` is of `new_state`."""
    if stub.startswith("musl"):
        return musl.Lookup(name, conf, rng, by_tcp=stub != "musl-1.2.3")
    if isinstance(state, golang.GoState):
        return golang.Lookup(name, conf, state, rng)
    if isinstance(state, cares.Channel):
        return cares.Lookup(name, conf, state, rng, cares.NODE if stub == "node-resolve" else cares.Settings())
    return glibc.Lookup(name, conf, state, rng, glibc.Release(resolvconf.dialect(stub).release))


class Ticket(msgspec.Struct, frozen=True):
    """A lookup that may begin; `end` wants it back."""

    name: str
    lookup: Dialogue
    thread: int


class _Known(Dialogue):
    """An answer from a cache: nothing is sent."""

    def __init__(self, rng: random.Random, result: Result) -> None:
        super().__init__(rng)
        self._known = result

    def _run(self) -> Steps[Error]:
        yield from ()
        return self._known.error

    def _result(self, error: Error) -> Result:  # noqa: ARG002 - it is the same that is known
        return msgspec.structs.replace(self._known, rounds=())


class Process:
    """Lookups by one long-lived process, or with `fresh` by a new process each.

    A long-lived glibc, Go or c-ares is one state for all, which any number of lookups use at once; so is Java's, but
    for names that are being looked up or are known. Node has four threads with a state each, and two lookups at once.
    """

    def __init__(self, stub: str, conf: ResolvConf, rng: random.Random, *, fresh: bool) -> None:
        self._stub, self._conf, self._rng, self._fresh = stub, conf, rng, fresh
        self._states = [new_state(stub) for _ in range(NODE_THREADS if stub == "node" else 1)]
        self._idle = list(range(len(self._states)))
        self._pooled = stub == "node" and not fresh
        self._caches = stub == "java" and not fresh
        self._pending: set[str] = set()
        self._known: dict[str, tuple[int, Result]] = {}

    @property
    def busy(self) -> bool:
        """No lookup at all can begin before another has ended."""
        return self._pooled and len(self._states) - len(self._idle) >= NODE_AT_ONCE

    def begin(self, name: str, now_ns: int) -> Ticket | None:
        """The lookup; None when it has to wait until another has ended."""
        if self.busy or (self._caches and name in self._pending):
            return None
        until_ns, known = self._known.get(name, (0, None))
        if known is not None and now_ns < until_ns:
            return Ticket(name, _Known(self._rng, known), -1)
        thread = self._idle.pop(0) if self._pooled else 0
        if self._caches:
            self._pending.add(name)
        state = new_state(self._stub) if self._fresh else self._states[thread]
        return Ticket(name, lookup(self._stub, name, self._conf, state, self._rng), thread)

    def end(self, ticket: Ticket, result: Result, now_ns: int) -> None:
        """It is over, or was abandoned."""
        if ticket.thread < 0:
            return
        if self._pooled:
            self._idle.append(ticket.thread)
        if self._caches:
            self._pending.discard(ticket.name)
            keeps_s = JAVA_NEGATIVE_S if result.error else JAVA_POSITIVE_S
            if result.error is not Error.ABANDONED:
                self._known[ticket.name] = (now_ns + keeps_s * NS_PER_S, result)
