import asyncio
import os
import time
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from loadgen import native
from loadgen.core.model import CtFill
from loadgen.faults.ct_fill import CtFillFault
from loadgen.kernel.bpf import CtDatapath

PODS = [IPv4Address("10.244.200.1"), IPv4Address("10.244.200.2")]
DATANODES = [IPv4Address(0x0A800001 + i) for i in range(500)]


def fault(table: Path, entries: int, expired: float) -> CtFillFault:
    return CtFillFault(CtFill(entries=entries, expired=expired), table, PODS, DATANODES, 50010, seed=1)


def count(datapath: CtDatapath) -> tuple[int, int]:
    walk = native.ct_walk(datapath.tcp_fd, capacity=65536, batch=512, now=int(time.monotonic()))
    return walk.seen, walk.expired


@pytest.mark.kernel
def test_it_puts_in_exactly_what_was_asked_and_heals_to_nothing(lab_dir: Path) -> None:
    pins = lab_dir / "bpf" / f"fill-{os.getpid()}"
    with CtDatapath.load(pins, 65536, 4096) as datapath:
        filled = fault(pins / "cilium_ct4_global", 20_011, 0.75)
        said = asyncio.run(filled.inject())
        assert said.startswith("20,011 entries, 75% expired")
        seen, expired = count(datapath)
        assert seen == 20_011
        assert expired == pytest.approx(0.75 * 20_011, abs=200)
        asyncio.run(filled.heal())
        assert count(datapath) == (0, 0)
        asyncio.run(filled.heal())


@pytest.mark.kernel
def test_healing_a_table_that_was_never_made_is_no_error(lab_dir: Path) -> None:
    assert asyncio.run(fault(lab_dir / "bpf" / "nothing", 1, 1.0).heal()) is None
