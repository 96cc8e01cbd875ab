"""Whole runs on real kind clusters through the command line, as a user would: two failures, two cures, and misuse."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from e2e.conftest import kubectl
from e2e.machine import nodeimage
from loadgen.core.verdict import Exit

LIMIT_S = 900


def command(*args: object) -> list[str]:
    return [sys.executable, "-m", "loadgen.cli", *map(str, args)]


def loadgen(*args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*args), capture_output=True, text=True, timeout=LIMIT_S, check=False)


def wait_until(holds: Callable[[], bool], what: str, limit_s: float = 120) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def verdict(out: Path) -> dict[str, str]:
    found = json.loads((out / "verdict.json").read_text())
    return {v["name"]: v["verdict"] for v in found["variants"]} | {"": found["verdict"]}


def marked(out: Path, kind: str, name: str) -> bool:
    marks = [*out.glob("runs/*/marks.jsonl")]
    return any(f'"kind":"{kind}","name":"{name}"' in path.read_text() for path in marks)


def cluster_is_as_it_was(context: str) -> None:
    """Nothing of ours is left in the cluster or on its nodes."""
    assert "loadgen" not in kubectl(context, "get", "namespaces", "-o", "name").replace("/loadgen-e2e", "")
    for node in kubectl(context, "get", "nodes", "-o", "jsonpath={.items[*].metadata.name}").split():
        left = subprocess.run(
            [
                "docker",
                "exec",
                node,
                "sh",
                "-c",
                "ls /etc/cni/net.d /opt/cni/bin; nft list tables; ls -R /sys/fs/bpf; ip -4 addr show dev lo",
            ],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert "loadgen" not in left, f"{node}: {left}"
        assert "cilium_ct" not in left, f"{node}: {left}"
        assert "169.254" not in left, f"{node}: {left}"


MODEL = ("--testbed", "cluster", "--cni", "model")


def test_the_spiral_and_its_cure_on_real_nodes(plain_cluster: str, image: str, tmp_path: Path) -> None:
    """A real kubelet, a real containerd and the agent model: the burst fails at 12 h and passes at 60 s."""
    out = tmp_path / "out"
    # Three nodes and the generators share this machine's CPUs.
    smaller = ("--set", "loads.storm.pace.rate=300")
    where = ("--context", plain_cluster, "--image", image)
    done = loadgen("run", "ct-gc-spiral", *MODEL, *where, "--out", out, "--seed", 7, *smaller)
    assert done.returncode == Exit.PASS, done.stderr + done.stdout
    assert verdict(out) == {"before": "FAIL", "after": "PASS", "": "PASS"}
    summary = json.loads((out / "summary.json").read_text())
    before, after = summary["runs"]
    assert after["metrics"]["sandbox.setup"]["n"] == 50
    assert before["gauges"]["ct.tcp.entries"]["max"] > 1_500_000
    assert before["problems"] == after["problems"] == []
    cluster_is_as_it_was(plain_cluster)


@pytest.mark.parametrize("proxy", ["iptables", "nftables"])
def test_the_dns_race_through_a_real_kube_proxy(
    proxy: str, image: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    context = request.getfixturevalue("plain_cluster" if proxy == "iptables" else "nftables_cluster")
    out = tmp_path / "out"
    which = ("--variant", "before", "--variant", "after", "--variant", "nodelocal")
    where = ("--testbed", "cluster", "--cni", "none", "--context", context, "--image", image)
    done = loadgen("run", "dns-race", *where, "--out", out, *which)
    assert done.returncode == Exit.PASS, done.stderr + done.stdout
    before, after, cached = json.loads((out / "summary.json").read_text())["runs"]
    assert 4.9 < before["metrics"]["dns.lookup"]["max"] < 6
    assert after["metrics"]["dns.lookup"]["max"] < 2.5
    assert cached["metrics"]["dns.lookup"]["max"] < 2.5
    cluster_is_as_it_was(context)


SMALL = """
name: small
hypothesis: pods start
settings: {cilium: {bpf: {ctTcpMax: 65536, ctAnyMax: 16384}}}
variants: {only: {}}
faults: {leftovers: {kind: ct-fill, entries: 20000}}
loads:
  pods: {driver: churn, pace: {kind: burst, size: 5}, timeout: 60s}
phases: [{name: main, duration: 60s, loads: [pods], faults: [leftovers], measured: true}]
thresholds: [sandbox.setup failed == 0]
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def test_a_killed_run_is_cleaned_from_the_cluster(
    plain_cluster: str, image: str, small: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    args = ("run", small, *MODEL, "--context", plain_cluster, "--image", image, "--out", out)
    with subprocess.Popen(command(*args), stderr=subprocess.PIPE, text=True) as running:
        wait_until(lambda: marked(out, "fault", "leftovers"), "the table was filled")
        running.kill()
    refused = loadgen(
        "run", small, *MODEL, "--context", plain_cluster, "--image", image, "--out", tmp_path / "second"
    )
    assert refused.returncode == Exit.USAGE
    assert "loadgen clean --context" in refused.stderr
    cleaned = loadgen("clean", "--context", plain_cluster)
    assert cleaned.returncode == Exit.PASS, cleaned.stderr
    assert "put back" in cleaned.stdout
    cluster_is_as_it_was(plain_cluster)
    assert loadgen("clean", "--context", plain_cluster).stdout.strip() == "nothing was left"


def test_an_interrupted_run_puts_everything_back(plain_cluster: str, image: str, small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    args = ("run", small, *MODEL, "--context", plain_cluster, "--image", image, "--out", out)
    with subprocess.Popen(command(*args), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        wait_until(lambda: marked(out, "fault", "leftovers"), "the table was filled")
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=180)
    assert running.returncode == Exit.INTERRUPTED
    cluster_is_as_it_was(plain_cluster)


def test_up_and_down_leave_the_users_contexts_alone(
    image: str, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KIND_CLUSTER_NAME", "loadgen-updown")
    before = yaml.safe_load(kubeconfig.read_text())
    done = loadgen("up", "--cni", "none", "--image", image, "--node-image", nodeimage.NODE)
    assert done.returncode == Exit.PASS, done.stderr
    now = yaml.safe_load(kubeconfig.read_text())
    assert now["current-context"] == before["current-context"]
    assert "kind-loadgen-updown" in {entry["name"] for entry in now["contexts"]}
    again = loadgen("up", "--cni", "none", "--image", image, "--node-image", nodeimage.NODE)
    assert again.returncode == Exit.USAGE
    assert "there is a kind cluster loadgen-updown already" in again.stderr
    assert loadgen("down").returncode == Exit.PASS
    assert yaml.safe_load(kubeconfig.read_text())["contexts"] == before["contexts"]
    assert "nothing was deleted" in loadgen("down").stdout


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--context", "nope"), "no context nope; there are"),
        (("--context", "somebody-else"), "(context somebody-else): GET /version"),
        (("--node", "nope"), "--node nope: no such node"),
        (("--cni", "cilium"), "this cluster has no Cilium"),
        (("--set", "loads.pods.pace.size=5000"), "takes 110 pods and has"),
        (("--image", "nope:1"), "nope:1"),
    ],
)
def test_misuse_is_one_line_and_leaves_nothing(
    plain_cluster: str, image: str, small: Path, tmp_path: Path, args: tuple[str, ...], says: str
) -> None:
    usual = {"--context": plain_cluster, "--image": image, "--cni": "model"}
    chosen = [word for key, value in usual.items() if key not in args for word in (key, value)]
    done = loadgen("run", small, "--testbed", "cluster", *chosen, *args, "--out", tmp_path / "out")
    assert done.returncode in (Exit.USAGE, Exit.HARNESS), done.stderr
    assert says in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    cluster_is_as_it_was(plain_cluster)


def test_what_would_be_touched_is_said_and_nothing_is(plain_cluster: str, small: Path) -> None:
    done = loadgen("run", small, *MODEL, "--context", plain_cluster, "--dry-run")
    assert done.returncode == Exit.PASS
    assert "touches every node: the CNI configuration" in " ".join(done.stdout.split())
    cluster_is_as_it_was(plain_cluster)
