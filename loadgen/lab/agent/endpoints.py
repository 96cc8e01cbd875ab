"""Endpoints: create, first regeneration and removal, with the locks and permits that Cilium takes.

Source: Cilium daemon/cmd/endpoint.go, pkg/endpoint (bpf.go, endpoint.go), checked against 1.16.15 and 1.18.3: in a
burst of 50 over 1 M entries each successful create walked once, each endpoint whose client had left while it waited
for a permit walked once (its removal), and those under regeneration at that moment walked twice.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from ipaddress import IPv4Address
from typing import Protocol

import msgspec

from loadgen.core.cilium import Profile
from loadgen.core.units import NS_PER_S
from loadgen.lab.agent.admission import Client, Gate, TooManyRequests
from loadgen.lab.agent.ctgc import Conntrack
from loadgen.lab.agent.ipam import Ipam
from loadgen.lab.agent.metrics import Metrics
from loadgen.lab.agent.plumbing import Plumbing
from loadgen.lab.agent.spans import SpanLog

log = logging.getLogger("agent")

CREATE, DELETE = "endpoint-create", "endpoint-delete"

Work = Callable[[], Awaitable["Answer"]]


class Answer(msgspec.Struct, frozen=True):
    """An HTTP status, and why, when it is an error."""

    code: int
    message: str = ""


class NewEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What a PUT asks for."""

    cni_id: str
    container_id: str
    address: IPv4Address
    ifname: str
    pod: str = ""
    ref: str
    """What its spans call it."""


class Memory(Protocol):
    """Where endpoints outlive the agent's process; see restore.EndpointFiles."""

    def save(self, number: int, spec: NewEndpoint) -> None: ...

    def forget(self, number: int) -> None: ...

    def load(self) -> dict[int, NewEndpoint]: ...


class NoMemory:
    """For an agent that starts anew every time."""

    def save(self, number: int, spec: NewEndpoint) -> None:
        pass

    def forget(self, number: int) -> None:
        pass

    def load(self) -> dict[int, NewEndpoint]:
        return {}


class Endpoint:
    """One endpoint. `lock` is held during regeneration and removal, each with its whole scrub."""

    def __init__(self, number: int, spec: NewEndpoint) -> None:
        self.number = number
        self.spec = spec
        self.state = "waiting-to-regenerate"
        self.lock = asyncio.Lock()
        self.build: asyncio.Task[bool] | None = None
        self.building = False
        self.removed = False

    @property
    def names(self) -> tuple[str, ...]:
        """The ids that Cilium's API knows it by (pkg/endpoint/id)."""
        spec = self.spec
        return (
            spec.cni_id,
            f"cilium-local:{self.number}",
            str(self.number),
            f"ipv4:{spec.address}",
            f"container-id:{spec.container_id}",
        )


class Endpoints:
    """The node's endpoints and all that may happen to them."""

    def __init__(
        self,
        profile: Profile,
        permits: int,
        gates: Mapping[str, Gate],
        conntrack: Conntrack,
        plumbing: Plumbing,
        ipam: Ipam | None,
        spans: SpanLog,
        metrics: Metrics,
        memory: Memory,
    ) -> None:
        self._memory = memory
        self._profile, self._gates, self._conntrack = profile, gates, conntrack
        self._plumbing, self._ipam, self._spans, self._metrics = plumbing, ipam, spans, metrics
        self.permits = permits
        self.building = self.build_waiters = 0
        self._permits = asyncio.Semaphore(permits)
        self._numbers = itertools.count(1)
        self._index: dict[str, Endpoint] = {}
        self._alive: dict[int, Endpoint] = {}

    def lookup(self, name: str) -> Endpoint | None:
        return self._index.get(name)

    def listed(self) -> list[Endpoint]:
        return [endpoint for endpoint in self._alive.values() if not endpoint.removed]

    def states(self) -> dict[str, int]:
        """Endpoints by state, those that are being removed included."""
        return dict(Counter(endpoint.state for endpoint in self._alive.values()))

    async def restore(self) -> None:
        """Take over what the last process left, without a walk. Forgotten is whose interface has gone meanwhile."""
        for number, spec in self._memory.load().items():
            if not await self._plumbing.attach(spec.ifname):
                log.warning("Unable to restore endpoint: interface %s could not be found", spec.ifname)
                self._memory.forget(number)
                continue
            endpoint = Endpoint(number, spec)
            endpoint.state = "ready"
            self._know(endpoint)
        self._numbers = itertools.count(max(self._alive, default=0) + 1)
        log.info("Restored endpoints: %d", len(self._alive))

    def _know(self, endpoint: Endpoint) -> None:
        self._alive[endpoint.number] = endpoint
        self._index.update(dict.fromkeys(endpoint.names, endpoint))

    # --- create -----------------------------------------------------------------------------------------------

    async def create(self, spec: NewEndpoint, client: Client) -> Answer:
        """PUT /v1/endpoint/{id}: 201, 400 invalid, 429 refused by the limiter, 500 not regenerated in time."""
        began_ns = time.monotonic_ns()
        answer = await self._limited(CREATE, spec.ref, client, lambda: self._create(spec, client))
        self._spans.stage(CREATE, spec.ref, "total", began_ns, outcome=str(answer.code))
        return answer

    async def _create(self, spec: NewEndpoint, client: Client) -> Answer:
        await self._remove_stale(spec)
        conflict = self._conflict(spec)
        if conflict:
            return Answer(400, conflict)
        log.info("Create endpoint request containerID=%s ipv4=%s", spec.container_id[:10], spec.address)
        endpoint = Endpoint(next(self._numbers), spec)
        self._know(endpoint)
        endpoint.build = asyncio.create_task(self._first_regeneration(endpoint))
        if await self._wait_for_first_regeneration(endpoint.build, endpoint, client):
            log.info("Successful endpoint creation containerID=%s", spec.container_id[:10])
            self._memory.save(endpoint.number, spec)
            return Answer(201)
        await self._remove(endpoint)
        log.warning("Creation of endpoint failed containerID=%s", spec.container_id[:10])
        return Answer(500, "timeout while waiting for initial endpoint generation to complete: context canceled")

    async def _remove_stale(self, spec: NewEndpoint) -> None:
        """Remove whoever has this address and no interface any more: its DEL came while nobody could hear it.

        Only where the addresses are another plugin's: it has given this one out again. Cilium's endpoint-gc does the
        same every five minutes.
        """
        holder = self._index.get(f"ipv4:{spec.address}")
        if self._ipam is None and holder and not self._plumbing.present(holder.spec.ifname):
            log.warning("Stale endpoint: interface %s could not be found", holder.spec.ifname)
            await self._remove(holder)

    def _conflict(self, spec: NewEndpoint) -> str:
        """Cilium answers 400 to these, not the 409 of its API description."""
        if spec.cni_id in self._index:
            return f"endpoint for CNI attachment ID {spec.cni_id} already exists"
        if f"ipv4:{spec.address}" in self._index:
            return f"IP ipv4:{spec.address} is already in use"
        return ""

    async def _wait_for_first_regeneration(
        self, build: asyncio.Task[bool], endpoint: Endpoint, client: Client
    ) -> bool:
        """True when the endpoint was built in time for its client.

        A client that leaves is noticed at once while the endpoint waits for a permit. During the regeneration it is
        noticed only afterwards: the waiter looks at the endpoint every second, and for that needs its lock. (In the
        first second Cilium would notice; the removal would wait for the regeneration all the same.)
        """
        limit_s = self._profile.first_build_limit_ns / NS_PER_S
        await asyncio.wait({build, client.gone}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if endpoint.building:
            await asyncio.wait({build})
        if not build.done() or build.cancelled():
            return False
        return build.result() and not client.gone.done()

    async def _first_regeneration(self, endpoint: Endpoint) -> bool:
        """Permit, endpoint lock, scrub, load: True when the endpoint is ready, False when it was given up."""
        asked_ns = time.monotonic_ns()
        ref = endpoint.spec.ref
        self.build_waiters += 1
        try:
            await self._permits.acquire()
        finally:
            self.build_waiters -= 1
            # Also of one that gave up here: that wait is why.
            permit_ns = self._spans.stage(CREATE, ref, "build-wait", asked_ns)
        self.building += 1
        try:
            async with endpoint.lock:
                if endpoint.removed:
                    return False
                endpoint.building = True
                return await self._regenerate(endpoint, asked_ns, permit_ns)
        finally:
            endpoint.building = False
            self.building -= 1
            self._permits.release()

    async def _regenerate(self, endpoint: Endpoint, asked_ns: int, permit_ns: int) -> bool:
        """The caller holds the endpoint's lock and a permit, and both for the whole walk of both tables."""
        endpoint.state = "regenerating"
        ref = endpoint.spec.ref
        await self._conntrack.scrub(CREATE, ref, int(endpoint.spec.address))
        cleaned_ns = time.monotonic_ns()
        loaded = await self._plumbing.attach(endpoint.spec.ifname)
        done_ns = self._spans.stage(CREATE, ref, "load", cleaned_ns)
        if not loaded:
            log.warning("Unable to load endpoint BPF programs: Link not found ifname=%s", endpoint.spec.ifname)
            endpoint.state = "not-ready"
            self._metrics.regenerated(None)
            return False
        endpoint.state = "ready"
        self._metrics.regenerated(
            {
                "buildPermitAcquisition": permit_ns - asked_ns,
                "waitingForCTClean": cleaned_ns - permit_ns,
                "bpfLoadProg": done_ns - cleaned_ns,
                "total": done_ns - permit_ns,
            }
        )
        return True

    # --- delete -----------------------------------------------------------------------------------------------

    async def delete(self, name: str, client: Client) -> Answer:
        """DELETE /v1/endpoint/{id}: 200, 206 removed with errors, 404 unknown, 429 when the client left the queue.

        The limiter comes first, also for an endpoint that is not there; these quick 404s are why it then lets more
        deletes run in parallel.
        """
        began_ns = time.monotonic_ns()
        known = self.lookup(name)
        ref = known.spec.ref if known else name.partition(":")[2].partition(":")[0] or name
        answer = await self._limited(DELETE, ref, client, lambda: self._delete(name))
        self._spans.stage(DELETE, ref, "total", began_ns, outcome=str(answer.code))
        return answer

    async def _delete(self, name: str) -> Answer:
        endpoint = self.lookup(name)
        if endpoint is None:
            return Answer(404, "endpoint not found")
        log.info("Delete endpoint request containerID=%s", endpoint.spec.container_id[:10])
        late = await self._remove(endpoint)
        if self._ipam is not None:
            self._ipam.release(endpoint.spec.address)
        if late:
            log.warning("Ignoring error while deleting endpoint: context deadline exceeded")
            return Answer(206, "1")
        return Answer(200)

    async def _remove(self, endpoint: Endpoint) -> bool:
        """Take an endpoint away, with a scrub of its own; True when that took longer than Cilium's limit for it.

        Whoever asks second waits for the first and does nothing. An endpoint that still waits for its permit leaves
        that queue; one under regeneration is waited for.
        """
        endpoint.removed = True
        for name in endpoint.names:
            if self._index.get(name) is endpoint:
                del self._index[name]
        if endpoint.build and not endpoint.building:
            endpoint.build.cancel()
        async with endpoint.lock:
            if endpoint.state == "disconnected":
                return False
            endpoint.state = "disconnecting"
            began_ns = time.monotonic_ns()
            await self._plumbing.detach(endpoint.spec.ifname)
            await self._conntrack.scrub(DELETE, endpoint.spec.ref, int(endpoint.spec.address))
            endpoint.state = "disconnected"
        del self._alive[endpoint.number]
        self._memory.forget(endpoint.number)
        return time.monotonic_ns() - began_ns > self._profile.removal_limit_ns

    # --- both -------------------------------------------------------------------------------------------------

    async def _limited(self, call: str, ref: str, client: Client, work: Work) -> Answer:
        gate, began_ns = self._gates[call], time.monotonic_ns()
        try:
            request = await gate.enter(client)
        except TooManyRequests as refused:
            return Answer(429, str(refused))
        finally:
            self._spans.stage(call, ref, "limiter-wait", began_ns)
        answer = Answer(500, "the agent is shutting down")
        try:
            answer = await work()
        finally:
            gate.leave(request, answer.code)
        return answer
