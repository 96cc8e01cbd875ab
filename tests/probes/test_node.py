import asyncio
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen import native
from loadgen.core import dnswire
from loadgen.core.errors import HarnessError
from loadgen.core.model import CtFill
from loadgen.core.samples import Mark, Message, Reading
from loadgen.faults.ct_fill import CtFillFault
from loadgen.kernel.bpf import CtDatapath
from loadgen.lab import addresses as plan
from loadgen.probes.node import AgentLook, NetfilterLook, NodeProbe, Seen, TableCounter, TablesLook, dns_stats


@pytest.mark.kernel
def test_a_table_is_counted_when_due_and_when_asked(lab_dir: Path) -> None:
    pins = lab_dir / "bpf" / f"probe-{os.getpid()}"
    with CtDatapath.load(pins, 65536, 4096) as datapath:
        table = pins / "cilium_ct4_global"
        filled = CtFillFault(
            CtFill(entries=10_000, expired=1.0), table, list(plan.PAST_PODS.hosts()), [plan.datanode(0)], 1, 1
        )
        asyncio.run(filled.inject())
        counter = TableCounter(table)
        first = {r.series: r.value for r in counter.readings("tcp", now=False)}
        assert first == {"ct.tcp.entries": 10_000.0, "ct.tcp.expired_share": 1.0}
        assert list(counter.readings("tcp", now=False)) == []
        native.ct_walk(
            datapath.tcp_fd, capacity=65536, batch=512, now=int(time.monotonic()), delete=native.CT_EXPIRED
        )
        after = {r.series: r.value for r in counter.readings("tcp", now=True)}
        assert after == {"ct.tcp.entries": 0.0, "ct.tcp.expired_share": 0.0}


class Stopped:
    """A window that is over when the probe first looks: it looks once, at everything."""

    phase, start_ns, end_ns, seed = "", 0, 0, 0

    def stopped(self) -> bool:
        return True


def test_an_agent_that_does_not_answer_breaks_the_harness(tmp_path: Path) -> None:
    probe = NodeProbe([AgentLook(tmp_path / "nobody.sock")])
    with pytest.raises(HarnessError, match="the agent does not answer GET /v1/loadgen/state"):
        probe.run(Stopped(), lambda message: None)


@pytest.mark.kernel
def test_a_node_without_agent_and_tables_has_netfilter_alone(tmp_path: Path) -> None:
    seen: list[Message] = []
    NodeProbe([NetfilterLook(None), TablesLook(tmp_path)]).run(Stopped(), seen.append)
    assert {m.series.partition(".")[0] for m in seen if isinstance(m, Reading)} == {"nfct"}


@pytest.mark.kernel
def test_a_table_that_another_program_has_pinned_is_counted(lab_dir: Path) -> None:
    """What a real Cilium's node has: tables, and no agent of ours."""
    pins = lab_dir / "bpf" / f"others-{os.getpid()}"
    seen: list[Message] = []
    with CtDatapath.load(pins, 4096, 4096):
        NodeProbe([TablesLook(pins)]).run(Stopped(), seen.append)
    assert [m.series for m in seen if isinstance(m, Reading)] == [
        "ct.tcp.entries",
        "ct.tcp.expired_share",
        "ct.any.entries",
        "ct.any.expired_share",
    ]


class Passing:
    """A look that has seen a GC pass."""

    def look(self, *, now: bool) -> Iterator[Seen]:
        yield Mark(1, "gc", "0")


class Asked:
    def __init__(self) -> None:
        self.now: list[bool] = []

    def look(self, *, now: bool) -> Iterator[Seen]:
        self.now.append(now)
        yield from ()


class Once(Stopped):
    """Over at the second look."""

    def __init__(self) -> None:
        self.looks = 0

    def stopped(self) -> bool:
        self.looks += 1
        return self.looks > 1


@pytest.mark.slow
def test_a_pass_and_the_end_make_everything_due() -> None:
    before, after = Asked(), Asked()
    NodeProbe([before, Passing(), after]).run(Once(), lambda message: None)
    assert (before.now, after.now) == ([False, True], [True, True])


def answer(sock: socket.socket, with_reply: bool) -> None:
    data, peer = sock.recvfrom(1000)
    if with_reply:
        sock.sendto(data[:2] + b"\x84\0" + b"\0" * 8 + b"garbage", peer)


@pytest.mark.parametrize(("with_reply", "error"), [(True, HarnessError), (False, TimeoutError)])
def test_a_dns_server_that_is_not_one(with_reply: bool, error: type[Exception]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=answer, args=(server, with_reply))
        thread.start()
        with pytest.raises(error):
            dns_stats(server.getsockname())
        thread.join()
    assert dnswire.STATS_NAME.endswith(b"\0")
