"""The locustfile of the image: Locust's workers host our driver processes, its master hands on what they say.

A worker's only user starts a driver process (loadgen.kube.worker) for every job that the master sends, and forwards
its frames; the master keeps them for the controller, which asks for them over routes on Locust's own web server.
Every sample is also entered into Locust's statistics, counted from when it was due, so that its UI shows the run.

This file runs in Locust's processes, under gevent; nothing imports it.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
import msgspec
from flask import Response, request
from gevent.event import Event
from gevent.queue import Queue
from gevent.subprocess import PIPE, Popen
from locust import User, events, runners, task
from locust.stats import RequestStats

from loadgen.core import resolvconf
from loadgen.core.samples import SampleBatch
from loadgen.core.units import enc_hook
from loadgen.kube import clocks, exchange, streams
from loadgen.kube.locuststats import enter
from loadgen.kube.worker import RESOLV_CONF, WorkerSpec

runners.HEARTBEAT_LIVENESS = 15
"""Seconds without a word until a worker counts as missing. Locust's own 3 are too few for a node under test: it ends
the whole test when its only worker was busy for so long."""

GO_LIMIT_S = 10.0
PING_S = 1.0
PINGS_AT_FIRST = 10
PINGS_KEPT = 32


# --- a worker's driver processes ------------------------------------------------------------------------------


class DriverProcess:
    """One job of this worker: the process, and its frames on their way to the master."""

    def __init__(self, job: int, spec: WorkerSpec, pod: str, send: Callable[[exchange.ToMaster], None]) -> None:
        self._job, self._pod, self._send = job, pod, send
        self._outgoing, self._frames = streams.Outgoing(), streams.Incoming()
        self._room, self._work = Event(), Event()
        with tempfile.NamedTemporaryFile(prefix="job-", suffix=".json", delete=False) as file:
            file.write(msgspec.json.encode(spec, enc_hook=enc_hook))
        self._spec = Path(file.name)
        command = [sys.executable, "-m", "loadgen.kube.worker", str(self._spec)]
        self._process = Popen(command, stdin=PIPE, stdout=PIPE, bufsize=0)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._over = False
        self._why = ""

    def say(self, line: str) -> None:
        try:
            self._stdin.write(line.encode())
        except OSError:
            pass  # it has ended, and its end is told by the one who reads

    def acknowledged(self, number: int) -> None:
        self._outgoing.acknowledged(number)
        self._work.set()

    def kill(self, why: str) -> None:
        if self._process.poll() is None:
            self._why = why
            self._process.kill()

    def read(self, stats: RequestStats) -> None:
        """Take in what it says until it has ended. Waits while the spool is full, and so lets the driver wait."""
        try:
            while part := self._stdout.read(streams.CHUNK_BYTES):
                self._outgoing.add(part)
                self._work.set()
                for message in self._frames.feed(part):
                    if isinstance(message, SampleBatch):
                        enter(stats, message)
                while self._outgoing.full:
                    self._room.clear()
                    self._room.wait()
        except streams.BrokenStream as error:
            self.kill(f"it sent {error}")
        code = self._process.wait()
        self._spec.unlink(missing_ok=True)
        self._why = self._why or _how_it_ended(code)
        self._over = True
        self._work.set()

    def forward(self) -> None:
        """Send its chunks, in order and no faster than they are wanted; last of all, how it ended."""
        while not (self._over and self._outgoing.empty):
            self._work.wait()
            self._work.clear()
            while chunk := self._outgoing.take():
                self._send(streams.Chunk(self._job, self._pod, *chunk))
                self._room.set()
        self._send(streams.Ended(self._job, self._pod, self._outgoing.sent, self._why))


def _how_it_ended(code: int) -> str:
    if code < 0:
        return f"its driver process was killed by {signal.Signals(-code).name}"
    return f"its driver process ended with exit code {code}" if code else ""


class Station:
    """A worker: what its load needs, and the jobs that it has at work."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._pod, self._load = os.environ["LOADGEN_POD"], os.environ["LOADGEN_LOAD"]
        self._assignment = exchange.decode_config(Path(os.environ["LOADGEN_CONFIG"]).read_bytes()).loads[self._load]
        self._processes: dict[int, DriverProcess] = {}
        self.asked: Queue[exchange.Prepare] = Queue()
        environment.runner.register_message(exchange.KIND, self._hear)

    def _send(self, message: exchange.ToMaster) -> None:
        self._environment.runner.send_message(exchange.KIND, msgspec.msgpack.encode(message))

    def _hear(self, msg: Any, **_: object) -> None:
        message = msgspec.msgpack.decode(msg.data, type=exchange.ToWorker)
        if isinstance(message, exchange.Ping):
            self._send(exchange.Pong(message.sent_ns, time.monotonic_ns()))
        elif isinstance(message, exchange.Prepare):
            self.asked.put(message)
        elif (process := self._processes.get(message.job)) is not None:
            self._tell(process, message)

    def _tell(self, process: DriverProcess, message: exchange.ToWorker) -> None:
        match message:
            case exchange.Go(job, start_ns, end_ns):
                process.say(f"go {start_ns} {end_ns}\n")
                self._send(exchange.Going(job))
            case exchange.Stop():
                process.say("stop\n")
            case exchange.Close():
                process.kill("it was closed")
            case exchange.Acknowledge(_, number):
                process.acknowledged(number)

    def open(self) -> None:
        self._send(exchange.Hello(self._pod, self._load, clocks.boot_id()))

    def begin(self, prepare: exchange.Prepare) -> None:
        source = f"{self._load}@{self._pod}"
        spec = WorkerSpec(assignment=self._assignment, phase=prepare.phase, source=source, seed=prepare.seed)
        process = DriverProcess(prepare.job, spec, self._pod, self._send)
        self._processes[prepare.job] = process
        gevent.spawn(process.read, self._environment.stats)
        gevent.spawn(process.forward).link(lambda _: self._processes.pop(prepare.job))

    def close(self) -> None:
        """The user is stopped: by a person in the UI, or because Locust ends."""
        for process in list(self._processes.values()):
            process.kill("its user was stopped in Locust")
        self._send(exchange.Gone(self._pod))


class LoadUser(User):
    """Has the driver processes of its worker. Locust gives each worker one."""

    def on_start(self) -> None:
        self.environment.station.open()

    def on_stop(self) -> None:
        self.environment.station.close()

    @task
    def take_job(self) -> None:
        self.environment.station.begin(self.environment.station.asked.get())


# --- the master -----------------------------------------------------------------------------------------------


class Switchboard:
    """The master: who is there, what is under way, and the letters that wait for the controller."""

    def __init__(self, environment: Any) -> None:
        self._runner = environment.runner
        self._workers: dict[str, exchange.Hello] = {}
        self._pings: dict[str, deque[clocks.Offset]] = {}
        self._mailbox = streams.Mailbox()
        self._mail = Event()
        self._jobs: dict[int, dict[str, str]] = {}
        self._going: dict[int, set[str]] = {}
        self._went = Event()
        self._boot_id = clocks.boot_id()
        self._runner.register_message(exchange.KIND, self._hear)
        gevent.spawn(self._look_after)

    # -- from workers

    def _hear(self, msg: Any, **_: object) -> None:
        client, message = msg.node_id, msgspec.msgpack.decode(msg.data, type=exchange.ToMaster)
        match message:
            case exchange.Hello():
                self._workers[client] = message
                self._pings[client] = deque(maxlen=PINGS_KEPT)
                gevent.spawn(self._ping, client)
            case exchange.Pong(sent_ns, answer_ns):
                self._pings[client].append(clocks.measured(sent_ns, answer_ns, time.monotonic_ns()))
            case exchange.Going(job):
                self._going.get(job, set()).discard(client)
                self._went.set()
            case exchange.Gone():
                self._lose(client, "its user was stopped in Locust")
            case streams.Chunk() | streams.Ended():
                self._post(client, message)

    def _post(self, client: str, letter: streams.Chunk | streams.Ended) -> None:
        if client not in self._jobs.get(letter.job, {}):
            return  # given up before: what still comes of it is no longer anybody's
        try:
            self._mailbox.post(letter)
        except streams.BrokenStream as error:
            self._lose(client, str(error))
        if isinstance(letter, streams.Ended):
            self._jobs[letter.job].pop(client, None)
        self._mail.set()

    def _lose(self, client: str, why: str) -> None:
        self._workers.pop(client, None)
        for job, members in self._jobs.items():
            if client in members:
                self._mailbox.post(streams.Lost(job, members.pop(client), why))
                self._mail.set()

    def _look_after(self) -> None:
        """Notice workers that have gone without a word."""
        while True:
            gevent.sleep(1)
            for client in list(self._workers):
                node = self._runner.clients.get(client)
                if node is None or node.state == runners.STATE_MISSING:
                    self._lose(client, f"its Locust worker has been silent for {runners.HEARTBEAT_LIVENESS} s")

    def _ping(self, client: str) -> None:
        for n in range(sys.maxsize):
            if client not in self._workers:
                return
            self._send(client, exchange.Ping(time.monotonic_ns()))
            gevent.sleep(PING_S / PINGS_AT_FIRST if n < PINGS_AT_FIRST else PING_S)

    def _send(self, client: str, message: exchange.ToWorker) -> None:
        self._runner.send_message(exchange.KIND, msgspec.msgpack.encode(message), client_id=client)

    # -- for the controller

    def clock(self) -> exchange.Clock:
        servers = resolvconf.parse(RESOLV_CONF.read_text()).servers
        return exchange.Clock(time.monotonic_ns(), self._boot_id, servers)

    def workers(self) -> exchange.Workers:
        found = [
            exchange.Worker(hello.pod, hello.load, hello.boot_id, self._offset(client, hello))
            for client, hello in self._workers.items()
            if self._pings[client]
        ]
        return exchange.Workers(tuple(found))

    def _offset(self, client: str, hello: exchange.Hello) -> clocks.Offset:
        return clocks.SAME if hello.boot_id == self._boot_id else clocks.best(self._pings[client])

    def prepare(self, wanted: exchange.PrepareLoad) -> exchange.Prepared | exchange.Problem:
        members = {client: hello.pod for client, hello in self._workers.items() if hello.load == wanted.load}
        if not members:
            return exchange.Problem(f"no worker is there for load {wanted.load}")
        job = len(self._jobs)
        self._jobs[job] = dict(members)
        pods = sorted(members.values(), key=lambda pod: (len(pod), pod))
        for client, pod in members.items():
            self._send(client, exchange.Prepare(job, wanted.phase, wanted.seed + pods.index(pod)))
        return exchange.Prepared(job, tuple(pods))

    def go(self, asked: exchange.GoJob) -> exchange.Done | exchange.Problem:
        members = dict(self._jobs.get(asked.job, {}))
        self._going[asked.job] = set(members)
        for client, pod in members.items():
            self._send(client, exchange.Go(asked.job, *asked.windows[pod]))
        with gevent.Timeout(GO_LIMIT_S, False):  # pyright: ignore[reportArgumentType] - False: it passes silently
            # Those who are lost meanwhile are told of by a letter.
            while self._going[asked.job] & set(self._jobs[asked.job]):
                self._went.clear()
                self._went.wait(1)
        late = sorted(pod for client, pod in self._jobs[asked.job].items() if client in self._going[asked.job])
        if late:
            return exchange.Problem(f"{', '.join(late)} did not begin within {GO_LIMIT_S:g} s")
        return exchange.Done()

    def tell(self, job: int, message: exchange.ToWorker) -> exchange.Done:
        for client in self._jobs.get(job, {}):
            self._send(client, message)
        return exchange.Done()

    def messages(self, after: int, wait_s: float) -> streams.Answer | exchange.Problem:
        """Letters after number `after`, as soon as there are any, or none after `wait_s`."""
        try:
            received = self._mailbox.received(after)
        except streams.BrokenStream as error:
            return exchange.Problem(str(error))
        self._acknowledge(received)
        self._mail.clear()
        if not (answer := self._mailbox.answer()).letters:
            self._mail.wait(wait_s)
            answer = self._mailbox.answer()
        return answer

    def _acknowledge(self, received: list[streams.Chunk]) -> None:
        newest = {(chunk.job, chunk.pod): chunk.number for chunk in received}
        for (job, pod), number in newest.items():
            for client, member in self._jobs[job].items():
                if member == pod:
                    self._send(client, exchange.Acknowledge(job, number))


def add_routes(app: Any, board: Switchboard) -> None:
    """On Locust's own web server. The controller reaches them through the API server's pod proxy."""

    def route(name: str, method: str, answer: Callable[[], msgspec.Struct]) -> None:
        def view() -> Response:
            return Response(msgspec.msgpack.encode(answer()), mimetype="application/octet-stream")

        app.add_url_rule(f"{exchange.WEB}/{name}", f"loadgen-{name}", view, methods=[method])

    def body(kind: type[Any]) -> Any:
        return msgspec.msgpack.decode(request.get_data(), type=kind)

    def job() -> int:
        return body(exchange.Job).job

    route("clock", "GET", board.clock)
    route("workers", "GET", board.workers)
    route("messages", "GET", lambda: board.messages(int(request.args["after"]), float(request.args["wait"])))
    route("prepare", "POST", lambda: board.prepare(body(exchange.PrepareLoad)))
    route("go", "POST", lambda: board.go(body(exchange.GoJob)))
    route("stop", "POST", lambda: board.tell((number := job()), exchange.Stop(number)))
    route("close", "POST", lambda: board.tell((number := job()), exchange.Close(number)))


@events.init.add_listener
def on_init(environment: Any, **_: object) -> None:
    if isinstance(environment.runner, runners.MasterRunner):
        add_routes(environment.web_ui.app, Switchboard(environment))
    elif isinstance(environment.runner, runners.WorkerRunner):
        environment.station = Station(environment)
