"""Churn beside kube-burner: the same pods on the same node at the same QPS and burst, in alternating turns.

    .venv/bin/python bench/kubeburner.py --context kind-loadgen [--node NODE] [--pods 60] [--repeats 5]

Prints ratios, ours ÷ theirs: pods created and pods Ready a second, as a third client sees both by its own watch, and
the CPU (user + system) of each tool's whole process tree, from its start to its end with everything removed. Then how
far the latencies agree that each tool reports of its own pods. `python -m e2e.machine build` builds kube-burner.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from loadgen.core import frames
from loadgen.core.errors import ConfigError, HarnessError
from loadgen.core.model import Burst, Churn
from loadgen.core.samples import Message, SampleBatch
from loadgen.core.units import NS_PER_S, enc_hook
from loadgen.kube.api import KubeApi, KubeError
from loadgen.kube.churn import STAMP, ChurnSpec
from loadgen.kube.objects import Pod
from loadgen.kube.watch import Kind, Watch

LIMIT_S = 300.0
MAX_PODS, MAX_REPEATS = 100, 20
OURS, THEIRS = "loadgen", "kube-burner"

_SPEC = """
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms: [{{matchFields: [{{key: metadata.name, operator: In, values: [{node}]}}]}}]
  automountServiceAccountToken: false
  enableServiceLinks: false
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  securityContext:
    {{runAsNonRoot: true, runAsUser: 65535, runAsGroup: 65535, seccompProfile: {{type: RuntimeDefault}}}}
  containers:
    - name: pause
      image: {image}
      imagePullPolicy: Never
      resources: {{requests: {{cpu: 1m, memory: 1Mi}}}}
      securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}
"""

_POD = """
apiVersion: v1
kind: Pod
metadata:
  name: churn-{{.Iteration}}-{{.Replica}}
spec:"""

_CONFIG = """
global:
  gc: true
  measurements: [{{name: podLatency}}]
metricsEndpoints:
  - indexer: {{type: local, metricsDirectory: {folder}/metrics}}
jobs:
  - name: burst
    jobType: create
    jobIterations: 1
    namespace: {namespace}
    namespacedIterations: false
    qps: {qps}
    burst: {burst}
    preLoadImages: false
    waitWhenFinished: true
    objects: [{{objectTemplate: {folder}/pod.yml, replicas: {pods}}}]
"""


class Place(NamedTuple):
    """Where and with what."""

    context: str | None
    node: str
    image: str
    pods: int
    kube_burner: str


class Rate(NamedTuple):
    qps: int
    burst: int


class Turn(NamedTuple):
    """One turn of one tool. Latencies in seconds: creation → PodReadyToStartContainers, by stamps."""

    created_s: float
    ready_s: float
    cpu_s: float
    told: np.ndarray
    seen: np.ndarray


class Observer:
    """Watches one namespace's pods and remembers when it saw what."""

    def __init__(self) -> None:
        self.added: dict[str, int] = {}
        self.ready: dict[str, int] = {}
        self.stamps: dict[str, float] = {}

    def on_pod(self, kind: Kind, pod: Pod, received_ns: int) -> None:
        if kind == "DELETED":
            return
        uid = pod.metadata.uid
        self.added.setdefault(uid, received_ns)
        up, created = pod.condition("PodReadyToStartContainers"), pod.metadata.creation_timestamp
        if uid not in self.stamps and up and up.true and up.last_transition_time and created:
            self.stamps[uid] = (up.last_transition_time - created).total_seconds()
        if uid not in self.ready and (condition := pod.condition("Ready")) and condition.true:
            self.ready[uid] = received_ns

    def rates(self, pods: int) -> tuple[float, float]:
        """Pods created and pods Ready a second, from the first pod seen."""
        if len(self.added) != pods or len(self.ready) != pods:
            raise HarnessError(f"saw {len(self.added)} of {pods} pods, {len(self.ready)} of them Ready")
        first = min(self.added.values())
        # A whole burst may arrive in one piece.
        created, ready = (max(max(times.values()) - first, NS_PER_S // 1000) for times in (self.added, self.ready))
        return pods / (created / NS_PER_S), pods / (ready / NS_PER_S)


async def turn(api: KubeApi, place: Place, tool: str, rate: Rate) -> Turn:
    namespace = f"loadgen-bench-{secrets.token_hex(3)}"
    observer = Observer()
    path = f"/api/v1/namespaces/{namespace}/pods"
    watch = Watch(api, path, Pod, observer.on_pod)
    watching = asyncio.create_task(watch.run())
    try:
        await watch.synced.wait()
        with tempfile.TemporaryDirectory(prefix="loadgen-bench-") as folder:
            run = _ours if tool == OURS else _theirs
            if tool == OURS:
                await _make_namespace(api, namespace)
            cpu_s, told = await asyncio.to_thread(run, place, namespace, rate, Path(folder))
        created_s, ready_s = observer.rates(place.pods)
        return Turn(created_s, ready_s, cpu_s, told, np.array(list(observer.stamps.values())))
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        await _remove_namespace(api, namespace)


async def _make_namespace(api: KubeApi, name: str) -> None:
    await api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    async with asyncio.timeout(60):
        while True:
            try:
                await api.get(f"/api/v1/namespaces/{name}/serviceaccounts/default")
                return
            except KubeError:
                await asyncio.sleep(0.1)


async def _remove_namespace(api: KubeApi, name: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        await api.delete(f"/api/v1/namespaces/{name}")
        while True:
            try:
                await api.get(f"/api/v1/namespaces/{name}")
            except KubeError:
                return
            await asyncio.sleep(0.5)


def _ours(place: Place, namespace: str, rate: Rate, folder: Path) -> tuple[float, np.ndarray]:
    """The worker process is all there is to it: what reads its messages would run anyway."""
    spec = ChurnSpec(
        context=place.context,
        namespace=namespace,
        run="bench",
        node=place.node,
        image=place.image,
        qps=rate.qps,
        burst=rate.burst,
        load=Churn(pace=Burst(size=place.pods)),
        phase="burst",
        source="pods",
        seed=0,
    )
    (folder / "spec.json").write_bytes(msgspec.json.encode(spec, enc_hook=enc_hook))
    argv = [sys.executable, "-m", "loadgen.kube.churn", str(folder / "spec.json"), str(os.getpid())]
    with (folder / "log").open("wb") as log:
        worker = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
    messages = _messages(worker)
    next(messages)  # it is ready
    assert worker.stdin is not None
    now = time.monotonic_ns()
    worker.stdin.write(f"go {now} {now + 120 * NS_PER_S}\n".encode())
    worker.stdin.flush()
    said = list(messages)
    cpu_s = _cpu(worker, folder / "log")
    stamps = [m.array() for m in said if isinstance(m, SampleBatch) and m.metric == STAMP]
    return cpu_s, np.concatenate([rows["done_ns"] - rows["due_ns"] for rows in stamps]) / NS_PER_S


def _messages(worker: subprocess.Popen[bytes]) -> Iterator[Message]:
    assert worker.stdout is not None
    while header := worker.stdout.read(frames.HEADER_BYTES):
        yield frames.decode(worker.stdout.read(frames.body_length(header)))


def _theirs(place: Place, namespace: str, rate: Rate, folder: Path) -> tuple[float, np.ndarray]:
    (folder / "pod.yml").write_text(_POD + _SPEC.format(node=place.node, image=place.image))
    config = _CONFIG.format(folder=folder, namespace=namespace, qps=rate.qps, burst=rate.burst, pods=place.pods)
    (folder / "config.yml").write_text(config)
    context = ["--kube-context", place.context] if place.context else []
    argv = [place.kube_burner, "init", "-c", str(folder / "config.yml"), *context]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=folder)
    # 4: it has found negative latencies among its own, and says so; its work is done all the same.
    cpu_s = _cpu(process, folder / "log", fine=(0, 4))
    (latencies,) = (folder / "metrics").glob("podLatencyMeasurement-*.json")
    rows = json.loads(latencies.read_text())
    return cpu_s, np.array([row["readyToStartContainersLatency"] / 1000 for row in rows])


def _cpu(process: subprocess.Popen[bytes], log: Path, *, fine: tuple[int, ...] = (0,)) -> float:
    """User and system seconds of the process and all its children, at its end. HarnessError when it fails."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        if time.monotonic() > deadline:
            process.kill()
        time.sleep(0.05)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in fine:
        words = log.read_text(errors="replace")[-2000:]
        raise HarnessError(f"{process.args} ended with {process.returncode}:\n{words}")
    return usage.ru_utime + usage.ru_stime


def report(rate: Rate, pods: int, ours: Sequence[Turn], theirs: Sequence[Turn]) -> None:
    print(f"\n{pods} pods, qps {rate.qps}, burst {rate.burst}, {len(ours)} turns each (median, then min to max)")
    for name, what in (("created_s", "pods created/s"), ("ready_s", "pods Ready/s"), ("cpu_s", "client CPU, s")):
        a, b = (np.array([getattr(turn, name) for turn in turns]) for turns in (ours, theirs))
        ratio = a / b
        mean = float(np.exp(np.log(ratio).mean()))
        print(f"  {what:<16} {OURS} {_spread(a)}   {THEIRS} {_spread(b)}   ours ÷ theirs {mean:.2f} {_range(ratio)}")
    print("  creation → PodReadyToStartContainers, s, by each tool's own word and as the observer read it:")
    for name, turns in ((OURS, ours), (THEIRS, theirs)):
        told, seen = (np.concatenate([getattr(turn, side) for turn in turns]) for side in ("told", "seen"))
        print(f"  {name:<16} {_latencies(told)}   observer {_latencies(seen)}")


def _latencies(values: np.ndarray) -> str:
    p50, p90 = np.percentile(values, (50, 90))
    return f"p50 {p50:.1f} p90 {p90:.1f} max {values.max():.1f} (n {len(values)})"


def _range(values: np.ndarray) -> str:
    return f"({values.min():.2f} to {values.max():.2f})"


def _spread(values: np.ndarray) -> str:
    return f"{np.median(values):6.2f} {_range(values)}"


async def compare(place: Place, rates: Sequence[Rate], repeats: int) -> None:
    async with KubeApi.from_kubeconfig(place.context) as api:
        await api.probe()
        for rate in rates:
            turns: dict[str, list[Turn]] = {OURS: [], THEIRS: []}
            for repeat in range(repeats):
                # ABBA: what drifts slowly meets both alike.
                for tool in (OURS, THEIRS) if repeat % 2 == 0 else (THEIRS, OURS):
                    turns[tool].append(await turn(api, place, tool, rate))
                    last = turns[tool][-1]
                    told = (
                        f"{tool}: {last.created_s:.1f} created/s, {last.ready_s:.2f} Ready/s, {last.cpu_s:.2f} s CPU"
                    )
                    print(told, file=sys.stderr, flush=True)
            report(rate, place.pods, turns[OURS], turns[THEIRS])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", help="kubeconfig context, by default the current one; KUBECONFIG is honoured")
    parser.add_argument("--node", default="loadgen-worker")
    parser.add_argument("--image", default="registry.k8s.io/pause:3.10", help="must be on the node")
    parser.add_argument("--pods", type=int, default=60, help=f"in each turn, at most {MAX_PODS}")
    parser.add_argument("--repeats", type=int, default=5, help=f"turns of each tool, at most {MAX_REPEATS}")
    parser.add_argument("--rates", default="20/20,500/500", help="QPS/BURST pairs")
    parser.add_argument("--kube-burner", default=shutil.which("kube-burner"), help="path of its binary")
    options = parser.parse_args()
    if not options.kube_burner:
        print(
            "kube-burner is neither in PATH nor given by --kube-burner; see --help on how to build it",
            file=sys.stderr,
        )
        return 4
    if not (1 <= options.pods <= MAX_PODS and 1 <= options.repeats <= MAX_REPEATS):
        print(f"--pods goes up to {MAX_PODS}, --repeats up to {MAX_REPEATS}", file=sys.stderr)
        return 4
    place = Place(options.context, options.node, options.image, options.pods, options.kube_burner)
    rates = [Rate(*map(int, pair.split("/"))) for pair in options.rates.split(",")]
    try:
        asyncio.run(compare(place, rates, options.repeats))
    except (ConfigError, HarnessError) as error:
        print(error, file=sys.stderr)
        return 4 if isinstance(error, ConfigError) else 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
