"""resolv.conf as musl, Go and c-ares take it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.core import dialects
from loadgen.core.resolvconf import CARES, ResolvConf

# A file, and what differs from the defaults.
MUSL = {
    "empty": ("", {}),
    "its three numbers": ("options ndots:5 timeout:9 attempts:4", {"ndots": 5, "timeout": 9, "attempts": 4}),
    "cut": ("options ndots:99 timeout:99 attempts:99", {"ndots": 15, "timeout": 60, "attempts": 10}),
    "anywhere in the line": ("options xndots:5", {"ndots": 5, "ignored": ("xndots:5",)}),
    "only the first is looked at": ("options ndots: ndots:5", {"ignored": ("ndots:",)}),
    "no attempt would end the process": ("options attempts:0", {"attempts": 1}),
    "no flag": ("options rotate use-vc", {"ignored": ("rotate", "use-vc")}),
    "the last list counts": ("search a b\ndomain c d", {"search": ("c", "d")}),
    "too long": ("search " + "a" * 300, {"ignored": ("search " + "a" * 300,)}),
    "indented": (" nameserver 192.0.2.1", {"ignored": ("nameserver 192.0.2.1",)}),
    "four servers": (
        "".join(f"nameserver 192.0.2.{i}\n" for i in range(1, 5)),
        {"servers": ("192.0.2.1", "192.0.2.2", "192.0.2.3"), "ignored": ("nameserver 192.0.2.4",)},
    ),
}
GO_DEFAULT = ResolvConf(servers=("127.0.0.1", "::1"))
GO = {
    "empty": ("", {}),
    "flags": (
        "options rotate single-request-reopen tcp trust-ad no-reload edns0",
        {"rotate": True, "single_request": True, "use_vc": True, "trust_ad": True, "no_reload": True},
    ),
    "numbers": ("options ndots:99 timeout:0 attempts:-3", {"ndots": 15, "timeout": 1, "attempts": 1}),
    "unknown": ("options no-aaaa\nsortlist x", {"ignored": ("sortlist x", "no-aaaa")}),
    "the root is no domain": ("search . a", {"search": ("a",)}),
    "an empty list counts": ("search a\nsearch", {"search": ()}),
    "a domain": ("domain a b", {"search": ("a",)}),
    "a server's name": ("nameserver dns.example", {"ignored": ("nameserver dns.example",)}),
}
ARES = {
    "empty": ("", {}),
    "numbers": ("options ndots:99 timeout:99 attempts:9", {"ndots": 99, "timeout": 99, "attempts": 9}),
    "synonyms": ("options retrans:3 retry:4 usevc", {"timeout": 3, "attempts": 4, "use_vc": True}),
    "no numbers": ("options timeout:0 attempts:x", {"ignored": ("timeout:0", "attempts:x")}),
    "search wins": ("search a b\ndomain c", {"search": ("a", "b")}),
    "a domain": ("domain c d\n", {"search": ("c",)}),
    "many servers": (
        "".join(f"nameserver 192.0.2.{i}\n" for i in range(1, 6)),
        {"servers": tuple(f"192.0.2.{i}" for i in range(1, 6))},
    ),
    "unknown": ("options single-request\nfamily inet4", {"ignored": ("family inet4", "single-request")}),
}


@pytest.mark.parametrize(("content", "differs"), MUSL.values(), ids=MUSL)
def test_a_file_is_read_as_musl_reads_it(content: str, differs: dict[str, object]) -> None:
    assert dialects.parse_musl(content) == msgspec.structs.replace(ResolvConf(), **differs)


@pytest.mark.parametrize(("content", "differs"), GO.values(), ids=GO)
def test_a_file_is_read_as_go_reads_it(content: str, differs: dict[str, object]) -> None:
    assert dialects.parse_go(content) == msgspec.structs.replace(GO_DEFAULT, **differs)


@pytest.mark.parametrize(("content", "differs"), ARES.values(), ids=ARES)
def test_a_file_is_read_as_c_ares_reads_it(content: str, differs: dict[str, object]) -> None:
    assert dialects.parse_cares(content) == msgspec.structs.replace(CARES.defaults, **differs)


@given(st.text(max_size=200))
def test_any_file_can_be_read(content: str) -> None:
    for parse in (dialects.parse_musl, dialects.parse_go, dialects.parse_cares):
        conf = parse("options " + content + "\n" + content)
        assert conf.servers
        assert min(conf.attempts, conf.timeout + 1) >= 1
