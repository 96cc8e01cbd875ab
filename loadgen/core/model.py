"""The nouns of a scenario: what a YAML file means. Every record is frozen; unknown keys are refused by the loader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec

from loadgen.core.units import NS_PER_S, Duration

SCENARIO_FORMAT = 1

Probability = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
# Cilium refuses explicit CT sizes outside 1024 … 16,777,216 (pkg/option/config.go).
TableSize = Annotated[int, msgspec.Meta(ge=1024, le=16_777_216)]


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every scenario noun: immutable and closed."""


def seconds(value: float) -> Duration:
    return Duration(round(value * NS_PER_S))


def default(make: Callable[[], Any]) -> Any:
    """A default that msgspec need not put into the JSON Schema: it has no form for our durations."""
    return msgspec.field(default_factory=make)


# --- settings: what a variant changes -------------------------------------------------------------------------


class ApiLimit(Record, frozen=True):
    """One `apiRateLimit` entry, in Cilium's own words (Documentation/configuration/api-rate-limiting.rst)."""

    rate_limit: float | None = msgspec.field(name="rate-limit", default=None)
    rate_burst: int | None = msgspec.field(name="rate-burst", default=None)
    parallel_requests: int | None = msgspec.field(name="parallel-requests", default=None)
    max_wait_duration: Duration | None = msgspec.field(name="max-wait-duration", default=None)
    auto_adjust: bool | None = msgspec.field(name="auto-adjust", default=None)


class Bpf(Record, frozen=True):
    """Capacities of the CT tables, in entries (Helm `bpf.ctTcpMax`, `bpf.ctAnyMax`)."""

    ct_tcp_max: TableSize = msgspec.field(name="ctTcpMax", default=524_288)
    ct_any_max: TableSize = msgspec.field(name="ctAnyMax", default=262_144)


class Cilium(Record, frozen=True):
    """The agent's settings, under the names of Cilium's Helm values where it has one.

    `gcIntervalNow` has none: it is the interval that a long-lived agent has drifted to when the run begins.
    """

    profile: str = "1.16"
    gc_interval: Duration | None = msgspec.field(name="conntrackGCInterval", default=None)
    gc_max_interval: Duration | None = msgspec.field(name="conntrackGCMaxInterval", default=None)
    gc_interval_now: Duration | None = msgspec.field(name="gcIntervalNow", default=None)
    bpf: Bpf = Bpf()
    api_rate_limit: dict[str, ApiLimit] = msgspec.field(name="apiRateLimit", default_factory=dict)
    build_permits: AtLeastOne | None = msgspec.field(name="buildPermits", default=None)
    """How many endpoints regenerate at once; Cilium: max(2, CPUs). They decide how many stand on the CT lock."""


StubName = Literal[
    "glibc-2.31", "glibc-2.32", "glibc-2.33", "glibc-2.34", "glibc-2.35", "glibc-2.36",
    "glibc-2.37", "glibc-2.38", "glibc-2.39", "glibc-2.40", "glibc-2.41", "glibc-2.42",
    "musl-1.2.3", "musl-1.2.5", "go", "c-ares", "java", "node", "node-resolve",
]  # fmt: skip


class Resolver(Record, frozen=True):
    """What a pod's /etc/resolv.conf says, and which stub resolver reads it.

    `server`: the kube-dns Service, or the node's NodeLocal DNSCache. `stub` is whom lookups `via: wire` behave as.
    """

    options: str = ""
    search: tuple[str, ...] = ("default.svc.cluster.local", "svc.cluster.local", "cluster.local")
    server: Literal["service", "nodelocal"] = "service"
    stub: StubName = "glibc-2.36"


class DnsBackend(Record, frozen=True):
    """The DNS servers behind the Service: how long an answer takes and which share is never answered."""

    delay: Duration = default(lambda: seconds(0.002))
    loss: Probability = 0.0


class Settings(Record, frozen=True):
    """Everything a variant may change; the rest of the scenario is the same in all variants."""

    cilium: Cilium = Cilium()
    resolver: Resolver = Resolver()
    dns: DnsBackend = default(DnsBackend)


class Variant(Record, frozen=True):
    """One side of an experiment. Exactly one variant of a scenario with several is the baseline."""

    name: str = ""
    describe: str = ""
    baseline: bool = False
    partial: bool = False
    """One fix of several: run by --factorial or by name, shown, but not asked to hold every threshold."""
    settings: Settings = default(Settings)


# --- pace -----------------------------------------------------------------------------------------------------


class Constant(Record, frozen=True, tag_field="kind", tag="constant"):
    rate: Positive
    """Operations per second."""


class Poisson(Record, frozen=True, tag_field="kind", tag="poisson"):
    rate: Positive


class Ramp(Record, frozen=True, kw_only=True, tag_field="kind", tag="ramp"):
    start: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    end: Positive
    over: Duration
    """The rate climbs linearly from `start` to `end` over this time and then stays."""


class Burst(Record, frozen=True, tag_field="kind", tag="burst"):
    size: AtLeastOne
    every: Duration = default(lambda: seconds(60))
    count: AtLeastOne = 1


Pace = Constant | Poisson | Ramp | Burst


# --- loads, faults, phases ------------------------------------------------------------------------------------


class Storm(Record, frozen=True, tag_field="driver", tag="storm"):
    """A new TCP connection per request from each client pod. 833/s per pod is seed 000's 50,000 a minute."""

    pace: Pace = Constant(rate=833.0)
    pods: AtLeastOne = 2
    targets: AtLeastOne = 500
    close: Literal["fin", "rst"] = "fin"
    request_bytes: AtLeastOne = msgspec.field(name="requestBytes", default=100)
    reply_bytes: AtLeastOne = msgspec.field(name="replyBytes", default=100)
    timeout: Duration = default(lambda: seconds(5))


class Churn(Record, frozen=True, tag_field="driver", tag="churn"):
    """Pods that come (and go): each due arrival is one sandbox, set up by the kubelet model through CNI."""

    pace: Pace = default(lambda: Burst(size=50))
    timeout: Duration = default(lambda: seconds(120))
    """How long a sandbox is watched; one that is not up by then is a sample censored there."""
    delete_after: Duration | None = msgspec.field(name="deleteAfter", default=None)
    via: Literal["pod", "job"] = "pod"
    """`job`: on a cluster, each burst is one batch Job, removed as a whole."""


class Dns(Record, frozen=True, tag_field="driver", tag="dns"):
    """Lookups as the stub resolver of `settings.resolver` sends them: A and AAAA, search list, retries."""

    pace: Pace = Constant(rate=200.0)
    pods: AtLeastOne = 1
    names: tuple[str, ...] = ("datanode.hdfs.svc.cluster.local.",)
    state: Literal["fresh", "long-lived"] = "fresh"
    """`fresh`: a new process's resolver state for each lookup; `long-lived`: one thread that remembers fallbacks."""
    timeout: Duration = default(lambda: seconds(30))
    via: Literal["wire", "fast", "glibc", "musl"] = "wire"
    """Who looks up: our resolver, which behaves as `resolver.stub` says and tells its rounds apart; the same in C,
    for high rates, glibc and musl only, names as they stand; or the real getaddrinfo of a libc, in a thread of its
    own for each lookup (`fresh`) or in threads that are used again (`long-lived`)."""


Load = Storm | Churn | Dns


class CtFill(Record, frozen=True, tag_field="kind", tag="ct-fill"):
    """Leaves the CT table as a past storm would have: `entries` TCP entries, a share of them expired."""

    entries: Count = 2_000_000
    expired: Probability = 1.0


class DnsRaceDrop(Record, frozen=True, tag_field="kind", tag="dns-race-drop"):
    """Drops the racing second query of a pair, as kernels before 5.6 did, with an nft rule (emulated)."""

    probability: Probability = 0.005


Fault = CtFill | DnsRaceDrop


class Phase(Record, frozen=True):
    """A stretch of the run. Only operations that are due in `measured` phases count for thresholds."""

    name: str
    duration: Duration
    loads: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    measured: bool = False
    until: str | None = None
    """Name of a load: the phase ends early once all that this load started is over."""


class Scenario(Record, frozen=True, kw_only=True):
    """A scenario file. Its `thresholds` are parsed, and checked against the known metrics, before anything runs."""

    format: int = SCENARIO_FORMAT
    name: str
    hypothesis: str
    proves: str = ""
    limits: str = ""
    settings: Settings = default(Settings)
    variants: dict[str, Variant]
    loads: dict[str, Load]
    faults: dict[str, Fault] = {}
    phases: tuple[Phase, ...]
    thresholds: tuple[str, ...]
    reproduces: tuple[str, ...] = ()
    """Metrics that the baseline must be seen to break, each of them; none named: any threshold will do."""
