"""The API client on a real etcd and kube-apiserver: its errors, and watches through connections that are cut."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.apiserver import TOKENS, ApiServer, binaries
from e2e.proxy import CuttingProxy
from loadgen.core.errors import ConfigError, HarnessError
from loadgen.kube import podbody
from loadgen.kube.api import KubeApi, KubeError
from loadgen.kube.objects import ListOf, Pod
from loadgen.kube.watch import Watch

LIMIT_S = 120.0
RUN = "loadgen/run"

Talk = Callable[[KubeApi], Awaitable[Any]]


@pytest.fixture(scope="session", autouse=True)
def machine() -> None:
    """No Docker is needed here."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    folder = binaries()
    if folder is None:
        pytest.fail("etcd and kube-apiserver are missing: python -m e2e.machine build, or LOADGEN_K8S_BIN=FOLDER")
    server = ApiServer(tmp_path_factory.mktemp("apiserver"), folder)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def talk(server: ApiServer, tmp_path: Path) -> Callable[..., Any]:
    """Talk to the server as the admin, or as the kubeconfig's `user`, at its address or at `at`."""

    def talk(conversation: Talk, at: str | None = None, **user: Any) -> Any:
        config = server.kubeconfig(tmp_path / "config", server=at, **user)

        async def main() -> Any:
            async with asyncio.timeout(LIMIT_S), KubeApi.from_kubeconfig("real", config) as api:
                return await conversation(api)

        return asyncio.run(main())

    return talk


async def namespace(api: KubeApi, name: str) -> str:
    """A fresh namespace's pods."""
    await api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return f"/api/v1/namespaces/{name}/pods"


def template(run: str) -> podbody.Template:
    return podbody.pod(run, "t", "nowhere", "image")


# --- objects


def test_an_objects_life(talk: Callable[..., Any]) -> None:
    async def conversation(api: KubeApi) -> None:
        await api.probe()
        assert api.version.startswith("v1.")
        await namespace(api, "life")
        maps = "/api/v1/namespaces/life/configmaps"
        item = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "1", "b": "2"}}
        await api.create(maps, item)
        with pytest.raises(KubeError, match='configmaps "m" already exists') as raised:
            await api.create(maps, item)
        assert (raised.value.status, raised.value.reason) == (409, "AlreadyExists")
        await api.patch(f"{maps}/m", {"data": {"a": None}})
        await api.patch(f"{maps}/m", [{"op": "add", "path": "/data/c", "value": "3"}], "json")
        await api.patch(f"{maps}/m", {"metadata": {"labels": {"l": "x"}}}, "strategic")
        # Only what was applied is ours to take away again.
        await api.apply({**item, "data": {"b": "4", "d": "5"}}, "life")
        await api.apply({**item, "data": {"b": "4"}}, "life")
        found = await api.get(f"{maps}/m")
        assert found["data"] == {"b": "4", "c": "3"}
        assert found["metadata"]["labels"] == {"l": "x"}
        await api.delete(f"{maps}/m")
        await api.delete(f"{maps}/m")
        with pytest.raises(KubeError, match='configmaps "m" not found'):
            await api.delete(f"{maps}/m", missing_ok=False)

    talk(conversation)


def test_apply_finds_kinds_of_groups_and_without_namespaces(talk: Callable[..., Any]) -> None:
    async def conversation(api: KubeApi) -> None:
        rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "r"}}
        await api.apply({**role, "rules": rules})
        assert (await api.get("/apis/rbac.authorization.k8s.io/v1/clusterroles/r"))["rules"] == rules
        with pytest.raises(ConfigError, match=r"does not know the kind Gadget of apps/v1"):
            await api.apply({"apiVersion": "apps/v1", "kind": "Gadget", "metadata": {"name": "g"}})
        with pytest.raises(ConfigError, match=r"does not know cilium\.io/v2, which CiliumNode belongs to"):
            await api.apply({"apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": {"name": "g"}})

    talk(conversation)


def test_a_collection_goes_at_once(talk: Callable[..., Any]) -> None:
    async def conversation(api: KubeApi) -> None:
        pods = await namespace(api, "collection")
        for run in ("one", "two"):
            await asyncio.gather(
                *(api.raw("POST", pods, template(run).fill(n + 10 * (run == "two"))) for n in range(5))
            )
        await api.delete_collection(pods, f"{RUN}=one", grace_s=0)
        left = await api.get(pods, ListOf[Pod])
        assert Counter(pod.metadata.labels[RUN] for pod in left.items) == {"two": 5}

    talk(conversation)


# --- who may what


def test_a_client_certificate(server: ApiServer, talk: Callable[..., Any]) -> None:
    folder = server.folder
    files = {"client-certificate": str(folder / "client.crt"), "client-key": str(folder / "client.key")}
    assert talk(lambda api: api.can_i("delete", "nodes"), **files) is True


def test_a_stranger_is_told_what_is_missing(talk: Callable[..., Any]) -> None:
    async def conversation(api: KubeApi) -> None:
        await api.probe()
        assert await api.can_i("list", "pods", namespace="default") is False
        for path, says in (
            ("/api/v1/namespaces/default/pods", "may not list pods in namespace default"),
            ("/api/v1/nodes/n/proxy/metrics", "may not get nodes/proxy in the whole cluster"),
            ("/apis/apps/v1/daemonsets", 'may not list daemonsets in the whole cluster .*apiGroups: \\["apps"\\]'),
        ):
            with pytest.raises(ConfigError, match=f"context real: user stranger {says}"):
                await api.get(path)
        with pytest.raises(ConfigError, match="user stranger may not create configmaps in namespace default"):
            await api.create("/api/v1/namespaces/default/configmaps", {"metadata": {"name": "x"}})
        with pytest.raises(ConfigError, match="may not get pods/exec in namespace default"):
            await api.exec("p", "c", ["true"], namespace="default")
        with pytest.raises(ConfigError, match="may not list pods in namespace default"):
            await Watch(api, "/api/v1/namespaces/default/pods", Pod, lambda *_: None).run()

    talk(conversation, token=TOKENS["stranger"][0])


def test_a_token_that_nobody_knows(talk: Callable[..., Any]) -> None:
    async def conversation(api: KubeApi) -> None:
        with pytest.raises(ConfigError, match=r"context real: the server does not accept its credentials \(401\)"):
            await api.get("/api/v1/nodes")
        with pytest.raises(ConfigError, match=r"context real: the server does not accept its credentials \(401\)"):
            await api.exec("p", "c", ["true"], namespace="default")

    talk(conversation, token="wrong")


def test_nobody(talk: Callable[..., Any]) -> None:
    async def conversation(api: KubeApi) -> None:
        with pytest.raises(ConfigError, match="its user has no credentials"):
            await api.get("/api/v1/nodes")

    talk(conversation, username="", password="")


# --- answers


def test_a_missing_kind_is_not_a_missing_object(talk: Callable[..., Any]) -> None:
    async def conversation(api: KubeApi) -> None:
        for path, says in (
            ("/api/v1/namespaces/default/pods/p", 'pods "p" not found'),
            ("/api/v1/gadgets", "does not know this kind of object"),
            ("/apis/cilium.io/v2/ciliumnodes", "does not know this kind of object"),
        ):
            with pytest.raises(KubeError, match=says) as raised:
                await api.get(path)
            assert raised.value.status == 404
        with pytest.raises(KubeError, match="does not know this kind of object"):
            await Watch(api, "/apis/cilium.io/v2/ciliumnodes", Pod, lambda *_: None).run()

    talk(conversation)


def test_what_cannot_be_is_told_in_the_servers_words(talk: Callable[..., Any]) -> None:
    async def conversation(api: KubeApi) -> None:
        pods = await namespace(api, "wrong")
        with pytest.raises(KubeError, match=r'Pod "p" is invalid: spec\.containers: Required value') as raised:
            await api.create(pods, {"metadata": {"name": "p"}, "spec": {"containers": []}})
        assert raised.value.status == 422
        with pytest.raises(KubeError, match="found '==', expected") as raised:
            await api.get(pods, labelSelector="a==b==c")
        assert raised.value.status == 400
        await api.raw("POST", pods, template("w").fill(1))
        with pytest.raises(
            HarnessError, match=r"wrong/churn-t-1 \(nope\): cannot run true: container nope is not valid"
        ):
            await api.exec("churn-t-1", "nope", ["true"], namespace="wrong")
        with pytest.raises(HarnessError, match=r"wrong/gone \(c\): cannot run true: pods \"gone\" not found"):
            await api.exec("gone", "c", ["true"], namespace="wrong")
        with pytest.raises(HarnessError, match="does not have a host assigned"):
            await api.exec("churn-t-1", "pause", ["true"], namespace="wrong")
        # Nobody here finishes the deletion.
        await api.delete("/api/v1/namespaces/wrong")
        with pytest.raises(ConfigError, match="is being terminated; wait until it is gone"):
            await api.raw("POST", pods, template("w").fill(2))

    talk(conversation)


def test_a_certificate_of_another_authority(server: ApiServer, talk: Callable[..., Any], tmp_path: Path) -> None:
    ours = server.folder / "ca.crt"
    theirs = ours.read_text()
    ours.write_text((server.folder / "client.crt").read_text())
    try:
        with pytest.raises(ConfigError, match=r"TLS: .*certificate verify failed.*is the cluster up"):
            talk(lambda api: api.probe())
    finally:
        ours.write_text(theirs)


# --- a server that is slow, or away for a while


def test_a_server_that_is_stopped_and_goes_on(server: ApiServer, talk: Callable[..., Any]) -> None:
    async def conversation(api: KubeApi) -> None:
        await api.probe()
        with server.stopped(), pytest.raises(HarnessError, match="GET /version: no answer within 1 s"):
            await api.raw("GET", "/version", limit_s=1)
        await api.probe()

    talk(conversation)


def test_a_server_that_restarts_is_waited_for(server: ApiServer, talk: Callable[..., Any]) -> None:
    async def conversation(api: KubeApi) -> None:
        await api.probe()
        server.stop("kube-apiserver")
        calls = [asyncio.create_task(api.get("/api/v1/nodes")) for _ in range(3)]
        await asyncio.sleep(0.5)
        await asyncio.to_thread(server.start)
        assert [found["items"] for found in await asyncio.gather(*calls)] == [[], [], []]

    talk(conversation)


# --- watches


class Gate(CuttingProxy):
    """Lets nobody through while it is `shut`."""

    shut = False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.shut:
            writer.transport.abort()
        else:
            await super()._serve(reader, writer)


class Seen:
    """What a watch tells of pods, and whether it may."""

    def __init__(self) -> None:
        self.there: dict[str, Pod] = {}
        self.created: Counter[str] = Counter()
        self.deleted: Counter[str] = Counter()
        self.versions: Counter[tuple[str, str]] = Counter()

    def __call__(self, kind: str, pod: Pod, received_ns: int) -> None:
        name = pod.metadata.name
        assert (kind == "ADDED") == (name not in self.there)
        self.versions[name, f"{kind == 'DELETED'} {pod.metadata.resource_version}"] += 1
        if kind == "DELETED":
            del self.there[name]
            self.deleted[name] += 1
        else:
            self.created[name] += kind == "ADDED"
            self.there[name] = pod

    def doubled(self) -> list[tuple[str, str]]:
        return [key for key, times in self.versions.items() if times > 1]


async def until(holds: Callable[[], bool], limit_s: float = 30.0) -> None:
    async with asyncio.timeout(limit_s):
        while not holds():  # noqa: ASYNC110 - nobody tells when the other side has seen it
            await asyncio.sleep(0.02)


async def churn(api: KubeApi, pods: str, run: str, numbers: range) -> None:
    """Create pods, mark each, and delete every other one."""
    body = template(run)
    for n in numbers:
        await api.raw("POST", pods, body.fill(n))
        await api.patch(f"{pods}/churn-t-{n}", {"metadata": {"annotations": {"n": str(n)}}})
        if n % 2:
            await api.delete(f"{pods}/churn-t-{n}", grace_s=0)


def test_a_watch_through_cuts_loses_nothing_and_doubles_nothing(
    server: ApiServer, talk: Callable[..., Any], tmp_path: Path
) -> None:
    """Cut in the middle of frames, again and again, once with the past compacted away meanwhile."""

    async def conversation(api: KubeApi) -> None:
        pods = await namespace(api, "cuts")
        seen = Seen()
        async with CuttingProxy(server.port) as proxy:
            config = server.kubeconfig(tmp_path / "cut", server=proxy.url)
            async with KubeApi.from_kubeconfig("real", config) as watching:
                watch = Watch(watching, pods, Pod, seen, selector=f"{RUN}=cuts")
                running = asyncio.create_task(watch.run())
                await watch.synced.wait()
                for part in range(10):
                    work = asyncio.create_task(churn(api, pods, "cuts", range(part * 20, part * 20 + 20)))
                    while watch.breaks <= part:
                        await asyncio.sleep(0.05)
                        proxy.cut()
                    if part == 5:
                        server.compact()
                    await work
                await until(lambda: seen.there.keys() == {f"churn-t-{n}" for n in range(0, 200, 2)})
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
        assert seen.doubled() == []
        assert set(seen.created.values()) | set(seen.deleted.values()) == {1}
        assert all(pod.metadata.annotations["n"] == name[8:] for name, pod in seen.there.items())

    talk(conversation)


def test_a_past_that_is_gone_is_made_up_for_by_the_difference(
    server: ApiServer, talk: Callable[..., Any], tmp_path: Path
) -> None:
    """410: the server restarts without its memory, and etcd has been compacted."""

    async def conversation(api: KubeApi) -> None:
        pods = await namespace(api, "gone")
        seen, expired = Seen(), 0
        async with Gate(server.port) as proxy:
            config = server.kubeconfig(tmp_path / "cut", server=proxy.url)
            async with KubeApi.from_kubeconfig("real", config) as watching:
                await watching.probe()
                raw = watching.raw

                async def counting(*args: Any, **more: Any) -> bytes:
                    nonlocal expired
                    expired += 1
                    return await raw(*args, **more)

                watching.raw = counting  # type: ignore[method-assign]
                watch = Watch(watching, pods, Pod, seen, selector=f"{RUN}=gone")
                running = asyncio.create_task(watch.run())
                await watch.synced.wait()
                await churn(api, pods, "gone", range(10))
                await until(lambda: seen.there.keys() == {f"churn-t-{n}" for n in range(0, 10, 2)})
                proxy.shut = True
                proxy.cut()
                await churn(api, pods, "gone", range(10, 20))
                await api.delete(f"{pods}/churn-t-0", grace_s=0)
                await asyncio.to_thread(server.stop, "kube-apiserver")
                server.compact()
                await asyncio.to_thread(server.start)
                proxy.shut = False
                await until(lambda: seen.there.keys() == {f"churn-t-{n}" for n in range(2, 20, 2)})
                assert expired == 2, "it was listed once more"
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
        assert seen.doubled() == []
        assert seen.deleted["churn-t-0"] == 1
        assert set(seen.created.values()) == {1}

    talk(conversation)
