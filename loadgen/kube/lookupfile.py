"""A locustfile whose users look names up as a stub resolver does, each with a driver process of its own.

    locust -f lookupfile.py --headless -u 4 -t 60s --names kubernetes.default --rate 50 [--host 10.96.0.10]

or in a locustfile of one's own:

    from loadgen.kube.lookupfile import GlibcLookupUser

    class Resolver(GlibcLookupUser):
        names = ("www.example.com",)
        options = "ndots:5 single-request-reopen"

Locust starts, stops and counts; the lookups are made by the same drivers as everywhere, open loop, because gevent
would patch their sockets and slow them. Response times count from when a lookup was due. Failures are named as the
resolver names them; a lookup that had to overcome a loss is no failure, and its 5 s are in the percentiles.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

import gevent
import msgspec
from gevent.event import Event
from gevent.subprocess import PIPE, Popen
from locust import User, events, task

from loadgen.core.errors import ConfigError
from loadgen.core.model import StubName
from loadgen.core.samples import Log, Mark, SampleBatch
from loadgen.core.units import NS_PER_S, enc_hook
from loadgen.kube import lookupprocess, streams
from loadgen.kube.locuststats import enter

DAY_NS = 86_400 * NS_PER_S
STOP_S = 35.0
"""How long what is under way may take to end; a lookup is given up after 30."""
IMPORTED = __name__.startswith("loadgen.")
CONFIGURATION, HARNESS = 4, 3
"""loadgen's exit codes."""


@events.init_command_line_parser.add_listener
def add_arguments(parser: Any) -> None:
    parser.add_argument("--names", default="", help="names to look up, separated by commas")
    parser.add_argument("--rate", type=float, default=0.0, help="lookups a second, of each user")
    parser.add_argument("--options", default=None, help="resolv.conf options instead of the file's")
    parser.add_argument("--stub", default="", help="glibc-2.36, musl-1.2.3, go, c-ares, …")


_live: set[LookupUser] = set()


@events.quitting.add_listener
def await_ends(**_: object) -> None:
    """Locust has stopped its users; what their processes still have to say belongs into its statistics."""
    for user in list(_live):
        user.stop_process()
    for user in list(_live):
        user.await_end()


class LookupUser(User):
    """One process that looks `names` up, `rate` a second. The command line wins over the class's settings."""

    abstract = True

    names: ClassVar[tuple[str, ...]] = ("kubernetes.default",)
    rate: ClassVar[float] = 10.0
    options: ClassVar[str | None] = None
    """None: those of the resolv.conf."""
    resolv_conf: ClassVar[str] = "/etc/resolv.conf"
    stub: ClassVar[StubName] = "glibc-2.36"
    fresh: ClassVar[bool] = True
    """A new process's resolver for each lookup; False: one that remembers its fallbacks."""
    fast: ClassVar[bool] = False
    """In C, for thousands a second; names have to end with a dot."""
    number = 0

    def on_start(self) -> None:
        LookupUser.number += 1
        self._ended = Event()
        try:
            spec = self._spec(LookupUser.number)
        except (ConfigError, OSError) as error:
            self._give_up(CONFIGURATION, str(error))
            return
        with tempfile.NamedTemporaryFile(prefix="lookups-", suffix=".json", delete=False) as file:
            file.write(msgspec.json.encode(spec, enc_hook=enc_hook))
        self._spec_path = Path(file.name)
        command = [sys.executable, "-m", "loadgen.kube.lookupprocess", file.name]
        self._process = Popen(command, stdin=PIPE, stdout=PIPE, bufsize=0)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        _live.add(self)
        gevent.spawn(self._read)

    def on_stop(self) -> None:
        self.stop_process()

    def stop_process(self) -> None:
        """Nothing more becomes due; what is under way ends."""
        if self in _live:
            self._say("stop\n")

    def await_end(self) -> None:
        if not self._ended.wait(STOP_S):
            self._process.kill()

    @task
    def look_up(self) -> None:
        """The process does; this waits until it is over, which it is not before the user is stopped."""
        self._ended.wait()
        gevent.sleep(1)

    def _spec(self, number: int) -> lookupprocess.LookupSpec:
        given = self.environment.parsed_options
        return lookupprocess.spec(
            names=tuple(filter(None, given.names.split(","))) or self.names,
            rate=given.rate or self.rate,
            stub=given.stub or self.stub,
            fresh=self.fresh,
            fast=self.fast,
            content=Path(self.resolv_conf).read_text(),
            where=self.resolv_conf,
            options=self.options if given.options is None else given.options,
            server=(self.host or "").removeprefix("dns://"),
            seed=number + os.getpid(),
        )

    def _say(self, line: str) -> None:
        try:
            self._stdin.write(line.encode())
        except OSError:
            pass  # it has ended, and its end is told by the one who reads

    def _read(self) -> None:
        frames, why = streams.Incoming(), ""
        while part := self._stdout.read(streams.CHUNK_BYTES):
            for message in frames.feed(part):
                if isinstance(message, SampleBatch):
                    enter(self.environment.stats, message)
                elif isinstance(message, Log):
                    why = message.error
                elif isinstance(message, Mark):  # it is ready: what it took to start is no lookup's time
                    now = time.monotonic_ns()
                    self._say(f"go {now} {now + DAY_NS}\n")
        code = self._process.wait()
        self._spec_path.unlink(missing_ok=True)
        _live.discard(self)
        self._ended.set()
        if code:
            self._give_up(HARNESS, why or f"a lookup process ended with exit code {code}")

    def _give_up(self, code: int, why: str) -> None:
        """One line, and the whole test ends with this code."""
        self._ended.set()
        logging.getLogger(__name__).error(why)
        self.environment.process_exit_code = code
        gevent.spawn(self.environment.runner.quit)


class GlibcLookupUser(LookupUser):
    """Looks up as glibc's getaddrinfo does."""

    # Locust runs every class that it finds in a locustfile, also those which that has only imported to inherit from.
    abstract = IMPORTED


class MuslLookupUser(LookupUser):
    """As musl's, in Alpine images; to inherit from."""

    abstract = True

    stub: ClassVar[StubName] = "musl-1.2.5"
