"""Calls to one API server: one pool of connections, a time limit for everything, tokens that expire, broken lines."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import aiohttp

from loadgen.core.errors import ConfigError, HarnessError
from loadgen.kube import answers, kubeconfig
from loadgen.kube.answers import Call, KubeError
from loadgen.kube.kubeconfig import Credentials

CONNECT_LIMIT_S = 10.0
IN_FLIGHT = 32
"""Short calls under way at once. Each needs a connection of its own, and its TLS handshake costs more than a call."""
TRIES = 5
RETRY_S = 1.0
"""Pause before a call is repeated, when the server does not ask for another."""
PATIENCE_S = 20.0
"""An API server that we have known may be away so long (it restarts, an address moves) before a call gives up."""

_KEEPALIVE_S = (10, 5, 3)
"""A connection whose other end is gone without a word is found out after 10 + 3 × 5 s."""
PING_S = 30.0
"""A command that is silent is asked whether its connection lives."""


Params = Mapping[str, str] | Sequence[tuple[str, str]] | None


class Ask(NamedTuple):
    """One call. `path` is the API's own; `limit_s` is for all tries together."""

    method: str
    path: str
    body: bytes | None = None
    content_type: str = "application/json"
    params: Params = None
    limit_s: float = 30.0

    @property
    def repeatable(self) -> bool:
        """To be heard twice does no harm: not so a second object, or a list of edits made again."""
        return self.method != "POST" and self.content_type != "application/json-patch+json"


class _Unreached(Exception):
    """The call did not get to the server."""


class _Broken(Exception):
    """The connection broke: the server may have heard the call or not."""


class _Failed(Exception):
    """To try again would lead to the same."""


class Transport:
    """An async context manager; safe for many tasks at once."""

    def __init__(self, context: str | None, kubeconfig: str | None) -> None:
        self._wanted, self._kubeconfig = context, kubeconfig
        self._session: aiohttp.ClientSession | None = None
        self._credentials: Credentials | None = None
        self._refreshing = asyncio.Lock()
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._known = False
        """It has answered before: from now on its absence may pass."""

    async def __aenter__(self) -> Self:
        self._credentials = await kubeconfig.load(self._wanted, self._kubeconfig)
        connector = aiohttp.TCPConnector(limit=0, socket_factory=_socket)
        self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    @property
    def credentials(self) -> Credentials:
        assert self._credentials is not None, "the API is used within `async with`"
        return self._credentials

    def describe(self, method: str, path: str) -> Call:
        return Call(self.credentials.context, self.credentials.server, method, path)

    # --- calls --------------------------------------------------------------------------------------------------

    async def call(self, ask: Ask) -> bytes:
        """The answer's body. KubeError or ConfigError for an answer that is a no, HarnessError for none at all.

        Repeated: what the server asks to repeat (429 and 5xx with Retry-After), what never reached it, and what
        broke on the way when to hear it twice does no harm. After a 401 the credentials are fetched anew, once.
        """
        began = time.monotonic()
        refreshed = False
        tries = 0
        while True:
            tries += 1
            used = self.credentials
            pause_s: float | None = RETRY_S
            try:
                async with self._slots:
                    status, headers, data = await self._once(ask, began + ask.limit_s - time.monotonic())
            except _Unreached as error:
                if not self._may_come_back(began, ask.limit_s):
                    raise self._no_answer(ask.method, ask.path, str(error)) from None
            except _Broken as error:
                if tries == TRIES or not ask.repeatable:
                    raise self._no_answer(ask.method, ask.path, str(error)) from None
            except _Failed as error:
                raise self._no_answer(ask.method, ask.path, str(error)) from None
            else:
                if status < 300:
                    self._known = True
                    return data
                if not refreshed and answers.is_unauthorized(ask.path, status, data):
                    refreshed = True
                    await self._refresh(used)
                    continue
                pause_s = _retry_after_s(status, headers)
                if pause_s is None or tries == TRIES or time.monotonic() - began + pause_s > ask.limit_s:
                    raise self._refusal(ask.method, ask.path, status, data)
            await asyncio.sleep(pause_s)

    async def _once(self, ask: Ask, left_s: float) -> tuple[int, Mapping[str, str], bytes]:
        timeout = aiohttp.ClientTimeout(total=max(0.01, left_s), sock_connect=CONNECT_LIMIT_S)
        headers = {"Content-Type": ask.content_type} if ask.body is not None else {}
        try:
            async with self._request(ask.method, ask.path, ask.params, timeout, headers, data=ask.body) as response:
                return response.status, response.headers, await response.read()
        except aiohttp.ConnectionTimeoutError:
            raise _Unreached(f"no connection within {CONNECT_LIMIT_S:g} s") from None
        except TimeoutError:
            raise _Failed(f"no answer within {ask.limit_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise _sort(error) from None

    def _request(
        self,
        method: str,
        path: str,
        params: Params,
        timeout: aiohttp.ClientTimeout,
        headers: dict[str, str],
        **more: Any,
    ) -> Any:
        assert self._session is not None, "the API is used within `async with`"
        credentials = self.credentials
        return self._session.request(
            method,
            credentials.server + path,
            params=params,
            timeout=timeout,
            headers=_headers(credentials, headers),
            # Of each call and not of the pool: fresh credentials may come with another certificate.
            ssl=credentials.tls,
            server_hostname=credentials.server_name,
            proxy=credentials.proxy,
            **more,
        )

    # --- streams ------------------------------------------------------------------------------------------------

    async def follow(
        self, path: str, params: Params, *, limit_s: float, silence_s: float
    ) -> AsyncGenerator[bytes, None]:
        """Pieces of an answer that goes on, after an empty one that says that it has begun.

        `limit_s` bounds the beginning. TimeoutError when nothing has come for `silence_s`, HarnessError when the
        connection breaks, else the errors of `call`.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_LIMIT_S, sock_read=silence_s)
        refreshed = False
        while True:
            used = self.credentials
            try:
                async with asyncio.timeout(limit_s):
                    response = await self._request("GET", path, params, timeout, {})
            except TimeoutError:
                raise self._no_answer("GET", path, f"no answer within {limit_s:g} s") from None
            except (aiohttp.ClientError, OSError) as error:
                raise self._no_answer("GET", path, str(_sort(error))) from None
            async with response:
                if response.status == 200:
                    async for piece in self._pieces(response, path):
                        yield piece
                    return
                data = await response.read()
            if response.status != 401 or refreshed:
                raise self._refusal("GET", path, response.status, data)
            refreshed = True
            await self._refresh(used)

    async def _pieces(self, response: aiohttp.ClientResponse, path: str) -> AsyncGenerator[bytes, None]:
        yield b""
        while True:
            try:
                piece = await response.content.readany()
            except TimeoutError:
                raise
            except (aiohttp.ClientError, OSError) as error:
                raise self._no_answer("GET", path, str(_sort(error))) from None
            if not piece:
                return
            yield piece

    async def websocket(
        self, path: str, params: Sequence[tuple[str, str]], protocols: Sequence[str], limit_s: float
    ) -> aiohttp.ClientWebSocketResponse:
        """A WebSocket that stands; when the server will not have it, an error with the API's own words."""
        assert self._session is not None, "the API is used within `async with`"
        began = time.monotonic()
        refreshed = False
        while True:
            used = self.credentials
            try:
                async with asyncio.timeout(limit_s):
                    return await self._session.ws_connect(
                        used.server + path,
                        params=params,
                        headers=_headers(used, {}),
                        protocols=protocols,
                        ssl=used.tls,
                        server_hostname=used.server_name,
                        proxy=used.proxy,
                        heartbeat=PING_S,
                        max_msg_size=0,
                        timeout=aiohttp.ClientWSTimeout(ws_close=5.0),  # pyright: ignore[reportCallIssue] - attrs
                    )
            except aiohttp.WSServerHandshakeError as error:
                if error.status != 401 or refreshed:
                    raise await self._why_no_websocket(path, params, error, limit_s) from None
                refreshed = True
                await self._refresh(used)
            except TimeoutError:
                raise self._no_answer("GET", path, f"no answer within {limit_s:g} s") from None
            except (aiohttp.ClientError, OSError) as error:
                why = _sort(error)
                if not isinstance(why, _Unreached) or not self._may_come_back(began, limit_s):
                    raise self._no_answer("GET", path, str(why)) from None
                await asyncio.sleep(RETRY_S)

    async def _why_no_websocket(
        self, path: str, params: Sequence[tuple[str, str]], error: aiohttp.WSServerHandshakeError, limit_s: float
    ) -> Exception:
        """The handshake's answer comes without its body: the same question as a plain call has one."""
        try:
            status, _, data = await self._once(Ask("GET", path, params=params), limit_s)
        except (_Unreached, _Broken, _Failed):
            status, data = 0, b""
        if status != error.status or status < 300 or b"Upgrade request required" in data:
            return KubeError(error.status, "", f"no WebSocket: HTTP {error.status}", str(self.describe("GET", path)))
        return self._refusal("GET", path, status, data)

    # --- credentials and errors ---------------------------------------------------------------------------------

    async def _refresh(self, used: Credentials) -> None:
        """Get the credentials again: tokens of plugins and of files expire while a run goes on.

        Many calls may find out at once; the first one's fresh credentials serve all.
        """
        async with self._refreshing:
            if self._credentials is not used:
                return
            fresh = await kubeconfig.load(used.context, self._kubeconfig)
            if fresh.server != used.server:
                raise HarnessError(
                    f"context {used.context} led to {used.server} and now leads to {fresh.server}: the kubeconfig "
                    "was changed while a run went on"
                )
            self._credentials = fresh

    def _may_come_back(self, began: float, limit_s: float) -> bool:
        """A call that began then, and does not reach the server, is worth another try."""
        return self._known and time.monotonic() - began + RETRY_S <= min(PATIENCE_S, limit_s)

    def _no_answer(self, method: str, path: str, why: str) -> HarnessError:
        return HarnessError(f"{self.describe(method, path)}: {why}")

    def _refusal(self, method: str, path: str, status: int, data: bytes) -> Exception:
        error = answers.refusal(self.describe(method, path), status, data)
        if status == 401 and self._known and isinstance(error, ConfigError):
            # It has been accepted before: nothing was set wrongly, the run has lost its cluster.
            return HarnessError(str(error))
        return error


def _headers(credentials: Credentials, more: dict[str, str]) -> dict[str, str]:
    more["Accept"] = "application/json"
    if credentials.authorization:
        more["Authorization"] = credentials.authorization
    return more


def _retry_after_s(status: int, headers: Mapping[str, str]) -> float | None:
    """How long to wait before trying again; None: not at all."""
    said = headers.get("Retry-After", "")
    if status == 429 or (status >= 500 and said):
        return float(said) if said.isdecimal() else RETRY_S
    return None


def _sort(error: Exception) -> Exception:
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, aiohttp.ClientSSLError):
        return _Failed(f"TLS: {text}")
    if isinstance(error, aiohttp.ClientConnectorError):
        return _Unreached(f"cannot connect: {_errno_text(error.os_error) or text}")
    if isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientPayloadError | OSError):
        return _Broken(f"the connection broke: {text}")
    return _Failed(f"{type(error).__name__}: {text}")


def _errno_text(error: OSError) -> str:
    """What the system calls it; asyncio puts words of its own in its place."""
    if isinstance(error, socket.gaierror):
        return error.strerror or ""
    return os.strerror(error.errno) if error.errno else ""


def _socket(address: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    idle_s, interval_s, count = _KEEPALIVE_S
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, count)
    # Keepalive says nothing while data of ours waits for its acknowledgement; this does.
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * (idle_s + interval_s * count))
    return made
