from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from loadgen.core.errors import ConfigError, HarnessError
from loadgen.kube import watch as module
from loadgen.kube.api import KubeApi
from loadgen.kube.objects import Pod
from loadgen.kube.watch import Watch
from tests.kube.apiserver import plugin, status, talk

PODS = "/api/v1/namespaces/x/pods"


def pod(name: str, version: int, phase: str = "Pending") -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": str(version)}, "status": {"phase": phase}}


def event(kind: str, item: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


class Server:
    """Answers each list and each watch with what comes next; the last watch stays open."""

    def __init__(self, lists: Sequence[tuple[int, list[Any]]], watches: Sequence[Any]) -> None:
        self._lists, self._watches = list(lists), list(watches)
        self.asked_from: list[str] = []
        self.silent = asyncio.Event()

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            version, items = self._lists.pop(0)
            return web.json_response({"metadata": {"resourceVersion": str(version)}, "items": items})
        self.asked_from.append(request.query["resourceVersion"])
        said = self._watches.pop(0)
        if isinstance(said, int):
            return status(said, "Expired", "too old resource version")
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in said:
            await response.write(piece)
        if self._watches:
            assert request.transport is not None
            request.transport.abort()  # in the middle of a chunk, as a dying proxy does
        else:
            self.silent.set()
            await asyncio.Event().wait()
        return response


def told(tmp_path: Path, server: Server, count: int) -> list[tuple[str, str, str]]:
    """The first `count` events; a further one within a moment would be one too many and fails the test."""

    async def conversation(api: KubeApi) -> list[tuple[str, str, str]]:
        seen: list[tuple[str, str, str]] = []
        enough = asyncio.Event()

        def on_event(kind: str, item: Pod, _: int) -> None:
            seen.append((kind, item.metadata.name, item.status.phase))
            if len(seen) >= count:
                enough.set()

        watch = Watch(api, PODS, Pod, on_event)
        running = asyncio.create_task(watch.run())
        try:
            await enough.wait()
            # Everything that the server has said is in: the last watch is open and silent.
            await server.silent.wait()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        return seen

    return talk(tmp_path, server.__call__, conversation)


def test_the_list_comes_first_and_then_every_change(tmp_path: Path) -> None:
    server = Server(
        [(5, [pod("a", 3)])],
        [[event("MODIFIED", pod("a", 6, "Running")), event("ADDED", pod("b", 7)), event("DELETED", pod("a", 8))]],
    )
    assert told(tmp_path, server, 4) == [
        ("ADDED", "a", "Pending"),
        ("MODIFIED", "a", "Running"),
        ("ADDED", "b", "Pending"),
        ("DELETED", "a", "Pending"),
    ]
    assert server.asked_from == ["5"]


def test_a_break_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    """The connection is cut within an event; the watch goes on from the last version that arrived whole."""
    first, second = event("MODIFIED", pod("a", 6, "Running")), event("ADDED", pod("b", 7))
    server = Server(
        [(5, [pod("a", 3)])], [[first, second[:20]], [second, event("BOOKMARK", pod("", 9))], [first[:0]]]
    )
    assert told(tmp_path, server, 3) == [
        ("ADDED", "a", "Pending"),
        ("MODIFIED", "a", "Running"),
        ("ADDED", "b", "Pending"),
    ]
    assert server.asked_from == ["5", "6", "9"]


@pytest.mark.parametrize("gone", [410, [event("ERROR", {"code": 410, "message": "too old resource version"})]])
def test_what_happened_while_nobody_looked_is_told_from_the_difference(tmp_path: Path, gone: Any) -> None:
    server = Server(
        [(5, [pod("a", 3), pod("b", 4), pod("c", 5)]), (50, [pod("a", 3), pod("c", 40, "Running"), pod("d", 41)])],
        [gone, [b""]],
    )
    assert told(tmp_path, server, 6)[3:] == [
        ("DELETED", "b", "Pending"),
        ("MODIFIED", "c", "Running"),
        ("ADDED", "d", "Pending"),
    ]


def test_a_successor_of_the_same_name_appears_after_its_predecessor_has_gone(tmp_path: Path) -> None:
    successor = pod("a", 40)
    successor["metadata"]["uid"] = "another"
    server = Server([(5, [pod("a", 3)]), (50, [successor])], [410, [b""]])
    assert [kind for kind, _, _ in told(tmp_path, server, 3)] == ["ADDED", "DELETED", "ADDED"]


def test_what_leaves_the_selection_before_it_was_seen_is_nobody(tmp_path: Path) -> None:
    server = Server([(5, [])], [[event("DELETED", pod("x", 6)), event("ADDED", pod("a", 7))]])
    assert told(tmp_path, server, 1) == [("ADDED", "a", "Pending")]


# --- watches that end


Streams = Callable[[int, web.StreamResponse], Awaitable[None]]


def watching(tmp_path: Path, stream: Streams, *, until: int, **user: Any) -> tuple[Watch[Pod], list[str], int]:
    """Watch a server whose n-th stream is made by `stream`, until `until` pods have been seen or the watch ends."""
    streams = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal streams
        if "watch" not in request.query:
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})
        streams += 1
        response = web.StreamResponse()
        await response.prepare(request)
        await stream(streams, response)
        return response

    async def conversation(api: KubeApi) -> tuple[Watch[Pod], list[str], int]:
        seen: list[str] = []
        enough = asyncio.Event()

        def on_event(kind: str, item: Pod, _: int) -> None:
            seen.append(item.metadata.name)
            if len(seen) >= until:
                enough.set()

        watch = Watch(api, PODS, Pod, on_event)
        running = asyncio.create_task(watch.run())
        waiting = asyncio.create_task(enough.wait())
        await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            waiting.cancel()
            running.result()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return watch, seen, streams

    return talk(tmp_path, handler, conversation, **user)


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.02)


def test_silence_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events have no bookmarks: for them silence may last for hours."""
    monkeypatch.setattr(module, "SILENCE_S", 0.1)
    monkeypatch.setattr(module, "GIVE_UP_AFTER_S", 0.05)

    async def stream(number: int, response: web.StreamResponse) -> None:
        if number == 4:
            await response.write(event("ADDED", pod("a", 2)))
        await asyncio.Event().wait()

    watch, seen, streams = watching(tmp_path, stream, until=1)
    assert (watch.breaks, seen, streams) == (0, ["a"], 4)


def test_only_a_watch_that_does_not_come_back_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How long it went well before it broke is no argument against it."""
    monkeypatch.setattr(module, "GIVE_UP_AFTER_S", 0.1)

    async def stream(number: int, response: web.StreamResponse) -> None:
        await response.write(event("ADDED", pod(f"p{number}", number + 1)))
        await asyncio.sleep(0.2)
        response._req.transport.abort()  # type: ignore[union-attr] # in the middle of it

    watch, seen, _ = watching(tmp_path, stream, until=4)
    assert (watch.breaks, seen) == (3, ["p1", "p2", "p3", "p4"])


def test_a_server_that_says_no_for_a_minute_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GIVE_UP_AFTER_S", 0.2)

    async def handler(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return status(500, "InternalError", "etcd is ill")
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})

    async def conversation(api: KubeApi) -> None:
        with pytest.raises(HarnessError, match=r"watch broken for 0\.2 s: .*etcd is ill"):
            await Watch(api, PODS, Pod, lambda *_: None).run()

    talk(tmp_path, handler, conversation)


@pytest.mark.parametrize(
    ("code", "reason", "error", "says"),
    [
        (403, "Forbidden", ConfigError, "forbidden"),
        (404, "NotFound", HarnessError, "no such thing"),
        (400, "BadRequest", HarnessError, "unable to parse"),
    ],
)
@pytest.mark.parametrize("at", ["list", "watch"])
def test_a_refusal_ends_the_watch_at_once(
    tmp_path: Path, code: int, reason: str, error: type[Exception], says: str, at: str
) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        if ("watch" in request.query) == (at == "watch"):
            return status(code, reason, says)
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})

    async def conversation(api: KubeApi) -> None:
        with pytest.raises(error, match=says):
            await Watch(api, PODS, Pod, lambda *_: None).run()

    talk(tmp_path, handler, conversation)


def test_a_token_that_expires_is_fetched_anew(tmp_path: Path) -> None:
    user, fetched = plugin(tmp_path)
    valid = "Bearer t1"

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal valid
        if request.headers["Authorization"] != valid:
            return status(401, "Unauthorized")
        if "watch" not in request.query:
            valid = "Bearer t2"
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(event("ADDED", pod("a", 2)))
        await asyncio.Event().wait()
        return response

    async def conversation(api: KubeApi) -> None:
        seen = asyncio.Event()
        running = asyncio.create_task(Watch(api, PODS, Pod, lambda *_: seen.set()).run())
        await seen.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    talk(tmp_path, handler, conversation, **user)
    assert fetched() == 2


def test_something_else_than_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GIVE_UP_AFTER_S", -1)

    async def stream(number: int, response: web.StreamResponse) -> None:
        await response.write(b"<html>\n")

    with pytest.raises(HarnessError, match="an event is not of the kind that was expected"):
        watching(tmp_path, stream, until=1)


def test_an_event_may_come_in_pieces(tmp_path: Path) -> None:
    async def stream(number: int, response: web.StreamResponse) -> None:
        both = event("ADDED", pod("a", 2)) + event("ADDED", pod("b", 3))
        for at in range(0, len(both), 50):
            await response.write(both[at : at + 50])
            await asyncio.sleep(0.01)  # so that it goes out as a piece of its own
        await asyncio.Event().wait()

    watch, seen, streams = watching(tmp_path, stream, until=2)
    assert (watch.breaks, seen, streams) == (0, ["a", "b"], 1)
