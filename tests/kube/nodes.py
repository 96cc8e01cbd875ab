"""A node whose helper is this machine: exec starts `loadgen.kube.node` as a process, in a namespace of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from loadgen.kube.exec import ExecResult

CODE = """
import os, sys
from pathlib import Path
from loadgen.kernel import netns
from loadgen.kube.node import Place, main
pins, run, namespace, *argv = sys.argv[1:]
netns.enter(Path(namespace))
code = main(["node", *argv], Place(pins=Path(pins), run=Path(run)))
sys.stdout.flush()
os._exit(code)
"""


class Stream:
    """exec.ExecStream over a process's pipes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._stdin, self.stdout = process, process.stdin, process.stdout
        self.stderr = bytearray()

    def write(self, data: bytes) -> None:
        self._stdin.write(data)

    def write_eof(self) -> None:
        self._stdin.close()

    async def drain(self) -> None:
        await self._stdin.drain()

    async def wait(self) -> int:
        assert self._process.stderr is not None
        self.stderr += await self._process.stderr.read()
        return await self._process.wait()

    async def close(self) -> None:
        """Hang up: the process goes on until it notices."""
        self._stdin.close()
        await self._process.wait()


class NodeApi:
    """Of KubeApi what NodeHelper needs for its commands; `answers` are what GETs find."""

    def __init__(self, pins: Path, run: Path, namespace: Path, **answers: object) -> None:
        self.places = (str(pins), str(run), str(namespace))
        self.answers = answers
        self.commands: list[str] = []

    def _argv(self, argv: Sequence[str]) -> list[str]:
        assert list(argv[:3]) == ["python3", "-m", "loadgen.kube.node"]
        self.commands.append(argv[3])
        return [sys.executable, "-c", CODE, *self.places, *argv[3:]]

    async def stream(self, pod: str, container: str, argv: list[str], *, namespace: str) -> Stream:
        assert (pod, container, namespace) == ("helper-1", "node", "loadgen")
        pipe = asyncio.subprocess.PIPE
        return Stream(await asyncio.create_subprocess_exec(*self._argv(argv), stdin=pipe, stdout=pipe, stderr=pipe))

    async def exec(
        self, pod: str, container: str, argv: list[str], *, namespace: str, stdin: bytes = b"", limit_s: float = 60.0
    ) -> ExecResult:
        stream = await self.stream(pod, container, argv, namespace=namespace)
        async with asyncio.timeout(limit_s):
            out = await stream.stdout.read()
            code = await stream.wait()
        return ExecResult(out, bytes(stream.stderr), code)

    async def get(self, path: str, kind: object = None, **params: str) -> object:
        return self.answers[path.rpartition("/")[2]]
