"""Churn on a real node: kubelet, containerd and a CNI plugin that refuses when it is told to."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from e2e.conftest import kubectl
from e2e.machine.engine import docker
from e2e.proxy import CuttingProxy
from e2e.told import ATTEMPT, CONDITION, DELETE, SETUP, STAMP, Told
from loadgen.core.model import Burst, Churn
from loadgen.core.samples import Outcome
from loadgen.core.units import NS_PER_S, Duration
from loadgen.kube.api import KubeApi
from loadgen.kube.churn import ChurnSpec
from loadgen.kube.local import LocalLoad

PAUSE = "registry.k8s.io/pause:3.10"
NAMESPACE = "loadgen-churn"
LIMIT_S = 400.0

Meanwhile = Callable[[], Awaitable[None]]


@pytest.fixture(scope="module")
def namespace(plain_cluster: str) -> Iterator[str]:
    kubectl(plain_cluster, "create", "namespace", NAMESPACE)
    kubectl(plain_cluster, "-n", NAMESPACE, "wait", "--for=create", "serviceaccount/default", "--timeout=60s")
    yield NAMESPACE
    kubectl(plain_cluster, "delete", "namespace", NAMESPACE)


@pytest.fixture(scope="module")
def node(plain_cluster: str) -> str:
    """A worker."""
    names = kubectl(plain_cluster, "get", "nodes", "-l", "!node-role.kubernetes.io/control-plane", "-o", "name")
    return names.split()[0].removeprefix("node/")


class Churned(Told):
    """One worker's run."""

    def __init__(self, context: str, node: str, tmp_path: Path) -> None:
        super().__init__()
        self._context, self._node, self._folder = context, node, tmp_path
        self.kubeconfig: str | None = None
        self.left = ""

    async def go(self, load: Churn, meanwhile: Meanwhile | None = None, **more: Any) -> None:
        async with asyncio.timeout(LIMIT_S):
            spec = {"node": self._node, "image": PAUSE, "qps": 100.0, "burst": 100, **more}
            running = await LocalLoad.start(
                "loadgen.kube.churn",
                ChurnSpec(
                    context=self._context,
                    kubeconfig=self.kubeconfig,
                    namespace=NAMESPACE,
                    run="e2e",
                    load=load,
                    phase="burst",
                    source="pods",
                    seed=1,
                    **spec,
                ),
                self._folder,
                self.said.append,
            )
            try:
                await running.ready()
                start_ns = time.monotonic_ns() + NS_PER_S // 20
                running.go(start_ns, start_ns + 120 * NS_PER_S)
                beside = asyncio.create_task(meanwhile()) if meanwhile else None
                await running.wait()
                if beside is not None:
                    beside.cancel()
            finally:
                await running.close()
        self.left = kubectl(self._context, "-n", NAMESPACE, "get", "pods,jobs", "-o", "name")

    def lengths(self, metric: str) -> dict[str, float]:
        """Seconds from when it was sent, by ref."""
        rows = self.rows(metric)
        return dict(zip(self.refs(metric), ((rows["done_ns"] - rows["sent_ns"]) / NS_PER_S).tolist(), strict=True))


def sandboxes(context: str, node: str) -> tuple[int, float]:
    """Count and sum of the kubelet's run_podsandbox."""
    text = kubectl(context, "get", "--raw", f"/api/v1/nodes/{node}/proxy/metrics")
    name = r'kubelet_runtime_operations_duration_seconds_{}{{operation_type="run_podsandbox"}} (\S+)'
    found = [re.search(name.format(what), text) for what in ("count", "sum")]
    count, seconds = (float(match[1]) if match else 0.0 for match in found)
    return int(count), seconds


def test_a_burst_of_fifty_agrees_with_the_kubelet(
    plain_cluster: str, namespace: str, node: str, tmp_path: Path
) -> None:
    run = Churned(plain_cluster, node, tmp_path)
    before = sandboxes(plain_cluster, node)
    asyncio.run(run.go(Churn(pace=Burst(size=50))))
    after = sandboxes(plain_cluster, node)
    assert run.created == {SETUP: 50, ATTEMPT: 50, DELETE: 0, CONDITION: 50, STAMP: 50}
    run.check_numbers()
    assert set(run.rows(SETUP)["outcome"]) == {Outcome.OK}
    assert after[0] - before[0] == 50
    # Ours begins with the scheduling and ends with the event after the sandbox; the kubelet's is the call alone.
    theirs = (after[1] - before[1]) / 50
    ours = float(np.mean(list(run.lengths(ATTEMPT).values())))
    assert theirs < ours < theirs + 5
    # The condition comes with a later status, and both kinds of stamps agree about it to their second.
    setup, condition, stamp = (run.lengths(name) for name in (SETUP, CONDITION, STAMP))
    assert all(condition[ref] >= setup[ref] for ref in setup)
    assert np.median([abs(condition[ref] - stamp[ref]) for ref in setup]) < 2.0
    assert run.left == ""
    # The clocks are the same here.
    assert min(run.readings("client.lag")) > 0


def test_connections_cut_in_the_middle_of_a_burst(
    plain_cluster: str, namespace: str, node: str, tmp_path: Path
) -> None:
    run = Churned(plain_cluster, node, tmp_path)

    async def main() -> int:
        async with KubeApi.from_kubeconfig(plain_cluster) as api:
            port = int(api.server.rpartition(":")[2])
        async with CuttingProxy(port) as proxy:
            config = kubectl(plain_cluster, "config", "view", "--raw", "--minify", "--flatten")
            (tmp_path / "config").write_text(config.replace(f"https://127.0.0.1:{port}", proxy.url))
            run.kubeconfig = str(tmp_path / "config")

            async def cut() -> None:
                for _ in range(15):
                    await asyncio.sleep(1.0)
                    proxy.cut()

            await run.go(Churn(pace=Burst(size=20), delete_after=Duration(NS_PER_S)), cut)
            return proxy.cuts

    assert asyncio.run(main()) > 5
    assert (run.created[SETUP], run.created[ATTEMPT], run.created[DELETE]) == (20, 20, 20)
    run.check_numbers()
    for metric in (SETUP, ATTEMPT, DELETE):
        assert set(run.rows(metric)["outcome"]) == {Outcome.OK}
        assert len(set(run.refs(metric))) == 20
    assert run.left == ""


REFUSING = """#!/bin/sh
# Pods of our namespace are refused as often as their number's remainder by 3; every other call goes through.
config=$(cat)
pod=$(echo "$CNI_ARGS" | tr ';' '\\n' | sed -n 's/^K8S_POD_NAME=//p')
case "$CNI_COMMAND $CNI_ARGS" in
VERSION*) echo '{"cniVersion": "0.4.0", "supportedVersions": ["0.3.1", "0.4.0"]}'; exit 0 ;;
ADD*K8S_POD_NAMESPACE=loadgen-churn*)
    mkdir -p /run/refusing
    done=$(cat "/run/refusing/$pod" 2>/dev/null || echo 0)
    if [ "$done" -lt $((${pod##*-} % 3)) ]; then
        echo $((done + 1)) > "/run/refusing/$pod"
        msg='unable to create endpoint: [PUT /endpoint/{id}][429] putEndpointIdTooManyRequests'
        echo "{\\"cniVersion\\": \\"0.4.0\\", \\"code\\": 101, \\"msg\\": \\"$msg\\"}"
        exit 1
    fi ;;
DEL*) exit 0 ;;
esac
echo "$config" | tr '\\n' ' ' | sed 's/.*"prevResult": *//; s/, *"type": *"refusing".*$//'
"""


@pytest.fixture
def refusing(plain_cluster: str, node: str) -> Iterator[None]:
    """The node's network with a plugin behind it that refuses; as it was, afterwards."""
    folder, plugin = "/etc/cni/net.d", "/opt/cni/bin/refusing"
    was = docker("exec", node, "sh", "-c", f"cat $(ls {folder}/*.conflist | head -1)")
    docker("exec", "-i", node, "sh", "-c", f"cat > {plugin} && chmod +x {plugin}", text=REFUSING)
    head, tail = was.rstrip().rsplit("]", 1)
    # A file of our own, first by name: the cluster's own is written again and again by its DaemonSet. In place:
    # containerd does not notice a file that is renamed into the folder.
    ours = f"{folder}/00-refusing.conflist"
    docker("exec", "-i", node, "sh", "-c", f"cat > {ours}", text=f'{head}, {{"type": "refusing"}}]{tail}')
    yield
    docker("exec", node, "rm", "-rf", ours, plugin, "/run/refusing")


def test_every_refusal_of_a_plugin_is_an_attempt(
    plain_cluster: str, namespace: str, node: str, refusing: None, tmp_path: Path
) -> None:
    run = Churned(plain_cluster, node, tmp_path)
    asyncio.run(run.go(Churn(pace=Burst(size=9))))
    assert run.details(ATTEMPT) == {"": 9, "429 TooManyRequests": 9}
    run.check_numbers()
    assert Counter(run.rows(SETUP)["tries"].tolist()) == {1: 3, 2: 3, 3: 3}
    # The kubelet tries again after a constant pause, which is the retry's.
    failed = run.rows(ATTEMPT)["outcome"] == Outcome.FAIL
    assert failed.sum() == 9
    setup, tries = run.rows(SETUP), run.rows(SETUP)["tries"]
    shortest = {n: ((setup["done_ns"] - setup["sent_ns"])[tries == n] / NS_PER_S).min() for n in (1, 2, 3)}
    assert 8 < shortest[2] - shortest[1] < 40
    assert 8 < shortest[3] - shortest[2] < 40
    assert run.left == ""


def test_batches_are_jobs(plain_cluster: str, namespace: str, node: str, tmp_path: Path) -> None:
    run = Churned(plain_cluster, node, tmp_path)
    pace = Burst(size=6, every=Duration(3 * NS_PER_S), count=2)
    asyncio.run(run.go(Churn(pace=pace, delete_after=Duration(NS_PER_S), via="job")))
    assert (run.created[SETUP], run.created[ATTEMPT], run.created[DELETE]) == (12, 12, 12)
    assert set(run.rows(SETUP)["outcome"]) == set(run.rows(DELETE)["outcome"]) == {Outcome.OK}
    assert len(set(run.refs(SETUP))) == 12
    assert run.left == ""


def test_an_image_that_is_missing_hurts_no_sandbox_and_is_said(
    plain_cluster: str, namespace: str, node: str, tmp_path: Path
) -> None:
    run = Churned(plain_cluster, node, tmp_path)
    asyncio.run(run.go(Churn(pace=Burst(size=3)), image="nowhere.invalid/none:1"))
    assert set(run.rows(SETUP)["outcome"]) == {Outcome.OK}
    assert run.notes == [
        f"{node} does not have the image nowhere.invalid/none:1 (ErrImageNeverPull): containers do not start, "
        "sandboxes are measured all the same"
    ]
    assert run.left == ""
