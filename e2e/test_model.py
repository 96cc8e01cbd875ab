"""The agent model on a real cluster: put in, used by a real kubelet and containerd, restarted, taken out again."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from e2e.conftest import kubectl
from e2e.machine import engine
from loadgen.core.errors import HarnessError
from loadgen.core.model import Bpf, Cilium, CtFill, DnsRaceDrop, Settings, seconds
from loadgen.core.samples import Message, Reading, Span
from loadgen.kube.api import KubeApi
from loadgen.kube.cni.model import ModelCni
from loadgen.kube.kindcluster import KindCluster
from loadgen.kube.nodehelper import NodeHelper, heal_all

NAMESPACE = "loadgen-model"
PODS = 20
BUSYBOX = "docker.io/loadgen-e2e/busybox:1"
CONFLIST, PLUGIN = "/etc/cni/net.d/00-loadgen.conflist", "/opt/cni/bin/loadgen-cni"

DRIFTED = Settings(cilium=Cilium(gc_interval_now=seconds(43_200)))
SMALL = Settings(cilium=Cilium(profile="1.18", gc_interval=seconds(60), bpf=Bpf(ct_tcp_max=65_536)))


class Place:
    """The cluster with a namespace of our own, and the node that pods go to."""

    def __init__(self, context: str, image: str) -> None:
        self.context, self.image = context, image
        workers = kubectl(context, "get", "nodes", "-l", "!node-role.kubernetes.io/control-plane", "-o", "name")
        self.node = sorted(workers.split())[0].removeprefix("node/")
        self.nodes = [name.removeprefix("node/") for name in kubectl(context, "get", "nodes", "-o", "name").split()]

    def talk(self, work: Callable[[KubeApi], Awaitable[Any]]) -> Any:
        async def conversation() -> Any:
            async with asyncio.timeout(300), KubeApi.from_kubeconfig(self.context) as api:
                await api.probe()
                return await work(api)

        return asyncio.run(conversation())

    def cni(self, work: Callable[[ModelCni], Awaitable[Any]]) -> Any:
        return self.talk(lambda api: work(ModelCni(api)))

    def helper(self, work: Callable[[NodeHelper], Awaitable[Any]], *, race: bool = False) -> Any:
        async def conversation(api: KubeApi) -> Any:
            helper = NodeHelper(api, NAMESPACE, self.node)
            await helper.deploy(self.image, race=race)
            return await work(helper)

        return self.talk(conversation)

    def sh(self, node: str, script: str) -> str:
        return engine.docker("exec", node, "sh", "-c", f"{script}; true")

    def pods(self, names: list[str]) -> None:
        """Make them all at once, and wait until they are Ready."""
        items = "\n---\n".join(POD.format(name=name, node=self.node, image=BUSYBOX) for name in names)
        argv = ["kubectl", "--context", self.context, "-n", NAMESPACE, "apply", "-f", "-"]
        subprocess.run(argv, input=items, text=True, check=True, capture_output=True)
        refs = [f"pod/{name}" for name in names]
        kubectl(self.context, "-n", NAMESPACE, "wait", "--for=condition=Ready", "--timeout=300s", *refs)

    def delete(self, names: list[str]) -> None:
        kubectl(self.context, "-n", NAMESPACE, "delete", "pod", "--wait", *names)


POD = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  nodeName: {node}
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  containers:
    - name: c
      image: {image}
      imagePullPolicy: Never
      command: [sh, -c, 'trap exit TERM; while :; do nslookup kubernetes.default.svc.cluster.local; sleep 1; done']
"""


@pytest.fixture(scope="module")
def place(plain_cluster: str, image: str) -> Iterator[Place]:
    asyncio.run(KindCluster(plain_cluster.removeprefix("kind-")).load_image(image))
    kubectl(plain_cluster, "create", "namespace", NAMESPACE)
    kubectl(plain_cluster, "label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=privileged")
    yield Place(plain_cluster, image)
    kubectl(plain_cluster, "delete", "namespace", NAMESPACE)


@pytest.fixture
def installed(place: Place) -> Iterator[Place]:
    assert place.cni(lambda cni: cni.save()) == {"agent": ""}
    assert place.cni(lambda cni: cni.ensure(place.image)) is True
    yield place
    place.cni(lambda cni: cni.restore({"agent": ""}))
    nothing_is_left(place)


def nothing_is_left(place: Place) -> None:
    for node in place.nodes:
        left = place.sh(
            node,
            f"ls {CONFLIST} {PLUGIN} 2>/dev/null; find /run/loadgen /sys/fs/bpf/tc -mindepth 1 2>/dev/null;"
            "for i in $(ls /sys/class/net); do for d in ingress egress; do tc filter show dev $i $d; done; done",
        )
        assert left == "", node
    mine = ["-l", "app.kubernetes.io/name=loadgen-agent", "-o", "name"]
    assert kubectl(place.context, "-n", "kube-system", "get", "all,cm,sa,role,rolebinding", *mine) == ""


async def probed(helper: NodeHelper) -> list[Message]:
    """What the probe has seen up to now."""
    said: asyncio.Queue[Message] = asyncio.Queue()
    probe = asyncio.ensure_future(helper.probe(said.put_nowait, agent=True))
    first = await said.get()
    probe.cancel()
    await asyncio.wait({probe})
    return [first, *(said.get_nowait() for _ in range(said.qsize()))]


def last(seen: list[Message]) -> dict[str, float]:
    return {message.series: message.value for message in seen if isinstance(message, Reading)}


def test_pods_of_a_real_kubelet_in_real_tables(installed: Place) -> None:
    names = [f"burst-{i}" for i in range(PODS)]
    began = time.monotonic()
    installed.pods(names)
    empty_s = time.monotonic() - began
    seen = installed.helper(probed)
    created = {s.ref for s in seen if isinstance(s, Span) and s.op == "endpoint-create" and s.outcome == "201"}
    assert created == {f"{NAMESPACE}/{name}" for name in names}
    assert last(seen)["ct.any.entries"] >= PODS  # their lookups
    assert last(seen)["agent.endpoints"] == PODS
    facts = installed.cni(lambda cni: cni.facts())
    assert facts.environment == {"cni_chain": "ptp, portmap"}
    metrics = installed.cni(lambda cni: cni.agent_metrics(installed.node))
    assert 'cilium_endpoint_state{endpoint_state="ready"}' in installed.talk(lambda api: api.text(metrics))
    installed.delete(names)
    assert last(installed.helper(probed))["agent.endpoints"] == 0

    # A table that a storm has left: each create and each delete walks it.
    installed.cni(lambda cni: cni.apply(DRIFTED))
    said = installed.helper(lambda helper: helper.fault("fill", CtFill(entries=400_000)).inject())
    assert said.startswith("400,000 entries")
    began = time.monotonic()
    installed.pods(names[:10])
    print(f"{PODS} pods on an empty table: {empty_s:.1f} s; 10 on 400,000 entries: {time.monotonic() - began:.1f} s")
    seen = installed.helper(probed)
    walks = [s for s in seen if isinstance(s, Span) and s.op == "endpoint-create" and s.stage == "walk tcp"]
    assert len(walks) >= 10
    assert min(walk.n for walk in walks) >= 390_000
    assert installed.talk(lambda api: heal_all(api, NAMESPACE)) == [
        f"node {installed.node}: the CT table was emptied: a fill was in it"
    ]
    assert last(installed.helper(probed))["ct.tcp.entries"] < 1000
    installed.delete(names[:10])


def test_a_restart_keeps_tables_endpoints_and_the_chain(installed: Place) -> None:
    installed.pods(["before"])
    tables = installed.helper(lambda helper: helper.facts()).tables
    restart = ["-n", "kube-system", "rollout", "restart", "ds/loadgen-agent"]
    kubectl(installed.context, *restart)
    installed.pods(["meanwhile"])
    assert installed.sh(installed.node, f"ls {CONFLIST}").strip() == CONFLIST
    installed.cni(lambda cni: cni.apply(Settings()))
    assert installed.helper(lambda helper: helper.facts()).tables == tables
    assert last(installed.helper(probed))["agent.endpoints"] == 2
    # Of another size the table is another one; the other stays.
    installed.cni(lambda cni: cni.apply(SMALL))
    resized = installed.helper(lambda helper: helper.facts()).tables
    assert (resized["tcp"].capacity, resized["any"]) == (65_536, tables["any"])
    assert resized["tcp"].id != tables["tcp"].id
    installed.delete(["before", "meanwhile"])
    assert last(installed.helper(probed))["agent.endpoints"] == 0


def test_deleted_by_hand_it_takes_its_things_along(place: Place) -> None:
    place.cni(lambda cni: cni.install(place.image))
    place.pods(["pod"])
    kubectl(place.context, "-n", "kube-system", "delete", "ds", "loadgen-agent")
    mine = ["-l", "app.kubernetes.io/name=loadgen-agent"]
    kubectl(place.context, "-n", "kube-system", "wait", "--for=delete", "pod", "--timeout=60s", *mine)
    place.cni(lambda cni: cni.restore({"agent": ""}))
    nothing_is_left(place)
    place.pods(["after"])
    place.delete(["pod", "after"])


def test_an_image_that_no_node_has(place: Place) -> None:
    with pytest.raises(HarnessError, match=r"0 of \d nodes have it .*ErrImage\w+|ImagePullBackOff: loadgen:nowhere"):
        place.cni(lambda cni: cni.install("loadgen:nowhere"))
    nothing_is_left(place)


def test_the_race_in_the_nodes_own_namespace(place: Place) -> None:
    race = DnsRaceDrop(probability=0.5)
    said = place.helper(lambda helper: helper.fault("race", race).inject(), race=True)
    assert said == "racing second queries are dropped with probability 50.000%"
    assert place.talk(lambda api: heal_all(api, NAMESPACE)) == [
        f"node {place.node}: the rule that dropped DNS queries was removed"
    ]
    assert place.talk(lambda api: heal_all(api, NAMESPACE)) == []
