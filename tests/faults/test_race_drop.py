import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from loadgen.core.errors import HarnessError
from loadgen.core.model import DnsRaceDrop
from loadgen.faults.race_drop import RaceDropFault
from loadgen.kernel import nft
from loadgen.lab import rules


def fault(netns: Path, probability: float) -> RaceDropFault:
    return RaceDropFault(DnsRaceDrop(probability=probability), netns, rules.RACE, rules.race_drop(probability, 53))


def test_a_fault_that_drops_nothing_emulates_nothing() -> None:
    assert fault(Path("/nowhere"), 0.0).emulated == ""
    assert "0.500%" in fault(Path("/nowhere"), 0.005).emulated


@pytest.mark.kernel
def test_it_comes_and_goes(netns_factory: Callable[[str], Path]) -> None:
    node = netns_factory("node")
    race = fault(node, 0.005)
    asyncio.run(race.heal())
    asyncio.run(race.inject())
    asyncio.run(race.inject())
    assert set(nft.counters(node, rules.RACE)) == {rules.RACE_COUNTER}
    asyncio.run(race.heal())
    asyncio.run(race.heal())
    with pytest.raises(HarnessError):
        nft.counters(node, rules.RACE)
