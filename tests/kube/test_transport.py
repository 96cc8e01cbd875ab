from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from loadgen.core.errors import ConfigError, HarnessError
from loadgen.kube import transport
from loadgen.kube.api import KubeApi, KubeError
from tests.kube.apiserver import Handler, kubeconfig, plugin, status, talk


async def serve(handler: Handler, port: int = 0) -> tuple[web.AppRunner, int]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
    return runner, runner.addresses[0][1]


async def version(request: web.Request) -> web.Response:
    return web.json_response({"gitVersion": "v1.34.4"})


# --- tokens that expire


def test_many_calls_that_find_an_expired_token_fetch_one_new_one(tmp_path: Path) -> None:
    user, fetched = plugin(tmp_path)

    async def handler(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != "Bearer t2":
            return status(401, "Unauthorized")
        return web.json_response({})

    async def conversation(api: KubeApi) -> None:
        await asyncio.gather(*(api.get(f"/{n}") for n in range(20)))
        assert fetched() == 2

    talk(tmp_path, handler, conversation, **user)


def test_a_token_that_stays_refused_in_the_middle_of_a_run_is_no_wrong_setting(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.Response:
        return await version(request) if request.path == "/version" else status(401, "Unauthorized")

    async def conversation(api: KubeApi) -> None:
        await api.probe()
        with pytest.raises(HarnessError, match=r"context test: the server does not accept its credentials \(401\)"):
            await api.get("/api/v1/x")

    talk(tmp_path, handler, conversation, token="t")


def test_a_context_that_leads_elsewhere_in_the_middle_of_a_run_is_not_followed(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.Response:
        kubeconfig(tmp_path / "config", "http://127.0.0.1:1")
        return status(401, "Unauthorized")

    async def conversation(api: KubeApi) -> None:
        with pytest.raises(HarnessError, match=r"context test led to .* and now leads to http://127\.0\.0\.1:1"):
            await api.get("/api/v1/x")

    talk(tmp_path, handler, conversation, token="t")


# --- no answer, or none of the API's


@pytest.mark.parametrize(
    ("path", "says"),
    [("/html", "the answer is not the Kubernetes API's"), ("/other", "the answer is not the Kubernetes API's")],
)
def test_a_server_that_is_no_api_server(tmp_path: Path, path: str, says: str) -> None:
    async def handler(request: web.Request) -> web.Response:
        if path == "/html":
            return web.Response(text="<html>", content_type="text/html")
        return web.json_response({"hello": "world"})

    async def conversation(api: KubeApi) -> None:
        with pytest.raises(ConfigError, match=says):
            await api.probe()

    talk(tmp_path, handler, conversation)


def test_tls_that_fails_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        runner, port = await serve(version)
        config = kubeconfig(tmp_path / "config", f"https://127.0.0.1:{port}")
        try:
            async with KubeApi.from_kubeconfig("test", config) as api:
                with pytest.raises(ConfigError, match=r"GET /version: TLS: .*is the cluster up"):
                    await api.probe()
        finally:
            await runner.cleanup()

    asyncio.run(main())


def test_a_server_that_has_been_there_may_go_away_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "RETRY_S", 0.05)

    async def main() -> None:
        runner, port = await serve(version)
        async with KubeApi.from_kubeconfig("test", kubeconfig(tmp_path / "c", f"http://127.0.0.1:{port}")) as api:
            await api.get("/x")
            await runner.cleanup()
            calls = [asyncio.create_task(api.create("/x", {})), asyncio.create_task(api.get("/x"))]
            calls.append(asyncio.create_task(api.exec("p", "c", ["true"], namespace="x")))
            done, _ = await asyncio.wait(calls, timeout=0.5)
            assert not done
            runner, _ = await serve(version, port)
            try:
                done = await asyncio.gather(*calls, return_exceptions=True)
                assert done[:2] == [{"gitVersion": "v1.34.4"}] * 2
                assert "no WebSocket: HTTP 200" in str(done[2])
            finally:
                await runner.cleanup()
            monkeypatch.setattr(transport, "PATIENCE_S", 0.2)
            with pytest.raises(HarnessError, match=r"GET /x: cannot connect: Connection refused"):
                await api.get("/x")

    asyncio.run(main())


@pytest.mark.parametrize(("style", "tries"), [("json", 1), ("merge", transport.TRIES)])
def test_only_what_does_no_harm_is_said_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, style: Any, tries: int
) -> None:
    monkeypatch.setattr(transport, "RETRY_S", 0.01)
    calls = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal calls
        calls += 1
        assert request.transport is not None
        request.transport.abort()
        return web.json_response({})

    async def conversation(api: KubeApi) -> None:
        with pytest.raises(HarnessError, match="PATCH /x: the connection broke"):
            await api.patch("/x", [], style)

    talk(tmp_path, handler, conversation)
    assert calls == tries


def test_the_limit_holds_for_all_tries_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "RETRY_S", 0.1)

    async def handler(request: web.Request) -> web.Response:
        await asyncio.sleep(0.3)
        return status(429, "TooManyRequests", "later")

    async def conversation(api: KubeApi) -> float:
        began = time.monotonic()
        with pytest.raises(HarnessError, match=r"no answer within 1 s|later"):
            await api.raw("GET", "/x", limit_s=1.0)
        return time.monotonic() - began

    assert talk(tmp_path, handler, conversation) < 2.0


# --- what the server asks to repeat


@pytest.mark.parametrize(
    ("code", "after", "tries"),
    [
        (503, "0", 2),
        (503, "", 1),
        (500, "", 1),
        (429, "", 2),
        (429, "Wed, 21 Oct 2015 07:28:00 GMT", 2),
        (429, "3600", 1),
    ],
)
def test_a_busy_server_is_asked_again_when_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, after: str, tries: int
) -> None:
    monkeypatch.setattr(transport, "RETRY_S", 0.01)
    calls = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal calls
        calls += 1
        if calls > 1:
            return web.json_response({})
        return status(code, "Busy", "busy", **({"Retry-After": after} if after else {}))

    async def conversation(api: KubeApi) -> None:
        if tries > 1:
            await api.create("/x", {})
            return
        with pytest.raises(KubeError, match="busy") as raised:
            await api.create("/x", {})
        assert raised.value.status == code

    talk(tmp_path, handler, conversation)
    assert calls == tries


def test_a_burst_shares_few_connections(tmp_path: Path) -> None:
    ports: set[int] = set()
    at_once = most = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        ports.add(request.transport.get_extra_info("peername")[1])  # type: ignore[union-attr]
        await asyncio.sleep(0.01)
        at_once -= 1
        return web.json_response({})

    async def conversation(api: KubeApi) -> None:
        await asyncio.gather(*(api.create("/x", {"n": n}) for n in range(200)))

    talk(tmp_path, handler, conversation)
    assert most == transport.IN_FLIGHT
    assert len(ports) <= transport.IN_FLIGHT


# --- answers that go on


def test_a_stream_begins_goes_silent_and_breaks(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(json.dumps(dict(request.query)).encode())
        if request.path == "/silent":
            await asyncio.Event().wait()
        assert request.transport is not None
        request.transport.abort()
        return response

    async def conversation(api: KubeApi) -> None:
        for path, error in (("/silent", TimeoutError), ("/broken", HarnessError)):
            pieces = []
            with pytest.raises(error):  # noqa: PT012 - the beginning is what it is compared with
                async for piece in api.follow(path, silence_s=0.2, watch="true"):
                    pieces.append(piece)
            assert pieces == [b"", b'{"watch": "true"}']

    talk(tmp_path, handler, conversation)
