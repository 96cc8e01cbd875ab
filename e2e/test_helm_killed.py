"""What a run or a helm that was killed leaves in a real cluster, and how it is put back."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest

from e2e.ciliumlike import AFTER, CHART, NAMESPACE, OURS, Cluster, namespace
from loadgen.core.errors import ConfigError, HarnessError
from loadgen.kube.clean import clean_cluster


@pytest.fixture
def cluster(plain_cluster: str) -> Iterator[Cluster]:
    with namespace(plain_cluster) as found:
        yield found


@pytest.fixture
def installed(cluster: Cluster) -> Cluster:
    cluster.install("conntrackGCInterval=5m", "bpf.ctTcpMax=131072", "bpf.ctAnyMax=65536")
    return cluster


RUN = """
import asyncio, sys
from e2e.ciliumlike import BEFORE, OURS
from loadgen.kube import saved, workspace
from loadgen.kube.api import KubeApi
from loadgen.kube.cni.cilium import CiliumCni
from loadgen.kube.rollout import Rollout

async def stop(*_, **__):
    print("here", flush=True)
    await asyncio.sleep(3600)

if sys.argv[2] == "before the restart":
    Rollout.restart = stop
if sys.argv[2] == "during the restart":
    Rollout.ready = stop
if sys.argv[2] == "before verifying":
    CiliumCni._verify = stop

async def main():
    async with KubeApi.from_kubeconfig(sys.argv[1]) as api:
        await api.probe()
        cni = CiliumCni(api)
        await workspace.claim(api, OURS, "dead")
        await saved.write(api, OURS, "cilium", await cni.save())
        if sys.argv[2] == "before any change":
            await stop()
        await cni.apply(BEFORE)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "when", ["before any change", "before the restart", "during the restart", "before verifying"]
)
def test_a_run_that_was_killed_is_put_back_from_what_it_had_saved(installed: Cluster, when: str) -> None:
    was, old = installed.state(), installed.agents()
    argv = [sys.executable, "-c", RUN, installed.context, when]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.getcwd()}
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "here\n"
        run.kill()
    done = asyncio.run(clean_cluster(installed.context, OURS))
    assert any("put back as before run dead" in line for line in done)
    assert installed.state() == was
    assert installed.running() == {"300000000000"}
    if when in ("before any change", "before the restart"):
        assert installed.agents() == old
    assert asyncio.run(clean_cluster(installed.context, OURS)) == []


def test_a_helm_that_was_killed_is_put_back(installed: Cluster) -> None:
    was = installed.state()
    kept = installed.on(lambda cni: cni.save())
    argv = ["helm", "--kube-context", installed.context, "-n", NAMESPACE, "upgrade", "cilium", str(CHART)]
    argv += ["--reuse-values", "--set", "hangs=true"]
    with tempfile.TemporaryFile() as log, subprocess.Popen(argv, stdout=log, stderr=log) as helm:
        installed.kubectl("wait", "--for=create", "job/cilium-hangs", "--timeout=60s")
        helm.kill()
    with pytest.raises(ConfigError, match="is pending-upgrade: a helm is at work, or one was killed; helm -n"):
        installed.on(lambda cni: cni.ensure(""))
    with pytest.raises(HarnessError, match="or one was killed: helm history and helm rollback"):
        installed.on(lambda cni: cni.apply(AFTER))
    installed.on(lambda cni: cni.restore(kept))
    assert installed.state() == was
    installed.on(lambda cni: cni.ensure(""))
