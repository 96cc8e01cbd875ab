"""The counters of netfilter's own connection tracking, per network namespace."""

from __future__ import annotations

from pathlib import Path

from loadgen.core.procfs import NfConntrack, parse_nf_conntrack
from loadgen.kernel import netns as namespaces


def read(netns: Path | None) -> NfConntrack:
    """Counters since the namespace was made, summed over CPUs. OSError when the kernel has no nf_conntrack."""
    return parse_nf_conntrack(namespaces.call(netns, _text))


def _text() -> str:
    return (namespaces.PROC_NET / "stat/nf_conntrack").read_text()
