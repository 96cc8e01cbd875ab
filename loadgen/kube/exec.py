"""A command in a container: stdin, stdout and stderr over one WebSocket (remotecommand subprotocols v4 and v5)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import aiohttp
import msgspec

from loadgen.core.errors import HarnessError, NotSupported
from loadgen.kube.answers import KubeError, Status
from loadgen.kube.transport import Transport

# k8s.io/apimachinery/pkg/util/remotecommand: the first byte of each message names its channel.
STDIN, STDOUT, STDERR, STATUS, CLOSE = 0, 1, 2, 3, 255
V5 = "v5.channel.k8s.io"
"""Since Kubernetes 1.30. What it adds is the end of stdin."""
PROTOCOLS = (V5, "v4.channel.k8s.io")
_STDERR_KEPT = 64 << 10
_STDIN_PIECE = 32 << 10


class ExecResult(NamedTuple):
    stdout: bytes
    stderr: bytes
    code: int


class ExecStream:
    """A running command. `stdout` ends when the command does; `wait` then has its exit code."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, what: str) -> None:
        self._socket, self._what = socket, what
        self.stdout = asyncio.StreamReader(limit=1 << 24)
        self.stderr = bytearray()
        """The last 64 KiB of it."""
        self._status: Status | None = None
        self._broke: BaseException | None = None
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._receiving = asyncio.create_task(self._receive())
        self._sending = asyncio.create_task(self._send())

    @property
    def protocol(self) -> str:
        """What the server chose of PROTOCOLS; empty when it said nothing."""
        return self._socket.protocol or ""

    def write(self, data: bytes) -> None:
        """Queue bytes for the command's stdin."""
        for at in range(0, len(data), _STDIN_PIECE):
            self._outgoing.put_nowait(bytes([STDIN]) + data[at : at + _STDIN_PIECE])

    def write_eof(self) -> None:
        """Close the command's stdin. NotSupported by servers before Kubernetes 1.30."""
        if self.protocol != V5:
            raise NotSupported(
                "the end of a command's stdin",
                f"{self._what}: the server speaks {self.protocol or 'an older protocol'}",
                "use Kubernetes 1.30 or newer",
            )
        self._outgoing.put_nowait(bytes([CLOSE, STDIN]))

    async def drain(self) -> None:
        """Return when everything that was written has been sent, or never will be."""
        await self._outgoing.join()

    async def wait(self) -> int:
        """The exit code. HarnessError when the connection broke before there was one."""
        await asyncio.wait({self._receiving})
        status = self._status
        if status is None:
            raise HarnessError(f"{self._what}: the connection broke{self.last_words()}")
        if status.status == "Success":
            return 0
        code = status.cause("ExitCode")
        if code is not None:
            return int(code.message)
        raise HarnessError(f"{self._what}: {' '.join(status.message.split()) or status.reason or 'no exit code'}")

    def last_words(self) -> str:
        """The end of its stderr and why the connection broke, to be put behind a message."""
        said = " ".join(self.stderr.decode(errors="replace").split())
        why = self._broke or self._socket.exception()
        return "".join(f": {text}" for text in (said[-300:], str(why) if why else "") if text)

    async def close(self) -> None:
        """Hang up. The command is not killed by that: its stdin ends, and what it prints goes nowhere."""
        self._sending.cancel()
        await self._socket.close()
        self._receiving.cancel()
        await asyncio.gather(self._sending, self._receiving, return_exceptions=True)

    async def _send(self) -> None:
        while True:
            message = await self._outgoing.get()
            try:
                await self._socket.send_bytes(message)
            except (aiohttp.ClientError, ConnectionError):
                pass  # the receiving side says that, and why
            finally:
                self._outgoing.task_done()

    async def _receive(self) -> None:
        try:
            async for message in self._socket:
                if message.type is aiohttp.WSMsgType.BINARY and message.data:
                    self._take(message.data)
        except (aiohttp.ClientError, OSError, msgspec.DecodeError) as error:
            self._broke = error
        finally:
            self.stdout.feed_eof()

    def _take(self, data: bytes) -> None:
        channel, body = data[0], data[1:]
        if channel == STDOUT and body:
            self.stdout.feed_data(body)
        elif channel == STDERR:
            self.stderr += body
            del self.stderr[:-_STDERR_KEPT]
        elif channel == STATUS:
            self._status = msgspec.json.decode(body, type=Status)


async def start(
    transport: Transport,
    namespace: str,
    pod: str,
    container: str,
    argv: Sequence[str],
    *,
    stdin: bool,
    limit_s: float,
) -> ExecStream:
    """Start a command. HarnessError when the server or the pod will not have it, ConfigError when we may not."""
    what = f"{namespace}/{pod} ({container}): {argv[0]}"
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/exec"
    params = [("container", container), ("stdout", "true"), ("stderr", "true")]
    params += [("stdin", "true")] if stdin else []
    params += [("command", word) for word in argv]
    try:
        return ExecStream(await transport.websocket(path, params, PROTOCOLS, limit_s), what)
    except KubeError as error:
        why = error.message or f"HTTP {error.status}"
        raise HarnessError(f"{namespace}/{pod} ({container}): cannot run {argv[0]}: {why}") from None


async def run(
    transport: Transport,
    namespace: str,
    pod: str,
    container: str,
    argv: Sequence[str],
    stdin: bytes,
    limit_s: float,
) -> ExecResult:
    """Run a command to its end, with all of `stdin` and then its end.

    One that takes longer than `limit_s` is left alone: it goes on in the container.
    """
    stream = None
    try:
        async with asyncio.timeout(limit_s):
            stream = await start(transport, namespace, pod, container, argv, stdin=bool(stdin), limit_s=limit_s)
            if stdin:
                stream.write(stdin)
                stream.write_eof()
            out = await stream.stdout.read()
            return ExecResult(out, bytes(stream.stderr), await stream.wait())
    except TimeoutError:
        said = stream.last_words() if stream is not None else ""
        raise HarnessError(
            f"{namespace}/{pod} ({container}): {' '.join(argv)}: not done after {limit_s:g} s{said}"
        ) from None
    finally:
        if stream is not None:
            await stream.close()
