from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import WSMsgType, web

from loadgen.core.errors import ConfigError, HarnessError, NotSupported
from loadgen.kube.api import KubeApi
from loadgen.kube.exec import CLOSE, PROTOCOLS, STATUS, STDERR, STDIN, STDOUT, ExecResult
from tests.kube.apiserver import Handler, plugin, status, talk

SUCCESS = b'{"metadata":{},"status":"Success"}'


def failure(code: int) -> bytes:
    causes = [{"reason": "ExitCode", "message": str(code)}]
    return json.dumps({"status": "Failure", "message": "it failed", "details": {"causes": causes}}).encode()


def saying(*messages: tuple[int, bytes], asked: list[str] | None = None) -> Handler:
    """A command that says these messages and ends."""

    async def handler(request: web.Request) -> web.StreamResponse:
        if asked is not None:
            asked.extend([f"stdin={request.query.get('stdin', 'false')}", *request.query.getall("command")])
        socket = web.WebSocketResponse(protocols=PROTOCOLS)
        await socket.prepare(request)
        for channel, body in messages:
            await socket.send_bytes(bytes([channel]) + body)
        await socket.close()
        return socket

    return handler


def echoing(change: Callable[[bytes], bytes] = bytes.upper) -> Handler:
    """A command that answers each piece of its stdin and ends with it."""

    async def handler(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=PROTOCOLS)
        await socket.prepare(request)
        async for message in socket:
            assert message.type is WSMsgType.BINARY
            channel, body = message.data[0], message.data[1:]
            if channel == STDIN:
                await socket.send_bytes(bytes([STDOUT]) + change(body))
            elif message.data == bytes([CLOSE, STDIN]):
                await socket.send_bytes(bytes([STATUS]) + SUCCESS)
                break
        await socket.close()
        return socket

    return handler


def run(tmp_path: Path, handler: Handler, argv: list[str], **more: Any) -> ExecResult:
    async def conversation(api: KubeApi) -> ExecResult:
        return await api.exec("p", "c", argv, namespace="x", **more)

    return talk(tmp_path, handler, conversation)


def test_output_and_exit_code(tmp_path: Path) -> None:
    asked: list[str] = []
    handler = saying(
        (STDOUT, b"one "), (STDERR, b"oh"), (STDOUT, b"two"), (STDOUT, b""), (STATUS, failure(7)), asked=asked
    )
    assert run(tmp_path, handler, ["sh", "-c", "exit 7"]) == ExecResult(b"one two", b"oh", 7)
    assert asked == ["stdin=false", "sh", "-c", "exit 7"]


def test_stdin_is_given_whole_and_ended(tmp_path: Path) -> None:
    text = b"abc\n" * 50_000
    assert run(tmp_path, echoing(), ["cat"], stdin=text) == ExecResult(text.upper(), b"", 0)


def test_a_conversation(tmp_path: Path) -> None:
    async def conversation(api: KubeApi) -> tuple[list[bytes], int]:
        stream = await api.stream("p", "c", ["cat"], namespace="x")
        lines = []
        for word in (b"hello\n", b"world\n"):
            stream.write(word)
            lines.append(await stream.stdout.readline())
        stream.write_eof()
        await stream.drain()
        code = await stream.wait()
        await stream.close()
        return lines, code

    assert talk(tmp_path, echoing(), conversation) == ([b"HELLO\n", b"WORLD\n"], 0)


def test_a_server_that_cannot_end_stdin(tmp_path: Path) -> None:
    """Without the end of its input a command that reads all of it would hang."""

    async def handler(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=PROTOCOLS[1:])
        await socket.prepare(request)
        await socket.send_bytes(bytes([STATUS]) + SUCCESS)
        await socket.close()
        return socket

    assert run(tmp_path, handler, ["true"]).code == 0
    with pytest.raises(NotSupported, match=r"the server speaks v4\.channel\.k8s\.io; use Kubernetes 1\.30 or newer"):
        run(tmp_path, handler, ["cat"], stdin=b"x")


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([(STDOUT, b"half")], r"x/p \(c\): /nope: the connection broke"),
        ([(STDERR, b"last\nwords")], "the connection broke: last words"),
        ([(STATUS, b"<html>")], "the connection broke: .*JSON is malformed"),
        ([(STATUS, b'{"status":"Failure","message":"no such file: /nope"}')], "/nope: no such file: /nope"),
        ([(STATUS, b'{"status":"Failure"}')], "no exit code"),
    ],
)
def test_a_command_without_an_exit_code_is_the_harness_s_failure(
    tmp_path: Path, messages: list[tuple[int, bytes]], says: str
) -> None:
    with pytest.raises(HarnessError, match=says):
        run(tmp_path, saying(*messages), ["/nope"])


def test_a_connection_that_is_cut_keeps_what_was_said(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=PROTOCOLS)
        await socket.prepare(request)
        await socket.send_bytes(bytes([STDOUT]) + b"so far")
        await socket.receive()
        assert request.transport is not None
        request.transport.abort()
        return socket

    async def conversation(api: KubeApi) -> bytes:
        stream = await api.stream("p", "c", ["cat"], namespace="x")
        said = await stream.stdout.readexactly(6)
        stream.write(b"go on")
        assert await stream.stdout.read() == b""
        with pytest.raises(HarnessError, match=r"x/p \(c\): cat: the connection broke"):
            await stream.wait()
        stream.write(b"anybody?")
        await stream.drain()
        await stream.close()
        return said

    assert talk(tmp_path, handler, conversation) == b"so far"


def test_a_connection_that_dies_in_silence_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.kube.transport.PING_S", 0.2)

    async def handler(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=PROTOCOLS, autoping=False)
        await socket.prepare(request)
        await asyncio.Event().wait()
        return socket

    with pytest.raises(HarnessError, match="the connection broke: No PONG received"):
        run(tmp_path, handler, ["sleep"])


def test_a_command_that_takes_too_long(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match=r"x/p \(c\): cat -: not done after 0\.3 s"):
        # Its stdin never ends, as nothing is put into it.
        run(tmp_path, echoing(), ["cat", "-"], limit_s=0.3)


def test_only_the_end_of_a_long_complaint_is_kept(tmp_path: Path) -> None:
    pieces = [(STDERR, bytes([letter]) * (40 << 10)) for letter in b"ab"]
    found = run(tmp_path, saying(*pieces, (STATUS, SUCCESS)), ["x"])
    assert found.stderr == b"a" * (24 << 10) + b"b" * (40 << 10)


# --- handshakes


@pytest.mark.parametrize(
    ("code", "reason", "error", "says"),
    [
        (400, "BadRequest", HarnessError, r"x/p \(nope\): cannot run true: container nope is not valid for pod p"),
        (404, "NotFound", HarnessError, r"x/p \(nope\): cannot run true: container nope is not valid for pod p"),
        (403, "Forbidden", ConfigError, r"context test: user u may not get pods/exec in namespace x"),
        (401, "Unauthorized", ConfigError, r"context test: the server does not accept its credentials \(401\)"),
    ],
)
def test_a_command_that_is_refused(tmp_path: Path, code: int, reason: str, error: type[Exception], says: str) -> None:
    cannot = 'User "u" cannot get resource "pods/exec" in API group "" in the namespace "x"'
    message = cannot if code == 403 else "container nope is not valid for pod p"

    async def handler(request: web.Request) -> web.Response:
        return status(code, reason, message)

    async def conversation(api: KubeApi) -> None:
        with pytest.raises(error, match=says):
            await api.exec("p", "nope", ["true"], namespace="x")

    talk(tmp_path, handler, conversation)


def test_a_proxy_that_does_not_know_websockets(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.Response:
        if "Upgrade" in request.headers:
            return web.Response(status=502, text="<html>")
        return status(400, "BadRequest", "Upgrade request required")

    with pytest.raises(HarnessError, match="cannot run true: no WebSocket: HTTP 502"):
        run(tmp_path, handler, ["true"])


def test_a_token_that_has_expired_is_fetched_anew(tmp_path: Path) -> None:
    user, fetched = plugin(tmp_path)

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.headers["Authorization"] == "Bearer t1":
            return status(401, "Unauthorized")
        return await saying((STATUS, SUCCESS))(request)

    async def conversation(api: KubeApi) -> int:
        return (await api.exec("p", "c", ["true"], namespace="x")).code

    assert talk(tmp_path, handler, conversation, **user) == 0
    assert fetched() == 2


def test_a_handshake_that_is_not_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.kube.api.LIMIT_S", 0.2)

    async def handler(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        return web.Response()

    async def conversation(api: KubeApi) -> None:
        with pytest.raises(HarnessError, match=r"GET /api/v1/namespaces/x/pods/p/exec: no answer within 0\.2 s"):
            await api.stream("p", "c", ["true"], namespace="x")

    talk(tmp_path, handler, conversation)
