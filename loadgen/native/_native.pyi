"""Contracts of the C extension. Times are CLOCK_MONOTONIC nanoseconds unless they are called `now` (CT lifetimes)."""

from typing import Final, final

from typing_extensions import Buffer

CT_KEEP: Final = 0
CT_EXPIRED: Final = 1
CT_ADDRESS: Final = 2

PAIRS_DETAILS: tuple[str, ...]
"""The words that `detail` of a lookup's sample counts."""
STORM_DETAILS: Final[tuple[str, ...]]
"""What the `detail` of a Storm's rows indexes; the first is empty."""

@final
class CtWalk(tuple[int, int, int, int, int, bool, int]):
    """What a walk over a conntrack map saw and did. A tuple of seven; `completed` is an attribute only."""

    @property
    def seen(self) -> int:
        """Entries read. More than the map holds when the walk restarted."""
    @property
    def expired(self) -> int:
        """Of these, entries with lifetime < now; 0 when `now` was 0."""
    @property
    def deleted(self) -> int:
        """Entries that this walk deleted; one that vanished first is not counted."""
    @property
    def fallbacks(self) -> int:
        """How often the current key had vanished and the walk resumed from the key before (Cilium: key fallbacks)."""
    @property
    def restarts(self) -> int:
        """How often that key had vanished as well, so that entries may have been read twice (Cilium: interrupts)."""
    @property
    def cancelled(self) -> bool: ...
    @property
    def ns(self) -> int: ...
    @property
    def completed(self) -> bool:
        """The end of the map was reached: neither cancelled nor given up after 4 × capacity lookups."""

def ct_fill(fd: int, keys: Buffer, values: Buffer, batch: int = 65536, cancel: Buffer | None = None) -> int:
    """Write entries into a conntrack map with BPF_MAP_UPDATE_BATCH; returns how many.

    keys: 14 bytes an entry (struct ipv4_ct_tuple); values: 56 bytes an entry (struct ct_entry). Existing keys are
    overwritten. An LRU map evicts rather than refuses, also before it is full. `cancel` is looked at once a batch.
    Raises OSError of bpf(2), ValueError for lengths that do not fit or a map that is no conntrack map.
    """

def ct_walk(
    fd: int,
    capacity: int,
    *,
    batch: int = 0,
    now: int = 0,
    delete: int = CT_KEEP,
    address: int = 0,
    cancel: Buffer | None = None,
) -> CtWalk:
    """Read a conntrack map from end to end and delete what `delete` names, while others insert and delete.

    capacity: max_entries of the map. A walk key by key ends after 4 × capacity lookups at the latest, not completed.
    batch: 0 reads key by key, two system calls an entry (Cilium up to 1.17, DumpReliablyWithCallback); else entries
        per BPF_MAP_LOOKUP_BATCH (from 1.18), doubled up to three times when a hash bucket does not fit.
    now: seconds, in the clock of the entries' `lifetime`; an entry is expired when lifetime < now.
    delete: CT_KEEP, CT_EXPIRED (needs now) or CT_ADDRESS (needs address); each deletion is a call of its own.
    address: int(IPv4Address) that CT_ADDRESS compares with both addresses of a key.
    cancel: a writable buffer whose first 4 bytes end the walk within 1024 entries once they are not zero.
    Raises OSError of bpf(2), ValueError for an argument out of range or a map that is no conntrack map.
    """

@final
class Storm:
    """An open-loop TCP client over one epoll: connect, send the request, read the whole reply, close.

    Sockets belong to the network namespace of the thread that calls `run`. One thread at a time.
    """

    def __new__(
        cls,
        *,
        targets: Buffer,
        request_bytes: int,
        reply_bytes: int,
        close: str,
        timeout_ns: int,
        max_open: int,
    ) -> Storm:
        """targets: 6 bytes each, IPv4 address and port in network order; operation number `seq` goes to number
            seq % their number.

        close: "fin" closes right after the reply, so the client has the TIME_WAIT; "rst" resets (SO_LINGER 0).
        timeout_ns: counts from the moment an operation is started, to the last byte of its reply.
        max_open: while so many connections are open, what is due waits and is started late.
        """

    def push(self, due_ns: Buffer) -> None:
        """Queue operations; `due_ns` holds int64 in ascending order, also from push to push (else ValueError)."""

    def run(self, until_ns: int) -> None:
        """Start what is due, never before it is, and drive what is open.

        Returns when the clock reaches `until_ns`, or earlier when nothing is queued and nothing is open.
        """

    def drain(self) -> bytes:
        """The samples of what has ended since the last call, as SAMPLE_DTYPE rows in the order of ending.

        OK: the whole reply was read. FAIL: refused, reset, closed early, no port or descriptor left, …
        UNKNOWN: timed out or abandoned; done_ns is when it was given up.
        """

    def abandon(self) -> None:
        """End everything open or queued as UNKNOWN, now.

        Detail "abandoned", or "too many open" for what was due and waited for one of `max_open` connections to end.
        """

    def close(self) -> None:
        """Close every socket and free everything, samples not drained included. May be called twice."""

    @property
    def open(self) -> int: ...
    @property
    def queued(self) -> int: ...

@final
class Pairs:
    """An open-loop DNS client over one epoll: an A and an AAAA query per lookup, by UDP, from new sockets.

    What comes after a loss or an error is the resolver's own affair, as loadgen.core.glibc and musl have it, for
    names as they stand and one IPv4 server. Nothing goes by TCP: a truncated reply ends its lookup. Sockets belong to
    the network namespace of the thread that calls `run`. One thread at a time.
    """

    def __new__(
        cls,
        *,
        queries: Buffer,
        per_lookup: int,
        server: Buffer,
        resolver: str,
        mode: int,
        remembers: bool,
        recycles: bool,
        round_ns: int,
        attempts: int,
        limit_ns: int,
        max_open: int,
        seed: int,
    ) -> Pairs:
        """queries: DNS queries, each after its length in two bytes, `per_lookup` (1 or 2, A first) for each name;
            lookup number `seq` sends those of name seq % their number, with ids of its own.
        server: IPv4 address and port, 6 bytes in network order.
        resolver: "glibc": a connected socket, both by one sendmmsg; "musl-1.2.3" or "musl" (1.2.4 and later): one
            that is not connected.
        mode: loadgen.core.lookup.Mode that glibc begins with. remembers: a fallback is for all later lookups too.
        recycles: a socket whose lookup ended well is disconnected, which gives its port back, and connected again for
            another lookup, which takes a new one: on the wire and to conntrack the same as a new socket, and cheaper.
        round_ns: how long glibc waits for a pair, or after how long musl asks again; attempts: how many such rounds.
        limit_ns: a lookup whose round ends so long after it was started is given up, UNKNOWN.
        max_open: while so many lookups are under way, what is due waits and is started late.
        """

    def push(self, due_ns: Buffer) -> None:
        """Queue lookups; `due_ns` holds int64 in ascending order, also from push to push (else ValueError)."""

    def run(self, until_ns: int) -> None:
        """Start what is due, never before it is, and drive what is open.

        Returns when the clock reaches `until_ns`, or earlier when nothing is queued and nothing is open.
        """

    def drain(self) -> bytes:
        """The samples of what has ended since the last call, as SAMPLE_DTYPE rows in the order of ending.

        OK: a record came. `tries` counts rounds, `lost` queries without an answer in their round, and `detail` is the
        place of a word in PAIRS_DETAILS.
        """

    def abandon(self) -> None:
        """End everything open or queued as UNKNOWN, now."""

    def close(self) -> None:
        """Close every socket and free everything, samples not drained included. May be called twice."""

    @property
    def open(self) -> int: ...
    @property
    def queued(self) -> int: ...
    @property
    def sent(self) -> int:
        """Queries handed to the kernel."""
    @property
    def answered(self) -> int:
        """Replies that fitted a query."""

@final
class Responder:
    """A name server on all addresses, by UDP, that has one address for every name; for measuring clients.

    It listens from construction on, in the network namespace of the constructing thread. One thread at a time may
    call `run`; the counter may be read from any.
    """

    def __new__(cls, port: int = 0) -> Responder:
        """port: 0 takes a free one; another may be shared by several responders (SO_REUSEPORT)."""

    def run(self, until_ns: int) -> None:
        """Serve until the clock reaches `until_ns`, give or take 50 ms."""

    def close(self) -> None:
        """Close the socket; the counter stays. May be called twice."""

    @property
    def port(self) -> int: ...
    @property
    def answered(self) -> int:
        """Replies handed to the kernel."""

@final
class Sink:
    """A server on all addresses: answers every `request_bytes` with `reply_bytes`, closes after its peer did.

    It listens from construction on, in the network namespace of the constructing thread. One thread at a time may
    call `run`; the counters may be read from any.
    """

    def __new__(cls, port: int, request_bytes: int, reply_bytes: int, *, ports: int = 1, close: str = "fin") -> Sink:
        """port: the first of `ports` consecutive ones, all served alike; 0 takes a free one, the only one.

        `close` is accepted so that a load's fields fit, and means nothing here.
        """

    def run(self, until_ns: int) -> None:
        """Serve until the clock reaches `until_ns`. Out of descriptors, it stops accepting until a peer leaves."""

    def close(self) -> None:
        """Close every socket; the counters stay. May be called twice."""

    @property
    def accepted(self) -> int: ...
    @property
    def served(self) -> int:
        """Replies handed to the kernel whole."""
    @property
    def open(self) -> int: ...
    @property
    def port(self) -> int:
        """The first of its ports."""

@final
class CtList:
    """Counts what `cilium-dbg bpf ct list` printed, as it streams by, in at most 80 MB whatever comes.

    Rows of `states`, `sources` and `destinations`: 16 bytes of key, then a uint64 count in host order.
    """

    def __new__(cls, *, json: bool = False) -> CtList: ...
    def feed(self, data: Buffer) -> None:
        """Read the next bytes. One thread at a time (else RuntimeError)."""

    def finish(self) -> None:
        """There are no more bytes."""

    @property
    def states(self) -> bytes:
        """Entries by `expires` (uint64) and state (uint64, the bits of core.ctlist.STATE)."""
    @property
    def sources(self) -> bytes:
        """Entries by the originator's address, IPv4 as ::ffff:a.b.c.d."""
    @property
    def destinations(self) -> bytes: ...
    @property
    def ports(self) -> bytes:
        """65536 uint64: entries by the responder's port."""
    @property
    def counts(self) -> dict[str, int]:
        """entries, bad, uncounted (of keys beyond the room for them), last_report, now (-1: no remaining times)."""
    @property
    def complaints(self) -> list[tuple[int, str]]:
        """The first 16 bad ones: (line from 1, or the offset in JSON; what it is)."""
