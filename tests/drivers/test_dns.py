"""The DNS driver against the lab's name server: every due lookup is one sample, and the sample says what happened."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from loadgen.core.dnswire import AAAA, A
from loadgen.core.errors import ConfigError
from loadgen.core.model import Burst, Constant, Dns, Poisson, Resolver, seconds
from loadgen.core.samples import Outcome, SampleBatch
from loadgen.drivers.dns import METRIC, DnsDriver
from loadgen.kernel import netns
from loadgen.lab.dnszone import Rule
from tests.realdns import NAME, Samples, Window, dns_server, logged

BURST = Burst(size=1)


def look_up(
    port: int, options: str = "", window: Window | None = None, *, address: str = "127.0.0.1", **load: object
) -> Samples:
    """Run the driver; the samples, after checking that there is one for each lookup it says it made."""
    dns = Dns(**{"pace": BURST, "names": (NAME,), **load})
    batches: list[SampleBatch] = []
    driver = DnsDriver(dns, Resolver(options, ()), [address], "pod-0", port=port)
    created = driver.run(window or Window(0.2), batches.append)
    samples = Samples(batches)
    assert created == {METRIC: len(samples.rows)}
    assert list(samples.rows["seq"]) == list(range(len(samples.rows)))
    assert {(b.metric, b.phase, b.source) for b in batches} <= {(METRIC, "measure", "pod-0")}
    assert (samples.rows["due_ns"] <= samples.rows["sent_ns"]).all()
    assert (samples.rows["sent_ns"] <= samples.rows["done_ns"]).all()
    return samples


@pytest.mark.parametrize("options", ["", "single-request", "single-request-reopen", "use-vc", "edns0"])
def test_it_counts_23_lookups_exactly(options: str) -> None:
    with dns_server(delay=seconds(0.002)) as server:
        samples = look_up(server.port, options, pace=Burst(size=23))
    seen = server.stats()
    assert len(samples.rows) == 23
    assert set(samples.rows["outcome"]) == {Outcome.OK}
    assert (set(samples.rows["tries"]), set(samples.rows["lost"]), set(samples.details)) == ({1}, {0}, {""})
    assert seen.queries == seen.answers == {"A": 23, "AAAA": 23}


def test_every_lookup_that_is_due_in_the_window_is_made_at_its_time() -> None:
    window = Window(0.3)
    with dns_server() as server:
        samples = look_up(server.port, "", window, pace=Constant(rate=100.0))
    due = samples.rows["due_ns"] - window.start_ns
    assert list(due) == [i * 10_000_000 for i in range(30)]


def test_a_stop_lets_nothing_more_become_due() -> None:
    window = Window(60)
    with dns_server(rules=(Rule("drop"),)) as server:
        real = window.stopped

        def stopped() -> bool:
            if server.stats().queries.get("A", 0) >= 5:
                window.stop.set()
            return real()

        window.stopped = stopped
        samples = look_up(server.port, "", window, pace=Poisson(rate=200.0), timeout=seconds(0.2))
    assert 5 <= len(samples.rows) < 100
    assert set(samples.rows["outcome"]) == {Outcome.UNKNOWN}


def test_names_are_asked_for_in_turn(tmp_path: Path) -> None:
    log, names = tmp_path / "log", ("a.test.", "b.test.", "c.test.")
    with dns_server(names=names, log=str(log)) as server:
        look_up(server.port, pace=Burst(size=6), names=names)
    assert sorted(q.name for q in logged(log) if q.qtype == A) == sorted(names * 2)


# What the server does wrong, and the sample with `timeout:1`: outcome, tries, lost, whole seconds, detail.
SAMPLES = {
    "AAAA lost": ((Rule("drop", "AAAA", times=1),), (Outcome.OK, 2, 1, 1, "AAAA lost, single-request fallback")),
    "A lost": ((Rule("drop", "A", times=1),), (Outcome.OK, 2, 1, 1, "A lost, single-request fallback")),
    "truncated": ((Rule("truncate", times=2),), (Outcome.OK, 2, 0, 0, "by TCP after truncation")),
    "SERVFAIL": ((Rule("SERVFAIL"),), (Outcome.FAIL, 2, 0, 0, "EAI_AGAIN")),
    "SERVFAIL for one": ((Rule("SERVFAIL", "AAAA"),), (Outcome.OK, 1, 0, 0, "")),
    "no such name": ((Rule("NXDOMAIN"),), (Outcome.FAIL, 1, 0, 0, "NXDOMAIN")),
    "silence": ((Rule("drop"),), (Outcome.FAIL, 2, 4, 2, "EAI_AGAIN")),
}


@pytest.mark.parametrize(("rules", "sample"), SAMPLES.values(), ids=SAMPLES)
def test_a_sample_says_what_happened(rules: tuple[Rule, ...], sample: tuple[object, ...]) -> None:
    with dns_server(rules=rules) as server:
        samples = look_up(server.port, "timeout:1")
    (row,) = samples.rows
    waited_s = (row["done_ns"] - row["sent_ns"]) // 1_000_000_000
    assert (row["outcome"], row["tries"], row["lost"], waited_s, *samples.details) == sample


def test_a_lookup_that_takes_too_long_is_censored_there() -> None:
    with dns_server(rules=(Rule("drop"),)) as server:
        samples = look_up(server.port, "", pace=Burst(size=3), timeout=seconds(0.25))
    assert set(samples.rows["outcome"]) == {Outcome.UNKNOWN}
    assert (samples.details, set(samples.rows["lost"])) == (["timeout 250ms"] * 3, {2})
    assert (samples.rows["done_ns"] - samples.rows["sent_ns"] >= 250_000_000).all()


@pytest.mark.parametrize("options", ["", "use-vc"])
def test_no_server_at_the_address_fails_at_once(options: str) -> None:
    with dns_server() as server:
        port = server.port
    samples = look_up(port, options)
    (row,) = samples.rows
    assert (row["outcome"], samples.details) == (Outcome.FAIL, ["EAI_AGAIN"])
    assert row["done_ns"] - row["sent_ns"] < 1_000_000_000


@pytest.mark.parametrize(("state", "serial"), [("long-lived", True), ("fresh", False)])
def test_only_a_long_lived_process_remembers_the_fallback(tmp_path: Path, state: str, serial: bool) -> None:
    log = tmp_path / "log"
    with dns_server(log=str(log), delay=seconds(0.02), rules=(Rule("drop", "AAAA", times=1),)) as server:
        samples = look_up(
            server.port, "timeout:1", Window(1.6), pace=Burst(size=1, every=seconds(1.3), count=2), state=state
        )
    assert list(samples.rows["tries"]) == [2, 1]
    a, aaaa = logged(log)[-2:]
    assert (a.qtype, aaaa.qtype, a.port) == (A, AAAA, aaaa.port)
    assert (aaaa.t_ns - a.t_ns >= 20_000_000) is serial


@pytest.mark.kernel
@pytest.mark.parametrize("options", ["", "use-vc"])
def test_a_machine_without_ports_is_data(netns_factory: Callable[[str], Path], options: str) -> None:
    pod = netns_factory("pod")
    netns.sysctl(pod, "net.ipv4.ip_local_port_range", "40000 40001")
    rules = (Rule("drop"),)
    with dns_server(namespace=pod, port=53, rules=rules):
        samples = netns.call(pod, look_up, 53, options, pace=Burst(size=5), timeout=seconds(0.3))
    assert sorted(samples.details) == ["no ports"] * 3 + ["timeout 300ms"] * 2
    assert sorted(samples.rows["outcome"]) == [Outcome.FAIL] * 3 + [Outcome.UNKNOWN] * 2


@pytest.mark.kernel
def test_a_server_behind_a_closed_door_fails_at_once(netns_factory: Callable[[str], Path]) -> None:
    """No route: connect(2) itself fails, and so does the lookup, without a single query."""
    samples = netns.call(netns_factory("pod"), look_up, 53, address="192.0.2.1")
    (row,) = samples.rows
    assert (row["outcome"], row["tries"], samples.details) == (Outcome.FAIL, 0, ["EAI_AGAIN"])


def test_a_process_without_descriptors_is_data() -> None:
    program = """
        import resource
        from tests.drivers.test_dns import *
        with dns_server(rules=(Rule("drop"),)) as server:
            resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
            samples = look_up(server.port, pace=Burst(size=40), timeout=seconds(0.2))
            print(sorted(set(samples.details)), len(samples.rows))
    """
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("['no file descriptors', 'timeout 200ms'] 40\n", "")


@pytest.mark.parametrize(
    ("load", "resolver", "says"),
    [
        (Dns(state="old"), Resolver(), "loads.pod-0.state: 'old' is not one of fresh, long-lived"),
        (Dns(names=()), Resolver(), "loads.pod-0.names: there is no name"),
        (Dns(names=("a..b",)), Resolver(), "loads.pod-0.names: 'a..b' has an empty label"),
        (Dns(), Resolver("ndots=5"), "resolver.options: 'ndots=5' is not known"),
    ],
)
def test_what_cannot_be_is_refused_before_it_starts(load: Dns, resolver: Resolver, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DnsDriver(load, resolver, ["127.0.0.1"], "pod-0")
    assert says in str(caught.value)
