"""What the files of an incident say, as values: one Record a kind of file, and the text kinds' recognition.

Readers in `loadgen.diagnose` fill these in; `core.hypotheses` weighs them. Nothing here reads a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum

import msgspec

from loadgen.core.ctlist import CtTable
from loadgen.core.dnscapture import DnsStory

HEAD_BYTES = 65_536
"""How much of a file's beginning decides its kind."""


class Kind(Enum):
    CT_TEXT = "cilium-dbg bpf ct list"
    CT_JSON = "cilium-dbg bpf ct list -o json"
    GOROUTINES = "goroutine dump"
    STATUS = "cilium status --verbose"
    METRICS = "metrics page"
    CONNTRACK = "conntrack -S"
    DMESG = "kernel log"
    LOG = "agent or kubelet log"
    CAPTURE = "packet capture"
    ZIP = "zip archive"
    TAR = "tar archive"
    GZIP = "gzip file"
    EMPTY = "empty file"
    UNKNOWN = "unknown"


class Problem(msgspec.Struct, frozen=True):
    """What could not be read, and where: `line 17`, `offset 4096`, or nothing when it is the whole file."""

    file: str
    where: str
    what: str


class Stack(msgspec.Struct, frozen=True):
    """Goroutines that stand at the same frames. `frames`: function names, innermost first."""

    count: int
    state: str
    frames: tuple[str, ...]
    minutes: int = 0
    """How long the longest of them has been waiting, as the runtime counted it."""


class Goroutines(msgspec.Struct, frozen=True):
    file: str
    total: int
    stacks: tuple[Stack, ...]


class Status(msgspec.Struct, frozen=True):
    """`cilium status --verbose`: configured sizes, never how full they are."""

    file: str
    ratio: float | None
    sizes: Mapping[str, int]
    version: str = ""


class MetricsPage(msgspec.Struct, frozen=True):
    """Samples by (name, labels as sorted pairs)."""

    file: str
    samples: Mapping[tuple[str, tuple[tuple[str, str], ...]], float]


class Event(msgspec.Struct, frozen=True):
    """One sort of log line: how often, first and last line number, and the first such line."""

    name: str
    count: int
    first: int
    last: int
    sample: str


class LogFacts(msgspec.Struct, frozen=True):
    file: str
    origin: str
    """`agent`, `kubelet`, `kernel`, or nothing when its lines do not tell."""
    lines: int
    events: Mapping[str, Event]
    intervals_s: tuple[float, ...] = ()
    """GC intervals as the agent recalculated them, in order."""
    ct_clean_max_s: float = 0.0
    """The longest waitingForCTClean."""


class Conntrack(msgspec.Struct, frozen=True):
    """Counters of `conntrack -S` or /proc/net/stat/nf_conntrack, summed over CPUs."""

    file: str
    counters: Mapping[str, int]
    archived: str = ""
    """The archive's member that it is from, which may be another node's than the next; nothing for a plain file."""


class Evidence(msgspec.Struct, frozen=True):
    """All that was read. Files of one kind stand in the order of the command line."""

    tables: tuple[CtTable, ...] = ()
    goroutines: tuple[Goroutines, ...] = ()
    statuses: tuple[Status, ...] = ()
    metrics: tuple[MetricsPage, ...] = ()
    logs: tuple[LogFacts, ...] = ()
    conntrack: tuple[Conntrack, ...] = ()
    dns: tuple[DnsStory, ...] = ()
    uptime_s: int | None = None


_PCAP = (b"\xd4\xc3\xb2\xa1", b"\xa1\xb2\xc3\xd4", b"\x4d\x3c\xb2\xa1", b"\xa1\xb2\x3c\x4d")
_BINARY = (
    (b"PK\x03\x04", Kind.ZIP),
    (b"PK\x05\x06", Kind.ZIP),
    (b"\x1f\x8b", Kind.GZIP),
    (b"\x0a\x0d\x0d\x0a", Kind.CAPTURE),
    *((magic, Kind.CAPTURE) for magic in _PCAP),
)
_TEXT = (
    (Kind.CT_TEXT, rb"^(?:TCP|UDP|ICMP|ICMPv6|SCTP|\d+) (?:IN|OUT|SVC) \S+:\d+ -> \S+:\d+ "),
    (Kind.GOROUTINES, rb"^goroutine \d+ (?:\S+ )*\[|^goroutine profile: total \d+"),
    (Kind.STATUS, rb"^BPF Maps:\s|^KVStore:\s+\S|^Cilium:\s+(?:Ok|OK|Warning|Failure)\b"),
    (Kind.METRICS, rb"^# (?:HELP|TYPE) [a-zA-Z_:]|^cilium_\w+(?:\{| \d)"),
    (Kind.CONNTRACK, rb"^cpu=\d+\s+\w+=\d+|^entries\s+\w+ +found +new\b"),
    (Kind.DMESG, rb"^(?:<\d+>)?\[ *\d+\.\d{6}\] |^\[\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\] |^\S.* kernel: "),
    (
        Kind.LOG,
        rb"\blevel=\w+ |^[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+|\bkubelet(?:\[\d+\])?: |\bcontainerd\[\d+\]: |msg=\"",
    ),
)
_TEXT_RULES = tuple((kind, re.compile(pattern, re.MULTILINE)) for kind, pattern in _TEXT)
_CT_JSON = re.compile(rb'^\s*\[\s*(?:\{\s*"Key"\s*:|\]\s*$)')


def kind_of(head: bytes) -> Kind:
    """The kind of a file by its first HEAD_BYTES. The earliest rule that matches a whole line's beginning wins."""
    if not head.strip():
        return Kind.EMPTY
    for magic, kind in _BINARY:
        if head.startswith(magic):
            return kind
    if head[257:262] == b"ustar":
        return Kind.TAR
    if b"\0" in head:
        return Kind.UNKNOWN
    if _CT_JSON.match(head):
        return Kind.CT_JSON
    found = [(hit.start(), order) for order, (_, rule) in enumerate(_TEXT_RULES) if (hit := rule.search(head))]
    return _TEXT_RULES[min(found)[1]][0] if found else Kind.UNKNOWN
