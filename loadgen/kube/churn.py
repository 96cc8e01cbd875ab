"""`python -m loadgen.kube.churn SPEC.json PARENT`: pods that come and go on a cluster, in the worker protocol.

It connects and begins to watch before it says that it is ready. When its owner ends, or tells it to, it removes its
pods and ends too.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys
import time

import msgspec

from loadgen.core.errors import HarnessError
from loadgen.core.model import Burst, Churn
from loadgen.core.ports import Emit, Window
from loadgen.core.samples import Mark, Outcome, Reading
from loadgen.core.units import NS_PER_S
from loadgen.drivers import host
from loadgen.drivers.churn import ChurnDriver, Row, Samples
from loadgen.kernel import process
from loadgen.kube.api import KubeApi
from loadgen.kube.runtime import ChurnConfig, KubeRuntime

CONDITION, STAMP = "sandbox.condition", "sandbox.stamp"
THROTTLE, LAG, NOTE = "client.throttle", "client.lag", "note"

_FLUSH_S = 1.0


class ChurnSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What one churn worker is to do. `context` and `kubeconfig` None: as kubectl would choose them."""

    context: str | None = None
    kubeconfig: str | None = None
    namespace: str
    run: str
    node: str
    image: str
    qps: float
    burst: int
    load: Churn
    phase: str
    source: str
    seed: int


class KubeChurn:
    """ports.Driver. Made, it is connected; its event loop lives from then until the end of `run`."""

    def __init__(self, spec: ChurnSpec) -> None:
        load, self._spec = spec.load, spec
        size = load.pace.size if isinstance(load.pace, Burst) else 1
        config = ChurnConfig(
            namespace=spec.namespace,
            run=spec.run,
            # Not drawn from the seed: phases that share it must not share names.
            token=secrets.token_hex(4),
            node=spec.node,
            image=spec.image,
            qps=spec.qps,
            burst=spec.burst,
            batch=size if load.via == "job" else 0,
        )
        self._runner = asyncio.Runner()
        self._runtime = KubeRuntime(lambda: KubeApi.from_kubeconfig(spec.context, spec.kubeconfig), config)
        self._runner.run(self._open())

    async def _open(self) -> None:
        try:
            await self._runtime.open()
        except BaseException:
            await self._runtime.close()
            raise

    def run(self, window: Window, emit: Emit) -> dict[str, int]:
        """ports.Driver."""
        with self._runner as runner:
            try:
                return runner.run(self._work(window, emit))
            except asyncio.CancelledError:
                raise HarnessError("it was told to end before its work was done") from None

    async def _work(self, window: Window, emit: Emit) -> dict[str, int]:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._end, task)
        voice = _Voice(emit, window.phase, self._spec.source)
        self._runtime.listen(voice)
        flushing = asyncio.create_task(voice.flush_regularly())
        try:
            driver = ChurnDriver(self._spec.load, lambda: self._runtime, self._spec.source)
            created = await driver.work(window, emit)
        finally:
            flushing.cancel()
            # For an end that came while the driver was ending already.
            await self._runtime.close()
        voice.flush()
        return {**created, **voice.created}

    def _end(self, work: asyncio.Task[dict[str, int]]) -> None:
        """Our owner is gone, or has no use for us. What removes our pods is let go on."""
        self._runtime.hurry()
        if not self._runtime.closing:
            work.cancel()


class _Voice:
    """sightings.Listener: what it hears goes into the run's history."""

    def __init__(self, emit: Emit, phase: str, source: str) -> None:
        self._emit, self._source = emit, source
        self._samples = {name: Samples(name, phase, source) for name in (CONDITION, STAMP)}

    @property
    def created(self) -> dict[str, int]:
        return {name: samples.count for name, samples in self._samples.items()}

    def throttled(self, wait_s: float) -> None:
        self._emit(Reading(time.monotonic_ns(), THROTTLE, wait_s))

    def stamped(self, ref: str, asked_ns: int, received_ns: int, length_ns: int) -> None:
        """Both from when the pod's creation was asked for; of the stamps only the length is the cluster's word."""
        for name, done_ns in ((CONDITION, received_ns), (STAMP, asked_ns + length_ns)):
            self._samples[name].add(Row(asked_ns, asked_ns, done_ns, Outcome.OK, 1, "", ref))

    def lagged(self, made_ns: int, received_ns: int) -> None:
        """By two clocks, unless the cluster is on this machine."""
        received_at_ns = time.time_ns() - (time.monotonic_ns() - received_ns)
        self._emit(Reading(received_ns, LAG, (received_at_ns - made_ns) / NS_PER_S))

    def note(self, text: str) -> None:
        self._emit(Mark(time.monotonic_ns(), NOTE, self._source, text))

    def flush(self) -> None:
        for samples in self._samples.values():
            samples.flush(self._emit)

    async def flush_regularly(self) -> None:
        while True:
            await asyncio.sleep(_FLUSH_S)
            self.flush()


if __name__ == "__main__":
    process.die_with_parent(int(sys.argv[2]), signal.SIGTERM)
    host.main(ChurnSpec, KubeChurn)
