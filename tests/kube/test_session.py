"""The controller's side against a master that is played: what it makes of letters, whole, broken and too early.

With a real Locust: e2e/test_locust.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import numpy as np
import pytest

from loadgen.core import frames
from loadgen.core.errors import HarnessError
from loadgen.core.samples import SAMPLE_DTYPE, Log, Mark, Message, Reading, SampleBatch, Tally
from loadgen.kube import clocks, exchange, session, streams
from loadgen.kube.api import KubeError
from loadgen.kube.clocks import Offset
from loadgen.kube.session import CLOCK_ERROR, Session, SessionLoad
from loadgen.kube.streams import Chunk, Ended, Letter, Lost, Mailbox

READY = Mark(1, "ready", "x")
TALLY = Tally("main", "x", {"storm.connect": 1}, 0.5, 2.0)
BATCH = SampleBatch("storm.connect", "main", "x", np.zeros(1, SAMPLE_DTYPE).tobytes())
DAY_NS = 86_400 * 10**9


class Master:
    """Locust's web server as the controller sees it. Pods p and q have the only load."""

    def __init__(self, *, boot_id: str | None = None, ahead_ns: int = 0, early: bool = False) -> None:
        self.boot_id = boot_id or clocks.boot_id()
        self.ahead_ns = ahead_ns
        self.early = early
        self.mailbox = Mailbox()
        self.asked: list[tuple[str, Any]] = []
        self.refuse: dict[str, Exception | msgspec.Struct] = {}
        self.refused = 0

    async def call(
        self, method: str, path: str, body: bytes | None, params: Mapping[str, str], limit_s: float
    ) -> bytes:
        name = path.removeprefix("/loadgen/")
        answer = await getattr(self, name)(body, params)
        refusal = self.refuse.get(name)
        self.refused += refusal is not None
        if isinstance(refusal, Exception):
            raise refusal
        return msgspec.msgpack.encode(refusal or answer)

    async def clock(self, body: object, params: object) -> exchange.Clock:
        return exchange.Clock(time.monotonic_ns() + self.ahead_ns, self.boot_id, ("10.96.0.10",))

    async def workers(self, body: object, params: object) -> exchange.Workers:
        offset = Offset(0, 0) if self.boot_id == clocks.boot_id() else Offset(7, 3)
        return exchange.Workers(tuple(exchange.Worker(pod, "storm", self.boot_id, offset) for pod in ("p", "q")))

    async def prepare(self, body: bytes, params: object) -> exchange.Prepared:
        self.asked.append(("prepare", msgspec.msgpack.decode(body, type=exchange.PrepareLoad)))
        job = sum(name == "prepare" for name, _ in self.asked) - 1
        if not self.early:
            self.say(job, READY)
        return exchange.Prepared(job, ("p", "q"))

    async def go(self, body: bytes, params: object) -> exchange.Done:
        self.asked.append(("go", msgspec.msgpack.decode(body, type=exchange.GoJob)))
        return exchange.Done()

    async def stop(self, body: bytes, params: object) -> exchange.Done:
        self.asked.append(("stop", None))
        return exchange.Done()

    async def close(self, body: bytes, params: object) -> exchange.Done:
        self.asked.append(("close", None))
        return exchange.Done()

    async def messages(self, body: object, params: Mapping[str, str]) -> streams.Answer:
        self.mailbox.received(int(params["after"]))
        if not self.mailbox.answer().letters:
            await asyncio.sleep(0)
        return self.mailbox.answer()

    def say(self, job: int, *messages: Message, pods: str = "pq", end: str | None = None) -> None:
        data = b"".join(frames.encode(message) for message in messages)
        for pod in pods:
            number = self.mailbox._expected.get((job, pod), 0)
            if data:
                self.mailbox.post(Chunk(job, pod, number, data))
                number += 1
            if end is not None:
                self.mailbox.post(Ended(job, pod, number, end))


async def until(holds: Callable[[], object]) -> None:
    while not holds():  # noqa: ASYNC110 - what it waits for has no event
        await asyncio.sleep(0)


Scene = Callable[[Session, SessionLoad, list[Message]], Awaitable[None]]


def play(master: Master, scene: Scene) -> list[Message]:
    """A load that is prepared, and then `scene`. Returned: what it emitted."""
    got: list[Message] = []

    async def main() -> None:
        talk = Session(master.call)
        try:
            await scene(talk, await talk.prepare("storm", "main", 7, got.append), got)
        finally:
            await talk.close()

    asyncio.run(asyncio.wait_for(main(), 20))
    return got


def test_a_load_is_over_when_every_worker_has_ended_with_its_tally() -> None:
    master = Master()

    async def scene(talk: Session, load: SessionLoad, got: list[Message]) -> None:
        load.go(5, 9)
        master.say(0, BATCH, TALLY, pods="p", end="")
        master.say(0, BATCH, pods="q")
        waiting = asyncio.create_task(load.wait())
        await until(lambda: len(got) == 4)
        assert not waiting.done()
        load.stop()
        master.say(0, TALLY, pods="q", end="")
        await waiting
        await load.close()

    got = play(master, scene)
    assert [type(m) for m in got].count(SampleBatch) == 2
    assert [m for m in got if isinstance(m, Tally)] == [TALLY] * 2
    assert [(m.series, m.value) for m in got if isinstance(m, Reading)] == [("generator.cpu", 0.25)] * 2
    assert master.asked == [
        ("prepare", exchange.PrepareLoad("storm", "main", 7)),
        ("go", exchange.GoJob(0, {"p": (5, 9), "q": (5, 9)})),
        ("stop", None),
    ]


@pytest.mark.parametrize(
    ("letters", "why"),
    [
        ([Lost(0, "p", "it fell silent")], "p is lost: it fell silent"),
        ([Ended(0, "p", 1, "killed by SIGKILL")], "p: killed by SIGKILL"),
        ([Ended(0, "p", 1)], "p: its driver process ended without a tally"),
        ([Chunk(0, "p", 1, frames.encode(Log("OSError: no")))], "p: OSError: no"),
        ([Chunk(0, "p", 1, b"\3\0\0\0abc")], "p sent something that is no message"),
        ([Chunk(0, "p", 1, frames.encode(TALLY) + b"\1"), Ended(0, "p", 2)], "ended without a tally"),
    ],
)
def test_a_worker_that_is_lost_or_broken_breaks_the_load(letters: list[Letter], why: str) -> None:
    master = Master()

    async def scene(talk: Session, load: SessionLoad, got: list[Message]) -> None:
        for letter in letters:
            master.mailbox.post(letter)
        with pytest.raises(HarnessError, match=why):
            await load.wait()
        await load.close()
        await load.close()

    play(master, scene)
    assert [name for name, _ in master.asked] == ["prepare", "close"]


def test_letters_that_come_before_the_answer_to_prepare_are_kept() -> None:
    """The second load's workers are ready before the controller knows the number of its job."""
    master = Master()

    async def scene(talk: Session, load: SessionLoad, got: list[Message]) -> None:
        master.early = True
        master.say(1, READY)
        await until(lambda: talk._early)
        second = await talk.prepare("storm", "next", 8, got.append)
        master.say(1, TALLY, end="")
        await second.wait()

    assert play(master, scene).count(TALLY) == 2


def test_what_still_comes_of_a_load_that_was_closed_is_nobody_s() -> None:
    master = Master()

    async def scene(talk: Session, load: SessionLoad, got: list[Message]) -> None:
        await load.close()
        master.say(0, BATCH, end="it was closed")
        second = await talk.prepare("storm", "next", 8, got.append)
        master.say(1, TALLY, end="")
        await second.wait()
        assert not talk._early

    got = play(master, scene)
    assert not [m for m in got if isinstance(m, SampleBatch)]


def test_a_go_that_did_not_arrive_fails_the_load() -> None:
    master = Master()
    master.refuse["go"] = exchange.Problem("q did not begin within 10 s")

    async def scene(talk: Session, load: SessionLoad, got: list[Message]) -> None:
        load.go(1, 2)
        with pytest.raises(HarnessError, match="q did not begin"):
            await load.wait()

    play(master, scene)


def test_a_pause_of_the_master_is_waited_out_and_a_long_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "RETRY_S", 0.01)
    master = Master()

    async def scene(talk: Session, load: SessionLoad, got: list[Message]) -> None:
        master.refuse["messages"] = KubeError(503, "ServiceUnavailable", "error trying to reach service")
        await until(lambda: master.refused == 3)
        del master.refuse["messages"]
        master.say(0, BATCH, TALLY, end="")
        await load.wait()
        assert [type(m) for m in got].count(SampleBatch) == 2
        monkeypatch.setattr(session, "PATIENCE_S", 0.1)
        second = await talk.prepare("storm", "next", 8, got.append)
        master.refuse["messages"] = HarnessError("connection refused")
        with pytest.raises(HarnessError, match=r"out of reach for 0\.1 s: connection refused"):
            await second.wait()
        with pytest.raises(HarnessError, match="out of reach"):
            await talk.prepare("storm", "third", 8, got.append)

    play(master, scene)


def test_a_master_that_knows_no_such_letters_ends_it_at_once() -> None:
    master = Master()

    async def scene(talk: Session, load: SessionLoad, got: list[Message]) -> None:
        master.refuse["messages"] = exchange.Problem("after=3: there are letters 1 to 0")
        with pytest.raises(HarnessError, match="the Locust master says: after=3"):
            await load.wait()

    play(master, scene)


def test_an_error_of_whoever_takes_the_messages_is_the_load_s() -> None:
    master = Master()

    def full(message: Message) -> None:
        raise OSError("no space left on device")

    async def main() -> None:
        talk = Session(master.call)
        load = await talk.prepare("storm", "main", 7, full)
        master.say(0, BATCH)
        with pytest.raises(OSError, match="no space left"):
            await load.wait()
        await talk.close()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_windows_go_out_on_their_clock_and_samples_come_back_on_ours() -> None:
    master = Master(boot_id="another", ahead_ns=DAY_NS)
    start_ns = 10**9

    async def scene(talk: Session, load: SessionLoad, got: list[Message]) -> None:
        load.go(start_ns, start_ns + 5)
        await until(lambda: len(master.asked) == 2)
        _, asked = master.asked[1]
        there_ns, end_ns = asked.windows["p"]
        assert end_ns - there_ns == 5
        rows = np.zeros(1, SAMPLE_DTYPE)
        rows["due_ns"], rows["sent_ns"], rows["done_ns"] = there_ns, there_ns + 2, there_ns + 900
        master.say(0, msgspec.structs.replace(BATCH, rows=rows.tobytes()), TALLY, end="")
        await load.wait()

    got = play(master, scene)
    assert master.asked[1][1].windows["p"][0] - start_ns == pytest.approx(DAY_NS + 7, abs=50_000_000)
    batch = next(m for m in got if isinstance(m, SampleBatch))
    (row,) = batch.array()
    assert (row["due_ns"], row["sent_ns"], row["done_ns"]) == (start_ns, start_ns + 2, start_ns + 900)
    (error,) = [m.value for m in got if isinstance(m, Reading) and m.series == CLOCK_ERROR]
    assert 3e-9 < error < 0.05


def test_a_worker_that_left_between_two_phases_is_missed() -> None:
    async def main() -> None:
        talk = Session(Master().call)
        with pytest.raises(HarnessError, match="r, s: no longer connected"):
            await talk.prepare("storm", "main", 7, lambda message: None, ["p", "q", "r", "s"])

    asyncio.run(main())


def test_the_lead_grows_with_the_way_to_the_master(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Session(Master().call)
    assert talk.lead_ns == session.LEAD_LEAST_NS
    talk.trip_ns = session.LEAD_LEAST_NS
    assert talk.lead_ns == 4 * session.LEAD_LEAST_NS
