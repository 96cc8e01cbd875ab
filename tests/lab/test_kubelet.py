"""The kubelet model around plugins that fail, hang and die, and around the real one; delays are cut short."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from loadgen.core.model import Burst, Churn
from loadgen.core.ports import Attempt
from loadgen.core.samples import SAMPLE_DTYPE, Outcome, SampleBatch
from loadgen.core.units import NS_PER_S, Duration
from loadgen.drivers.churn import ATTEMPT, DELETE, SETUP, ChurnDriver
from loadgen.lab.kubelet import CniResult, Kubelet, KubeletConfig, verdict
from tests.drivers.test_churn import Window
from tests.lab.agents import LIMITS_LIFTED

PLUGIN = Path(__file__).parents[2] / "loadgen" / "lab" / "cni.py"
REFUSED = '{"msg": "unable to create endpoint: [PUT /endpoint/{id}][429] putEndpointIdTooManyRequests"}'


class Called(NamedTuple):
    """One line of the scripted plugin's log."""

    command: str
    container: str
    netns: str
    ns: int


class Script:
    """A plugin that logs how it was called and then does what it was told, in shell."""

    def __init__(self, folder: Path, *, add: str = "true", delete: str = "true") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self._log = folder / "plugin", folder / "calls"
        self._log.touch()
        self.path.write_text(
            "#!/bin/sh\n"
            f'log() {{ echo "$1 $CNI_CONTAINERID ${{CNI_NETNS:--}} $(date +%s%N)" >> {self._log}; }}\n'
            f'adds() {{ grep -c "^ADD" {self._log}; }}\n'
            f"log $CNI_COMMAND; cat > {folder}/stdin\n"
            f"case $CNI_COMMAND in ADD) {add};; DEL) {delete};; esac\n"
        )
        self.path.chmod(0o755)

    def calls(self, command: str = "") -> list[Called]:
        lines = [line.split() for line in self._log.read_text().splitlines()]
        calls = [Called(name, container, netns, int(ns)) for name, container, netns, ns in lines]
        return [call for call in calls if command in ("", call.command)]

    def config(self, netns_dir: Path, **changes: Any) -> KubeletConfig:
        short = {"interpreter": (), "cleanup_delay_s": 0.0, "retry_s": (0.05, 0.1), "retry_killed_s": (0.2, 0.3)}
        return KubeletConfig(netns_dir, self.path, Path("/run/agent.sock"), **{**short, **changes})


@pytest.fixture
def pods(lab_dir: Path) -> Path:
    """Where the namespaces go; the test must leave it empty."""
    folder = lab_dir / f"pods-{time.monotonic_ns()}"
    folder.mkdir()
    return folder


def run(config: KubeletConfig, work: Any) -> tuple[Any, list[Attempt]]:
    """`await work(kubelet, note)` in a loop of its own, then close; returns its result and the attempts noted."""
    attempts: list[Attempt] = []

    async def main() -> Any:
        kubelet = Kubelet(config, seed=1)
        try:
            return await work(kubelet, attempts.append)
        finally:
            await kubelet.close()

    return asyncio.run(main()), attempts


def start(count: int = 1, limit_s: float = 30.0) -> Any:
    def work(kubelet: Kubelet, note: Any) -> Coroutine[Any, Any, list[bool]]:
        deadline = time.monotonic_ns() + round(limit_s * NS_PER_S)
        return asyncio.gather(*(kubelet.start_pod(i, deadline, note) for i in range(count)))  # type: ignore[return-value]

    return work


async def until(reached: Callable[[], object]) -> None:
    while not reached():  # noqa: ASYNC110 - other processes make it so
        await asyncio.sleep(0)


def alive(pid_file: Path) -> bool:
    """Neither gone nor a zombie that only waits for init."""
    try:
        stat = Path("/proc", pid_file.read_text().strip(), "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.kernel
def test_pod_that_starts_at_once(tmp_path, pods):
    script = Script(tmp_path)
    up, (attempt,) = run(script.config(pods), start())
    (call,) = script.calls()
    assert up == [True]
    assert (attempt.ref, attempt.outcome, attempt.op, attempt.detail) == (call.container, Outcome.OK, "ADD", "")
    assert len(call.container) == 64
    assert call.netns == str(pods / f"cni-{call.container[:16]}")
    assert json.loads((tmp_path / "stdin").read_text())["agentSocket"] == "/run/agent.sock"
    assert os.listdir(pods) == []


@pytest.mark.kernel
def test_failed_add_is_deleted_and_retried_with_a_new_sandbox(tmp_path, pods):
    script = Script(tmp_path, add=f"[ $(adds) -gt 2 ] || {{ echo '{REFUSED}'; exit 1; }}")
    up, attempts = run(script.config(pods, cleanup_delay_s=0.02), start())
    calls = script.calls()
    assert up == [True]
    assert [c.command for c in calls] == ["ADD", "DEL", "ADD", "DEL", "ADD"]
    for add, delete in ((calls[0], calls[1]), (calls[2], calls[3])):
        assert (delete.container, delete.netns) == (add.container, add.netns)
        assert delete.ns - add.ns >= 0.02 * NS_PER_S
    assert len({c.container for c in calls}) == len({c.netns for c in calls}) == 3
    assert all(add.ns - delete.ns >= 0.05 * NS_PER_S for delete, add in ((calls[1], calls[2]), (calls[3], calls[4])))
    assert [(a.op, a.outcome, a.detail) for a in attempts] == [
        ("ADD", Outcome.FAIL, "429 TooManyRequests"),
        ("DEL", Outcome.OK, "failed ADD"),
        ("ADD", Outcome.FAIL, "429 TooManyRequests"),
        ("DEL", Outcome.OK, "failed ADD"),
        ("ADD", Outcome.OK, ""),
    ]
    assert [a.ref for a in attempts] == [c.container for c in calls]


@pytest.mark.kernel
def test_add_at_its_limit_is_killed_with_its_children_and_deleted_at_once(tmp_path, pods):
    hang = f"[ $(adds) -gt 1 ] || {{ sleep 600 & echo $! > {tmp_path}/child; wait; }}"
    script = Script(tmp_path, add=hang)
    up, attempts = run(script.config(pods, request_timeout_s=0.2), start())
    first, delete, second = script.calls()
    assert up == [True]
    assert (delete.command, delete.container, delete.netns) == ("DEL", first.container, first.netns)
    assert delete.ns - first.ns >= 0.3 * NS_PER_S  # twice the request timeout, less the shell's start
    assert second.ns - delete.ns >= 0.2 * NS_PER_S  # the retry after a kill has a delay of its own
    assert (attempts[0].outcome, attempts[0].detail.split()[:2]) == (Outcome.UNKNOWN, ["killed", "after"])
    assert not alive(tmp_path / "child")


@pytest.mark.kernel
def test_deadline_during_an_add_is_an_unknown_and_its_delete_still_follows(tmp_path, pods):
    script = Script(tmp_path, add="sleep 0.6")

    async def work(kubelet: Kubelet, note: Any) -> bool:
        up = await kubelet.start_pod(0, time.monotonic_ns() + NS_PER_S // 5, note)
        await until(lambda: script.calls("DEL") and not os.listdir(pods))
        return up

    up, (attempt,) = run(script.config(pods), work)
    assert up is False
    assert (attempt.outcome, attempt.detail) == (Outcome.UNKNOWN, "still under way")
    assert attempt.end_ns - attempt.start_ns >= NS_PER_S // 10
    add, delete = script.calls()
    assert add.container == delete.container


@pytest.mark.kernel
def test_deadline_between_attempts(tmp_path, pods):
    script = Script(tmp_path, add="exit 1")
    began = time.monotonic_ns()
    up, attempts = run(script.config(pods, retry_s=(60.0, 60.0)), start(limit_s=0.5))
    assert up == [False]
    assert time.monotonic_ns() - began >= NS_PER_S // 2
    assert [a.op for a in attempts] == ["ADD", "DEL"]
    assert attempts[0].detail == "plugin ended with 1 and no CNI error"


@pytest.mark.kernel
def test_adds_run_in_parallel(tmp_path, pods):
    script = Script(tmp_path, add="sleep 0.5")
    up, attempts = run(script.config(pods), start(count=8))
    assert up == [True] * 8
    assert max(a.start_ns for a in attempts) < min(a.end_ns for a in attempts)


@pytest.mark.kernel
def test_cancelled_pod_reports_what_was_under_way(tmp_path, pods):
    script = Script(tmp_path, add=f"echo $$ > {tmp_path}/pid; exec sleep 600")

    async def work(kubelet: Kubelet, note: Any) -> None:
        pod = asyncio.create_task(kubelet.start_pod(0, time.monotonic_ns() + 60 * NS_PER_S, note))
        await until((tmp_path / "pid").exists)
        pod.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pod

    _, (attempt,) = run(script.config(pods), work)
    assert (attempt.outcome, attempt.detail) == (Outcome.UNKNOWN, "still under way")
    assert not alive(tmp_path / "pid")
    assert script.calls("DEL") == []
    assert os.listdir(pods) == []


@pytest.mark.kernel
def test_removal_with_the_repeated_delete_that_has_no_namespace(tmp_path, pods):
    script = Script(tmp_path)

    async def work(kubelet: Kubelet, note: Any) -> bool:
        await kubelet.start_pod(0, time.monotonic_ns() + 60 * NS_PER_S, note)
        return await kubelet.remove_pod(0, note)

    removed, attempts = run(script.config(pods, repeat_delete_s=0.05), work)
    add, delete, repeated = script.calls()
    assert removed is True
    assert (delete.netns, repeated.netns) == (add.netns, "-")
    assert {c.container for c in (add, delete, repeated)} == {add.container}
    assert [(a.op, a.detail) for a in attempts[1:]] == [("DEL", "pod removal")] * 2


@pytest.mark.kernel
def test_failed_removal_is_tried_again_and_then_given_up(tmp_path, pods):
    script = Script(tmp_path, delete="exit 1")

    async def work(kubelet: Kubelet, note: Any) -> bool:
        await kubelet.start_pod(0, time.monotonic_ns() + 60 * NS_PER_S, note)
        return await kubelet.remove_pod(0, note)

    removed, attempts = run(script.config(pods, delete_tries=2), work)
    first, second = script.calls("DEL")
    assert removed is False
    assert second.ns - first.ns >= 0.05 * NS_PER_S
    assert {a.detail for a in attempts[1:]} == {"pod removal: plugin ended with 1 and no CNI error"}
    assert os.listdir(pods) == []


@pytest.mark.kernel
def test_namespaces_can_be_named_after_their_pods(tmp_path, pods):
    script = Script(tmp_path, add="[ $(adds) -gt 1 ]")
    up, _ = run(script.config(pods, netns_name=lambda index: f"pod-{index}"), start())
    assert up == [True]
    assert {c.netns for c in script.calls()} == {str(pods / "pod-0")}


def cni_error(msg: str) -> bytes:
    return json.dumps({"code": 101, "msg": msg}).encode()


@pytest.mark.parametrize(
    ("result", "outcome", "detail"),
    [
        (CniResult(0, 1, 0, b"{}"), Outcome.OK, ""),
        (CniResult(0, 240 * NS_PER_S, -9, b"", killed=True), Outcome.UNKNOWN, "killed after 4m"),
        (CniResult(0, 1, 1, cni_error("unable to create endpoint: Cilium API client timeout exceeded")),
         Outcome.UNKNOWN, "agent timeout 1m30s"),
        (CniResult(0, 1, 1, REFUSED.encode()), Outcome.FAIL, "429 TooManyRequests"),
        (CniResult(0, 1, 1, cni_error("x: [PUT /endpoint/{id}][500] putEndpointIdFailed")), Outcome.FAIL,
         "500 Failed"),
        (CniResult(0, 1, 1, cni_error("unable to set up veth pair: [Errno 17] lxc12")), Outcome.FAIL,
         "unable to set up veth pair"),
        (CniResult(0, 1, 2, b"Segmentation fault"), Outcome.FAIL, "plugin ended with 2 and no CNI error"),
    ],
)  # fmt: skip
def test_verdict(result, outcome, detail):
    assert verdict(result, 90.0) == (outcome, detail)


@pytest.mark.kernel
def test_churn_of_twenty_three_pods_with_the_real_plugin_and_agent(start_agent, pods):
    agent = start_agent(attach=True, apiRateLimit=LIMITS_LIFTED)
    config = KubeletConfig(pods, PLUGIN, agent.socket)
    said: list[Any] = []
    driver = ChurnDriver(Churn(pace=Burst(size=23), delete_after=None), lambda: Kubelet(config, 1), "churn@node")
    created = driver.run(Window(60), said.append)
    assert created == {SETUP: 23, ATTEMPT: 23, DELETE: 0}
    batches = [m for m in said if isinstance(m, SampleBatch)]
    rows = {name: np.concatenate([b.array() for b in batches if b.metric == name]) for name in (SETUP, ATTEMPT)}
    assert all(len(r) == 23 and r.dtype == SAMPLE_DTYPE and not r["outcome"].any() for r in rows.values())
    # What the driver counted is what the agent did: one create and one walk of each table for every sandbox.
    refs = sorted(ref for b in batches if b.metric == SETUP for ref in b.refs)
    totals = [s for s in agent.spans() if s.op == "endpoint-create" and s.stage == "total"]
    assert sorted(s.ref for s in totals) == refs
    assert Counter(s.outcome for s in totals) == {"201": 23}
    walks = sorted(agent.walks("endpoint-create"), key=lambda s: s.start_ns)
    assert len(walks) == 23
    assert all(a.end_ns <= b.start_ns for a, b in pairwise(walks))
    assert agent.state().endpoints == {"ready": 23}
    assert os.listdir(pods) == []


@pytest.mark.kernel
def test_burst_over_a_full_table_walks_as_often_as_real_cilium_did(start_agent, pods):
    """Lifted limits, two permits, clients that give up before all have been served: each create that succeeds walks
    once, each that nobody waited for is removed with a walk, and only those under regeneration had one before."""
    agent = start_agent(attach=True, apiRateLimit=LIMITS_LIFTED, buildPermits=2)
    agent.fill(100_000)
    config = KubeletConfig(pods, PLUGIN, agent.socket, client_timeout_s=1.5, retry_s=(0.5, 0.6))
    said: list[Any] = []
    load = Churn(pace=Burst(size=20), timeout=Duration(4 * NS_PER_S))
    created = ChurnDriver(load, lambda: Kubelet(config, 1), "churn").run(Window(60), said.append)
    agent.until(lambda state: set(state.endpoints) <= {"ready"} and not state.building)
    samples = {name: [b for b in said if isinstance(b, SampleBatch) and b.metric == name] for name in created}
    assert {name: sum(len(b.array()) for b in batches) for name, batches in samples.items()} == created
    details = Counter(b.details[i] for b in samples[ATTEMPT] for i in b.array()["detail"])
    assert set(details) <= {"", "agent timeout 1.5s", "still under way"}
    assert details["agent timeout 1.5s"] >= 1

    totals = {s.ref: s.outcome for s in agent.spans() if s.op == "endpoint-create" and s.stage == "total"}
    ups = sum(int((b.array()["outcome"] == Outcome.OK).sum()) for b in samples[SETUP])
    # One that was answered in the very moment of giving up counts for the agent alone.
    assert 1 <= ups <= Counter(totals.values())["201"]
    walks = Counter(s.ref for s in agent.walks("endpoint-create"))
    removals = Counter(s.ref for s in agent.walks("endpoint-delete"))
    shapes = Counter((outcome, walks[ref], removals[ref]) for ref, outcome in totals.items())
    assert set(shapes) <= {("201", 1, 0), ("201", 1, 1), ("500", 0, 1), ("500", 1, 1)}
    assert shapes["500", 0, 1] >= 1
