"""The storm's and the lookups' pods of one variant: datanodes, a Locust master, a worker for each generator pod."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from loadgen.core import resolvconf
from loadgen.core.errors import ConfigError, HarnessError, NotSupported
from loadgen.core.model import Dns, Load, Resolver, Settings, Storm
from loadgen.core.ports import Emit, Running
from loadgen.drivers.pairs import PairsDriver
from loadgen.kube import exchange, names, nodelocal, podview
from loadgen.kube.api import KubeApi, KubeError
from loadgen.kube.datanode import DatanodeConfig, Server
from loadgen.kube.exchange import Assignment, Targets
from loadgen.kube.manifests import render
from loadgen.kube.objects import ListOf, Pod
from loadgen.kube.session import Session, missing

MASTER = "locust-master"
WEB_PORT = 8089
LOCUSTFILE = f"/opt/loadgen/{exchange.LOCUSTFILE}"

DATANODES = 4
DATANODE_PORT = 50010
MAX_TARGETS = DATANODES * (65_536 - DATANODE_PORT)


READY_LIMIT_S = 180.0
PROBLEM_LIMIT_S = 20.0
"""No room, or no image: a cluster may need a moment to see that there is; not for long."""
GONE_LIMIT_S = 60.0
POLL_S = 0.5
GUARD_S = 3.0
_LAST_LINES = 3


class Plan(NamedTuple):
    """What is to be made, known before anything is."""

    pods: dict[str, tuple[str, ...]]
    """Load → its generator pods."""
    services: list[str]
    servers: dict[str, Server]
    """Storm → what serves it in every datanode pod."""
    datanodes: tuple[str, ...]

    @property
    def workers(self) -> list[str]:
        return [pod for pods in self.pods.values() for pod in pods]


def plan(loads: Mapping[str, Storm | Dns]) -> Plan:
    """ConfigError for loads that no cluster can have."""
    lookups = [name for load in loads.values() if isinstance(load, Dns) for name in load.names]
    storms = {name: load for name, load in loads.items() if isinstance(load, Storm)}
    datanodes = min(DATANODES, max((load.targets for load in storms.values()), default=0))
    servers: dict[str, Server] = {}
    port = DATANODE_PORT
    for name, load in storms.items():
        ports = -(-load.targets // datanodes)
        if port + ports > 65_536:
            raise ConfigError(
                f"loads.{name}.targets: {load.targets:,}; on a cluster all storms together have at most "
                f"{MAX_TARGETS:,} ({DATANODES} datanode pods with ports from {DATANODE_PORT} on)"
            )
        servers[name] = Server(port, ports, load.request_bytes, load.reply_bytes)
        port += ports
    pods = names.pods((name, load.pods) for name, load in loads.items())
    return Plan(pods, names.services(lookups), servers, tuple(f"datanode-{i}" for i in range(datanodes)))


def check(loads: Mapping[str, Load], settings: Settings) -> None:
    """What is wrong with a scenario's loads on any cluster: ConfigError. Nothing is asked of the cluster."""
    plan({name: load for name, load in loads.items() if isinstance(load, Storm | Dns)})
    resolvconf.from_settings(settings.resolver, [nodelocal.ADDRESS], source="settings.resolver")
    for name, load in loads.items():
        if isinstance(load, Dns) and load.via == "fast":
            PairsDriver(load, settings.resolver, [nodelocal.ADDRESS], name)  # it opens nothing before it runs


class Generators:
    """`deploy`, then `prepare` for each phase, then `remove`, whatever happened in between."""

    def __init__(self, api: KubeApi, namespace: str, run: str, node: str, image: str) -> None:
        self._api, self._namespace, self._run, self._node, self._image = api, namespace, run, node, image
        self._session = Session(self._call, self._explain)
        self._loads: dict[str, Storm | Dns] = {}
        self._plan = plan({})
        self._made: set[str] = set()
        """Names of our pods."""
        self._guard: asyncio.Task[None] | None = None
        self.environment: dict[str, str] = {}

    @property
    def ui_path(self) -> str:
        """API path of Locust's web UI, e.g. below `kubectl proxy`."""
        return self._api.pod_proxy(self._namespace, MASTER, WEB_PORT, "/")

    @property
    def lead_ns(self) -> int:
        """How long before the first due time a `go` has to be said."""
        return self._session.lead_ns

    # --- up -----------------------------------------------------------------------------------------------------

    async def deploy(self, loads: Mapping[str, Storm | Dns], settings: Settings) -> None:
        """Return when every generator pod's worker has reported to the master.

        ConfigError when the cluster has no room or not the image, HarnessError when pods die or do not come up.
        """
        check(loads, settings)
        self._loads, self._plan = dict(loads), plan(loads)
        elsewhere = await self._has_other_nodes()
        about = {"namespace": self._namespace, "run": self._run, "node": self._node, "image": self._image}
        workers = len(self._plan.workers)
        items = render("master", **about, elsewhere=elsewhere, workers=workers, locustfile=LOCUSTFILE)
        if self._plan.servers:
            config = DatanodeConfig(tuple(self._plan.servers.values()))
            data = msgspec.json.encode(config).decode()
            n = len(self._plan.datanodes)
            items += render("datanodes", **about, elsewhere=elsewhere, config=data, pods=n)
        await self._apply(items)
        up = await self._until_ready([MASTER, *self._plan.datanodes])
        addresses = tuple(_address(up[name]) for name in self._plan.datanodes)
        await self._until(self._unanswered)
        config = exchange.Config(await self._assignments(settings.resolver, addresses))
        await self._apply(
            render(
                "generators",
                **about,
                config=exchange.encode_config(config).decode(),
                services=self._plan.services,
                workers=list(self._worker_values(config)),
                master=up[MASTER].status.pod_i_p,
                locustfile=LOCUSTFILE,
            )
        )
        await self._until_connected()
        self._guard = asyncio.create_task(self._guard_pods())

    async def _assignments(self, resolver: Resolver, addresses: tuple[str, ...]) -> dict[str, Assignment]:
        server = await self._server(resolver) if any(isinstance(x, Dns) for x in self._loads.values()) else ""
        found: dict[str, Assignment] = {}
        for name, load in self._loads.items():
            if isinstance(load, Storm):
                served = self._plan.servers[name]
                found[name] = Assignment(load=load, targets=Targets(addresses, served.port, served.ports))
            else:
                asked = tuple(names.lookup(name, self._namespace) for name in load.names)
                load = msgspec.structs.replace(load, names=asked)
                found[name] = Assignment(load=load, resolver=resolver, server=server)
        return found

    async def _server(self, resolver: Resolver) -> str:
        """The name server that the variant means. `service` is what this cluster gives a pod by default."""
        given = (await self._session.clock()).nameservers[0]
        # Of the cluster, not of the variant: only that makes runs comparable.
        self.environment["name_server"] = given
        if resolver.server == "nodelocal":
            return nodelocal.ADDRESS
        if given.startswith("169.254."):
            raise ConfigError(
                f"settings.resolver.server: service: this cluster's pods already ask a cache on their node "
                f"({given}); only nodelocal can be measured here"
            )
        return given

    def _worker_values(self, config: exchange.Config) -> Iterable[dict[str, Any]]:
        for load, pods in self._plan.pods.items():
            assignment = config.loads[load]
            dns = None if assignment.resolver is None else dns_config(assignment.resolver, assignment.server)
            yield from ({"pod": pod, "load": load, "dns": dns} for pod in pods)

    async def _until_connected(self) -> None:
        """Every worker's pod runs, and its Locust user has said so to the master."""
        expected = self._plan.workers
        late = expected

        async def look() -> str:
            nonlocal late
            late = missing(expected, await self._session.workers())
            return f"not connected to the Locust master: {', '.join(late)}" if late else ""

        await self._until(look)

    async def _unanswered(self) -> str:
        """A pod that is Ready need not be within the API server's reach yet, in a cluster that is a minute old."""
        try:
            await self._session.clock()
        except HarnessError as error:
            return str(error)
        return ""

    async def _until_ready(self, wanted: Sequence[str]) -> dict[str, Pod]:
        found: dict[str, Pod] = {}

        async def look() -> str:
            found.update(await self._pods())
            late = [name for name in wanted if name not in found or not found[name].ready]
            return f"not ready: {', '.join(late)}" if late else ""

        await self._until(look)
        return found

    async def _until(self, look: Callable[[], Awaitable[str]]) -> None:
        """Until `look` finds nothing missing; what stands in the way of a pod of ours is raised."""
        problems: dict[str, float] = {}
        given_up = time.monotonic() + READY_LIMIT_S
        while why := await look():
            pods = await self._pods()
            found = {name: self._problem(pod) for name, pod in pods.items()}
            await self._raise_dead(pods)
            problems = {name: problems.get(name, time.monotonic()) for name, text in found.items() if text}
            for name, since in problems.items():
                if time.monotonic() - since > PROBLEM_LIMIT_S:
                    raise ConfigError(f"pod {self._namespace}/{name}: {found[name]}")
            if time.monotonic() > given_up:
                raise HarnessError(f"namespace {self._namespace}: after {READY_LIMIT_S:g} s {why}")
            await asyncio.sleep(POLL_S)

    async def _has_other_nodes(self) -> bool:
        """Whether a datanode can be on another node than the one under test."""
        for node in (await self._api.get("/api/v1/nodes"))["items"]:
            conditions = {c["type"]: c["status"] for c in node["status"].get("conditions", [])}
            spec = node.get("spec", {})
            repelled = any(taint["effect"] in ("NoSchedule", "NoExecute") for taint in spec.get("taints", []))
            usable = conditions.get("Ready") == "True" and not spec.get("unschedulable") and not repelled
            if usable and node["metadata"]["name"] != self._node:
                return True
        return False

    def _problem(self, pod: Pod) -> str:
        """What keeps a pod from starting; empty when nothing does."""
        if podview.no_room(pod):
            condition = pod.condition("PodScheduled")
            return f"no node takes it: {condition.message if condition else ''}"
        if why := podview.image_problem(pod):
            return (
                f"image {self._image}: {why}; load it into the nodes (kind load docker-image {self._image}), or push "
                "it to where they can pull it and name it by --image"
            )
        return ""

    # --- at work ------------------------------------------------------------------------------------------------

    async def prepare(self, name: str, load: Load, phase: str, seed: int, emit: Emit) -> Running:
        """Driver processes in all pods of load `name`, waiting for `go`."""
        if self._loads.get(name) != load:
            raise HarnessError(f"load {name} is not among those that generator pods were deployed for")
        return await self._session.prepare(name, phase, seed, emit, self._plan.pods[name])

    async def _guard_pods(self) -> None:
        """Notice a pod that died where the master cannot: a datanode, or itself."""
        while True:
            await asyncio.sleep(GUARD_S)
            try:
                await self._raise_dead(await self._pods())
            except HarnessError as error:
                self._session.fail(error)
                return

    async def _explain(self, error: HarnessError) -> HarnessError:
        """What became of the pod, if that is why; the master only knows that its worker is gone."""
        try:
            await self._raise_dead(await self._pods())
        except HarnessError as better:
            return better
        return error

    async def _raise_dead(self, pods: Mapping[str, Pod]) -> None:
        """HarnessError when a pod that was made has ended or is no more, with what it said last."""
        for name in sorted(self._made):
            if why := _death(pods.get(name)):
                raise HarnessError(f"pod {self._namespace}/{name} is gone: {why}{await self._last_words(name)}")

    async def _last_words(self, name: str) -> str:
        try:
            path = f"/api/v1/namespaces/{self._namespace}/pods/{name}/log"
            text = await self._api.text(path, tailLines=str(_LAST_LINES))
        except (KubeError, HarnessError):
            return ""
        return f"; it said: {' / '.join(text.split(chr(10))).strip(' /')}" if text.strip() else ""

    async def _call(
        self, method: str, path: str, body: bytes | None, params: Mapping[str, str], limit_s: float
    ) -> bytes:
        url = self._api.pod_proxy(self._namespace, MASTER, WEB_PORT, path)
        kind = "application/msgpack"
        return await self._api.raw(method, url, body, content_type=kind, params=params or None, limit_s=limit_s)

    # --- down ---------------------------------------------------------------------------------------------------

    async def remove(self) -> None:
        """Delete all of it and wait until the pods are gone, so that the next variant may have their names."""
        if self._guard is not None:
            self._guard.cancel()
        await self._session.close()
        root = f"/api/v1/namespaces/{self._namespace}"
        paths = [f"{root}/pods/{name}" for name in (MASTER, *self._plan.datanodes, *self._plan.workers)]
        paths += [f"{root}/services/{name}" for name in self._plan.services]
        paths += [f"{root}/configmaps/{name}" for name in ("datanodes", "generators")]
        try:
            await asyncio.gather(*(self._api.delete(path, grace_s=1) for path in paths))
            async with asyncio.timeout(GONE_LIMIT_S):
                while await self._pods():  # noqa: ASYNC110 - only the API knows
                    await asyncio.sleep(POLL_S)
        except KubeError as error:
            raise HarnessError(f"generators in {self._namespace}: not removed: {error}") from None
        except TimeoutError:
            raise HarnessError(
                f"generator pods in {self._namespace} are still there {GONE_LIMIT_S:g} s after they were deleted"
            ) from None

    # --- the API ------------------------------------------------------------------------------------------------

    async def _pods(self) -> dict[str, Pod]:
        selector = f"loadgen/run={self._run},loadgen/part in (master,datanode,generator)"
        try:
            path = f"/api/v1/namespaces/{self._namespace}/pods"
            found = await self._api.get(path, ListOf[Pod], labelSelector=selector)
        except KubeError as error:
            raise HarnessError(f"pods of {self._namespace} cannot be listed: {error}") from None
        return {pod.metadata.name: pod for pod in found.items}

    async def _apply(self, items: Iterable[dict[str, Any]]) -> None:
        for item in items:
            try:
                await self._api.apply(item)
                if item["kind"] == "Pod":
                    self._made.add(item["metadata"]["name"])
            except KubeError as error:
                what = f"{item['kind'].lower()} {self._namespace}/{item['metadata']['name']}"
                raise ConfigError(f"{what}: the cluster refuses it: {error}") from None


def _death(pod: Pod | None) -> str:
    """Why there is no hope for a pod; empty while there is."""
    if pod is None or pod.metadata.deletion_timestamp is not None:
        return "somebody deleted it"
    if pod.status.phase not in ("Failed", "Succeeded"):
        return ""
    states = [status.state.terminated for status in pod.status.container_statuses]
    reasons = [state.reason for state in states if state is not None and state.reason]
    return pod.status.reason or ", ".join(reasons) or pod.status.phase


def _address(pod: Pod) -> str:
    if ":" in pod.status.pod_i_p:
        raise NotSupported("storm", f"pods here have IPv6 addresses ({pod.status.pod_i_p})", "it speaks IPv4 only")
    return pod.status.pod_i_p


def dns_config(resolver: Resolver, server: str) -> dict[str, Any]:
    """A pod's dnsConfig that says what the variant says and, with dnsPolicy None, nothing else."""
    options: list[dict[str, str]] = []
    for word in resolver.options.split():
        name, colon, value = word.partition(":")
        options.append({"name": name, "value": value} if colon else {"name": name})
    return {"nameservers": [server], "searches": list(resolver.search), "options": options}
