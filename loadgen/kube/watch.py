"""List and watch that survive a break without losing or doubling anything."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Generic, Literal, Protocol, TypeVar

import msgspec

from loadgen.core.errors import HarnessError
from loadgen.core.units import NS_PER_S
from loadgen.kube.api import KubeApi, KubeError
from loadgen.kube.objects import ListOf, Metadata

Kind = Literal["ADDED", "MODIFIED", "DELETED"]


class Item(Protocol):
    """Any object of the API, as far as a watch has to know it."""

    @property
    def metadata(self) -> Metadata: ...


T = TypeVar("T", bound=Item)
OnEvent = Callable[[Kind, T, int], None]
"""Called with the kind, the object, and when it was received (CLOCK_MONOTONIC, ns)."""

SERVER_LIMIT_S = 300
"""The server ends the watch after this; we come back where we were."""
SILENCE_S = 90.0
"""Where the server sends bookmarks, it is about one a minute, so longer silence may be a dead connection. Some kinds
have none (events): silence alone is no failure, and we come back where we were."""
GIVE_UP_AFTER_S = 60.0
PAUSE_S = 0.5
_TYPE_WITHIN = 24
"""An event begins with its type: no need to decode each one twice."""


class _Frame(msgspec.Struct, Generic[T]):
    type: str
    object: T


class _Other(msgspec.Struct):
    """A bookmark, of which only the version counts, or a Status."""

    metadata: Metadata = Metadata()
    code: int = 0
    reason: str = ""
    message: str = ""


class Watch(Generic[T]):
    """`run` calls `on_event` for every change of the objects at `path`, for ever.

    Each state of an object is told once: what the list after a break shows again is recognised by its
    resourceVersion, what has vanished meanwhile is told as DELETED with its last known state.
    """

    def __init__(
        self, api: KubeApi, path: str, kind: type[T], on_event: OnEvent[T], *, selector: str = "", fields: str = ""
    ) -> None:
        self._api, self._path, self._on_event = api, path, on_event
        self._decode = msgspec.json.Decoder(_Frame[kind]).decode  # pyright: ignore[reportInvalidTypeForm]
        self._decode_list = msgspec.json.Decoder(ListOf[kind]).decode  # pyright: ignore[reportInvalidTypeForm]
        self._params = {k: v for k, v in (("labelSelector", selector), ("fieldSelector", fields)) if v}
        self._known: dict[str, T] = {}
        self._version = ""
        self._heard_ns = 0
        self.synced = asyncio.Event()
        """Set once the first list has been told."""
        self.breaks = 0
        """How often it broke. What happened meanwhile was heard late, when it stood again."""

    async def run(self) -> None:
        """Until cancelled.

        HarnessError when it has been broken for a minute, or was refused; ConfigError when we may not watch.
        """
        broken_ns: int | None = None
        while True:
            began_ns = time.monotonic_ns()
            try:
                await self._list_and_follow()
                broken_ns = None
            except HarnessError as error:
                now_ns = time.monotonic_ns()
                if isinstance(error, KubeError) and error.status == 410:
                    self._version = ""  # too old: list again, and tell the differences
                elif isinstance(error, KubeError) and error.status < 500 and error.status != 429:
                    raise
                else:
                    self.breaks += 1
                    # It may have gone well for hours before it broke.
                    broken_ns = now_ns if broken_ns is None or self._heard_ns > began_ns else broken_ns
                    if now_ns - broken_ns > GIVE_UP_AFTER_S * NS_PER_S:
                        raise HarnessError(f"watch broken for {GIVE_UP_AFTER_S:g} s: {error}") from error
            if time.monotonic_ns() - began_ns < PAUSE_S * NS_PER_S:
                await asyncio.sleep(PAUSE_S)

    async def _list_and_follow(self) -> None:
        """Until the server or silence ends it."""
        if not self._version:
            data = await self._api.raw("GET", self._path, params=self._params or None)
            self._tell_list(data, time.monotonic_ns())
            self.synced.set()
        try:
            await self._follow()
        except TimeoutError:
            pass  # silent for long

    def _tell_list(self, data: bytes, received_ns: int) -> None:
        try:
            found = self._decode_list(data)
        except msgspec.DecodeError as error:
            raise HarnessError(f"{self._path}: the list is not of the kind that was expected: {error}") from None
        there = {item.metadata.uid for item in found.items}
        # Before a successor of the same name appears.
        for uid in [uid for uid in self._known if uid not in there]:
            self._on_event("DELETED", self._known.pop(uid), received_ns)
        for item in found.items:
            self._tell(item, received_ns)
        self._version, self._heard_ns = found.metadata.resource_version, received_ns

    async def _follow(self) -> None:
        pieces = self._api.follow(
            self._path,
            silence_s=SILENCE_S,
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=self._version,
            timeoutSeconds=str(SERVER_LIMIT_S),
            **self._params,
        )
        rest = b""
        async with aclosing(pieces):
            async for piece in pieces:
                received_ns = self._heard_ns = time.monotonic_ns()
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    self._take(line, received_ns)

    def _take(self, line: bytes, received_ns: int) -> None:
        head = line[:_TYPE_WITHIN]
        if b'"ERROR"' in head or b'"BOOKMARK"' in head:
            self._take_other(line)
            return
        try:
            frame = self._decode(line)
        except msgspec.DecodeError as error:
            raise HarnessError(f"{self._path}: an event is not of the kind that was expected: {error}") from None
        item: T = frame.object
        self._version = item.metadata.resource_version
        if frame.type != "DELETED":
            self._tell(item, received_ns)
        elif self._known.pop(item.metadata.uid, None) is not None:
            self._on_event("DELETED", item, received_ns)

    def _take_other(self, line: bytes) -> None:
        frame = msgspec.json.decode(line, type=_Frame[_Other])
        said = frame.object
        if frame.type == "ERROR":
            raise KubeError(said.code or 500, said.reason, said.message, self._path)
        self._version = said.metadata.resource_version

    def _tell(self, item: T, received_ns: int) -> None:
        metadata = item.metadata
        before = self._known.get(metadata.uid)
        if before is not None and before.metadata.resource_version == metadata.resource_version:
            return
        self._known[metadata.uid] = item
        self._on_event("ADDED" if before is None else "MODIFIED", item, received_ns)
