"""The Go programs a kind cluster is made of, built from their modules at pinned versions and kept in the cache."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from e2e.machine.steps import BIN, FILES, run, step

KUBERNETES = "v1.34.4"
_STAGING = "v0.34.4"
"""The staging modules of Kubernetes carry its version with a 0 in front."""


class Tool(NamedTuple):
    """`packages`: binary → package of `module` that makes it. `replaces`: modules that must be at a version."""

    module: str
    version: str
    packages: dict[str, str]
    replaces: tuple[str, ...] = ()
    ldflags: str = "-s -w"
    main: str = ""
    """A file below files/ that is the main package, when the module has none that is small enough."""


_K8S_STAGING = (
    "api", "apiextensions-apiserver", "apimachinery", "apiserver", "cli-runtime", "client-go", "cloud-provider",
    "cluster-bootstrap", "code-generator", "component-base", "component-helpers", "controller-manager", "cri-api",
    "cri-client", "csi-translation-lib", "dynamic-resource-allocation", "endpointslice", "externaljwt", "kms",
    "kube-aggregator", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl", "kubelet", "metrics",
    "mount-utils", "pod-security-admission", "sample-apiserver", "sample-cli-plugin", "sample-controller",
)  # fmt: skip

_VERSION_FLAGS = " ".join(
    f"-X {package}/version.{name}={value}"
    for package in ("k8s.io/component-base", "k8s.io/client-go/pkg")
    for name, value in (("gitVersion", KUBERNETES), ("gitMajor", "1"), ("gitMinor", "34"))
)

TOOLS = {
    "kind": Tool("sigs.k8s.io/kind", "v0.33.0", {"kind": "sigs.k8s.io/kind"}),
    "kubernetes": Tool(
        "k8s.io/kubernetes",
        KUBERNETES,
        {
            name: f"k8s.io/kubernetes/cmd/{name}"
            for name in (
                "kubeadm",
                "kubelet",
                "kubectl",
                "kube-apiserver",
                "kube-controller-manager",
                "kube-scheduler",
                "kube-proxy",
            )
        },
        replaces=tuple(f"k8s.io/{name}={_STAGING}" for name in _K8S_STAGING),
        ldflags=f"-s -w {_VERSION_FLAGS}",
    ),
    # kubeadm 1.34 writes a manifest with flags that etcd has since 3.6.
    "etcd": Tool("go.etcd.io/etcd/server/v3", "v3.6.5", {"etcd": "go.etcd.io/etcd/server/v3"}),
    "crictl": Tool("sigs.k8s.io/cri-tools", "v1.34.0", {"crictl": "sigs.k8s.io/cri-tools/cmd/crictl"}),
    "coredns": Tool(
        "github.com/coredns/coredns",
        "v1.13.1",
        {"coredns": "."},
        replaces=tuple(f"k8s.io/{name}={_STAGING}" for name in ("api", "apimachinery", "client-go")),
        main="coredns.go",
    ),
    "helm": Tool("helm.sh/helm/v3", "v3.19.5", {"helm": "helm.sh/helm/v3/cmd/helm"}),
    # For bench/kubeburner.py. With another kube-openapi its modules do not compile together.
    "kube-burner": Tool(
        "github.com/kube-burner/kube-burner/v2",
        "v2.3.0",
        {"kube-burner": "github.com/kube-burner/kube-burner/v2/cmd/kube-burner"},
        replaces=("k8s.io/kube-openapi=v0.0.0-20240430033511-f0e62f92d13f",),
    ),
}


def build_all() -> None:
    """Make every tool that is not in the cache at its version."""
    if shutil.which("go") is None:
        raise SystemExit("e2e: go is missing: Kubernetes 1.34 needs Go 1.24 or newer, which Debian 12 does not have")
    BIN.mkdir(parents=True, exist_ok=True)
    for name, tool in TOOLS.items():
        stamp = BIN / f".{name}"
        wanted = repr(tool) + ((FILES / tool.main).read_text() if tool.main else "")
        if (
            stamp.exists()
            and stamp.read_text() == wanted
            and all((BIN / binary).exists() for binary in tool.packages)
        ):
            continue
        with step(f"building {name} {tool.version} from its module"):
            _build(tool)
        stamp.write_text(wanted)


def _build(tool: Tool) -> None:
    env = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=mod -buildvcs=false"}
    with tempfile.TemporaryDirectory(prefix="loadgen-e2e-") as folder:
        there = Path(folder)
        run("go", "mod", "init", "e2e", cwd=there, env=env)
        edits = [f"-replace={name}={name}@{version}" for name, version in (r.split("=") for r in tool.replaces)]
        run("go", "mod", "edit", f"-require={tool.module}@{tool.version}", *edits, cwd=there, env=env)
        if tool.main:
            shutil.copy(FILES / tool.main, there / "main.go")
            run("go", "mod", "tidy", cwd=there, env=env)
        for binary, package in tool.packages.items():
            run("go", "build", "-trimpath", "-ldflags", tool.ldflags, "-o", BIN / binary, package, cwd=there, env=env)
