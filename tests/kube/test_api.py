from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from loadgen.core.errors import ConfigError, HarnessError
from loadgen.kube.api import KubeApi, KubeError
from loadgen.kube.objects import Pod
from tests.kube.apiserver import kubeconfig, plugin, status, talk


def test_objects_come_back_as_json_or_as_records(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.Response:
        assert request.query["limit"] == "5"
        condition = {"type": "Ready", "status": "True"}
        return web.json_response({"metadata": {"name": "p", "uid": "1"}, "status": {"conditions": [condition]}})

    async def conversation(api: KubeApi) -> tuple[dict[str, Any], Pod]:
        return await api.get("/api/v1/x", limit="5"), await api.get("/api/v1/x", Pod, limit="5")

    raw, pod = talk(tmp_path, handler, conversation)
    assert raw["metadata"]["uid"] == "1"
    assert (pod.metadata.name, pod.ready) == ("p", True)


def test_a_refused_token_is_fetched_anew_once(tmp_path: Path) -> None:
    """Tokens expire in the middle of a run: the kubeconfig's exec plugin is asked again, and no more than once."""
    user, fetched = plugin(tmp_path)
    accepted = {"Bearer t2"}

    async def handler(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") not in accepted:
            return status(401, "Unauthorized")
        return web.json_response({"ok": True})

    async def conversation(api: KubeApi) -> None:
        assert await api.get("/one") == {"ok": True}
        assert await api.get("/two") == {"ok": True}
        assert fetched() == 2
        accepted.clear()
        with pytest.raises(HarnessError, match="context test: the server does not accept its credentials"):
            await api.get("/three")
        assert fetched() == 3

    talk(tmp_path, handler, conversation, **user)


def test_forbidden_says_what_is_missing_and_where_it_is_granted(tmp_path: Path) -> None:
    message = 'pods is forbidden: User "x" cannot list resource "pods" in API group "" in the namespace "y"'

    async def handler(request: web.Request) -> web.Response:
        return status(403, "Forbidden", message)

    async def conversation(api: KubeApi) -> None:
        with pytest.raises(ConfigError) as raised:
            await api.get("/api/v1/namespaces/y/pods")
        assert str(raised.value) == (
            "context test: user x may not list pods in namespace y (403): bind it to a Role with "
            'apiGroups: [""], resources: ["pods"], verbs: ["list"]; manifests/rbac.yaml has all that is needed'
        )

    talk(tmp_path, handler, conversation)


@pytest.mark.parametrize(("code", "reason"), [(404, "NotFound"), (409, "AlreadyExists"), (422, "Invalid"), (500, "")])
def test_other_answers_are_told_as_they_are(tmp_path: Path, code: int, reason: str) -> None:
    async def handler(request: web.Request) -> web.Response:
        return status(code, reason, "so it is")

    async def conversation(api: KubeApi) -> None:
        with pytest.raises(KubeError, match="so it is") as raised:
            await api.create("/api/v1/x", {})
        assert (raised.value.status, raised.value.reason) == (code, reason)

    talk(tmp_path, handler, conversation)


def test_too_many_requests_are_repeated_as_the_server_asks(tmp_path: Path) -> None:
    calls = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal calls
        calls += 1
        return (
            status(429, "TooManyRequests", **{"Retry-After": "0"}) if calls < 3 else web.json_response({"n": calls})
        )

    async def conversation(api: KubeApi) -> Any:
        return await api.create("/api/v1/x", {})

    assert talk(tmp_path, handler, conversation) == {"n": 3}


def test_a_silent_server_is_given_up_and_a_broken_connection_is_tried_again_when_that_does_no_harm(
    tmp_path: Path,
) -> None:
    calls: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        calls.append(request.method)
        if request.path == "/slow":
            await asyncio.sleep(0)
            await asyncio.Event().wait()
        if len(calls) == 1 or request.method == "POST":
            assert request.transport is not None
            request.transport.abort()
        return web.json_response({})

    async def conversation(api: KubeApi) -> None:
        await api.get("/read")
        with pytest.raises(HarnessError, match=r"context test.*POST /write"):
            await api.create("/write", {})
        assert calls == ["GET", "GET", "POST"]
        with pytest.raises(HarnessError, match=r"GET /slow: no answer within"):
            await api.raw("GET", "/slow", limit_s=0.2)

    talk(tmp_path, handler, conversation)


def test_a_server_that_is_not_there_is_a_wrong_setting_at_first_contact(tmp_path: Path) -> None:
    config = kubeconfig(tmp_path / "config", "http://127.0.0.1:1")

    async def main() -> None:
        async with KubeApi.from_kubeconfig("test", config) as api:
            with pytest.raises(
                ConfigError,
                match=r"http://127\.0\.0\.1:1 \(context test\): GET /version: .*refused.*is the cluster up",
            ):
                await api.probe()

    asyncio.run(main())


def test_apply_asks_the_server_where_a_kind_lives(tmp_path: Path) -> None:
    seen: list[tuple[str, str, str]] = []
    resources = [{"name": "daemonsets", "kind": "DaemonSet", "namespaced": True}]

    async def handler(request: web.Request) -> web.Response:
        if request.method == "PATCH":
            seen.append((request.path, request.content_type, request.query["fieldManager"]))
        if request.path == "/apis/nope/v1":
            return status(404, "NotFound", "no such group")
        return web.json_response({"resources": resources})

    async def conversation(api: KubeApi) -> None:
        item = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d"}}
        await api.apply(item, "ours")
        await api.apply({**item, "metadata": {"name": "d", "namespace": "theirs"}}, "ours")
        with pytest.raises(ConfigError, match="does not know the kind Gadget of apps/v1"):
            await api.apply({**item, "kind": "Gadget"})
        with pytest.raises(ConfigError, match="does not know nope/v1, which DaemonSet belongs to"):
            await api.apply({**item, "apiVersion": "nope/v1"})

    talk(tmp_path, handler, conversation)
    assert seen == [
        (f"/apis/apps/v1/namespaces/{namespace}/daemonsets/d", "application/apply-patch+yaml", "loadgen")
        for namespace in ("ours", "theirs")
    ]


def test_a_missing_object_need_not_be_deleted(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.Response:
        return status(404, "NotFound", "not found")

    async def conversation(api: KubeApi) -> None:
        await api.delete("/api/v1/x")
        with pytest.raises(KubeError, match="not found"):
            await api.delete("/api/v1/x", missing_ok=False)

    talk(tmp_path, handler, conversation)
