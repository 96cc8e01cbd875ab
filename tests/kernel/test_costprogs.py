"""Programs that the kernel runs for us: what they count is what they were given."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen.core.errors import HarnessError
from loadgen.kernel import costprogs
from loadgen.kernel.costprogs import PROGRAMS, TABLES, CostProgram, Counts

pytestmark = pytest.mark.kernel

FLOWS, PRIME = 1_000, 10_007


@pytest.fixture(autouse=True)
def on_one_cpu() -> Iterator[None]:
    """Each CPU draws its own flows."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "empty"])
def test_every_packet_is_counted_and_every_flow_has_one_state(name: str) -> None:
    with CostProgram.load(name, flows=FLOWS, capacity=4 * FLOWS) as program:
        assert program.run(PRIME) >= 0
        found = program.counts()
        tracked = FLOWS if name not in ("array", "pass") else 0
        assert found == Counts(packets=PRIME, found=PRIME - tracked, inserted=tracked, failed=0)
        assert (program.memory() > 0) == (name in TABLES)


def test_a_table_that_is_too_small_evicts_or_refuses_as_its_kind_does() -> None:
    small = FLOWS // 4
    with CostProgram.load("lru", flows=FLOWS, capacity=small) as program:
        program.run(PRIME)
        assert program.counts().inserted > FLOWS  # dropped, and put in again
        assert program.counts().failed == 0
    with CostProgram.load("hash", flows=FLOWS, capacity=small) as program:
        program.run(PRIME)
        assert program.counts().inserted == small
        assert program.counts().failed > 0
    with CostProgram.load("array", flows=FLOWS, capacity=small) as program:
        program.run(PRIME)
        assert 0 < program.counts().found < PRIME


def test_work_takes_time() -> None:
    with (
        CostProgram.load("pass", flows=FLOWS, capacity=1) as idle,
        CostProgram.load("pass", flows=FLOWS, capacity=1, loop=4000) as busy,
    ):
        assert busy.run(PRIME) > 10 * max(1, idle.run(PRIME))


def test_what_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="gone"):
        CostProgram.load("lru", flows=1, capacity=1, path=tmp_path / "gone.o")
    (tmp_path / "torn.o").write_bytes(costprogs.OBJECT.read_bytes()[:500])
    with pytest.raises((OSError, HarnessError)):
        CostProgram.load("lru", flows=1, capacity=1, path=tmp_path / "torn.o")
    with pytest.raises(OSError, match="entries"):
        CostProgram.load("lru", flows=1, capacity=0xFFFF_FFFF)
