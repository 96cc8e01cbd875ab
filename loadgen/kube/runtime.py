"""A real kubelet as a PodRuntime: pods are made through the API server and watched until their sandboxes stand.

An attempt of the kubelet that fails is an event; the one that succeeds is the pod's condition. A retry's attempt is
reckoned from the end of the attempt before it, so it holds the kubelet's pause of 12 to 15 s as well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable

import msgspec

from loadgen.core.errors import ConfigError, HarnessError, LoadgenError
from loadgen.core.ports import NotUp
from loadgen.core.samples import Outcome
from loadgen.core.units import NS_PER_S
from loadgen.kube import podbody, podview
from loadgen.kube.api import KubeApi
from loadgen.kube.calls import ChurnCalls
from loadgen.kube.objects import Event, Pod
from loadgen.kube.pods import UNDER_WAY, OnAttempt, Sandbox
from loadgen.kube.sightings import ROUTINE, Listener, Sightings
from loadgen.kube.throttle import TokenBucket
from loadgen.kube.watch import Watch

SYNC_LIMIT_S = 30.0
IN_FLIGHT = 32
"""Creates under way at once, each on a connection of its own. With 8, a burst on a busy machine came half as fast as
kube-burner's, which shares one HTTP/2 connection."""
REMOVAL_LIMIT_S = 300.0
STAMP_LIMIT_S = 15.0
"""close() waits so long for the conditions of sandboxes that are known to be up."""
GONE_LIMIT_S = 120.0
"""close() lets the kubelet tear down for so long; then the API is told to forget the pods."""
FORGET_LIMIT_S = 20.0
_POLL_S = 0.2
_GONE_POLL_S = 1.0
_NODE_LOOK_S = 5.0


class ChurnConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Which pods, where, and how fast. `token` is this worker's alone: part of the names of its pods."""

    namespace: str
    run: str
    token: str
    node: str
    image: str
    qps: float
    burst: int
    batch: int = 0
    """Pods a Job; 0: pods of their own."""


class _Batch:
    """A Job: admitted and created once for all its pods, removed once none of them is under way."""

    def __init__(self, at_ns: int) -> None:
        self.at_ns = at_ns
        self.created: asyncio.Task[None] | None = None
        self.removed: asyncio.Task[None] | None = None
        self.under_way = 0
        self.settled = asyncio.Event()

    def leave(self) -> None:
        self.under_way -= 1
        if self.under_way == 0:
            self.settled.set()


class KubeRuntime:
    """ports.PodRuntime, after `open`. One event loop; the API that `make_api` makes is entered and left by it."""

    def __init__(self, make_api: Callable[[], KubeApi], config: ChurnConfig) -> None:
        self._make_api, self._config = make_api, config
        self._creates = TokenBucket(config.qps, config.burst)
        self._deletes = TokenBucket(config.qps, config.burst)
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._selector = podbody.selector(config.run, config.token)
        where = (config.run, config.token, config.node, config.image)
        self._body = podbody.job(*where, config.batch) if config.batch else podbody.pod(*where)
        self._seen = Sightings(config.token, config.batch, config.node, config.image)
        self._batches: dict[int, _Batch] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._watching: set[asyncio.Task[None]] = set()
        self._node_lock = asyncio.Lock()
        self._node_look: tuple[float, str] = (float("-inf"), "")
        self._api: KubeApi | None = None
        self._made: ChurnCalls | None = None
        self.closing = False
        self._hurried = False

    @property
    def _calls(self) -> ChurnCalls:
        assert self._made is not None, "open() comes first"
        return self._made

    async def open(self) -> None:
        """Connect and begin to watch. ConfigError when the cluster cannot be reached or does not let us."""
        api = self._api = await self._make_api().__aenter__()
        await api.probe()
        calls = self._made = ChurnCalls(api, self._config.namespace, self._selector)
        interesting = ",".join(f"reason!={reason}" for reason in ROUTINE)
        pods = Watch(api, calls.pods, Pod, self._seen.on_pod, selector=self._selector)
        events = Watch(api, calls.events, Event, self._seen.on_event, fields=interesting)
        for watch in (pods, events):
            task = asyncio.create_task(watch.run())
            task.add_done_callback(self._watch_ended)
            self._watching.add(task)
        synced = asyncio.gather(pods.synced.wait(), events.synced.wait())
        await asyncio.wait([synced, *self._watching], timeout=SYNC_LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
        if not synced.done():
            synced.cancel()
            raise self._seen.failure or ConfigError(
                f"{api.server} (context {api.context}): no list of pods and events within {SYNC_LIMIT_S:g} s"
            )
        self._seen.deadline_s = await calls.longest_attempt_s(self._config.node)
        # Connections for the first creates: their handshakes are not to be measured as slow sandboxes.
        await asyncio.gather(*(api.probe() for _ in range(min(IN_FLIGHT, self._config.burst))))

    def listen(self, listener: Listener) -> None:
        """Whom to tell what is no attempt."""
        self._seen.listener = listener

    def _watch_ended(self, watch: asyncio.Task[None]) -> None:
        if not watch.cancelled():
            self._seen.fail(watch.exception() or HarnessError("a watch ended by itself"))

    # --- ports.PodRuntime ---------------------------------------------------------------------------------------

    async def admit(self, index: int, deadline_ns: int) -> None:
        """ports.PodRuntime. One token a pod, or one a Job."""
        now_ns = time.monotonic_ns()
        batch = self._batch(index, now_ns)
        at_ns = batch.at_ns if batch else self._creates.take(now_ns)
        try:
            await asyncio.sleep(max(0, min(at_ns, deadline_ns) - now_ns) / NS_PER_S)
            if self._seen.listener is not None:
                self._seen.listener.throttled((time.monotonic_ns() - now_ns) / NS_PER_S if at_ns > now_ns else 0.0)
            if at_ns > deadline_ns:
                raise NotUp(Outcome.UNKNOWN, "held back by this client's own limit (--qps, --burst)")
        except BaseException:
            if batch is not None:
                batch.leave()
            raise

    def _batch(self, index: int, now_ns: int) -> _Batch | None:
        if not self._config.batch:
            return None
        number = index // self._config.batch
        if number not in self._batches:
            self._batches[number] = _Batch(self._creates.take(now_ns))
        self._batches[number].under_way += 1
        return self._batches[number]

    async def start_pod(self, index: int, deadline_ns: int, on_attempt: OnAttempt) -> bool:
        """ports.PodRuntime, after `admit`. What is not up is deleted in the end: the kubelet would try for ever."""
        sandbox = self._seen.sandbox(index)
        sandbox.listen(on_attempt)
        try:
            async with asyncio.timeout((deadline_ns - time.monotonic_ns()) / NS_PER_S):
                await self._create(sandbox)
                await asyncio.shield(sandbox.up)
            return True
        except TimeoutError:
            sandbox.give_up(time.monotonic_ns())
            await self._explain(sandbox)
            return False
        except LoadgenError:
            self.hurry()
            raise
        finally:
            if not sandbox.is_up:
                sandbox.give_up(time.monotonic_ns())
                self._drop(sandbox)
            if self._config.batch:
                self._batches[index // self._config.batch].leave()

    async def remove_pod(self, index: int, on_attempt: OnAttempt) -> bool:
        """ports.PodRuntime. Until the API has forgotten the pod: the CNI's DEL and what the kubelet does around it.

        A Job goes as a whole, as soon as none of its pods is under way.
        """
        sandbox = self._seen.sandbox(index)
        if self._config.batch:
            await self._batches[index // self._config.batch].settled.wait()
        sandbox.removing(time.monotonic_ns(), on_attempt)
        if sandbox.gone.done() and not sandbox.deleted:
            sandbox.removed(time.monotonic_ns(), Outcome.FAIL, "deleted by somebody else")
            return False
        try:
            async with asyncio.timeout(REMOVAL_LIMIT_S):
                await self._delete(sandbox)
                gone_ns = await asyncio.shield(sandbox.gone)
        except BaseException as error:
            sandbox.removed(time.monotonic_ns(), Outcome.UNKNOWN, UNDER_WAY)
            if isinstance(error, TimeoutError):
                return False
            raise
        sandbox.removed(gone_ns, Outcome.OK)
        return True

    async def close(self) -> None:
        """ports.PodRuntime. Delete all pods of this worker and wait until the API has none of them. Idempotent."""
        if self._api is None:
            return
        self.closing = True
        try:
            await _end(self._tasks)
            if not self._hurried:
                await self._all_stamped()
            if any(sandbox.asked_ns for sandbox in self._seen):
                await self._delete_all()
        except LoadgenError:
            # The first failure says more than those that follow from it.
            if self._seen.failure is None:
                raise
        finally:
            await _end(self._watching)
            await self._api.__aexit__(None, None, None)
            self._api = None

    def hurry(self) -> None:
        """There is nothing left to measure: close() need not wait for more than the pods' end."""
        self._hurried = True

    # --- calls --------------------------------------------------------------------------------------------------

    async def _create(self, sandbox: Sandbox) -> None:
        if not self._config.batch:
            await self._post(self._calls.pods, sandbox.index, sandbox)
            return
        number = sandbox.index // self._config.batch
        batch = self._batches[number]
        if batch.created is None:
            batch.created = self._spawn(self._post(self._calls.jobs, number, sandbox))
        await asyncio.shield(batch.created)

    async def _post(self, path: str, number: int, sandbox: Sandbox) -> None:
        name, body = podbody.name(self._config.token, number), self._body.fill(number)
        async with self._slots:
            sandbox.asked_ns = time.monotonic_ns()
            await self._calls.create(path, name, body)

    async def _delete(self, sandbox: Sandbox) -> None:
        if self._config.batch:
            number = sandbox.index // self._config.batch
            batch = self._batches[number]
            if batch.removed is None:
                path = f"{self._calls.jobs}/{podbody.name(self._config.token, number)}"
                batch.removed = self._spawn(self._calls.delete(path))
            await asyncio.shield(batch.removed)
            return
        now_ns = time.monotonic_ns()
        await asyncio.sleep((self._deletes.take(now_ns) - now_ns) / NS_PER_S)
        sandbox.deleted = True
        await self._calls.delete(f"{self._calls.pods}/{podbody.name(self._config.token, sandbox.index)}")

    def _drop(self, sandbox: Sandbox) -> None:
        """Delete a pod that was given up, without waiting. A Job would make another: its pods stay until it goes."""
        if not self._config.batch and sandbox.asked_ns and not sandbox.gone.done() and self._seen.failure is None:
            sandbox.deleted = True
            self._spawn(self._try_delete(sandbox))

    async def _try_delete(self, sandbox: Sandbox) -> None:
        """What cannot be deleted now, close() deletes, and complains if it cannot either."""
        try:
            await self._delete(sandbox)
        except LoadgenError as error:
            self._seen.note(str(error))

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Until it ends: close() has to find it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- why a pod is not up ------------------------------------------------------------------------------------

    async def _explain(self, sandbox: Sandbox) -> None:
        """At its deadline. NotUp has words for it; HarnessError when the node cannot take pods at all."""
        view, node = sandbox.view, self._config.node
        if view is None:
            raise NotUp(Outcome.UNKNOWN, "not seen in time" if sandbox.asked_ns else "not created in time")
        if not podview.scheduled(view):
            why = podview.no_room(view)
            if not why:
                raise NotUp(Outcome.UNKNOWN, "not scheduled in time")
            raise HarnessError(
                f"node {node} takes no more pods: {why}; make the load smaller by --set, let its pods go "
                "(deleteAfter), or choose another node by --node"
            )
        if trouble := await self._node_trouble():
            raise HarnessError(f"node {node} is not Ready: {trouble}; see kubectl describe node {node}")

    async def _node_trouble(self) -> str:
        """Why the node is not Ready; empty when it is or cannot be asked. One look serves all who ask at once."""
        async with self._node_lock:
            if time.monotonic() - self._node_look[0] > _NODE_LOOK_S:
                self._node_look = (time.monotonic(), await self._calls.node_trouble(self._config.node))
            return self._node_look[1]

    # --- the end ------------------------------------------------------------------------------------------------

    async def _delete_all(self) -> None:
        """First as the kubelet likes it; after GONE_LIMIT_S from the API alone.

        The watches end first: the three or four states that each pod still goes through are nobody's news.
        """
        calls = self._calls
        await _end(self._watching)
        for path in [calls.jobs, calls.pods] if self._config.batch else [calls.pods]:
            await calls.delete_all(path)
        if await self._all_gone(GONE_LIMIT_S):
            return
        left = await calls.count_left()
        self._seen.note(
            f"{left} pods were still Terminating {GONE_LIMIT_S:g} s after the end and were removed from the API by "
            f"force; {self._config.node} may still be tearing them down"
        )
        await calls.delete_all(calls.pods, grace_s=0)
        if not await self._all_gone(FORGET_LIMIT_S):
            raise HarnessError(
                f"{await calls.count_left()} pods cannot be removed; kubectl -n {self._config.namespace} get pods -l "
                f"{self._selector}"
            )

    async def _all_stamped(self) -> None:
        deadline = time.monotonic() + STAMP_LIMIT_S
        while not self._seen.failure and self._seen.to_be_stamped() and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)

    async def _all_gone(self, limit_s: float) -> bool:
        try:
            async with asyncio.timeout(limit_s):
                while await self._calls.any_left():  # noqa: ASYNC110 - watching would tell of every step
                    await asyncio.sleep(_GONE_POLL_S)
            return True
        except TimeoutError:
            return False


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    ended = list(tasks)
    for task in ended:
        task.cancel()
    await asyncio.gather(*ended, return_exceptions=True)
