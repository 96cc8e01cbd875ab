"""LibcDriver: the getaddrinfo of real libcs against the lab's name server, what is due and what comes of it."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from loadgen.core.errors import ConfigError, HarnessError
from loadgen.core.model import Burst, Constant, Dns, Pace, Resolver, seconds
from loadgen.core.samples import Outcome, SampleBatch
from loadgen.core.units import NS_PER_S
from loadgen.drivers import libc
from loadgen.drivers.libc import LibcDriver
from loadgen.kernel import netns
from loadgen.lab.dnszone import Rule
from tests.realdns import NAME, Samples, Window, dns_server, logged

Via = Literal["glibc", "musl"]
QUICK = Resolver("timeout:1 attempts:2", ())
MS = NS_PER_S // 1000
both = pytest.mark.parametrize("via", [via for via in ("glibc", "musl") if libc.program(via).exists()])


def load(via: Via, pace: Pace, **options: object) -> Dns:
    return Dns(pace=pace, via=via, **{"names": (NAME,), **options})


def look_up(space: Path, load: Dns, resolver: Resolver = QUICK, window: Window | None = None) -> Samples:
    """All samples of a run in namespace `space`; what the driver says it created is what came."""
    batches: list[SampleBatch] = []
    driver = LibcDriver(load, "pod", resolver=resolver, server="127.0.0.1")
    created = netns.call(space, driver.run, window or Window(0.5), batches.append)
    samples = Samples(batches)
    assert created == {"dns.lookup": len(samples.rows)}
    assert samples.rows["seq"].tolist() == list(range(len(samples.rows)))
    return samples


@pytest.fixture
def space(netns_factory: Callable[[str], Path]) -> Path:
    return netns_factory("libc")


def test_a_compiler_is_here_so_there_is_a_program() -> None:
    assert os.access(libc.program("glibc"), os.X_OK)


@pytest.mark.kernel
@both
def test_every_lookup_that_is_due_is_made_and_answered(space: Path, tmp_path: Path, via: Via) -> None:
    other = "no-such-name.example."
    log = tmp_path / "log"
    with dns_server(namespace=space, port=53, log=str(log)):
        samples = look_up(space, load(via, Constant(rate=46.0), names=(NAME, other)))
    assert Counter(samples.details) == {"": 12, "NXDOMAIN": 11}
    assert set(samples.rows["outcome"][0::2]) == {Outcome.OK}
    assert set(samples.rows["outcome"][1::2]) == {Outcome.FAIL}
    assert (samples.rows["sent_ns"] >= samples.rows["due_ns"]).all()
    assert (samples.rows["done_ns"] > samples.rows["sent_ns"]).all()
    asked = Counter(query.name for query in logged(log))
    assert asked == {NAME: 24, other: 22}  # A and AAAA of each


@pytest.mark.kernel
@both
def test_a_lookup_that_hangs_holds_up_no_other(space: Path, via: Via) -> None:
    with dns_server(namespace=space, port=53, rules=(Rule("drop", "AAAA", times=1),)):
        samples = look_up(space, load(via, Constant(rate=46.0)))
    took = samples.rows["done_ns"] - samples.rows["due_ns"]
    assert Counter(samples.details) == {"": 23}
    hung = int(took.argmax())
    # glibc asks again after timeout, musl after timeout / attempts; meanwhile the others went on.
    assert took[hung] >= 450 * MS
    later = samples.rows["sent_ns"][hung + 1 :]
    assert (later < samples.rows["done_ns"][hung]).sum() > len(later) / 2


@pytest.mark.kernel
@pytest.mark.parametrize(("state", "remembers"), [("fresh", False), ("long-lived", True)])
def test_glibc_remembers_a_loss_in_the_thread_that_had_it(
    space: Path, tmp_path: Path, state: str, remembers: bool
) -> None:
    """After a loss glibc asks for A and AAAA one after the other: only for AAAA once A was answered."""
    log = tmp_path / "log"
    pace = Burst(size=1, every=seconds(1.5), count=2)
    rules = (Rule("drop", "AAAA", times=1),)
    with dns_server(namespace=space, port=53, rules=rules, log=str(log), delay=seconds(0.05)):
        samples = look_up(space, load("glibc", pace, state=state), window=Window(3))
    assert Counter(samples.details) == {"": 2}
    last = [query.t_ns for query in logged(log)][-2:]
    assert (last[1] - last[0] > 40 * MS) == remembers


@pytest.mark.kernel
@both
def test_a_lookup_that_does_not_return_is_given_up_and_the_run_ends(space: Path, via: Via) -> None:
    slow = Resolver("timeout:5", ())
    with dns_server(namespace=space, port=53, rules=(Rule("drop"),)):
        begun = time.monotonic()
        samples = look_up(space, load(via, Burst(size=23), timeout=seconds(0.7)), slow)
    assert time.monotonic() - begun < 9  # left alone, the libc would go on for ten
    assert Counter(samples.details) == {"timeout 700ms": 23}
    assert set(samples.rows["outcome"]) == {Outcome.UNKNOWN}
    assert (samples.rows["done_ns"] - samples.rows["due_ns"] >= 700 * MS).all()


@pytest.mark.kernel
@both
def test_stopped_nothing_more_becomes_due(space: Path, via: Via) -> None:
    window = Window(600)
    window.stop.set()
    with dns_server(namespace=space, port=53):
        assert len(look_up(space, load(via, Constant(rate=46.0)), window=window).rows) == 0


@pytest.mark.kernel
def test_a_program_that_dies_is_a_broken_harness(
    space: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "lookup"
    broken.write_text("#!/bin/sh\nexec kill -9 $$\n")
    broken.chmod(0o755)
    monkeypatch.setattr(libc, "program", lambda via: broken)
    with pytest.raises(HarnessError, match="killed by SIGKILL"):
        look_up(space, load("glibc", Constant(rate=46.0)), window=Window(600))


def test_a_program_that_was_not_built_is_refused_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libc, "FOLDER", Path("/nowhere"))
    with pytest.raises(ConfigError, match=r"loads\.pod\.via: musl: .* musl-tools"):
        LibcDriver(Dns(via="musl"), "pod")
    assert "a C compiler" in libc.missing(Dns(via="glibc"), "loads.x")
    assert libc.missing(Dns(), "loads.x") == ""
