"""The kubelet model: brings sandboxes up and down through a CNI plugin, with the kubelet's limits and retries.

Source: kubelet 1.34 and containerd 2.3 watched around slow and failing plugins. RunPodSandbox may take twice the
runtimeRequestTimeout: 240 s, then the plugin gets SIGKILL and a DEL with the same id and namespace follows at once. A
failed ADD is followed by its DEL about 30 ms later and, after a constant 12-15 s (no exponential back-off), by an ADD
with a new container id and a new namespace. ADDs run fully in parallel.

Not modelled: containerd waits for a plugin's child that keeps stdout open; here the whole process group is killed.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import secrets
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from loadgen.core.ports import Attempt
from loadgen.core.samples import Outcome
from loadgen.core.units import NS_PER_S, format_duration
from loadgen.kernel import netns
from loadgen.kernel.process import let_go
from loadgen.kernel.threads import to_thread

OnAttempt = Callable[[Attempt], None]

FAILED_ADD, POD_REMOVAL = "failed ADD", "pod removal"


class KubeletConfig(msgspec.Struct, frozen=True):
    """Where things are, and the delays in seconds (seen on real nodes; tests shorten them)."""

    netns_dir: Path
    plugin: Path
    agent_socket: Path
    interpreter: tuple[str, ...] = (sys.executable, "-I", "-S")
    """What the plugin is run by; () when it is run by itself."""
    netns_name: Callable[[int], str] | None = None
    """Names the namespace of pod number i; by default it is named after the container."""
    request_timeout_s: float = 120.0
    """runtimeRequestTimeout. A DEL may take that long, an ADD twice as long."""
    client_timeout_s: float = 90.0
    """Told to the plugin: how long it waits for the agent."""
    cleanup_delay_s: float = 0.03
    retry_s: tuple[float, float] = (12.0, 15.0)
    retry_killed_s: tuple[float, float] = (13.0, 14.0)
    delete_tries: int = 2
    repeat_delete_s: float | None = None
    """Repeat the DEL of a removed pod after this time with an empty CNI_NETNS, as containerd does after ~15 s."""


class Sandbox(msgspec.Struct, frozen=True):
    """One attempt's container id and namespace."""

    pod: int
    container_id: str
    netns: Path


class CniResult(msgspec.Struct, frozen=True):
    """How a plugin call ended. `killed`: by us, at its limit."""

    start_ns: int
    end_ns: int
    exit_code: int
    stdout: bytes
    killed: bool = False

    @property
    def ok(self) -> bool:
        return self.exit_code == 0 and not self.killed


class _CniFailure(msgspec.Struct):
    msg: str = ""


class Kubelet:
    """ports.PodRuntime. One event loop; every pod's calls are independent of the others'."""

    def __init__(self, config: KubeletConfig, seed: int) -> None:
        self._config = config
        self._seed = seed
        self._up: dict[int, Sandbox] = {}
        self._sandboxes: set[Sandbox] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stdin = msgspec.json.encode(
            {
                "cniVersion": "1.0.0",
                "name": "loadgen",
                "type": "loadgen-cni",
                "agentSocket": str(config.agent_socket),
                "clientTimeout": config.client_timeout_s,
            }
        )

    async def admit(self, index: int, deadline_ns: int) -> None:
        """ports.PodRuntime. The kubelet model has no client that would limit itself."""

    async def start_pod(self, index: int, deadline_ns: int, on_attempt: OnAttempt) -> bool:
        """ports.PodRuntime. At the deadline, or when cancelled, what is under way is reported as UNKNOWN.

        It is then left to end by itself, as after a `kubectl delete pod`: the ADD is not cancelled, its DEL follows.
        """
        draw = random.Random(f"{self._seed} {index}")
        while True:
            sandbox = await self._new_sandbox(index)
            added = await self._watch("ADD", sandbox, deadline_ns, on_attempt)
            if added is None:
                return False
            if added.ok:
                self._up[index] = sandbox
                return True
            if not added.killed:
                await asyncio.sleep(self._config.cleanup_delay_s)
            if await self._watch("DEL", sandbox, deadline_ns, on_attempt, FAILED_ADD) is None:
                return False
            await self._drop(sandbox)
            pause_s = draw.uniform(*(self._config.retry_killed_s if added.killed else self._config.retry_s))
            left_s = (deadline_ns - time.monotonic_ns()) / NS_PER_S
            await asyncio.sleep(max(0.0, min(pause_s, left_s)))
            if pause_s >= left_s:
                return False

    async def remove_pod(self, index: int, on_attempt: OnAttempt) -> bool:
        """ports.PodRuntime. KeyError when that pod is not up."""
        config, sandbox = self._config, self._up.pop(index)
        draw = random.Random(f"{self._seed} {index} removal")
        for number in range(1, config.delete_tries + 1):
            deleted = await self._watch("DEL", sandbox, None, on_attempt, POD_REMOVAL)
            if deleted is not None and deleted.ok:
                break
            if number < config.delete_tries:
                await asyncio.sleep(draw.uniform(*config.retry_s))
        else:
            await self._drop(sandbox)
            return False
        await self._drop(sandbox)
        if config.repeat_delete_s is not None:
            await asyncio.sleep(config.repeat_delete_s)
            await self._watch("DEL", sandbox, None, on_attempt, POD_REMOVAL, without_netns=True)
        return True

    async def close(self) -> None:
        """Kill every plugin that runs, delete nothing through CNI, and unbind all namespaces. Idempotent."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        for sandbox in list(self._sandboxes):
            await self._drop(sandbox)
        self._up.clear()

    # --- sandboxes ----------------------------------------------------------------------------------------------

    async def _new_sandbox(self, index: int) -> Sandbox:
        """A fresh id and namespace. Ids are names, not draws: phases that share a seed must not share them."""
        container_id = secrets.token_hex(32)
        name = self._config.netns_name(index) if self._config.netns_name else f"cni-{container_id[:16]}"
        sandbox = Sandbox(index, container_id, self._config.netns_dir / name)
        self._sandboxes.add(sandbox)
        await to_thread(netns.create, sandbox.netns)
        return sandbox

    async def _drop(self, sandbox: Sandbox) -> None:
        if sandbox in self._sandboxes:
            await to_thread(netns.delete, sandbox.netns)
            self._sandboxes.discard(sandbox)

    # --- plugin calls -------------------------------------------------------------------------------------------

    async def _watch(
        self,
        command: str,
        sandbox: Sandbox,
        deadline_ns: int | None,
        on_attempt: OnAttempt,
        which: str = "",
        *,
        without_netns: bool = False,
    ) -> CniResult | None:
        """Call the plugin and report the attempt, exactly once; None when it was given up at the deadline."""
        start_ns = time.monotonic_ns()
        call = asyncio.create_task(self._call(command, sandbox, without_netns=without_netns))
        self._keep(call)
        left_s = None if deadline_ns is None else max(0.0, (deadline_ns - start_ns) / NS_PER_S)
        try:
            done, _ = await asyncio.wait({call}, timeout=left_s)
        except asyncio.CancelledError:
            self._give_up(command, sandbox, call, start_ns, on_attempt, which)
            raise
        if not done or call.cancelled():
            self._give_up(command, sandbox, call, start_ns, on_attempt, which)
            return None
        result = call.result()
        outcome, why = verdict(result, self._config.client_timeout_s)
        detail = ": ".join(part for part in (which, why) if part)
        on_attempt(Attempt(sandbox.container_id, result.start_ns, result.end_ns, outcome, detail, command))
        return result

    def _give_up(
        self,
        command: str,
        sandbox: Sandbox,
        call: asyncio.Task[CniResult],
        start_ns: int,
        on_attempt: OnAttempt,
        which: str,
    ) -> None:
        detail = ": ".join(part for part in (which, "still under way") if part)
        now_ns = time.monotonic_ns()
        on_attempt(Attempt(sandbox.container_id, start_ns, now_ns, Outcome.UNKNOWN, detail, command))
        if not call.done():
            self._keep(asyncio.create_task(self._finish_unwatched(command, sandbox, call)))

    async def _finish_unwatched(self, command: str, sandbox: Sandbox, call: asyncio.Task[CniResult]) -> None:
        """What the kubelet does for a pod that was deleted during its ADD. Nobody measures it any more."""
        await asyncio.wait({call})
        if command == "ADD":
            await self._call("DEL", sandbox)
        await self._drop(sandbox)

    async def _call(self, command: str, sandbox: Sandbox, *, without_netns: bool = False) -> CniResult:
        """Run the plugin once; it is gone, with its children, when this returns or is cancelled."""
        config = self._config
        limit_s = config.request_timeout_s * (2 if command == "ADD" else 1)
        killed, stdout, start_ns = False, b"", time.monotonic_ns()
        process = await asyncio.create_subprocess_exec(
            *config.interpreter,
            str(config.plugin),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **_environment(command, sandbox, without_netns=without_netns)},
            start_new_session=True,
        )
        try:
            stdout, _ = await asyncio.wait_for(process.communicate(self._stdin), limit_s)
        except TimeoutError:
            killed = True
        finally:
            # The whole group: a child of the plugin may live on and hold its stdout open.
            if killed or process.returncode is None:
                _kill_group(process.pid)
                await process.wait()
                let_go(process)
        return CniResult(start_ns, time.monotonic_ns(), process.returncode or 0, stdout, killed)

    def _keep(self, task: asyncio.Task[Any]) -> None:
        """Until it ends: close() has to find it."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _environment(command: str, sandbox: Sandbox, *, without_netns: bool) -> dict[str, str]:
    """The CNI spec's variables, with the arguments that the kubelet's runtimes pass."""
    args = {
        "IgnoreUnknown": "1",
        "K8S_POD_NAMESPACE": "loadgen",
        "K8S_POD_NAME": f"churn-{sandbox.pod}",
        "K8S_POD_INFRA_CONTAINER_ID": sandbox.container_id,
    }
    return {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": sandbox.container_id,
        "CNI_NETNS": "" if without_netns else str(sandbox.netns),
        "CNI_IFNAME": "eth0",
        "CNI_ARGS": ";".join(f"{key}={value}" for key, value in args.items()),
        "CNI_PATH": "",
    }


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it ended on its own just now


def verdict(result: CniResult, client_timeout_s: float) -> tuple[Outcome, str]:
    """What an attempt counts as, and why in words without ids.

    UNKNOWN where the agent may have gone on: the plugin's own time-out, or its death at the kubelet's limit.
    """
    if result.killed:
        return Outcome.UNKNOWN, f"killed after {format_duration(round((result.end_ns - result.start_ns) / NS_PER_S))}"
    if result.exit_code == 0:
        return Outcome.OK, ""
    try:
        msg = msgspec.json.decode(result.stdout, type=_CniFailure).msg
    except msgspec.MsgspecError:
        return Outcome.FAIL, f"plugin ended with {result.exit_code} and no CNI error"
    if "API client timeout exceeded" in msg:
        return Outcome.UNKNOWN, f"agent timeout {format_duration(client_timeout_s)}"
    status = re.search(r"\[(\d{3})\] \w+EndpointId(\w*)", msg)
    if status:
        return Outcome.FAIL, f"{status[1]} {status[2]}".strip()
    return Outcome.FAIL, msg.split(":")[0][:60]
