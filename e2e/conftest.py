"""What every test here needs: a Docker daemon of our own and the tools that `python -m e2e.machine up` made."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.machine import engine, nodeimage
from e2e.machine.steps import BIN
from loadgen.kube.api import KubeApi
from loadgen.kube.cni import ciliuminstall
from loadgen.kube.kindcluster import KindCluster

PLAIN = "kind-loadgen-plain"
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session", autouse=True)
def machine() -> None:
    """kind, kubectl and Docker as `eval "$(python -m e2e.machine env)"` would set them."""
    if engine.pid() is None or not (BIN / "kind").exists():
        pytest.fail("no machine for kind here: run `make e2e`, or `python -m e2e.machine up` first", pytrace=False)
    os.environ["PATH"] = f"{BIN}:{os.environ['PATH']}"
    os.environ["DOCKER_HOST"] = engine.HOST
    os.environ["LOADGEN_NODE_IMAGE"] = nodeimage.NODE


@pytest.fixture(scope="session")
def image(machine: None) -> str:
    """Our image, built from this checkout on a Debian that debootstrap made."""
    name = "loadgen:e2e"
    engine.docker("build", "-q", "--network", "host", "--build-arg", f"BASE={nodeimage.BASE}", "-t", name, ROOT)
    return name


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A kubeconfig of the tests' own, with a context in it that nobody may disturb."""
    path = tmp_path_factory.mktemp("kube") / "config"
    path.write_text(_FOREIGN)
    before = os.environ.get("KUBECONFIG")
    os.environ["KUBECONFIG"] = str(path)
    yield path
    if before is None:
        del os.environ["KUBECONFIG"]
    else:
        os.environ["KUBECONFIG"] = before


@pytest.fixture(scope="session")
def plain_cluster(image: str, kubeconfig: Path) -> Iterator[str]:
    """The context of a cluster with the CNI of its own nodes and kube-proxy on iptables."""
    yield from _cluster(PLAIN.removeprefix("kind-"), "own-cni", image)


@pytest.fixture(scope="session")
def nftables_cluster(image: str, kubeconfig: Path) -> Iterator[str]:
    """The same with kube-proxy on nftables."""
    yield from _cluster("loadgen-nftables", "nftables", image)


def _cluster(name: str, topology: str, image: str) -> Iterator[str]:
    """Of the tests' own name, so one that is there was left by tests that were killed."""

    async def make() -> None:
        await cluster.delete()
        await cluster.create(topology, image=nodeimage.NODE)
        await cluster.load_image(image)
        async with KubeApi.from_kubeconfig(cluster.context) as api:
            await ciliuminstall.until_usable(api)

    cluster = KindCluster(name)
    asyncio.run(make())
    try:
        yield cluster.context
    finally:
        asyncio.run(cluster.delete())


_FOREIGN = """
apiVersion: v1
kind: Config
current-context: somebody-else
contexts: [{name: somebody-else, context: {cluster: elsewhere, user: nobody}}]
clusters: [{name: elsewhere, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: nobody, user: {}}]
"""


def kubectl(context: str, *args: str) -> str:
    """Its stdout."""
    argv = ["kubectl", "--context", context, *args]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{argv}: {done.stderr}"
    return done.stdout
