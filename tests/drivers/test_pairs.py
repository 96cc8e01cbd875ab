"""PairsDriver: what is due is asked for in C and ends once; what C cannot do is refused before anything is sent."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from loadgen.core.errors import ConfigError
from loadgen.core.model import Burst, Constant, Dns, Pace, Resolver, seconds
from loadgen.core.samples import Outcome, SampleBatch
from loadgen.drivers.pairs import PairsDriver
from tests.realdns import NAME, Samples, Window, dns_server

QUICK = Resolver("timeout:1 attempts:1", ())


def look_up(
    port: int, pace: Pace, resolver: Resolver = QUICK, window: Window | None = None, **load: object
) -> Samples:
    batches: list[SampleBatch] = []
    dns = Dns(pace=pace, via="fast", **{"names": (NAME,), **load})
    created = PairsDriver(dns, resolver, ["127.0.0.1"], "pod", port=port).run(window or Window(0.5), batches.append)
    samples = Samples(batches)
    assert created == {"dns.lookup": len(samples.rows)}
    assert samples.rows["seq"].tolist() == list(range(len(samples.rows)))
    return samples


@pytest.mark.parametrize("stub", ["glibc-2.36", "musl-1.2.3", "musl-1.2.5"])
def test_every_lookup_that_is_due_is_made_and_answered(stub: str) -> None:
    other = "no-such-name.example."
    with dns_server() as server:
        samples = look_up(server.port, Constant(rate=46.0), Resolver("", (), stub=stub), names=(NAME, other))
        assert server.stats().queries == {"A": 23, "AAAA": 23}
    assert Counter(samples.details) == {"": 12, "NXDOMAIN": 11}
    assert (samples.rows["sent_ns"] >= samples.rows["due_ns"]).all()


@pytest.mark.parametrize("options", ["single-request", "single-request-reopen", "edns0 trust-ad"])
def test_options_of_glibc(options: str) -> None:
    with dns_server() as server:
        samples = look_up(server.port, Burst(size=23), Resolver(options, ()))
        assert server.stats().queries == {"A": 23, "AAAA": 23}
    assert set(samples.rows["outcome"]) == {Outcome.OK}


def test_no_aaaa_asks_for_a_alone() -> None:
    with dns_server() as server:
        look_up(server.port, Burst(size=23), Resolver("no-aaaa", ()))
        assert server.stats().queries == {"A": 23}


def test_silence_ends_as_the_resolver_ends_it_or_at_the_limit() -> None:
    with dns_server(loss=1.0) as server:
        ended = look_up(server.port, Burst(size=5))
        begun = time.monotonic()
        given_up = look_up(server.port, Burst(size=5), Resolver("timeout:30", ()), timeout=seconds(0.3))
    assert Counter(ended.details) == {"EAI_AGAIN": 5}
    assert ended.rows["lost"].tolist() == [2] * 5
    assert time.monotonic() - begun < 25
    assert Counter(given_up.details) == {"timeout": 5}
    assert set(given_up.rows["outcome"]) == {Outcome.UNKNOWN}


def test_stopped_nothing_more_becomes_due() -> None:
    window = Window(600)
    window.stop.set()
    with dns_server() as server:
        assert len(look_up(server.port, Constant(rate=46.0), window=window).rows) == 0


REFUSED = {
    "go": (Resolver(stub="go"), (NAME,), "resolver.stub go is not done in C, only glibc and musl are"),
    "java": (Resolver(stub="java"), (NAME,), "resolver.stub java is not done in C"),
    "an old glibc": (Resolver(stub="glibc-2.31"), (NAME,), "glibc 2.31 is not done in C, only glibc 2.34 and later"),
    "TCP": (Resolver("use-vc"), (NAME,), "use-vc and strict-error are not done in C"),
    "a search list": (Resolver(), ("kube-dns",), "'kube-dns' would go through the search list; write 'kube-dns.'"),
    "a bad name": (Resolver(), ("a..b.",), "names: 'a..b.' has an empty label"),
    "no name": (Resolver(), (), "there is no name to look up"),
}


@pytest.mark.parametrize(("resolver", "names", "says"), REFUSED.values(), ids=REFUSED)
def test_what_c_does_not_do_is_refused(resolver: Resolver, names: tuple[str, ...], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PairsDriver(Dns(names=names, via="fast"), resolver, ["10.96.0.10"], "pod")
    assert says in str(caught.value)
    assert str(caught.value).startswith("loads.pod.via: fast: ")


def test_more_than_one_server_or_ipv6_is_refused() -> None:
    for servers in (["192.0.2.1", "192.0.2.2"], ["2001:db8::1"]):
        with pytest.raises(ConfigError, match="it asks one IPv4 server"):
            PairsDriver(Dns(via="fast"), Resolver(), servers, "pod")
