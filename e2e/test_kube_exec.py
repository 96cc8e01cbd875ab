"""The API client's commands in containers, proxies and watches on a real kubelet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from e2e.machine.nodeimage import BUSYBOX
from loadgen.core.errors import HarnessError
from loadgen.kube.api import KubeApi, KubeError
from loadgen.kube.exec import V5, ExecStream
from loadgen.kube.objects import ListOf, Pod
from loadgen.kube.watch import Watch

LIMIT_S = 120.0
NAMESPACE = "loadgen-exec"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"

Talk = Callable[[KubeApi], Awaitable[Any]]


def talk(context: str, conversation: Talk) -> Any:
    async def main() -> Any:
        async with asyncio.timeout(LIMIT_S), KubeApi.from_kubeconfig(context) as api:
            return await conversation(api)

    return asyncio.run(main())


def pod(name: str) -> dict[str, Any]:
    container = {
        "name": "c",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", "while :; do sleep 1000; done"],
    }
    return {"metadata": {"name": name}, "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]}}


async def ready(api: KubeApi, name: str) -> list[str]:
    """Make the pod and watch until it is; returned are the phases that were seen on the way."""
    there, phases = asyncio.Event(), []

    def on_event(kind: str, seen: Pod, received_ns: int) -> None:
        phases.append(seen.status.phase)
        if seen.ready:
            there.set()

    watching = asyncio.create_task(Watch(api, PODS, Pod, on_event, fields=f"metadata.name={name}").run())
    await api.create(PODS, pod(name))
    await there.wait()
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    return phases


@pytest.fixture(scope="module")
def cluster(plain_cluster: str) -> Iterator[str]:
    """A cluster with pod `p` in it."""

    async def begin(api: KubeApi) -> None:
        await api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        phases = await ready(api, "p")
        assert (phases[0], phases[-1]) == ("Pending", "Running")

    talk(plain_cluster, begin)
    yield plain_cluster
    talk(plain_cluster, lambda api: api.delete(f"/api/v1/namespaces/{NAMESPACE}"))


@asynccontextmanager
async def started(api: KubeApi, script: str, name: str = "p") -> AsyncIterator[ExecStream]:
    stream = await api.stream(name, "c", ["sh", "-c", script], namespace=NAMESPACE)
    try:
        yield stream
    finally:
        await stream.close()


def test_output_exit_code_and_stdin_of_a_megabyte(cluster: str) -> None:
    async def conversation(api: KubeApi) -> None:
        async def sh(script: str, stdin: bytes = b"") -> tuple[bytes, bytes, int]:
            return await api.exec("p", "c", ["sh", "-c", script], namespace=NAMESPACE, stdin=stdin)

        assert await sh("echo out; echo err >&2; exit 3") == (b"out\n", b"err\n", 3)
        data = bytes(range(256)) * 4096
        assert await sh("cat > /data; wc -c < /data", data) == (b"1048576\n", b"", 0)
        assert await sh("cat /data") == (data, b"", 0)

    talk(cluster, conversation)


def test_a_conversation_ends_with_its_stdin_and_hanging_up_ends_it_too(cluster: str) -> None:
    async def conversation(api: KubeApi) -> None:
        async with started(api, "cat; exit 5") as stream:
            assert stream.protocol == V5
            for word in (b"one\n", b"two\n"):
                stream.write(word)
                assert await stream.stdout.readline() == word
            stream.write_eof()
            assert await stream.wait() == 5
        async with started(api, "cat; echo ended > /ended") as stream:
            stream.write(b"x\n")
            assert await stream.stdout.readline() == b"x\n"
        script = "while ! test -e /ended; do sleep 0.1; done; cat /ended"
        assert (await api.exec("p", "c", ["sh", "-c", script], namespace=NAMESPACE)).stdout == b"ended\n"

    talk(cluster, conversation)


@pytest.mark.parametrize(
    ("name", "container", "argv", "says"),
    [
        ("p", "c", ["nope"], r"loadgen-exec/p \(c\): nope: .*executable file not found"),
        ("p", "nope", ["true"], r"loadgen-exec/p \(nope\): cannot run true: container nope is not valid for pod p"),
        ("gone", "c", ["true"], r"loadgen-exec/gone \(c\): cannot run true: pods \"gone\" not found"),
        ("p", "c", ["sleep", "10"], r"loadgen-exec/p \(c\): sleep 10: not done after 2 s"),
    ],
)
def test_a_command_that_cannot_be_run_or_takes_too_long(
    cluster: str, name: str, container: str, argv: list[str], says: str
) -> None:
    async def conversation(api: KubeApi) -> None:
        with pytest.raises(HarnessError, match=says):
            await api.exec(name, container, argv, namespace=NAMESPACE, limit_s=2)

    talk(cluster, conversation)


def test_a_pod_that_goes_ends_its_commands(cluster: str) -> None:
    async def conversation(api: KubeApi) -> None:
        await ready(api, "victim")
        async with started(api, "echo begun; sleep 60", "victim") as stream:
            assert await stream.stdout.readline() == b"begun\n"
            await api.delete(f"{PODS}/victim", grace_s=0)
            assert await stream.stdout.read() == b""
            try:
                assert await stream.wait() == 137
            except HarnessError as error:
                assert "connection broke" in str(error)  # noqa: PT017 - which of both comes first is the kubelet's

    talk(cluster, conversation)


def test_servers_behind_the_api(cluster: str) -> None:
    async def conversation(api: KubeApi) -> None:
        nodes = await api.get("/api/v1/nodes", ListOf[Pod])
        node = nodes.items[0].metadata.name
        assert "kubelet_node_name" in await api.text(api.node_proxy(node, "metrics"))
        for path, status, says in (
            (api.node_proxy(node, "nope"), 404, "404 page not found"),
            (api.node_proxy("nobody", "metrics"), 404, 'nodes "nobody" not found'),
            (api.node_proxy(node, "x", port=1), 503, "connection refused"),
            (api.pod_proxy(NAMESPACE, "p", 9, "x"), 503, "error trying to reach service"),
        ):
            with pytest.raises(KubeError, match=says) as raised:
                await api.text(path)
            assert raised.value.status == status

    talk(cluster, conversation)
