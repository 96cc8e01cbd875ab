"""The nouns of a fleet file. Every record is frozen and closed; times are durations as Go writes them."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from loadgen.core.cilium import build_permits, profile
from loadgen.core.model import ApiLimit, AtLeastOne, Count, Positive, Probability, Record, TableSize, default, seconds
from loadgen.core.simulate.costs import Costs
from loadgen.core.tablesizes import DEFAULT_RATIO, dynamic_sizes
from loadgen.core.units import DURATION_PATTERN, Duration

FLEET_FORMAT = 1
CURRENT = "current"
"""The policy that every fleet has: its settings as they are written."""

_MEMORY = re.compile(r"(\d+(?:\.\d+)?)(KiB|MiB|GiB|TiB|KB|MB|GB|TB)")
_BYTES = {f"{p}{s}": base**n for s, base in (("iB", 1024), ("B", 1000)) for n, p in enumerate("KMGT", start=1)}
MEMORY_PATTERN = r"^\d+(\.\d+)?([KMGT]i?B)$"


class Memory(int):
    """Bytes, written with a unit: `2TiB`, `512GB`."""

    @classmethod
    def parse(cls, text: object) -> Memory:
        """ValueError says what would be right."""
        found = _MEMORY.fullmatch(text) if isinstance(text, str) else None
        if not found:
            raise ValueError(f"bad amount of memory {text!r}: write a number and a unit, e.g. 512GiB, 2TiB, 64GB")
        return cls(round(float(found[1]) * _BYTES[found[2]]))


class Span(NamedTuple):
    """A time that each node draws for itself, evenly between two ends: `2h..6h`; `3h` is the same for all."""

    low_ns: int
    high_ns: int

    @classmethod
    def parse(cls, text: object) -> Span:
        """ValueError says what would be right."""
        if not isinstance(text, str):
            raise ValueError(f"bad time {text!r}: write e.g. 3h, or 2h..6h for one that each node draws between")
        low, dots, high = text.partition("..")
        found = cls(Duration.parse(low), Duration.parse(high if dots else low))
        if found.high_ns < found.low_ns:
            raise ValueError(f"bad time {text!r}: its end lies before its start")
        return found


class Times:
    """Marker type for fields that hold a Span: msgspec takes NamedTuples for lists."""

    def __init__(self, span: Span) -> None:
        self.span = span

    def __repr__(self) -> str:
        low, high = (Duration(ns) for ns in self.span)
        return f"{low}" if low == high else f"{low}..{high}"


def times(low_s: float, high_s: float | None = None) -> Times:
    return Times(Span(seconds(low_s), seconds(low_s if high_s is None else high_s)))


class Sizes(Record, frozen=True):
    """Capacities, explicit or from the node's memory, as Helm's `bpf` says them."""

    ct_tcp_max: TableSize | None = msgspec.field(name="ctTcpMax", default=None)
    ct_any_max: TableSize | None = msgspec.field(name="ctAnyMax", default=None)
    ratio: Annotated[float, msgspec.Meta(gt=0, le=1)] = msgspec.field(
        name="mapDynamicSizeRatio", default=DEFAULT_RATIO
    )


class AgentSettings(Record, frozen=True):
    """Cilium's settings of a node type, under the names of its Helm values where it has one."""

    profile: str = "1.16"
    """Cilium's minor version."""
    gc_interval: Duration | None = msgspec.field(name="conntrackGCInterval", default=None)
    gc_max_interval: Duration | None = msgspec.field(name="conntrackGCMaxInterval", default=None)
    bpf: Sizes = Sizes()
    api_rate_limit: dict[str, ApiLimit] = msgspec.field(name="apiRateLimit", default_factory=dict)
    build_permits: AtLeastOne | None = msgspec.field(name="buildPermits", default=None)


class Connections(Record, frozen=True):
    """TCP connections that a workload opens from one node."""

    rate: Positive
    """New ones per second."""
    life: Duration = default(lambda: seconds(1))
    """From the first to the last packet."""
    half_closed: Probability = msgspec.field(name="halfClosed", default=0.0)
    """Share that one side never closes: such an entry lives for the whole TCP lifetime, no GC takes it earlier."""
    same_node: Probability = msgspec.field(name="sameNode", default=0.0)
    """Share whose other end is a pod of the same node: two entries instead of one."""
    open: Count = 0
    """Connections besides, that stay open all the time."""


class Pods(Record, frozen=True):
    """Pods that a workload starts on one node."""

    burst: AtLeastOne = 1
    """How many come at once."""
    every: Times = default(lambda: times(3600))
    """Time between bursts. Each is drawn anew."""
    lifetime: Times = default(lambda: times(1200))
    """How long a pod stays once it is up."""
    give_up: Duration = msgspec.field(name="giveUp", default_factory=lambda: seconds(3600))
    """A pod that is not up by then is deleted, as a Job's deadline would."""


class Workload(Record, frozen=True):
    """What runs on a node: connections, lookups, pods; from `start` for `duration`, on a `share` of the nodes."""

    describe: str = ""
    share: Probability = 1.0
    start: Times | None = None
    """Simulated time at which it lands. Unset: it has been there since the node booted."""
    duration: Duration | None = None
    """Unset: until the end."""
    connections: Connections | None = None
    lookups: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """DNS entries in the table of everything that is not TCP, per second."""
    pods: Pods | None = None
    leaves: Literal["nothing", "entries"] = "nothing"
    """What is left when it ends: `nothing`, for the scrub of its pod takes its entries; `entries`, for those that no
    scrub matches, e.g. of pods on the host's network."""


class NodeType(Record, frozen=True, kw_only=True):
    """Some nodes that are alike but for their luck."""

    count: AtLeastOne = 1
    memory: str
    cpus: AtLeastOne
    uptime: Times = default(lambda: times(0))
    """How long its agent has run when the simulation begins; the interval drifts meanwhile."""
    spread: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1
    """Relative spread (one sigma) of rates and of walk costs between nodes of this type."""
    settings: AgentSettings = AgentSettings()
    costs: Costs = default(Costs)
    workloads: tuple[str, ...]

    @property
    def memory_bytes(self) -> int:
        return Memory.parse(self.memory)

    @property
    def capacities(self) -> tuple[int, int]:
        """Entries of the TCP table and of the other one."""
        bpf, sizes = self.settings.bpf, dynamic_sizes(self.memory_bytes, self.settings.bpf.ratio)
        return bpf.ct_tcp_max or sizes.tcp, bpf.ct_any_max or sizes.other

    @property
    def permits(self) -> int:
        return build_permits(profile(self.settings.profile), self.cpus, self.settings.build_permits)


class Policy(Record, frozen=True):
    """Settings laid over those of every node type, to see what they would change."""

    describe: str = ""
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    """Node types it is for; none named: all."""


class Fleet(Record, frozen=True, kw_only=True):
    """A fleet file."""

    format: int = FLEET_FORMAT
    name: str
    describe: str = ""
    goal: Duration = default(lambda: seconds(30))
    """A pod that is up later than this after it was due counts as late; policies are ranked by their late pods."""
    nodes: dict[str, NodeType]
    workloads: dict[str, Workload]
    policies: dict[str, Policy] = msgspec.field(default_factory=dict)


def dec_hook(kind: type, value: Any) -> Any:
    """msgspec hook for the types of this file."""
    if kind is Duration:
        return Duration.parse(value)
    if kind is Times:
        return Times(Span.parse(value))
    raise NotImplementedError(f"no decoding for {kind.__name__}")


def enc_hook(value: Any) -> str:
    """msgspec hook: times travel as they are written."""
    if isinstance(value, Duration | Times):
        return str(value)
    raise NotImplementedError(f"no encoding for {type(value).__name__}")


def schema_hook(kind: type) -> dict[str, Any]:
    """JSON Schema of the types of this file."""
    if kind is Duration:
        return {"type": "string", "pattern": DURATION_PATTERN, "examples": ["60s", "1m30s", "12h"]}
    if kind is Times:
        part = DURATION_PATTERN.strip("^$")
        return {"type": "string", "pattern": rf"^{part}(\.\.{part})?$", "examples": ["3h", "2h..6h"]}
    raise NotImplementedError(kind)
