"""A sandbox's attempts, in the order in which they became known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from loadgen.core.ports import Attempt, NotUp
from loadgen.core.samples import Outcome
from loadgen.kube.events import About, Said
from loadgen.kube.pods import Sandbox

REFUSED = Said(About.ADD, Outcome.FAIL, "429 TooManyRequests")
LATE = Said(About.ADD, Outcome.UNKNOWN, "agent timeout 90s")
NOT_DELETED = Said(About.DEL, Outcome.FAIL, "429 TooManyRequests")


def told(story: Callable[[Sandbox, list[Attempt]], None]) -> list[tuple[int, int, Outcome, str]]:
    async def main() -> list[Attempt]:
        sandbox, attempts = Sandbox(0), []
        sandbox.ref = "x/p"
        story(sandbox, attempts)
        return attempts

    attempts = asyncio.run(main())
    assert {attempt.ref for attempt in attempts} <= {"x/p"}
    return [(a.start_ns, a.end_ns, a.outcome, a.detail) for a in attempts]


def test_each_attempt_begins_where_the_one_before_ended() -> None:
    def story(sandbox: Sandbox, attempts: list[Attempt]) -> None:
        sandbox.listen(attempts.append)
        sandbox.began_ns = 100
        sandbox.add_failed(REFUSED, 1, 160)
        sandbox.add_failed(LATE, 1, 260)
        sandbox.came_up(300)
        assert sandbox.up.done()

    assert told(story) == [
        (100, 160, Outcome.FAIL, "429 TooManyRequests"),
        (160, 260, Outcome.UNKNOWN, "agent timeout 90s"),
        (260, 300, Outcome.OK, ""),
    ]


def test_what_happened_before_anybody_listened_is_told_first() -> None:
    def story(sandbox: Sandbox, attempts: list[Attempt]) -> None:
        sandbox.began_ns = 10
        sandbox.add_failed(REFUSED, 1, 20)
        sandbox.came_up(30)
        sandbox.listen(attempts.append)

    assert [end for _, end, _, _ in told(story)] == [20, 30]


def test_several_failures_that_became_known_at_once_share_the_time() -> None:
    def story(sandbox: Sandbox, attempts: list[Attempt]) -> None:
        sandbox.listen(attempts.append)
        sandbox.began_ns = 100
        sandbox.add_failed(REFUSED, 3, 400)

    assert [(start, end) for start, end, _, _ in told(story)] == [(100, 200), (200, 300), (300, 400)]


def test_one_container_fails_once() -> None:
    def story(sandbox: Sandbox, attempts: list[Attempt]) -> None:
        sandbox.listen(attempts.append)
        sandbox.began_ns = 1
        for container in ("a", "a", "b", "", ""):
            sandbox.add_failed(Said(About.ADD, Outcome.FAIL, "x", container), 1, 2)

    assert len(told(story)) == 4


def test_a_failure_that_is_told_after_the_success_still_counts() -> None:
    def story(sandbox: Sandbox, attempts: list[Attempt]) -> None:
        sandbox.listen(attempts.append)
        sandbox.began_ns = 100
        sandbox.came_up(200)
        sandbox.add_failed(REFUSED, 1, 210)

    assert [outcome for _, _, outcome, _ in told(story)] == [Outcome.OK, Outcome.FAIL]


def test_a_sandbox_given_up_has_one_open_attempt_and_no_more() -> None:
    def story(sandbox: Sandbox, attempts: list[Attempt]) -> None:
        sandbox.listen(attempts.append)
        sandbox.began_ns = 100
        sandbox.give_up(200)
        sandbox.give_up(210)
        sandbox.add_failed(REFUSED, 1, 220)

    assert told(story) == [(100, 200, Outcome.UNKNOWN, "still under way")]


def test_a_pod_that_was_never_scheduled_has_no_attempt() -> None:
    def story(sandbox: Sandbox, attempts: list[Attempt]) -> None:
        sandbox.listen(attempts.append)
        sandbox.give_up(5)

    assert told(story) == []


def test_a_removal_and_its_failed_deletes() -> None:
    def story(sandbox: Sandbox, attempts: list[Attempt]) -> None:
        sandbox.del_failed(NOT_DELETED, 1, 50)  # nobody measures it yet
        sandbox.removing(100, attempts.append)
        sandbox.del_failed(NOT_DELETED, 2, 300)
        sandbox.removed(350, Outcome.OK)
        assert {attempt.op for attempt in attempts} == {"DEL"}

    assert told(story) == [
        (100, 200, Outcome.FAIL, "pod removal: 429 TooManyRequests"),
        (200, 300, Outcome.FAIL, "pod removal: 429 TooManyRequests"),
        (300, 350, Outcome.OK, "pod removal"),
    ]


def test_who_waits_and_who_will_wait_learns_of_a_failure() -> None:
    async def main() -> None:
        sandbox = Sandbox(0)
        waiting = asyncio.create_task(asyncio.wait_for(asyncio.shield(sandbox.up), 5))
        await asyncio.sleep(0)
        sandbox.fail(NotUp(Outcome.FAIL, "refused: OutOfpods"))
        sandbox.lose(OSError("the watch is broken"))
        for waiter in (waiting, sandbox.up):
            with pytest.raises(NotUp, match="OutOfpods"):
                await waiter
        with pytest.raises(OSError, match="broken"):
            await sandbox.gone

    asyncio.run(main())
