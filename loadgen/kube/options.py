"""What a user may say about a cluster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec

from loadgen import __version__

CniName = Literal["cilium", "none", "model"]


class ClusterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a run uses a cluster; the same for all its variants."""

    context: str | None = None
    """kubeconfig context; None: the current one (cluster), or that of the kind cluster (kind)."""
    node: str | None = None
    """The node under test; None: the first Ready worker by name."""
    cni: CniName = "cilium"
    namespace: str = "loadgen"
    image: str = f"loadgen:{__version__}"
    pause_image: str = "registry.k8s.io/pause:3.10"
    qps: float = 100.0
    """Pod creates a second that our own client allows, after `burst` at once; waiting for it counts as latency."""
    burst: int = 100
    allow_context: str | None = None
    """A context that is not a kind cluster's and may be changed all the same."""
    keep: bool = False
    kind_config: str | None = None
    """Topology of a kind cluster to make: a name below kind-configs/ or a file; None: what suits the CNI."""
    node_image: str | None = None
    """kind's node image; None: the one that the installed kind was released with."""
    cilium_version: str | None = None
    bundle: Path | None = None


DEFAULTS = ClusterOptions()


def kind_name() -> str:
    """kind's own variable, its own default replaced by ours."""
    return os.environ.get("KIND_CLUSTER_NAME", "loadgen")
