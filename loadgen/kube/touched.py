"""What a run would change in a cluster, in sentences: for --dry-run, before anything is asked of the cluster."""

from __future__ import annotations

from loadgen.core.model import Churn, CtFill, Dns, DnsRaceDrop, Scenario, Storm
from loadgen.kube import nodelocal
from loadgen.kube.options import ClusterOptions, kind_name


def touches(testbed: str, options: ClusterOptions, scenario: Scenario) -> tuple[str, ...]:
    """Everything outside of pods of our own, in the order in which it happens."""
    found = []
    if testbed == "kind":
        fate = "kept" if options.keep else "deleted at the end"
        found.append(f"kind cluster {kind_name()}: made when there is none of that name, and then {fate}")
    node = f"node {options.node}" if options.node else "the first Ready worker"
    found.append(f"namespace {options.namespace}: made, with everything of ours in it, and removed at the end")
    found.extend(_cni(options))
    loads, faults = scenario.loads.values(), scenario.faults.values()
    if any(isinstance(load, Storm | Dns) for load in loads):
        pods = sum(load.pods for load in loads if isinstance(load, Storm | Dns))
        found.append(f"{node}: {pods} generator pods beside a Locust master and the datanodes' pods")
    for name, load in scenario.loads.items():
        if isinstance(load, Churn):
            found.append(f"{node}: pods come and go (load {name}), at most {options.qps:g}/s")
    if any(isinstance(load, Dns) for load in loads) and any(
        variant.settings.resolver.server == "nodelocal" for variant in scenario.variants.values()
    ):
        found.append(
            f"{node}: {nodelocal.ADDRESS} becomes an address of it while a variant with NodeLocal DNSCache runs, "
            "unless the cluster has that cache"
        )
    for fault in faults:
        match fault:
            case CtFill(entries=entries):
                found.append(
                    f"{node}: {entries:,} entries are put into its CT table, and the table is flushed at the end"
                )
            case DnsRaceDrop(probability=probability):
                found.append(
                    f"{node}: an nft table of ours drops {probability:.1%} of racing DNS queries while it lasts"
                )
    return tuple(found)


def _cni(options: ClusterOptions) -> list[str]:
    match options.cni:
        case "cilium":
            return [
                "Cilium's settings (Helm release, or ConfigMap kube-system/cilium-config): changed for each variant "
                "and put back at the end",
                "DaemonSet kube-system/cilium: restarted after each change",
            ]
        case "model":
            return [
                "every node: the CNI configuration gains a plugin of ours after the cluster's own until the end",
                "every node's /sys/fs/bpf/tc/globals: CT tables of the model, removed at the end",
            ]
        case "none":
            return []
