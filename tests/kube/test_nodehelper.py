"""The helper's commands as the controller sees them, run by real processes over real tables and rules."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loadgen import native
from loadgen.core.errors import ConfigError, HarnessError
from loadgen.core.model import CtFill, DnsRaceDrop
from loadgen.core.samples import Mark, Message, Reading, Span
from loadgen.kernel import nft
from loadgen.kernel.bpf import CtDatapath
from loadgen.kube import clocks, nodehelper
from loadgen.kube.clocks import Offset
from loadgen.kube.nodehelper import NodeHelper, RemoteFill
from loadgen.kube.objects import Metadata, Pod
from loadgen.lab import rules
from tests.kube.nodes import NodeApi
from tests.lab.agents import Agent

pytestmark = pytest.mark.kernel

CAPACITY = 262_144


def pod(name: str, ip: str, **more: Any) -> dict[str, Any]:
    metadata = {"name": name, **more.pop("metadata", {})}
    return {"metadata": metadata, "spec": more, "status": {"podIP": ip}}


PODS = {
    "items": [
        pod("kube-proxy", "172.18.0.2", hostNetwork=True),
        pod("web", "10.244.1.9"),
        pod("job", "10.244.1.8", metadata={"ownerReferences": [{"kind": "Job"}]}),
        pod("ending", "10.244.1.7", metadata={"deletionTimestamp": "2026-11-30T00:00:00Z"}),
        pod("six", "fd00::7"),
        pod("new", ""),
        pod("dns", "10.244.1.10"),
    ]
}
NODE = {"spec": {"podCIDR": "fd00::/64", "podCIDRs": ["fd00::/64", "10.244.1.0/24"]}}
_numbers = itertools.count()


class Rig:
    def __init__(self, api: NodeApi, pins: Path, namespace: Path) -> None:
        self.api, self.pins, self.namespace = api, pins, namespace
        self.helper = NodeHelper(api, "loadgen", "worker")  # type: ignore[arg-type]
        self.helper.adopt(Pod(Metadata(name="helper-1")))

    def entries(self, datapath: CtDatapath) -> int:
        return native.ct_walk(datapath.tcp_fd, capacity=CAPACITY, batch=512).seen


@pytest.fixture
def rig(lab_dir: Path, tmp_path: Path, netns_factory: Callable[[str], Path]) -> Iterator[Rig]:
    pins = lab_dir / "bpf" / f"helper-{next(_numbers)}"
    namespace = netns_factory("node")
    yield Rig(NodeApi(pins, tmp_path, namespace, pods=PODS, worker=NODE), pins, namespace)
    for pin in pins.glob("*"):
        pin.unlink()


def run(conversation: Awaitable[Any]) -> Any:
    async def limited() -> Any:
        async with asyncio.timeout(60):
            return await conversation

    return asyncio.run(limited())


def test_facts(rig: Rig):
    bare = run(rig.helper.facts())
    assert (bare.boot_id, bare.kernel, bare.cpus) == (clocks.boot_id(), os.uname().release, os.cpu_count())
    assert (bare.tables, bare.agent) == ({}, False)
    with CtDatapath.load(rig.pins, CAPACITY, 1024):
        assert {name: table.capacity for name, table in run(rig.helper.facts()).tables.items()} == {
            "tcp": CAPACITY,
            "any": 1024,
        }


def test_a_fill_of_the_nodes_own_pods_and_its_flush(rig: Rig):
    with CtDatapath.load(rig.pins, CAPACITY, 1024) as datapath:
        fill = rig.helper.fault("fill", CtFill(entries=100_000, expired=1.0))
        assert "instead of by hours of a storm" in fill.emulated
        assert run(fill.inject()).startswith("100,000 entries, 100% expired")
        assert rig.entries(datapath) == 100_000
        about = {"capacity": CAPACITY, "batch": 512, "delete": native.CT_ADDRESS}
        for address in ("10.244.1.9", "10.244.1.10"):
            walk = native.ct_walk(datapath.tcp_fd, address=int.from_bytes(map(int, address.split("."))), **about)
            assert walk.deleted == pytest.approx(50_000, rel=0.1)
        assert rig.entries(datapath) == 0
        run(fill.inject())
        run(fill.heal())
        run(fill.heal())
        assert rig.entries(datapath) == 0


def test_addresses_without_any_pod_are_the_last_of_the_nodes_range(rig: Rig):
    assert run(rig.helper.pod_addresses()) == ("10.244.1.10", "10.244.1.9")
    rig.api.answers["pods"] = {"items": PODS["items"][:1]}
    assert run(rig.helper.pod_addresses()) == ("10.244.1.254",)
    rig.api.answers["worker"] = {"spec": {}}
    with pytest.raises(HarnessError, match="no pod with an IPv4 address runs there, and it has no podCIDR"):
        run(rig.helper.pod_addresses())


def test_a_cancelled_fill_has_stopped_and_is_healed_by_whoever_comes_later(rig: Rig):
    async def cancel(fill: RemoteFill) -> None:
        work = asyncio.ensure_future(fill.inject())
        while not fill.put:  # noqa: ASYNC110 - set by the other task
            await asyncio.sleep(0)
        work.cancel()
        await asyncio.wait({work})
        assert work.cancelled()

    with CtDatapath.load(rig.pins, CAPACITY, 1024) as datapath:
        fill = RemoteFill(rig.helper, CtFill(entries=20_000_000))
        run(cancel(fill))
        assert 0 < fill.put < 20_000_000
        assert rig.entries(datapath) > 0
        said = run(rig.helper.run("heal"))
        assert said == b'["the CT table was emptied: a fill was in it"]\n'
        assert run(rig.helper.run("heal")) == b"[]\n"
        assert rig.entries(datapath) == 0


def test_a_fill_where_no_table_is(rig: Rig):
    with pytest.raises(HarnessError, match="node worker: ct-fill: cilium_ct4_global is not pinned on this node"):
        run(rig.helper.fault("fill", CtFill(entries=10)).inject())
    run(rig.helper.fault("fill", CtFill()).heal())


def test_the_race_comes_and_goes(rig: Rig):
    race = rig.helper.fault("race", DnsRaceDrop(probability=0.25))
    assert "25.000%" in race.emulated
    run(race.heal())
    assert run(race.inject()) == "racing second queries are dropped with probability 25.000%"
    assert set(nft.counters(rig.namespace, rules.RACE)) == {rules.RACE_COUNTER}
    assert run(rig.helper.run("heal")) == b'["the rule that dropped DNS queries was removed"]\n'
    run(race.heal())
    with pytest.raises(HarnessError):
        nft.counters(rig.namespace, rules.RACE)


def test_a_fault_that_a_cluster_has_not(rig: Rig):
    with pytest.raises(ConfigError, match=r"faults\.x: a cluster has no fault of this kind"):
        rig.helper.fault("x", object())  # type: ignore[arg-type]


async def looked(helper: NodeHelper, *, agent: bool) -> list[Message]:
    """What a probe says that is cancelled once it has said something."""
    said: asyncio.Queue[Message] = asyncio.Queue()
    probe = asyncio.ensure_future(helper.probe(said.put_nowait, agent=agent))
    first = asyncio.ensure_future(said.get())
    await asyncio.wait({probe, first}, return_when=asyncio.FIRST_COMPLETED)
    first.cancel()
    probe.cancel()
    await asyncio.wait({probe})
    if not probe.cancelled():
        await probe
    return [first.result(), *(said.get_nowait() for _ in range(said.qsize()))]


def test_the_probe_of_a_node_with_another_agent(rig: Rig):
    with CtDatapath.load(rig.pins, CAPACITY, 1024):
        seen = run(looked(rig.helper, agent=False))
    series = {message.series for message in seen if isinstance(message, Reading)}
    assert {"ct.tcp.entries", "ct.any.entries", "nfct.insert_failed"} <= series
    assert {type(message) for message in seen} == {Reading}
    # Cancelled, it looked once more.
    assert sum(isinstance(m, Reading) and m.series == "nfct.entries" for m in seen) == 2
    assert rig.api.commands == ["facts", "probe"]


def test_the_probe_of_a_node_with_our_agent(lab_dir: Path, netns_factory):
    agent = Agent(lab_dir, netns_factory("node"))
    try:
        agent.create(7)
        rig = Rig(NodeApi(agent.pins, agent.folder, agent.netns), agent.pins, agent.netns)
        seen = run(looked(rig.helper, agent=True))
        assert {span.ref for span in seen if isinstance(span, Span) and span.op == "endpoint-create"} == {"c7"}
        assert any(isinstance(m, Mark) and m.kind == "gc" for m in seen)
        assert any(isinstance(m, Reading) and m.series == "agent.endpoints" and m.value == 1 for m in seen)
    finally:
        agent.close()


def test_an_agent_that_should_be_there_and_is_not(rig: Rig):
    with pytest.raises(HarnessError, match=r"node worker: probe: HarnessError: the agent does not answer GET"):
        run(looked(rig.helper, agent=True))


def test_a_node_with_another_clock_is_asked_for_it(rig: Rig, monkeypatch):
    """The answers are moved by what the clock is off; here it is not, so they hardly move."""
    monkeypatch.setattr(clocks, "boot_id", lambda: "another machine")
    moved: list[Offset] = []
    to_ours = clocks.to_ours
    monkeypatch.setattr(clocks, "to_ours", lambda m, offset: moved.append(offset) or to_ours(m, offset))
    before = time.monotonic_ns()
    seen = run(looked(rig.helper, agent=False))
    assert rig.api.commands == ["facts", "clock", "probe"]
    (offset,) = set(moved)
    assert abs(offset.ns) <= offset.error_ns < 1_000_000_000
    assert all(before - 1e9 < m.t_ns < time.monotonic_ns() + 1e9 for m in seen if isinstance(m, Reading))


def test_wrong_use_is_one_line(rig: Rig):
    with pytest.raises(HarnessError, match=r"node worker: dance: usage: python -m loadgen.kube.node facts\|clock"):
        run(rig.helper.run("dance"))
    with pytest.raises(HarnessError, match=r"node worker: race-drop: Expected `float`, got `str`"):
        run(rig.helper.run("race-drop", {"probability": "x"}))


def test_what_is_no_answer(rig: Rig, monkeypatch):
    monkeypatch.setattr(nodehelper, "_argv", lambda *_: ["python3", "-m", "loadgen.kube.node", "heal"])
    with pytest.raises(HarnessError, match="node worker: facts: an answer that is none"):
        run(rig.helper.facts())
