"""What a Locust user's process is told, and a run of it: lookups that another process counts."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from loadgen.core.errors import ConfigError
from loadgen.core.model import Constant
from loadgen.core.samples import SampleBatch, Tally
from loadgen.core.units import enc_hook
from loadgen.drivers.dns import DnsDriver
from loadgen.drivers.pairs import PairsDriver
from loadgen.kube import lookupprocess, streams
from tests.realdns import NAME, dns_server

FILE = "nameserver 192.0.2.53\nnameserver 192.0.2.54\nsearch a.test b.test\noptions ndots:5 timeout:2\n"


def made(**settings: object) -> lookupprocess.LookupSpec:
    whole = {"names": (NAME,), "rate": 10.0, "stub": "glibc-2.36", "fresh": True, "fast": False, **settings}
    return lookupprocess.spec(**{"content": FILE, "where": "/etc/resolv.conf", **whole})


def test_a_user_asks_whom_and_how_its_resolv_conf_says() -> None:
    spec = made()
    assert (spec.servers, spec.port) == (("192.0.2.53", "192.0.2.54"), 53)
    assert (spec.resolver.options, spec.resolver.search) == ("ndots:5 timeout:2", ("a.test", "b.test"))
    assert (spec.load.state, spec.load.via, spec.load.pace) == ("fresh", "wire", Constant(rate=10.0))
    assert isinstance(lookupprocess.driver(spec), DnsDriver)


def test_settings_stand_in_for_the_file() -> None:
    spec = made(server="127.0.0.1:5353", options="single-request", stub="musl-1.2.5", fresh=False, fast=True)
    assert (spec.servers, spec.port, spec.resolver.options) == (("127.0.0.1",), 5353, "single-request")
    assert (spec.load.state, spec.load.via, spec.resolver.stub) == ("long-lived", "fast", "musl-1.2.5")
    assert isinstance(lookupprocess.driver(spec), PairsDriver)
    assert made(server="2001:db8::1").servers == ("2001:db8::1",)


WRONG = {
    "a line of the file": ({"content": "nameserver dns\n"}, "/etc/resolv.conf, line 1: 'dns' is no IP address"),
    "no server": ({"content": "search a\n"}, "/etc/resolv.conf: there is no `nameserver` line"),
    "an option": ({"options": "ndots=5"}, "/etc/resolv.conf.options: 'ndots=5' is not known"),
    "a host's name": ({"server": "kube-dns"}, "host: name server 'kube-dns' is no IP address"),
    "a port": ({"server": "127.0.0.1:http"}, "host: '127.0.0.1:http': 'http' is no port"),
    "a bad name": ({"names": ("a..b",)}, "'a..b' has an empty label"),
    "a name for the list, in C": ({"names": ("a",), "fast": True}, "would go through the search list"),
}


@pytest.mark.parametrize(("settings", "says"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_honoured_is_said_before_a_process_starts(settings: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        made(**settings)
    assert says in str(caught.value)


@pytest.mark.parametrize("fast", [False, True])
def test_a_process_looks_up_until_it_is_told_to_stop(tmp_path: Path, fast: bool) -> None:
    with dns_server() as server:
        spec = made(server=f"127.0.0.1:{server.port}", fast=fast, rate=46.0)
        path = tmp_path / "spec.json"
        path.write_bytes(msgspec.json.encode(spec, enc_hook=enc_hook))
        command = [sys.executable, "-m", "loadgen.kube.lookupprocess", str(path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            now = time.monotonic_ns()
            said = process.communicate(f"go {now} {now + 500_000_000}\n".encode(), timeout=60)[0]
        asked = server.stats().queries
    messages = streams.Incoming().feed(said)
    samples = sum(len(m.array()) for m in messages if isinstance(m, SampleBatch))
    tally = next(m for m in messages if isinstance(m, Tally))
    assert process.returncode == 0
    assert tally.created == {"dns.lookup": samples}
    assert asked == ({"A": samples, "AAAA": samples} if samples else {})
