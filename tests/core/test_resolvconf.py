"""resolv.conf as glibc takes it, and settings that must be exact."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.core import resolvconf
from loadgen.core.errors import ConfigError
from loadgen.core.model import Resolver, StubName
from loadgen.core.resolvconf import ResolvConf

POD = """\
search default.svc.cluster.local svc.cluster.local cluster.local
nameserver 10.96.0.10
options ndots:5
"""

# A file, and what differs from the defaults.
FILES = {
    "empty": ("", {}),
    "a pod's": (
        POD,
        {
            "search": ("default.svc.cluster.local", "svc.cluster.local", "cluster.local"),
            "servers": ("10.96.0.10",),
            "ndots": 5,
        },
    ),
    "comments": ("# a\n; b\n#nameserver 192.0.2.1\n", {}),
    "tabs": ("nameserver\t192.0.2.1 # whatever\nsearch\ta\tb", {"servers": ("192.0.2.1",), "search": ("a", "b")}),
    "the last list counts": ("search a b\ndomain c d\n", {"search": ("c",)}),
    "an empty list does not": ("search a\nsearch \n", {"search": ("a",), "ignored": ("search",)}),
    "IPv6": ("nameserver 2001:db8::1", {"servers": ("2001:db8::1",)}),
    "three servers": (
        "".join(f"nameserver 192.0.2.{i}\n" for i in range(1, 6)),
        {
            "servers": ("192.0.2.1", "192.0.2.2", "192.0.2.3"),
            "ignored": ("nameserver 192.0.2.4", "nameserver 192.0.2.5"),
        },
    ),
    "no address": ("nameserver dns.example", {"ignored": ("nameserver dns.example",)}),
    "unknown": ("sortlist 192.0.2.0\n options rotate", {"ignored": ("sortlist 192.0.2.0", "options rotate")}),
    "options add up": ("options ndots:5\noptions timeout:1 rotate", {"ndots": 5, "timeout": 1, "rotate": True}),
    "too large": ("options ndots:99 timeout:99 attempts:99", {"ndots": 15, "timeout": 30, "attempts": 5}),
    "not a number": ("options timeout:x attempts: ndots:3x", {"timeout": 0, "attempts": 0, "ndots": 3}),
    "a prefix is enough": ("options rotate-them single-request-repoen", {"rotate": True, "single_request": True}),
    "both spellings": ("options no_tld_query", {"no_tld_query": True}),
    "later versions' options": ("options strict-error", {"ignored": ("strict-error",)}),
    "all flags": (
        "options rotate edns0 single-request-reopen single-request no-tld-query no-reload use-vc trust-ad no-aaaa",
        dict.fromkeys(set(resolvconf.FLAGS.values()) - {"strict_error"}, True),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("content", "differs"), FILES.values(), ids=FILES)
def test_a_file_is_read_as_glibc_reads_it(content: str, differs: dict[str, object]) -> None:
    assert resolvconf.parse(content) == msgspec.structs.replace(ResolvConf(), **differs)


@given(st.text(max_size=200))
def test_any_file_can_be_read(content: str) -> None:
    conf = resolvconf.parse("options " + content + "\n" + content)
    assert 1 <= len(conf.servers) <= resolvconf.MAX_SERVERS


def test_settings_are_what_the_same_file_would_be() -> None:
    resolver = Resolver("ndots:5 timeout:1 attempts:3 single-request-reopen", ("a.test", "."))
    conf = resolvconf.from_settings(resolver, ["192.0.2.1"])
    assert conf == resolvconf.parse(f"nameserver 192.0.2.1\nsearch a.test .\noptions {resolver.options}")


BAD = {
    "a typo": (Resolver("single-request-repoen"), ["192.0.2.1"], "x.options: 'single-request-repoen' is not known"),
    "the keyword": (Resolver("options ndots:5"), ["192.0.2.1"], "x.options: 'options' is not known"),
    "no number": (Resolver("timeout:1s"), ["192.0.2.1"], "x.options: 'timeout:1s': write timeout:1 … timeout:30"),
    "cut by glibc": (Resolver("timeout:60"), ["192.0.2.1"], "'timeout:60': write timeout:1 … timeout:30"),
    "no attempt": (Resolver("attempts:0"), ["192.0.2.1"], "'attempts:0': write attempts:1 … attempts:5"),
    "a newer glibc": (Resolver("strict-error"), ["192.0.2.1"], "came with glibc 2.41"),
    "a bad domain": (Resolver("", ("a..b",)), ["192.0.2.1"], "x.search: 'a..b' has an empty label"),
    "no server": (Resolver(""), [], "one to 3 name servers, not 0"),
    "four servers": (Resolver(""), ["192.0.2.1"] * 4, "one to 3 name servers, not 4"),
    "a server's name": (Resolver(""), ["kube-dns"], "x: name server 'kube-dns' is no IP address"),
    "nowhere": (Resolver(server="coredns"), ["192.0.2.1"], "x.server: 'coredns' is not one of service, nodelocal"),
}


@pytest.mark.parametrize(("resolver", "servers", "says"), BAD.values(), ids=BAD)
def test_a_setting_that_cannot_be_honoured_is_refused(resolver: Resolver, servers: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolvconf.from_settings(resolver, servers, source="x")
    assert says in str(caught.value)


@pytest.mark.parametrize("stub", ["musl-1.2.3", "go", "c-ares"])
def test_what_only_another_resolver_knows_is_taken_and_does_nothing(stub: StubName) -> None:
    conf = resolvconf.from_settings(Resolver("no-aaaa timeout:2", (), stub=stub), ["192.0.2.1"])
    assert (conf.no_aaaa, conf.timeout, conf.ignored) == (False, 2, ("no-aaaa",))


@pytest.mark.parametrize("stub", ["musl-1.2.3", "go", "c-ares"])
def test_what_nobody_knows_is_refused_by_all(stub: StubName) -> None:
    with pytest.raises(ConfigError, match=r"'single-request-repoen' is not known to .*; it knows ndots:N"):
        resolvconf.from_settings(Resolver("single-request-repoen", (), stub=stub), ["192.0.2.1"])


LIMITS = [
    ("musl-1.2.3", "timeout:61", "write timeout:1 … timeout:60"),
    ("c-ares", "attempts:0", "write attempts:1 or more"),
    ("glibc-2.35", "no-aaaa", "came with glibc 2.36; the resolver here behaves as glibc 2.35"),
    ("glibc-2.40", "-rotate", "'-rotate' is not known to glibc 2.40"),
]


@pytest.mark.parametrize(("stub", "options", "says"), LIMITS)
def test_each_resolver_has_its_own_limits(stub: StubName, options: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolvconf.from_settings(Resolver(options, (), stub=stub), ["192.0.2.1"])
    assert says in str(caught.value)


def test_since_2_41_an_option_can_be_taken_back() -> None:
    settings = Resolver("rotate strict-error no-aaaa -rotate", (), stub="glibc-2.41")
    conf = resolvconf.from_settings(settings, ["192.0.2.1"])
    assert (conf.rotate, conf.strict_error, conf.no_aaaa, conf.ignored) == (False, True, True, ())


def test_the_environment_comes_last() -> None:
    conf = resolvconf.parse(POD, environ={"RES_OPTIONS": "ndots:2 use-vc", "LOCALDOMAIN": "a.test b.test"})
    assert (conf.ndots, conf.use_vc, conf.search) == (2, True, ("a.test", "b.test"))


# The second line of a file, and what is said about it.
BROKEN = {
    "a server's name": ("nameserver dns.example", "'dns.example' is no IP address"),
    "no keyword": ("nameservers 192.0.2.1", "'nameservers' is no keyword; there are nameserver, search"),
    "nothing after it": ("search", "nothing follows 'search'"),
    "indented": (" nameserver 192.0.2.2", "it must begin at the start of its line"),
    "a bad domain": ("search a..b", "'a..b' has an empty label"),
    "a long label": ("search " + "a" * 64, "has a label of more than 63 bytes"),
    "a typo": ("options single-request-repoen", "'single-request-repoen' is not known to glibc 2.36"),
    "cut by glibc": ("options timeout:60", "'timeout:60': write timeout:1 … timeout:30"),
}


@pytest.mark.parametrize(("line", "says"), BROKEN.values(), ids=BROKEN)
def test_a_line_that_does_not_parse_is_shown(line: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolvconf.strict(f"nameserver 192.0.2.1\n{line}\n", "/etc/resolv.conf")
    message = str(caught.value)
    assert message.startswith("/etc/resolv.conf, line 2: ")
    assert says in message
    assert message.endswith(f": {line.strip()!r}")


def test_a_file_without_a_server_is_refused_and_a_good_one_is_read() -> None:
    with pytest.raises(ConfigError, match="there is no `nameserver` line"):
        resolvconf.strict("search a.test\n", "here")
    assert resolvconf.strict("# comment\nsortlist 192.0.2.0\n" + POD, "here") == resolvconf.parse(
        "sortlist 192.0.2.0\n" + POD
    )
