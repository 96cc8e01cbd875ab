"""Other people's programs (kind, helm, docker), run to their end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from loadgen.core.errors import HarnessError, NotSupported
from loadgen.kernel.process import let_go

LIMIT_S = 300.0
GRACE_S = 10.0
"""After SIGTERM: helm still writes down that its release failed, kind removes a container."""
_POLL_S = 0.01


class Done(NamedTuple):
    code: int
    out: str
    err: str

    def last_words(self) -> str:
        """The line that says what went wrong."""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        told = [line for line in lines if line.startswith(("ERROR", "Error", "error"))]
        return (told or lines or ["it said nothing"])[-1].removeprefix("ERROR: ")


async def call(
    *argv: str | Path,
    env: Mapping[str, str] | None = None,
    limit_s: float = LIMIT_S,
    stdin: bytes | None = None,
    log: Path | None = None,
) -> Done:
    """Run a tool to its end; when we are cancelled or it takes too long, it is ended with all its children.

    log: a file to which everything that it said is added. NotSupported when there is no such tool.
    """
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *map(str, argv),
            stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **(env or {})},
            # A Ctrl-C on the terminal is for us alone: we end our children in order.
            start_new_session=True,
        )
    )
    try:
        process = await asyncio.shield(starting)
    except asyncio.CancelledError:
        # It may run already, and asyncio would end it without its children.
        await _end(await starting)
        raise
    except FileNotFoundError:
        raise NotSupported(str(argv[0]), "not found on PATH", "install it, see docs/kind.md") from None
    except PermissionError as error:
        raise NotSupported(str(argv[0]), f"cannot be run: {error.strerror}") from None
    try:
        async with asyncio.timeout(limit_s):
            out, err = await process.communicate(stdin)
    except TimeoutError:
        raise HarnessError(f"{' '.join(map(str, argv[:3]))}: not done after {limit_s:g} s") from None
    finally:
        await _end(process)
    done = Done(process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace"))
    if log is not None:
        with log.open("a") as file:
            file.write(f"$ {' '.join(map(str, argv))}\n{done.out}{done.err}exit code {done.code}\n")
    return done


async def _end(process: asyncio.subprocess.Process) -> None:
    """The process and its children, if it has not ended by itself; its group has the process's own number."""
    if process.returncode is not None:
        return
    for number, grace_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, GRACE_S)):
        try:
            async with asyncio.timeout(grace_s):
                while True:
                    os.killpg(process.pid, number)
                    number = 0  # from now on only asks whether anybody is left
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            continue
        except ProcessLookupError:
            break
    await process.wait()
    let_go(process)
