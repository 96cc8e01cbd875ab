"""Every metric a threshold may name: its kind, its unit and what it means. The one list of them."""

from __future__ import annotations

import msgspec


class Metric(msgspec.Struct, frozen=True):
    """`kind` decides the aggregates: `latency` (samples) or `gauge` (readings)."""

    name: str
    kind: str
    unit: str
    meaning: str


def _latency(name: str, meaning: str) -> Metric:
    return Metric(name, "latency", "s", meaning)


def _gauge(name: str, unit: str, meaning: str) -> Metric:
    return Metric(name, "gauge", unit, meaning)


METRICS: dict[str, Metric] = {
    m.name: m
    for m in (
        _latency("sandbox.setup", "a pod's sandbox, from due until it is up, over all attempts of the kubelet"),
        _latency("sandbox.attempt", "one CNI ADD, from its start until the plugin's answer"),
        _latency("sandbox.delete", "one CNI DEL"),
        _latency("sandbox.condition", "a pod's creation until its condition PodReadyToStartContainers was received"),
        _latency("sandbox.stamp", "the same by the cluster's own stamps, of 1 s each"),
        _latency("storm.connect", "a TCP connection: connect, request and the whole reply"),
        _latency("dns.lookup", "one name, A and AAAA, as getaddrinfo returns it"),
        _gauge("ct.tcp.entries", "", "entries in cilium_ct4_global"),
        _gauge("ct.tcp.expired_share", "", "share of its entries whose lifetime is over"),
        _gauge("ct.any.entries", "", "entries in cilium_ct_any4_global"),
        _gauge("ct.any.expired_share", "", "share of its entries whose lifetime is over"),
        _gauge("ct.create_failed", "", "CT entries the datapath could not insert, since the start"),
        _gauge("ct.created", "", "CT entries the datapath inserted, since the start"),
        _gauge("agent.gc.interval", "s", "the agent's current GC interval"),
        _gauge("agent.gc.runs", "", "periodic GC passes since the agent's start"),
        _gauge("agent.lock.waiters", "", "creates, deletes and GC passes that wait for a CT table's delete lock"),
        _gauge("agent.build.waiters", "", "endpoints that wait for a build permit"),
        _gauge("agent.endpoints", "", "endpoints the agent knows"),
        _gauge("sandbox.waiting", "", "sandboxes under way"),
        _gauge("nfct.entries", "", "nf_conntrack entries of the node's namespace"),
        _gauge("nfct.insert_failed", "", "nf_conntrack insert_failed, since the start"),
        _gauge("nfct.drop", "", "nf_conntrack drop, since the start"),
        _gauge("nfct.clash_resolve", "", "clashes the kernel resolved by itself, since the start"),
        _gauge("nfct.early_drop", "", "nf_conntrack early_drop, since the start"),
        _gauge("race.drops", "", "racing second queries dropped by the emulation's nft rule"),
        _gauge("dns.server.a", "", "A queries that reached the DNS back ends"),
        _gauge("dns.server.aaaa", "", "AAAA queries that reached the DNS back ends"),
        _gauge("kubelet.sandbox_errors", "", "RunPodSandbox calls that failed, by the kubelet, since its start"),
        _gauge("containerd.cni_errors", "", "CNI ADDs that failed, by containerd, since its start"),
        _gauge("cilium.limiter.wait", "s", "mean wait of the last endpoint creates in Cilium's API limiter"),
        _gauge("cilium.limiter.processing", "s", "mean time of the last endpoint creates after that wait"),
        _gauge("cilium.limiter.rate", "", "endpoint creates a second that the limiter lets through at the moment"),
        _gauge("cilium.limiter.in_flight", "", "endpoint creates past the limiter"),
        _gauge("cilium.creates_refused", "", "endpoint creates that the agent answered 429, since its start"),
        _gauge("cilium.deletes_refused", "", "endpoint deletes that the agent answered 429, since its start"),
        _gauge("cilium.ct.walks", "", "walks of a CT table by the agent: passes, creates, deletes, since its start"),
        _gauge("cilium.ct.alive", "", "live TCP entries that the agent's last walk left"),
        _gauge("cilium.ct.pressure", "", "fill of cilium_ct4_global at the agent's last walk; stale in between"),
        _gauge("cilium.gc.interval", "s", "the agent's next GC interval; from 1.18, unless it is fixed"),
        _gauge("client.lag", "s", "from when the node made an event until we received it, by both clocks"),
        _gauge("client.throttle", "s", "a pod's wait for the limit of our own API client (--qps, --burst)"),
        _gauge("generator.cpu", "", "CPUs used by the load generators of one load"),
        _gauge("generator.clock_error", "s", "how far generators' clocks may be off ours, where they are not one"),
    )
}

COUNT_AGGREGATES = ("count", "failed", "censored", "retries", "lost")
LATENCY_AGGREGATES = ("min", "mean", "max")
RATIO_AGGREGATES = ("achieved",)
GAUGE_AGGREGATES = ("min", "mean", "max", "last")


def aggregates_of(metric: Metric) -> str:
    """What may stand between this metric and the operator, as one readable list."""
    if metric.kind == "gauge":
        return ", ".join(GAUGE_AGGREGATES)
    return ", ".join(("pNN", *LATENCY_AGGREGATES, *COUNT_AGGREGATES, *RATIO_AGGREGATES))
