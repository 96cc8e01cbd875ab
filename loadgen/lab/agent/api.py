"""The agent's REST API: Cilium's paths on a unix socket, and the model's own under /v1/loadgen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Literal

import msgspec
from aiohttp import web

from loadgen.core.agentapi import AgentState
from loadgen.lab.agent.admission import Client, Gate, TooManyRequests
from loadgen.lab.agent.ctgc import Conntrack, GarbageCollector
from loadgen.lab.agent.endpoints import Answer, Endpoint, Endpoints, NewEndpoint
from loadgen.lab.agent.ipam import Ipam
from loadgen.lab.agent.metrics import Metrics
from loadgen.lab.agent.plumbing import Plumbing
from loadgen.lab.agent.spans import SpanLog

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_POD_MTU = 1500
_CHAINED = "links and addresses are those of the plugin that this one is chained after"


class Addressing(msgspec.Struct, frozen=True):
    ipv4: str = ""


class EndpointChangeRequest(msgspec.Struct, frozen=True, rename="kebab"):
    """The fields of Cilium's EndpointChangeRequest that mean something here; the others are ignored."""

    addressing: Addressing = Addressing()
    container_id: str = ""
    container_interface_name: str = ""
    interface_name: str = ""
    k8s_namespace: str = ""
    k8s_pod_name: str = ""


class LinkRequest(msgspec.Struct, frozen=True, rename="kebab"):
    """POST /v1/loadgen/link: a veth pair for a container, see plumbing.Plumbing."""

    container_id: str
    netns: str
    ifname: str
    ipv4: str


class Parts(msgspec.Struct, frozen=True):
    """What the handlers act on."""

    profile: str
    settings: str
    """core.model.Cilium as JSON."""
    spans_by: Literal["container", "pod"]
    endpoints: Endpoints
    conntrack: Conntrack
    gc: GarbageCollector
    plumbing: Plumbing
    ipam: Ipam | None
    """None: addresses are another plugin's."""
    gates: dict[str, Gate]
    spans: SpanLog
    metrics: Metrics


class Api:
    """The handlers. Work goes on after its client has hung up: it runs in a task of its own, kept in `_work`.

    `broken` gets the exception of work that failed, which is a fault of the harness: the process then ends.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._work: set[asyncio.Task[Any]] = set()
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._timed], client_max_size=1 << 20)
        app.add_routes(
            [
                web.get("/v1/healthz", self._healthz),
                web.get("/v1/config", self._config),
                web.post("/v1/ipam", self._allocate),
                web.post("/v1/ipam/{ip}", self._reserve),
                web.delete("/v1/ipam/{ip}", self._release),
                web.get("/v1/endpoint", self._list),
                web.get("/v1/endpoint/{id}", self._get),
                web.put("/v1/endpoint/{id}", self._put),
                web.delete("/v1/endpoint/{id}", self._delete),
                web.get("/metrics", self._metrics),
                web.get("/v1/loadgen/state", self._state),
                web.get("/v1/loadgen/spans", self._spans),
                web.post("/v1/loadgen/link", self._link),
                web.delete("/v1/loadgen/link/{id}", self._unlink),
                web.post("/v1/loadgen/gc", self._collect),
            ]
        )
        return app

    def readings(self) -> web.Application:
        """What may be seen from outside of the node: nothing that changes anything."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/v1/healthz", self._healthz),
                web.get("/metrics", self._metrics),
                web.get("/v1/loadgen/state", self._state),
            ]
        )
        return app

    async def close(self) -> None:
        """Cancel what is still at work for clients that are gone or waiting."""
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)

    @web.middleware
    async def _timed(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """cilium_agent_api_process_time_seconds: includes the limiter's wait, cut after the path's second part.

        A client that is gone gets no code to count; Cilium counts the one it could not deliver, which the span has.
        """
        began = time.monotonic()
        response = await handler(request)
        path = "/".join(request.path.split("/")[:3])
        self._parts.metrics.api_call(path, request.method, response.status, time.monotonic() - began)
        return response

    # --- Cilium's -----------------------------------------------------------------------------------------------

    async def _healthz(self, _: web.Request) -> web.Response:
        return _json({"cilium": {"state": "Ok", "msg": f"loadgen model of Cilium {self._parts.profile}"}})

    async def _config(self, _: web.Request) -> web.Response:
        ipam = self._parts.ipam
        if ipam is None:
            return _json({"status": {"datapathMode": "veth", "ipam-mode": "delegated-plugin"}})
        ipv4 = {"ip": str(ipam.gateway), "alloc-range": str(ipam.cidr), "enabled": True}
        status = {"addressing": {"ipv4": ipv4}, "datapathMode": "veth", "ipam-mode": "kubernetes"}
        return _json({"status": {**status, "deviceMTU": _POD_MTU, "routeMTU": _POD_MTU}})

    async def _allocate(self, request: web.Request) -> web.Response:
        if request.query.get("family", "ipv4") != "ipv4":
            return _error(502, "IPv6 allocation disabled")
        ipam = self._parts.ipam
        if ipam is None:
            return _error(501, _CHAINED)
        address = ipam.allocate(request.query.get("owner", ""))
        if address is None:
            return _error(502, "range is full")
        ipv4 = {"ip": str(address), "gateway": str(ipam.gateway), "cidrs": [str(ipam.cidr)]}
        return _json({"address": {"ipv4": str(address)}, "ipv4": ipv4}, 201)

    async def _reserve(self, request: web.Request) -> web.Response:
        address = _address(request.match_info["ip"])
        if address is None:
            return _error(400, "invalid IP address")
        if self._parts.ipam is None:
            return _error(501, _CHAINED)
        taken = self._parts.ipam.reserve(address, request.query.get("owner", ""))
        return web.Response(status=200) if taken else _error(409, "provided IP is already allocated")

    async def _release(self, request: web.Request) -> web.Response:
        address = _address(request.match_info["ip"])
        if address is None:
            return _error(400, "invalid IP address")
        if self._parts.ipam is None:
            return _error(501, _CHAINED)
        return web.Response(status=200 if self._parts.ipam.release(address) else 404)

    async def _list(self, _: web.Request) -> web.Response:
        return await self._read("endpoint-list", lambda: [_model(e) for e in self._parts.endpoints.listed()])

    async def _get(self, request: web.Request) -> web.Response:
        def found() -> dict[str, Any] | None:
            endpoint = self._parts.endpoints.lookup(request.match_info["id"])
            return _model(endpoint) if endpoint else None

        return await self._read("endpoint-get", found)

    async def _put(self, request: web.Request) -> web.Response:
        try:
            body = msgspec.json.decode(await request.read(), type=EndpointChangeRequest)
            address = IPv4Address(body.addressing.ipv4)
        except ValueError as error:  # msgspec's errors are ValueErrors too
            return _error(400, f"unable to parse endpoint parameters: {error}")
        pod = f"{body.k8s_namespace}/{body.k8s_pod_name}"
        by_pod = self._parts.spans_by == "pod" and body.k8s_pod_name
        spec = NewEndpoint(
            cni_id=request.match_info["id"],
            container_id=body.container_id,
            address=address,
            ifname=body.interface_name,
            pod=pod,
            ref=pod if by_pod else body.container_id,
        )
        return await self._serve(lambda client: self._parts.endpoints.create(spec, client))

    async def _delete(self, request: web.Request) -> web.Response:
        name = request.match_info["id"]
        return await self._serve(lambda client: self._parts.endpoints.delete(name, client))

    async def _metrics(self, _: web.Request) -> web.Response:
        self._parts.metrics.endpoint_states(self._parts.endpoints.states())
        return web.Response(body=self._parts.metrics.text(), content_type="text/plain", charset="utf-8")

    # --- the model's own ----------------------------------------------------------------------------------------

    async def _state(self, _: web.Request) -> web.Response:
        parts = self._parts
        made = parts.plumbing.stats()
        state = AgentState(
            profile=parts.profile,
            t_ns=time.monotonic_ns(),
            gc=parts.gc.state(),
            tables={table.name: table.state() for table in parts.conntrack.tables},
            endpoints=parts.endpoints.states(),
            build_permits=parts.endpoints.permits,
            building=parts.endpoints.building,
            build_waiters=parts.endpoints.build_waiters,
            limiters={name: gate.state() for name, gate in parts.gates.items()},
            created=made.created,
            create_failed=made.create_failed,
            settings=parts.settings,
        )
        return _json(state)

    async def _spans(self, request: web.Request) -> web.Response:
        after = request.query.get("after", "0")
        if not after.isdecimal():
            return _error(400, f"after={after}: must be a number of a span")
        return _json(self._parts.spans.page(int(after)))

    async def _link(self, request: web.Request) -> web.Response:
        try:
            body = msgspec.json.decode(await request.read(), type=LinkRequest)
            address = IPv4Address(body.ipv4)
        except ValueError as error:
            return _error(400, str(error))
        if self._parts.ipam is None:
            return _error(501, _CHAINED)
        try:
            link = await self._parts.plumbing.connect(body.container_id, Path(body.netns), body.ifname, address)
        except OSError as error:
            return _error(500, str(error))
        return _json(link, 201)

    async def _unlink(self, request: web.Request) -> web.Response:
        await self._parts.plumbing.disconnect(request.match_info["id"])
        return web.Response(status=200)

    async def _collect(self, _: web.Request) -> web.Response:
        return _json({"deleted": await self._parts.gc.collect_now()})

    # --- common -------------------------------------------------------------------------------------------------

    async def _read(self, call: str, found: Callable[[], object]) -> web.Response:
        """A GET behind its limiter."""
        gate = self._parts.gates[call]

        async def work(client: Client) -> web.Response:
            try:
                ticket = await gate.enter(client)
            except TooManyRequests as refused:
                return _error(429, str(refused))
            result = found()
            gate.leave(ticket, 200 if result is not None else 404)
            return _json(result) if result is not None else _error(404, "endpoint not found")

        return await self._detached(work)

    async def _serve(self, work: Callable[[Client], Awaitable[Answer]]) -> web.Response:
        async def answered(client: Client) -> web.Response:
            answer = await work(client)
            return _error(answer.code, answer.message) if answer.message else web.Response(status=answer.code)

        return await self._detached(answered)

    async def _detached(self, work: Callable[[Client], Awaitable[web.Response]]) -> web.Response:
        """Do the work to its end, whether or not the client stays; when it hangs up, the work is told."""
        client = Client()
        task = asyncio.ensure_future(work(client))
        self._work.add(task)
        task.add_done_callback(self._ended)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            client.hang_up()
            raise

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._work.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.broken.done():
            self.broken.set_exception(error)


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def _error(status: int, message: str) -> web.Response:
    """Cilium's errors are JSON strings."""
    return _json(message, status)


def _address(text: str) -> IPv4Address | None:
    try:
        return IPv4Address(text)
    except ValueError:
        return None


def _model(endpoint: Endpoint) -> dict[str, Any]:
    """Cilium's Endpoint model, as far as it is known here."""
    spec = endpoint.spec
    status = {
        "state": endpoint.state,
        "external-identifiers": {
            "container-id": spec.container_id,
            "cni-attachment-id": spec.cni_id,
            "pod-name": spec.pod,
        },
        "networking": {"addressing": [{"ipv4": str(spec.address)}], "interface-name": spec.ifname},
    }
    return {"id": endpoint.number, "status": status}
