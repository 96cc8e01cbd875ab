"""Resolvers by name, and what a process remembers, caches and makes wait."""

from __future__ import annotations

import random
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.core import dnswire, resolvconf, stubs
from loadgen.core.dnswire import REFUSED, SERVFAIL, A
from loadgen.core.lookup import Done, Error, Mode, Open, Result
from loadgen.core.model import Resolver, StubName
from loadgen.core.resolvconf import ResolvConf
from loadgen.core.stubs import Process
from loadgen.core.units import NS_PER_S
from tests.virtualdns import Network, Race, Seen, always, fine, reply

FOUND = Result(Error.NONE, (b"\x01\x02\x03\x04",), (), (), Mode.PARALLEL)
LOST = Result(Error.AGAIN, (), (), (), Mode.PARALLEL)


@pytest.mark.parametrize("stub", get_args(StubName))
def test_every_stub_of_a_scenario_looks_up(stub: StubName) -> None:
    network = Network(fine, "ndots:5", search=("x",), stub=stub)
    took, result = network.lookup("a.test.")
    assert (result.error, result.lost, len(network.seen), round(took, 3)) == (Error.NONE, 0, 2, 0.003)
    assert resolvconf.dialect(stub).name


# The stub, a single-request lookup whose A is refused: seconds, and the sockets of its queries.
RELEASES = {"glibc-2.31": (10.0, "A0 A0"), "glibc-2.33": (10.0, "A0 A0"), "glibc-2.34": (0.006, "A0 A1")}


@pytest.mark.parametrize(("stub", "seconds", "wire"), [(stub, *row) for stub, row in RELEASES.items()])
def test_before_2_34_an_error_to_a_single_request_waits_for_a_reply_that_was_never_asked_for(
    stub: StubName, seconds: float, wire: str
) -> None:
    network = Network(always(SERVFAIL, A), "single-request", stub=stub)
    assert (round(network.lookup("a.test.")[0], 3), network.wire()) == (seconds, wire)


@pytest.mark.parametrize(("stub", "seconds"), [("glibc-2.31", 10.0), ("glibc-2.36", 0.006)])
def test_before_2_34_a_bare_header_is_no_reply(stub: StubName, seconds: float) -> None:
    def behaviour(seen):
        return seen.wire[:2] + bytes((0x80, 0x80 | REFUSED)) + bytes(8)

    assert round(Network(behaviour, stub=stub).lookup("a.test.")[0], 3) == seconds


def test_with_strict_error_one_bad_answer_spoils_the_pair() -> None:
    network = Network(always(SERVFAIL, A), "strict-error", stub="glibc-2.41")
    took, result = network.lookup("a.test.")
    assert (round(took, 3), result.error, network.wire()) == (0.006, Error.AGAIN, "A0 AAAA0 A1 AAAA1")


def process(stub: StubName, *, fresh: bool = False) -> Process:
    conf = resolvconf.from_settings(Resolver("", (), stub=stub), ["192.0.2.53"])
    return Process(stub, conf, random.Random(0), fresh=fresh)


def test_node_looks_up_two_names_at_once_by_four_threads_in_turn() -> None:
    node = process("node")
    first, second = node.begin("a.", 0), node.begin("b.", 0)
    assert first is not None
    assert second is not None
    assert (node.busy, node.begin("c.", 0)) == (True, None)
    node.end(first, FOUND, 1)
    third = node.begin("c.", 1)
    assert third is not None
    assert len({first.thread, second.thread, third.thread}) == 3


def test_new_node_processes_do_not_wait_for_each_other() -> None:
    node = process("node", fresh=True)
    assert all(node.begin("a.", 0) for _ in range(9))


def test_java_asks_once_and_remembers_for_half_a_minute_and_errors_for_ten_seconds() -> None:
    java = process("java")
    for name, result, seconds in (("a.", FOUND, 30), ("b.", LOST, 10)):
        first = java.begin(name, 0)
        assert first is not None
        assert java.begin(name, 0) is None  # others wait for the one who asks
        java.end(first, result, 0)
        known = java.begin(name, seconds * NS_PER_S - 1)
        assert known is not None
        assert known.lookup.start(0) == Done(result)
        java.end(known, result, 0)
        again = java.begin(name, seconds * NS_PER_S)
        assert again is not None
        assert isinstance(again.lookup.start(0), Open)


def test_a_lookup_of_java_that_was_abandoned_is_not_remembered() -> None:
    java = process("java")
    first = java.begin("a.", 0)
    assert first is not None
    java.end(first, first.lookup.abandon(), 0)
    second = java.begin("a.", 1)
    assert second is not None
    assert isinstance(second.lookup.start(1), Open)


@pytest.mark.parametrize(("fresh", "fallbacks"), [(False, Mode.SERIAL), (True, Mode.PARALLEL)])
def test_a_long_lived_process_shares_what_it_learns(fresh: bool, fallbacks: Mode) -> None:
    glibc = process("glibc-2.36", fresh=fresh)
    network = Network(Race())
    tickets = [glibc.begin("a.test.", 0) for _ in "ab"]
    states = [ticket.lookup._state for ticket in tickets if ticket is not None]
    network.lookup("a.test.", states[0])
    assert states[1].fallback is fallbacks


ONE_OF_EACH = ("glibc-2.31", "glibc-2.41", "musl-1.2.3", "musl-1.2.5", "go", "c-ares", "node-resolve")
BY_TCP = {"glibc-2.36": "use-vc", "go": "use-vc", "node-resolve": "use-vc", "musl-1.2.5": "", "c-ares": ""}


@settings(max_examples=300)
@given(st.sampled_from(ONE_OF_EACH), st.data())
def test_an_answer_with_one_byte_changed_or_cut_anywhere_is_data(stub: StubName, data: st.DataObject) -> None:
    """Every reply of a server is spoilt in its own way; the lookup ends, in time, and closes its sockets."""

    def spoilt(seen: Seen) -> bytes:
        whole = bytearray(reply(seen, data.draw(st.sampled_from([0, 2, 3, 5]))))
        at = data.draw(st.integers(0, len(whole) - 1))
        if data.draw(st.booleans()):
            return bytes(whole[:at])
        whole[at] = data.draw(st.integers(0, 255))
        return bytes(whole)

    took, result = Network(spoilt, "timeout:1 attempts:2", stub=stub).lookup("a.test.")
    assert result.error in set(Error)
    assert took < 60


@pytest.mark.parametrize(("stub", "options"), BY_TCP.items())
def test_a_stream_that_comes_byte_by_byte_says_the_same(stub: StubName, options: str) -> None:
    def behaviour(seen: Seen) -> bytes:
        return reply(seen) if seen.stream else reply(seen, flags=dnswire.TC | dnswire.RA, answers=0)

    results = [Network(behaviour, options, stub=stub, dribble=d).lookup("a.test.")[1] for d in (False, True)]
    assert results[0] == results[1]
    assert results[0].error is Error.NONE
    assert any(one.stream for one in results[0].rounds)


FILE = "nameserver 192.0.2.1\nsearch a b\noptions ndots:5 timeout:1 attempts:3 rotate single-request use-vc\n"
READ = {
    "glibc-2.36": {"rotate": True, "single_request": True, "use_vc": True},
    "musl-1.2.3": {"ignored": ("rotate", "single-request", "use-vc")},
    "go": {"rotate": True, "single_request": True, "use_vc": True},
    "c-ares": {"rotate": True, "use_vc": True, "ignored": ("single-request",)},
}


@pytest.mark.parametrize(("stub", "differs"), READ.items())
def test_the_same_file_means_different_things(stub: StubName, differs: dict[str, object]) -> None:
    common = {"servers": ("192.0.2.1",), "search": ("a", "b"), "ndots": 5, "timeout": 1, "attempts": 3}
    assert stubs.parse(stub, FILE) == ResolvConf(**{**common, **differs})


ENVIRONMENT = {"RES_OPTIONS": "timeout:9", "LOCALDOMAIN": "c"}


@pytest.mark.parametrize(
    ("stub", "looks"), [("glibc-2.36", True), ("c-ares", True), ("musl-1.2.5", False), ("go", False)]
)
def test_who_looks_at_the_environment(stub: StubName, looks: bool) -> None:
    conf = stubs.parse(stub, FILE, ENVIRONMENT)
    assert (conf.timeout, conf.search) == ((9, ("c",)) if looks else (1, ("a", "b")))
