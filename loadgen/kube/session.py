"""The controller's conversation with a Locust master: its loads, the stream of what they say, and its clocks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TypeVar

import msgspec

from loadgen.core.errors import ConfigError, HarnessError
from loadgen.core.ports import Emit
from loadgen.core.samples import Log, Mark, Message, Reading, Tally
from loadgen.core.units import NS_PER_S
from loadgen.kube import clocks, exchange, streams
from loadgen.kube.api import KubeError
from loadgen.kube.clocks import Offset

Call = Callable[[str, str, bytes | None, Mapping[str, str], float], Awaitable[bytes]]
"""(method, path on the master's web server, body, parameters, limit in seconds) → the answer's body."""

Explain = Callable[[HarnessError], Awaitable[HarnessError]]

T = TypeVar("T", bound=msgspec.Struct)

CLOCK_ERROR = "generator.clock_error"
READY_LIMIT_S = 60.0
CALL_LIMIT_S = 30.0
WAIT_S = 10.0
"""How long the master holds a question for messages open."""
PATIENCE_S = 30.0
"""How long it may be out of reach before the run is given up. Nothing is lost meanwhile: workers keep what they have.
"""
RETRY_S = 0.5
CLOCK_TRIPS = 8
LEAD_LEAST_NS = NS_PER_S // 2


class _Member:
    """One worker of a job: what it has said so far."""

    def __init__(self, pod: str, offset: Offset) -> None:
        self.pod, self.offset = pod, offset
        self.incoming = streams.Incoming()
        self.ready = False
        self.tally: Tally | None = None
        self.ended = False


class SessionLoad:
    """ports.Running: one job on all workers of a load."""

    def __init__(self, session: Session, job: int, members: Mapping[str, Offset], emit: Emit) -> None:
        self._session, self._job, self._emit = session, job, emit
        self._members = {pod: _Member(pod, offset) for pod, offset in members.items()}
        self._commands: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._closed = False

    async def ready(self) -> None:
        """Wait until every driver process stands at the line."""
        try:
            async with asyncio.timeout(READY_LIMIT_S):
                await self._until(lambda member: member.ready)
        except TimeoutError:
            late = ", ".join(member.pod for member in self._members.values() if not member.ready)
            raise HarnessError(f"{late}: no driver process within {READY_LIMIT_S:g} s; see the pods' logs") from None

    def go(self, start_ns: int, end_ns: int) -> None:
        windows = {m.pod: (start_ns + m.offset.ns, end_ns + m.offset.ns) for m in self._members.values()}
        self._command("go", exchange.GoJob(self._job, windows))

    def stop(self) -> None:
        self._command("stop", exchange.Job(self._job))

    def _command(self, name: str, body: msgspec.Struct) -> None:
        task = asyncio.create_task(self._order(name, body))
        self._commands.add(task)
        task.add_done_callback(self._commands.discard)

    async def _order(self, name: str, body: msgspec.Struct) -> None:
        try:
            await self._session.order(name, body)
        except (HarnessError, ConfigError) as error:
            self.fail(error)

    async def wait(self) -> None:
        try:
            await self._until(lambda member: member.ended)
        except HarnessError as error:
            raise await self._session.explain(error) from error

    async def _until(self, holds: Callable[[_Member], bool]) -> None:
        while True:
            self._changed.clear()
            if self._failure is not None:
                raise self._failure
            if all(holds(member) for member in self._members.values()):
                return
            await self._changed.wait()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await asyncio.gather(*self._commands, return_exceptions=True)
        self._session.forget(self._job)
        if all(member.ended for member in self._members.values()):
            return
        try:
            await self._session.order("close", exchange.Job(self._job))
        except (HarnessError, ConfigError):
            pass  # the run is over, well or not; its pods, and what runs in them, go with the deployment

    # --- what the session tells

    def fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._changed.set()

    def take(self, letter: streams.Letter) -> None:
        """Whatever goes wrong with it, the load has failed."""
        try:
            self._take(self._members[letter.pod], letter)
        except streams.BrokenStream as error:
            self.fail(HarnessError(f"{letter.pod} sent {error}"))
        except HarnessError as error:
            self.fail(error)
        self._changed.set()

    def _take(self, member: _Member, letter: streams.Letter) -> None:
        match letter:
            case streams.Chunk():
                for message in member.incoming.feed(letter.data):
                    self._hear(member, message)
            case streams.Lost():
                raise HarnessError(f"{member.pod} is lost: {letter.why}")
            case streams.Ended():
                self._end(member, letter)

    def _hear(self, member: _Member, message: Message) -> None:
        if isinstance(message, Log):
            raise HarnessError(f"{member.pod}: {message.error}; see the pod's log")
        if not member.ready:
            if not isinstance(message, Mark):
                raise HarnessError(f"{member.pod} began with a {type(message).__name__.lower()}")
            member.ready = True
            return
        if isinstance(message, Tally):
            member.tally = message
        self._emit(clocks.to_ours(message, member.offset))

    def _end(self, member: _Member, letter: streams.Ended) -> None:
        tally = member.tally
        if letter.why or tally is None or member.incoming.cut:
            why = letter.why or "its driver process ended without a tally"
            raise HarnessError(f"{member.pod}: {why}; see the pod's log")
        if tally.wall_s > 0:
            self._emit(Reading(time.monotonic_ns(), "generator.cpu", tally.cpu_s / tally.wall_s))
        member.ended = True


class Session:
    """All loads behind one master. `call` reaches its web server.

    `explain` may know a better reason for a failure than the master does, who only sees that somebody is gone.
    """

    def __init__(self, call: Call, explain: Explain | None = None) -> None:
        self._call = call
        self.explain = explain or _as_it_is
        self._loads: dict[int, SessionLoad] = {}
        self._newest = -1
        self._early: dict[int, list[streams.Letter]] = {}
        self._poll: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._boot_id = clocks.boot_id()
        self.trip_ns = 0
        """Longest round trip to the master when its clock was last measured."""

    # --- who is there

    async def clock(self) -> exchange.Clock:
        return await self._get("clock", exchange.Clock)

    async def workers(self) -> tuple[exchange.Worker, ...]:
        return (await self._get("workers", exchange.Workers)).workers

    async def offsets(self) -> dict[str, Offset]:
        """By pod: each worker's clock to ours."""
        master = await self._master_offset()
        return {
            worker.pod: clocks.SAME if worker.boot_id == self._boot_id else clocks.chain(master, worker.offset)
            for worker in await self.workers()
        }

    async def _master_offset(self) -> Offset:
        found: list[Offset] = []
        self.trip_ns = 0
        for _ in range(CLOCK_TRIPS):
            sent_ns = time.monotonic_ns()
            clock = await self.clock()
            received_ns = time.monotonic_ns()
            self.trip_ns = max(self.trip_ns, received_ns - sent_ns)
            same = clock.boot_id == self._boot_id
            found.append(clocks.SAME if same else clocks.measured(sent_ns, clock.now_ns, received_ns))
        return clocks.best(found)

    @property
    def lead_ns(self) -> int:
        """How far ahead of the first due time a `go` has to be said to arrive before it."""
        return max(LEAD_LEAST_NS, 4 * self.trip_ns)

    # --- loads

    async def prepare(self, name: str, phase: str, seed: int, emit: Emit, pods: Collection[str] = ()) -> SessionLoad:
        """Start driver processes of load `name` on all its workers, which have to be those of `pods`, if given.

        They wait for `go`.
        """
        if self._failure is not None:
            raise self._failure
        offsets = await self.offsets()
        if gone := sorted(set(pods) - set(offsets)):
            raise await self.explain(HarnessError(f"{', '.join(gone)}: no longer connected to the Locust master"))
        prepared = await self._post("prepare", exchange.PrepareLoad(name, phase, seed), exchange.Prepared)
        load = SessionLoad(self, prepared.job, {pod: offsets[pod] for pod in prepared.pods}, emit)
        self._loads[prepared.job], self._newest = load, prepared.job
        for letter in self._early.pop(prepared.job, []):
            load.take(letter)
        if self._poll is None:
            self._poll = asyncio.create_task(self._follow())
        errors = [offsets[pod].error_ns for pod in prepared.pods]
        if any(errors):
            emit(Reading(time.monotonic_ns(), CLOCK_ERROR, max(errors) / NS_PER_S))
        try:
            await load.ready()
        except BaseException:
            await load.close()
            raise
        return load

    def forget(self, job: int) -> None:
        self._loads.pop(job, None)

    def fail(self, error: BaseException) -> None:
        """Nothing more can come of any load."""
        self._failure = self._failure or error
        for load in self._loads.values():
            load.fail(error)

    async def close(self) -> None:
        if self._poll is not None:
            self._poll.cancel()
            await asyncio.gather(self._poll, return_exceptions=True)

    # --- the stream

    async def _follow(self) -> None:
        """Ask for letters, on and on. One that cannot be had any more fails every load."""
        after = 0
        try:
            while True:
                answer = await self._letters(after)
                for letter in answer.letters:
                    self._deliver(letter)
                after = answer.last
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            # Whatever it is, those who wait for letters must hear of it.
            self.fail(error)
            raise

    def _deliver(self, letter: streams.Letter) -> None:
        if (load := self._loads.get(letter.job)) is not None:
            load.take(letter)
        elif letter.job > self._newest:
            # Its driver was quicker than the answer to our `prepare`.
            self._early.setdefault(letter.job, []).append(letter)

    async def _letters(self, after: int) -> streams.Answer:
        given_up = time.monotonic() + PATIENCE_S
        while True:
            try:
                params = {"after": str(after), "wait": f"{WAIT_S:g}"}
                data = await self._call("GET", f"{exchange.WEB}/messages", None, params, CALL_LIMIT_S)
                break
            except (HarnessError, KubeError) as error:
                if isinstance(error, KubeError) and error.status < 500:
                    raise HarnessError(f"the Locust master refuses: {error}") from None
                if time.monotonic() > given_up:
                    why = f"the Locust master has been out of reach for {PATIENCE_S:g} s: {error}"
                    raise HarnessError(why) from None
                await asyncio.sleep(RETRY_S)
        return _decode(data, streams.Answer)

    # --- calls

    async def order(self, name: str, body: msgspec.Struct) -> None:
        await self._post(name, body, exchange.Done)

    async def _get(self, name: str, kind: type[T]) -> T:
        return await self._ask("GET", name, None, kind)

    async def _post(self, name: str, body: msgspec.Struct, kind: type[T]) -> T:
        return await self._ask("POST", name, msgspec.msgpack.encode(body), kind)

    async def _ask(self, method: str, name: str, body: bytes | None, kind: type[T]) -> T:
        try:
            data = await self._call(method, f"{exchange.WEB}/{name}", body, {}, CALL_LIMIT_S)
        except KubeError as error:
            raise HarnessError(f"the Locust master: {name}: {error}") from None
        return _decode(data, kind)


def _decode(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except msgspec.DecodeError:
        try:
            problem = msgspec.msgpack.decode(data, type=exchange.Problem)
        except msgspec.DecodeError:
            raise HarnessError(f"the Locust master answered something that is no message: {data[:80]!r}") from None
        raise HarnessError(f"the Locust master says: {problem.error}") from None


async def _as_it_is(error: HarnessError) -> HarnessError:
    return error


def missing(expected: Collection[str], there: Collection[exchange.Worker]) -> list[str]:
    """Pods whose workers have not reported."""
    return sorted(set(expected) - {worker.pod for worker in there})
