"""The lab's kubelet model beside a real kubelet and containerd, both around one scripted CNI plugin at the same time.

The plugin knows four pods by their number: 0 is added and removed, 1 is refused twice, 2 hangs at its first ADD, 3 is
deleted while its ADD is under way.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from e2e.conftest import kubectl
from e2e.machine.engine import docker
from loadgen.core.ports import Attempt
from loadgen.core.samples import Outcome
from loadgen.core.units import NS_PER_S
from loadgen.kube.events import classify
from loadgen.lab.kubelet import Kubelet, KubeletConfig

NAMESPACE = "loadgen-kubelet"
PLAIN, REFUSED, HUNG, DELETED = range(4)
LIMIT_S = 420.0
DEADLINE_S = 240.0
"""Of a RunPodSandbox: twice the default runtimeRequestTimeout."""
SLACK_S = 4.0
"""What a loaded machine may add to a pause of the real kubelet's."""
REPEAT_S = 15.0

PLUGIN = """#!/bin/sh
config=$(cat)
pod=$(echo "$CNI_ARGS" | tr ';' '\\n' | sed -n 's/^K8S_POD_NAME=//p')
case "$CNI_COMMAND $CNI_ARGS" in
VERSION*) echo '{"cniVersion": "0.4.0", "supportedVersions": ["0.3.1", "0.4.0", "1.0.0"]}'; exit 0 ;;
*K8S_POD_NAMESPACE=@NAMESPACE@*)
    mkdir -p @FOLDER@
    log() { echo "$CNI_COMMAND $1 ${pod##*-} $CNI_CONTAINERID ${CNI_NETNS:--} $(date +%s%N)" >> @FOLDER@/calls; }
    touch @FOLDER@/calls
    tries=$(grep -c "^ADD begin ${pod##*-} " @FOLDER@/calls)
    log begin
    case "$CNI_COMMAND ${pod##*-} $tries" in
    "ADD 1 0"|"ADD 1 1")
        msg='unable to create endpoint: [PUT /endpoint/{id}][429] putEndpointIdTooManyRequests'
        log end
        echo "{\\"cniVersion\\": \\"0.4.0\\", \\"code\\": 101, \\"msg\\": \\"$msg\\"}"
        exit 1 ;;
    # In place of the shell: containerd would wait for a child that holds the plugin's stdout.
    "ADD 2 0") exec sleep 400 ;;
    "ADD 3 0") sleep 20 ;;
    esac
    log end ;;
esac
[ "$CNI_COMMAND" = DEL ] && exit 0
echo "$config" | tr '\\n' ' ' | sed 's/.*"prevResult": *//; s/, *"type": *"scripted".*$//'
"""

POD = """
apiVersion: v1
kind: Pod
metadata: {{name: pod-{number}, namespace: {namespace}}}
spec:
  nodeName: {node}
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  containers: [{{name: pause, image: "registry.k8s.io/pause:3.10", imagePullPolicy: Never}}]
"""


class Call(NamedTuple):
    """A line of the plugin's log. `s`: seconds."""

    command: str
    what: str
    pod: int
    container: str
    netns: str
    s: float


class Told(NamedTuple):
    """All calls, and what became of them."""

    calls: list[Call]

    @classmethod
    def parse(cls, text: str) -> Told:
        lines = (line.split() for line in text.splitlines())
        return cls([Call(c, what, int(pod), box, net, int(ns) / NS_PER_S) for c, what, pod, box, net, ns in lines])

    def begun(self, pod: int) -> list[Call]:
        return [call for call in self.calls if call.pod == pod and call.what == "begin"]

    def ended(self, pod: int, command: str) -> float:
        return next(c.s for c in self.calls if (c.pod, c.what, c.command) == (pod, "end", command))

    def story(self, pod: int) -> list[tuple[str, int]]:
        """(command, number of the sandbox), without the repeated DELs of one that is gone."""
        calls = [call for call in self.begun(pod) if call.netns != "-"]
        boxes = list(dict.fromkeys(call.container for call in calls))
        return [(call.command, boxes.index(call.container)) for call in calls]

    def gaps(self, pod: int) -> list[float]:
        """Seconds from each DEL to the ADD that follows it."""
        calls = self.begun(pod)
        return [
            after.s - before.s
            for before, after in pairwise(calls)
            if (before.command, after.command) == ("DEL", "ADD")
        ]


def script(namespace: str, folder: str | Path) -> str:
    return PLUGIN.replace("@NAMESPACE@", namespace).replace("@FOLDER@", str(folder))


class RealNode:
    """A worker whose network has the plugin behind it."""

    FOLDER, BINARY, CHAIN = "/run/scripted", "/opt/cni/bin/scripted", "/etc/cni/net.d/00-scripted.conflist"

    def __init__(self, context: str) -> None:
        self.context = context
        names = kubectl(context, "get", "nodes", "-l", "!node-role.kubernetes.io/control-plane", "-o", "name")
        self.name = names.split()[0].removeprefix("node/")

    def sh(self, command: str, text: str | None = None) -> str:
        return docker("exec", "-i", self.name, "sh", "-c", command, text=text or "")

    def chain(self) -> None:
        was = self.sh("cat $(ls /etc/cni/net.d/*.conflist | head -1)")
        self.sh(f"cat > {self.BINARY} && chmod +x {self.BINARY}", script(NAMESPACE, self.FOLDER))
        head, tail = was.rstrip().rsplit("]", 1)
        # In place: containerd does not notice a file that is renamed into the folder.
        self.sh(f"cat > {self.CHAIN}", f'{head}, {{"type": "scripted"}}]{tail}')

    def unchain(self) -> None:
        self.sh(f"rm -rf {self.CHAIN} {self.BINARY} {self.FOLDER}")

    def kubectl(self, *args: str) -> str:
        return kubectl(self.context, "-n", NAMESPACE, *args)

    def told(self) -> Told:
        return Told.parse(self.sh(f"cat {self.FOLDER}/calls 2>/dev/null || true"))

    def until(self, pod: int, command: str, count: int = 1, what: str = "begin") -> None:
        deadline = time.monotonic() + LIMIT_S
        while sum((c.pod, c.command, c.what) == (pod, command, what) for c in self.told().calls) < count:
            assert time.monotonic() < deadline, f"pod {pod}: no {command} number {count}: {self.told().begun(pod)}"
            time.sleep(0.5)

    def go(self) -> Told:
        """All four pods at once, until each story is over."""
        pods = "\n---\n".join(POD.format(number=n, namespace=NAMESPACE, node=self.name) for n in range(4))
        argv = ["kubectl", "--context", self.context, "apply", "-f", "-"]
        subprocess.run(argv, input=pods, text=True, check=True, capture_output=True)
        self.until(DELETED, "ADD")
        self.kubectl("delete", "pod", "--wait=false", f"pod-{DELETED}")
        self.until(PLAIN, "ADD", what="end")
        self.kubectl("delete", "pod", "--wait=false", f"pod-{PLAIN}")
        self.until(REFUSED, "ADD", 3, "end")
        self.until(DELETED, "DEL", what="end")
        self.until(HUNG, "ADD", 2)
        return self.told()

    def said(self, pod: int) -> list[str]:
        """Texts of its FailedCreatePodSandBox events."""
        events = json.loads(
            self.kubectl("get", "events", "--field-selector", f"involvedObject.name=pod-{pod}", "-o", "json")
        )
        return [event["message"] for event in events["items"] if event["reason"] == "FailedCreatePodSandBox"]


@pytest.fixture
def real(plain_cluster: str) -> Iterator[RealNode]:
    kubectl(plain_cluster, "create", "namespace", NAMESPACE)
    kubectl(plain_cluster, "-n", NAMESPACE, "wait", "--for=create", "serviceaccount/default", "--timeout=60s")
    node = RealNode(plain_cluster)
    node.chain()
    yield node
    node.unchain()
    kubectl(plain_cluster, "delete", "namespace", NAMESPACE)


async def modelled(folder: Path, attempts: dict[int, list[Attempt]]) -> Told:
    """The same four pods with the model, whose delays are its own defaults."""
    plugin = folder / "plugin"
    plugin.write_text(script("loadgen", folder / "told"))
    plugin.chmod(0o755)
    config = KubeletConfig(folder / "netns", plugin, Path("/nowhere"), interpreter=(), repeat_delete_s=REPEAT_S)
    kubelet = Kubelet(config, seed=1)

    async def start(pod: int, limit_s: float) -> bool:
        deadline = time.monotonic_ns() + round(limit_s * NS_PER_S)
        return await kubelet.start_pod(pod, deadline, attempts[pod].append)

    async def plain() -> bool:
        return await start(PLAIN, LIMIT_S) and await kubelet.remove_pod(PLAIN, attempts[PLAIN].append)

    try:
        done = await asyncio.gather(plain(), start(REFUSED, LIMIT_S), start(HUNG, LIMIT_S), start(DELETED, 5.0))
        assert done == [True, True, True, False]
        return Told.parse((folder / "told" / "calls").read_text())
    finally:
        await kubelet.close()


@pytest.fixture
def both(real: RealNode, tmp_path: Path) -> tuple[Told, Told, dict[int, list[Attempt]]]:
    """What the real one was seen to do, what the model did, and what the model said of it."""
    attempts: dict[int, list[Attempt]] = {number: [] for number in range(4)}

    async def side_by_side() -> tuple[Told, Told]:
        return await asyncio.gather(asyncio.to_thread(real.go), modelled(tmp_path, attempts))

    return *asyncio.run(side_by_side()), attempts


def test_the_model_does_what_a_real_kubelet_does(
    real: RealNode, both: tuple[Told, Told, dict[int, list[Attempt]]]
) -> None:
    theirs, ours, attempts = both
    for pod in range(4):
        assert ours.story(pod) == theirs.story(pod), pod
    assert ours.story(REFUSED) == [("ADD", 0), ("DEL", 0), ("ADD", 1), ("DEL", 1), ("ADD", 2)]
    for told in both[:2]:
        # A failed ADD is followed by its DEL at once, and by the next ADD after a constant pause.
        refused, hung, deleted = (told.begun(pod) for pod in (REFUSED, HUNG, DELETED))
        assert refused[1].s - told.ended(REFUSED, "ADD") < SLACK_S
        assert DEADLINE_S - 1 < hung[1].s - hung[0].s < DEADLINE_S + SLACK_S
        # The ADD of a pod that was deleted meanwhile goes on to its end.
        assert deleted[1].s - deleted[0].s > 20
        # DELs that are repeated after the namespace is gone come without its path.
        repeated = [call for call in told.begun(PLAIN)[2:] if call.command == "DEL"]
        assert all(call.netns == "-" for call in repeated)
    low, high = KubeletConfig(Path(), Path(), Path()).retry_s
    assert all(low - SLACK_S < gap < high + SLACK_S for gap in theirs.gaps(REFUSED) + theirs.gaps(HUNG))

    said = [classify("FailedCreatePodSandBox", text, deadline_s=DEADLINE_S) for text in real.said(REFUSED)]
    assert [(s.detail, s.outcome) for s in said if s] == [("429 TooManyRequests", Outcome.FAIL)] * 2
    assert {s.sandbox for s in said if s} == {call.container for call in theirs.begun(REFUSED)[:4]}
    failed = [a for a in attempts[REFUSED] if a.op == "ADD" and a.outcome != Outcome.OK]
    assert [(a.detail, a.outcome) for a in failed] == [("429 TooManyRequests", Outcome.FAIL)] * 2
    (text,) = real.said(HUNG)
    late = classify("FailedCreatePodSandBox", text, deadline_s=DEADLINE_S)
    assert late is not None
    assert (late.detail, late.outcome) == ("kubelet deadline 240s", Outcome.UNKNOWN)
    assert (attempts[HUNG][0].detail, attempts[HUNG][0].outcome) == ("killed after 4m", Outcome.UNKNOWN)
