"""The resolver held to the real one: what getaddrinfo(3) of this machine's glibc sends, packet by packet."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from loadgen.core.model import Burst, Dns, Resolver, seconds
from loadgen.core.samples import SampleBatch
from loadgen.drivers.dns import DnsDriver
from loadgen.kernel import netns
from loadgen.lab.dnsserver import LoggedQuery
from loadgen.lab.dnszone import Rule
from tests.realdns import NAME, Samples, Window, dns_server, logged

# getaddrinfo in a new process, several times on one thread; the error's number, or 0.
PROGRAM = """
import json, socket, sys
errors = []
for _ in range(int(sys.argv[2])):
    try:
        socket.getaddrinfo(sys.argv[1], 80, socket.AF_UNSPEC, socket.SOCK_STREAM)
        errors.append(0)
    except socket.gaierror as error:
        errors.append(error.errno)
print(json.dumps(errors))
"""
# A namespace of mounts, in which resolv.conf and nsswitch.conf are what we say, in the network namespace $1.
ENTER = 'mount --bind "$1" /etc/resolv.conf && mount --bind "$2" /etc/nsswitch.conf && shift 2 && exec "$@"'
ERRORS = {"": 0, "EAI_AGAIN": -3, "NXDOMAIN": -2, "EAI_NODATA": -5}
DOMAINS = ("default.svc.cluster.local", "svc.cluster.local", "cluster.local")
EXTERNAL = "www.example.com"
DELAY = seconds(0.005)
"""So that a pair is with the server before it answers the first, as it is anywhere but on one machine."""


class Packet(msgspec.Struct, frozen=True):
    """A query as it can be compared: ports and ids are numbered in the order in which they first appear."""

    second: int
    transport: str
    port: int
    id: int
    name: str
    qtype: int


def packets(queries: list[LoggedQuery]) -> list[Packet]:
    ports, ids = list(dict.fromkeys(q.port for q in queries)), list(dict.fromkeys(q.id for q in queries))
    return [
        Packet(
            round((q.t_ns - queries[0].t_ns) / 1e9),
            q.transport,
            ports.index(q.port),
            ids.index(q.id),
            q.name,
            q.qtype,
        )
        for q in queries
    ]


def real(directory: Path, namespace: Path, resolver: Resolver, name: str, times: int) -> list[int]:
    """The errors that getaddrinfo gave."""
    conf, nss = directory / "resolv.conf", directory / "nsswitch.conf"
    conf.write_text(
        f"nameserver 127.0.0.1\nsearch {' '.join(resolver.search) or '.'}\noptions {resolver.options or 'ndots:1'}\n"
    )
    nss.write_text("hosts: dns\n")
    inside = ["unshare", "--mount", "sh", "-c", ENTER, "sh", str(conf), str(nss)]
    command = ["nsenter", f"--net={namespace}", *inside, sys.executable, "-c", PROGRAM, name, str(times)]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def ours(namespace: Path, resolver: Resolver, name: str, times: int, every_s: float) -> list[int]:
    """The errors of the driver's lookups: one thread that remembers, one lookup well after the other."""
    pace = Burst(size=1, every=seconds(every_s), count=times)
    load = Dns(pace=pace, names=(name,), state="long-lived")
    batches: list[SampleBatch] = []
    driver = DnsDriver(load, resolver, ["127.0.0.1"], "pod")
    netns.call(namespace, driver.run, Window(every_s * times), batches.append)
    return [ERRORS["" if "lost" in d or "TCP" in d else d] for d in Samples(batches).details]


SCRIPTS = {
    # rules, options, search list, name
    "all fine": ((), "timeout:1", (), NAME),
    "second lost once": ((Rule("drop", "AAAA", times=1),), "timeout:1", (), NAME),
    "first lost once": ((Rule("drop", "A", times=1),), "timeout:1", (), NAME),
    "AAAA never": ((Rule("drop", "AAAA"),), "timeout:1", (), NAME),
    "nothing": ((Rule("drop"),), "timeout:1 attempts:2", (), NAME),
    "single-request-reopen": ((), "timeout:1 single-request-reopen", (), NAME),
    "single-request": ((), "timeout:1 single-request", (), NAME),
    "use-vc": ((), "timeout:1 use-vc", (), NAME),
    "no-aaaa": ((), "timeout:1 no-aaaa", (), NAME),
    "truncated": ((Rule("truncate", "AAAA"),), "timeout:1", (), NAME),
    "SERVFAIL": ((Rule("SERVFAIL"),), "timeout:1", (), NAME),
    "SERVFAIL for AAAA": ((Rule("SERVFAIL", "AAAA"),), "timeout:1", (), NAME),
    "SERVFAIL in the list": ((Rule("SERVFAIL", name=f"{EXTERNAL}.{DOMAINS[0]}"),), "ndots:5", DOMAINS, EXTERNAL),
    "SERVFAIL, single-request": ((Rule("SERVFAIL", "A"),), "timeout:1 single-request", (), NAME),
    "REFUSED": ((Rule("REFUSED"),), "timeout:1", (), NAME),
    "no such name": ((), "ndots:5", DOMAINS, "no-such-name.example"),
    "search list": ((), "ndots:5", DOMAINS, EXTERNAL),
    "search list, one lost": ((Rule("drop", "AAAA", times=1),), "ndots:5 timeout:1", DOMAINS, EXTERNAL),
    "ndots reached": ((), "ndots:2", DOMAINS, EXTERNAL),
}


def compare(
    make: Callable[[str], Path],
    directory: Path,
    rules: tuple[Rule, ...],
    resolver: Resolver,
    name: str,
    times: int = 1,
    every_s: float = 0.1,
) -> tuple[list[Packet], list[Packet]]:
    """What the server got from us and from getaddrinfo, each in a namespace of its own with a server of its own."""

    def serve(who: str, look_up: Callable[[Path], list[int]]) -> tuple[list[int], list[Packet]]:
        space, log = make(who), directory / f"{who}.jsonl"
        config = {"rules": rules, "log": str(log), "names": (NAME, EXTERNAL), "delay": DELAY}
        with dns_server(namespace=space, port=53, **config):
            errors = look_up(space)
        return errors, packets(logged(log))

    with ThreadPoolExecutor(2) as threads:
        mine = threads.submit(serve, "ours", lambda space: ours(space, resolver, name, times, every_s))
        theirs = threads.submit(serve, "real", lambda space: real(directory, space, resolver, name, times))
    assert mine.result()[0] == theirs.result()[0]
    assert len(mine.result()[0]) == times
    return mine.result()[1], theirs.result()[1]


needs_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="this machine's getaddrinfo is not glibc's"
)


@pytest.mark.kernel
@needs_glibc
@pytest.mark.parametrize(("rules", "options", "search", "name"), SCRIPTS.values(), ids=SCRIPTS)
def test_it_sends_what_getaddrinfo_sends(
    netns_factory: Callable[[str], Path],
    tmp_path: Path,
    rules: tuple[Rule, ...],
    options: str,
    search: tuple[str, ...],
    name: str,
) -> None:
    mine, theirs = compare(netns_factory, tmp_path, rules, Resolver(options, search), name)
    assert mine == theirs != []


@pytest.mark.kernel
@needs_glibc
@pytest.mark.parametrize("lost", [1, 2])
def test_it_remembers_what_getaddrinfo_remembers(
    netns_factory: Callable[[str], Path], tmp_path: Path, lost: int
) -> None:
    """After one loss A and AAAA go one by one, after two from a new socket each, in the next lookup as well."""
    rules = (Rule("drop", "AAAA", times=lost),)
    resolver = Resolver("timeout:1", ())
    mine, theirs = compare(netns_factory, tmp_path, rules, resolver, NAME, times=2, every_s=lost + 0.3)
    timeless = [[msgspec.structs.replace(p, second=0) for p in seen] for seen in (mine, theirs)]
    assert timeless[0] == timeless[1]
    assert len(mine) == 4 + 2 * lost
