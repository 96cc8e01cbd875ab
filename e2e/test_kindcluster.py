"""A kind cluster of our own making: from nothing to nothing, with a Ctrl-C in the middle, and from a bundle."""

from __future__ import annotations

import asyncio
import functools
import http.server
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from loadgen.core.errors import ConfigError
from loadgen.kube import bundle, hostchecks
from loadgen.kube.api import KubeApi
from loadgen.kube.bundle import Bundle
from loadgen.kube.kindcluster import KindCluster
from loadgen.kube.versions import Image, Resolved

NAME = "loadgen-made"
NODE_IMAGE = os.environ.get("LOADGEN_NODE_IMAGE", "kindest/node:loadgen-e2e")
BUSYBOX = "loadgen-e2e/busybox:1"
CHART = Path(__file__).with_name("charts") / "cilium-like"
FOREIGN = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "somebody-else",
    "contexts": [{"name": "somebody-else", "context": {"cluster": "elsewhere", "user": "nobody"}}],
    "clusters": [{"name": "elsewhere", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "nobody", "user": {}}],
}
ONE_NODE = """
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
nodes: [{role: control-plane}]
containerdConfigPatches:
  - |-
    [metrics]
      address = "0.0.0.0:1338"
"""


def run(*argv: str | Path) -> str:
    done = subprocess.run(list(map(str, argv)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{argv}: {done.stderr}"
    return done.stdout


@pytest.fixture
def kubeconfig_of_mine(machine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(FOREIGN))
    monkeypatch.setenv("KUBECONFIG", str(path))
    return path


@pytest.fixture
def topology(tmp_path: Path) -> str:
    path = tmp_path / "one-node.yaml"
    path.write_text(ONE_NODE)
    return str(path)


@pytest.fixture
def cluster(kubeconfig_of_mine: Path) -> Iterator[KindCluster]:
    found = KindCluster(NAME)
    yield found
    asyncio.run(found.delete())


def containers() -> str:
    return run("docker", "ps", "-a", "-q", "--filter", f"label=io.x-k8s.kind.cluster={NAME}").strip()


def test_a_cluster_comes_and_goes_and_the_kubeconfig_stays_its_users(
    cluster: KindCluster, kubeconfig_of_mine: Path, topology: str, tmp_path: Path
) -> None:
    asyncio.run(cluster.create(topology, image=NODE_IMAGE))
    found = yaml.safe_load(kubeconfig_of_mine.read_text())
    assert found["current-context"] == "somebody-else"
    assert [context["name"] for context in found["contexts"]] == ["somebody-else", f"kind-{NAME}"]

    async def look() -> tuple[str, str]:
        async with KubeApi.from_kubeconfig(cluster.context) as api:
            await api.probe()
            node = (await api.get("/api/v1/nodes"))["items"][0]["metadata"]["name"]
            return api.version, await api.text(f"/api/v1/nodes/{node}:1338/proxy/v1/metrics")

    version, metrics = asyncio.run(look())
    assert version.startswith("v1.")
    assert "containerd" in metrics

    asyncio.run(cluster.load_image(BUSYBOX))
    assert "loadgen-e2e/busybox" in run("docker", "exec", f"{NAME}-control-plane", "crictl", "images")
    with pytest.raises(ConfigError, match=r"docker has no image loadgen-e2e/nothing:1; make it: docker build"):
        asyncio.run(cluster.load_image("loadgen-e2e/nothing:1"))
    with pytest.raises(ConfigError, match=f"there is a kind cluster {NAME} already; use it with --testbed kind"):
        asyncio.run(cluster.create(topology, image=NODE_IMAGE))
    plan = hostchecks.Plan.of(topology, cni="none", name=NAME, images=(NODE_IMAGE,))
    with pytest.raises(ConfigError, match=f"cluster name: there is a kind cluster {NAME} already"):
        asyncio.run(hostchecks.require("none", plan))
    assert asyncio.run(cluster.export_logs(tmp_path / "logs")) == ""
    assert any((tmp_path / "logs").rglob("kubelet.log"))

    asyncio.run(cluster.delete())
    assert not asyncio.run(cluster.exists())
    assert yaml.safe_load(kubeconfig_of_mine.read_text()) == FOREIGN
    asyncio.run(cluster.delete())


def test_the_new_context_becomes_current_where_that_was_asked_for(
    cluster: KindCluster, kubeconfig_of_mine: Path, topology: str
) -> None:
    asyncio.run(cluster.create(topology, image=NODE_IMAGE, switch_context=True))
    assert yaml.safe_load(kubeconfig_of_mine.read_text())["current-context"] == f"kind-{NAME}"
    asyncio.run(cluster.delete())
    assert yaml.safe_load(kubeconfig_of_mine.read_text())["current-context"] == ""


def processes() -> str:
    """Of the control plane's container; none while there is none."""
    argv = ["docker", "top", f"{NAME}-control-plane"]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout


def kinds() -> str:
    argv = ["pgrep", "-f", f"kind create cluster --name {NAME}"]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout


AT = {
    "as kind begins": lambda: bool(kinds()),
    "with a node there": lambda: bool(containers()),
    "while Kubernetes starts": lambda: "kubeadm init" in processes(),
}


@pytest.mark.parametrize("at", AT)
def test_a_ctrl_c_leaves_nothing(cluster: KindCluster, kubeconfig_of_mine: Path, topology: str, at: str) -> None:
    async def main() -> None:
        creating = asyncio.create_task(cluster.create(topology, image=NODE_IMAGE))
        while not AT[at]():
            assert not creating.done()
            await asyncio.sleep(0.05)
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating

    asyncio.run(main())
    assert containers() == ""
    assert yaml.safe_load(kubeconfig_of_mine.read_text()) == FOREIGN


def test_what_kind_refuses(cluster: KindCluster, kubeconfig_of_mine: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(ONE_NODE + "foo: bar\n")
    with pytest.raises(
        ConfigError, match=r"no configuration of kind's: .*field foo not found.*all that it said: \S+"
    ) as raised:
        asyncio.run(cluster.create(str(bad), image=NODE_IMAGE))
    log = Path(str(raised.value).rpartition(" ")[2])
    assert "field foo not found" in log.read_text()
    log.unlink()


# --- a bundle ---------------------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[str]:
    """Of charts, on loopback, with one chart in it."""
    place = tmp_path / "repository"
    run("helm", "package", CHART, "--destination", place)
    run("helm", "repo", "index", place)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(place))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    """For more than a gigabyte, which pytest would keep for three runs."""
    yield tmp_path / "bundle"
    shutil.rmtree(tmp_path / "bundle", ignore_errors=True)


def test_a_bundle_makes_up_for_the_network(cluster: KindCluster, topology: str, repository: str, out: Path) -> None:
    pins = Resolved(node=None, kubernetes="", cilium="1.16.19", images=(Image.parse(BUSYBOX),))
    said: list[str] = []
    asyncio.run(bundle.collect(out, pins, "v0.33.0", (), said.append, node_image=NODE_IMAGE, repository=repository))
    assert said == ["chart of Cilium 1.16.19", f"image {NODE_IMAGE}", f"image {BUSYBOX}"]
    assert {path.suffix for path in out.rglob("*") if path.is_file()} == {".json", ".tgz", ".tar"}
    names = json.loads((out / "manifest.json").read_text())["images"]
    assert [image["tag"] for image in names] == [NODE_IMAGE, BUSYBOX]

    async def use() -> None:
        found = Bundle.open(out)
        assert await found.verify(kind=await hostchecks.kind_version(), cilium="1.16") == ()
        await found.load_node_image()
        await cluster.create(topology, image=found.node_image)
        await found.load_into(cluster)

    asyncio.run(use())
    assert "loadgen-e2e/busybox" in run("docker", "exec", f"{NAME}-control-plane", "crictl", "images")
    assert (
        run("helm", "template", "x", Bundle.open(out).chart.name, "--kube-version", "1.34.0").count("kind: DaemonSet")
        == 1
    )
