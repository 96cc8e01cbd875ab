"""The descriptor limit is raised as far as it may be, and never lowered."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from loadgen.drivers.limits import MAX_OPEN, SPARE, raise_open_files


@pytest.fixture
def hard() -> Iterator[int]:
    """The hard limit; the soft one is put back afterwards."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_low_limit_is_raised(hard: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    room = raise_open_files()
    raised = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert raised == (min(hard, MAX_OPEN + SPARE) if hard != resource.RLIM_INFINITY else MAX_OPEN + SPARE, hard)
    assert room == raised[0] - SPARE


def test_a_second_call_changes_nothing(hard: int) -> None:
    room = raise_open_files()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert raise_open_files() == room
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
    assert before[1] == hard
