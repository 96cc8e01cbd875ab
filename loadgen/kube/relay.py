"""`python -m loadgen.kube.relay SOCKET`: runs the CNI plugin lab/cni.py for nodes that have no Python.

The other end is plugin.c, which says how a call and its answer look on the socket. A call lasts as long as its
connection: when the runtime kills the plugin, its cni.py is killed here, and the agent sees its client hang up.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import struct
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from loadgen import lab

log = logging.getLogger("relay")

# Not imported: it is a program, and it takes ssl away from whoever imports it.
PLUGIN = Path(lab.__file__).with_name("cni.py")
COMMAND = (sys.executable, "-I", "-S", str(PLUGIN))
MAX_ENVIRONMENT, MAX_CONFIG, MAX_ANSWER = 64 << 10, 1 << 20, 1 << 20
"""As in plugin.c."""

_U32 = struct.Struct(">I")
_BACKLOG = 512
"""Connections that wait to be accepted: a kubelet's whole burst of pods."""


class Call(msgspec.Struct, frozen=True):
    """One invocation of the plugin on the node."""

    environment: dict[str, str]
    config: bytes

    @property
    def title(self) -> str:
        get = self.environment.get
        return f"{get('CNI_COMMAND', '?')} {get('CNI_CONTAINERID', '?')[:12]}"


class Relay:
    """Serves calls, any number at once; `close` ends those under way as the end of their pod would."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._command = command
        self._calls: set[asyncio.Task[None]] = set()

    async def serve(self, path: Path, stop: asyncio.Event) -> None:
        """Listen on `path` until `stop`; the socket file is gone afterwards."""
        with ExitStack() as undo:
            server = await asyncio.start_unix_server(self._accept, path, backlog=_BACKLOG)
            undo.callback(server.close)
            undo.callback(path.unlink, missing_ok=True)
            log.info("listening on %s", path)
            await stop.wait()
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = asyncio.ensure_future(self._serve_one(reader, writer))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            call = await read_call(reader)
            answer = await self._run(call, reader)
            if answer is not None:
                writer.write(answer)
                await writer.drain()
        except asyncio.IncompleteReadError:
            pass  # killed before it had said what it wanted
        except (ValueError, OSError) as error:
            log.error("%s", error)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _run(self, call: Call, reader: asyncio.StreamReader) -> bytes | None:
        """The plugin's answer as it travels; None when nobody waits for it any more."""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            env=call.environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=MAX_ANSWER,
        )
        answering = asyncio.create_task(process.communicate(call.config))
        # Nothing follows a call, so whatever can be read is the end of the connection.
        hung_up = asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait({answering, hung_up}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hung_up.cancel()
            if process.returncode is None and not answering.done():
                process.kill()
            # It has ended, or dies at once: also a cancelled call leaves no process behind.
            out, _ = await asyncio.shield(answering)
        code = await process.wait()
        if code < 0:
            log.warning("%s: ended by %s, its plugin was killed", call.title, signal.Signals(-code).name)
            return None
        if code:
            log.warning("%s: %s", call.title, out.decode(errors="replace").strip())
        return _U32.pack(code) + _block(out)


async def read_call(reader: asyncio.StreamReader) -> Call:
    """ValueError for one that is too long or no call at all."""
    block = await _read_block(reader, MAX_ENVIRONMENT, "the environment")
    pairs = [variable.partition("=") for variable in block.decode(errors="surrogateescape").split("\0")[:-1]]
    environment = {name: value for name, _, value in pairs if name.startswith("CNI_")}
    return Call(environment, await _read_block(reader, MAX_CONFIG, "the network config"))


async def _read_block(reader: asyncio.StreamReader, limit: int, what: str) -> bytes:
    (length,) = _U32.unpack(await reader.readexactly(_U32.size))
    if length > limit:
        raise ValueError(f"{what} of a call has {length} bytes; {limit} are allowed")
    return await reader.readexactly(length)


def _block(data: bytes) -> bytes:
    return _U32.pack(len(data)) + data


async def until_terminated(path: Path) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await Relay().serve(path, stop)


def main(argv: list[str]) -> int:
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="time=%(asctime)s level=%(levelname)s msg=%(message)s"
    )
    if len(argv) != 2:
        log.error("usage: python -m loadgen.kube.relay SOCKET")
        return 4
    os.umask(0o077)  # the socket is for root alone
    try:
        asyncio.run(until_terminated(Path(argv[1])))
    except OSError as error:
        log.error("%s", error)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
