"""The resolver in virtual time against a network written as a function: what is sent, when, and what comes of it."""

from __future__ import annotations

import heapq
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.core import dnswire, resolvconf
from loadgen.core.dnswire import AAAA, NOERROR, NOTIMP, NXDOMAIN, REFUSED, SERVFAIL, A
from loadgen.core.glibc import Lookup, ResolverState
from loadgen.core.lookup import (
    Did,
    Error,
    Mode,
    Open,
    Problem,
    Reply,
    Send,
    Wait,
)
from loadgen.core.units import NS_PER_S
from tests.virtualdns import (
    ADDRESS,
    Answer,
    Behaviour,
    Network,
    Race,
    Seen,
    always,
    fine,
    no_a_ever,
    no_aaaa_ever,
    reply,
    silent,
)

POD_SEARCH = ("default.svc.cluster.local", "svc.cluster.local", "cluster.local")

PAIR_LOST = "A0 AAAA0 A0 AAAA0"
# behaviour, options, seconds of three lookups of a long-lived process, error, the first lookup's queries.
# Seconds as measured with glibc 2.36 through an nft rule that drops the racing query, server 3 ms away.
SIGNATURES = {
    "fine": (fine, "", (0.003, 0.003, 0.003), "", "A0 AAAA0"),
    "race": (Race(), "", (5.006, 0.006, 0.006), "", PAIR_LOST),
    "race, timeout:1": (Race(), "timeout:1 attempts:3", (1.006, 0.006, 0.006), "", PAIR_LOST),
    "race, single-request": (Race(), "single-request", (0.006,) * 3, "", "A0 AAAA0"),
    "race, single-request-reopen": (Race(), "single-request-reopen", (0.006,) * 3, "", "A0 AAAA1"),
    "race, use-vc": (lambda s: fine(s) if s.stream else None, "use-vc", (0.006,) * 3, "", "A0 AAAA0"),
    "race, no-aaaa": (Race(), "no-aaaa", (0.003,) * 3, "", "A0"),
    "AAAA never": (no_aaaa_ever, "", (15.0, 5.0, 5.0), "", "A0 AAAA0 A0 AAAA0 A1 AAAA2"),
    "A never": (no_a_ever, "", (15.0, 10.0, 10.0), "EAI_AGAIN", "A0 AAAA0 A0 A0"),
    "nothing": (silent, "", (10.0,) * 3, "EAI_AGAIN", PAIR_LOST),
    "SERVFAIL": (always(SERVFAIL), "", (0.006,) * 3, "EAI_AGAIN", PAIR_LOST),
    "REFUSED": (always(REFUSED), "", (0.006,) * 3, "EAI_AGAIN", PAIR_LOST),
    "NOTIMP": (always(NOTIMP), "", (0.006,) * 3, "EAI_AGAIN", PAIR_LOST),
    "SERVFAIL for A": (always(SERVFAIL, A), "", (0.003,) * 3, "", "A0 AAAA0"),
    "SERVFAIL for AAAA": (always(SERVFAIL, AAAA), "", (0.003,) * 3, "", "A0 AAAA0"),
    "SERVFAIL for A, single-request": (always(SERVFAIL, A), "single-request", (0.006,) * 3, "EAI_AGAIN", "A0 A1"),
    "SERVFAIL for AAAA, single-request": (always(SERVFAIL, AAAA), "single-request", (0.006,) * 3, "", "A0 AAAA0"),
    "SERVFAIL, use-vc": (always(SERVFAIL), "use-vc", (0.006,) * 3, "EAI_AGAIN", "A0 AAAA0"),
    "REFUSED, use-vc": (always(REFUSED), "use-vc", (0.006,) * 3, "NO_RECOVERY", "A0 AAAA0"),
    "NXDOMAIN": (always(NXDOMAIN), "", (0.003,) * 3, "NXDOMAIN", "A0 AAAA0"),
    "no server": (lambda _: Problem.REFUSED, "", (0.006,) * 3, "EAI_AGAIN", "A0 AAAA0 A1 AAAA1"),
    "attempts": (silent, "timeout:1 attempts:4", (4.0,) * 3, "EAI_AGAIN", "A0 AAAA0 " * 3 + "A0 AAAA0"),
}


@pytest.mark.parametrize(("behaviour", "options", "seconds", "error", "wire"), SIGNATURES.values(), ids=SIGNATURES)
def test_signatures_of_glibc(
    behaviour: Behaviour, options: str, seconds: tuple[float, ...], error: str, wire: str
) -> None:
    network, state = Network(behaviour, options), ResolverState()
    runs = [network.lookup("a.test.", state)]
    assert network.wire() == wire
    assert all(len(ids) <= 1 for ids in network.ids())  # the same id at every try
    runs += [network.lookup("a.test.", state) for _ in seconds[1:]]
    assert [round(took, 3) for took, _ in runs] == list(seconds)
    assert {result.error for _, result in runs} == {error}


def test_a_pair_is_one_send_with_two_ids_and_serial_queries_are_two() -> None:
    for options, sends in (("", 1), ("single-request", 2), ("single-request-reopen", 2), ("use-vc", 1)):
        network = Network(fine, options)
        network.lookup("a.test.")
        assert network.sends == sends
        assert len({s.id for s in network.seen}) == 2


def test_a_fresh_process_pays_for_the_race_every_time() -> None:
    network = Network(Race())
    assert [round(network.lookup("a.test.")[0]) for _ in range(3)] == [5, 5, 5]


def test_ids_come_from_the_seed_and_differ_from_name_to_name() -> None:
    def ids(seed: int) -> list[int]:
        network = Network(always(NXDOMAIN), "ndots:5", search=POD_SEARCH)
        network.lookup("www.example.com", seed=seed)
        return [s.id for s in network.seen]

    assert ids(1) == ids(1)
    assert len(set(ids(1))) == 8
    assert ids(1) != ids(2)


def test_only_the_first_name_of_a_search_list_pays_for_the_race() -> None:
    race = Race()

    def behaviour(seen: Seen) -> Answer:
        said = race(seen)
        return said if said is None or seen.name == "www.example.com." else reply(seen, NXDOMAIN)

    network, state = Network(behaviour, "ndots:5", search=(*POD_SEARCH, "node.test")), ResolverState()
    first, second = network.lookup("www.example.com", state)[0], network.lookup("www.example.com", state)[0]
    assert (round(first, 2), round(second, 2)) == (5.03, 0.03)
    assert state.fallback is Mode.SERIAL
    assert len(network.seen) == 12 + 10  # 2 for each of 5 names, and the pair that was asked again
    assert [s.sock for s in network.seen[:6]] == [0, 0, 0, 0, 1, 1]  # a new port for each name


SEARCHES = {
    # options, search list, name, and the names asked when none exists
    "ndots reached": ("ndots:2", ("x.", "y"), "a.b.c", ["a.b.c.", "a.b.c.x.", "a.b.c.y."]),
    "ndots not reached": ("ndots:3", ("x", "y"), "a.b.c", ["a.b.c.x.", "a.b.c.y.", "a.b.c."]),
    "no dot": ("", ("x",), "a", ["a.x.", "a."]),
    "dot at the end": ("ndots:5", ("x",), "a.b.", ["a.b."]),
    "no list": ("ndots:5", (), "a.b", ["a.b."]),
    "ndots:0": ("ndots:0", ("x",), "a", ["a.", "a.x."]),
    "root on the list": ("ndots:5", ("x", "."), "a.b", ["a.b.x.", "a.b."]),
    "no-tld-query": ("no-tld-query", ("x",), "a", ["a.x."]),
    "no-tld-query, dotted": ("no-tld-query ndots:2", ("x",), "a.b", ["a.b.x.", "a.b."]),
    "no-tld-query, no list": ("no-tld-query", (), "a", ["a."]),
}


@pytest.mark.parametrize(("options", "search", "name", "asked"), SEARCHES.values(), ids=SEARCHES)
def test_order_of_the_search_list(options: str, search: tuple[str, ...], name: str, asked: list[str]) -> None:
    network = Network(always(NXDOMAIN), options, search=search)
    assert network.lookup(name)[1].error is Error.NXDOMAIN
    assert [s.name for s in network.seen if s.qtype == A] == asked


# What a name of the list (x, y), then the name itself, get; the names asked and the error.
NODATA_ = "nodata"
WALKS = {
    "found in the list": ({"a.b.y.": NOERROR}, ["a.b.x.", "a.b.y."], Error.NONE),
    "NODATA goes on": ({"a.b.x.": NODATA_, "a.b.y.": NOERROR}, ["a.b.x.", "a.b.y."], Error.NONE),
    "NODATA is remembered": ({"a.b.x.": NODATA_}, ["a.b.x.", "a.b.y.", "a.b."], Error.NODATA),
    "SERVFAIL goes on": ({"a.b.x.": SERVFAIL, "a.b.y.": NOERROR}, ["a.b.x.", "a.b.x.", "a.b.y."], Error.NONE),
    "SERVFAIL is remembered": ({"a.b.x.": SERVFAIL}, ["a.b.x.", "a.b.x.", "a.b.y.", "a.b."], Error.AGAIN),
    "silence ends the list": ({"a.b.x.": None}, ["a.b.x.", "a.b.x.", "a.b."], Error.NXDOMAIN),
    "REFUSED ends the list": ({"a.b.x.": REFUSED, "a.b.": NOERROR}, ["a.b.x.", "a.b.x.", "a.b."], Error.NONE),
    "no server ends all": ({"a.b.x.": Problem.REFUSED}, ["a.b.x.", "a.b.x."], Error.AGAIN),
}


@pytest.mark.parametrize(("said", "asked", "error"), WALKS.values(), ids=WALKS)
def test_what_goes_on_with_the_search_list(said: dict, asked: list[str], error: Error) -> None:
    def behaviour(seen: Seen) -> Answer:
        what = said.get(seen.name, NXDOMAIN)
        if what == NODATA_:
            return reply(seen, answers=0)
        return reply(seen, what) if isinstance(what, int) else what

    network = Network(behaviour, "ndots:5 timeout:1", search=("x", "y"))
    assert network.lookup("a.b")[1].error is error
    assert [s.name for s in network.seen if s.qtype == A] == asked


def test_a_name_that_is_too_long_with_its_domain_is_not_sent() -> None:
    network = Network(fine, "ndots:5", search=("d" * 60 + ".test",))
    took, result = network.lookup(".".join(["l" * 60] * 4))
    assert [s.name.count(".") for s in network.seen] == [4, 4]  # only as it is
    assert (took, result.error) == (0.003, Error.NONE)


@pytest.mark.parametrize(
    ("servers", "options", "instants"),
    [
        (1, "", [0, 5]),
        (2, "", [0, 5, 10, 15]),
        (3, "", [0, 5, 8, 14, 19, 22]),
        (3, "timeout:1", [0, 1, 2, 3, 4, 5]),
        (2, "timeout:30 attempts:1", [0, 30]),
    ],
)
def test_how_long_each_server_is_waited_for(servers: int, options: str, instants: list[int]) -> None:
    network = Network(silent, options, servers=servers)
    network.lookup("a.test.")
    firsts = [s for s in network.seen if s.qtype == A]
    assert [s.t_ns // NS_PER_S for s in firsts] == instants
    assert [s.server for s in firsts] == [i % servers for i in range(len(firsts))]
    assert {s.sock for s in firsts} == set(range(servers))  # each server's socket is kept for the next try


def test_a_reply_that_comes_while_the_next_server_is_asked_counts_when_its_own_turn_comes() -> None:
    def behaviour(seen: Seen) -> Answer:
        return None

    network = Network(behaviour, servers=2)
    late = Network._query

    def query(via: Open, wire: bytes) -> None:
        late(network, via, wire)
        if via.server == 0 and len(network.seen) <= 2:  # the first try of the first server: after 7 s
            answer = Reply(0, via.sock, reply(network.seen[-1]))
            heapq.heappush(network._due, (7 * NS_PER_S, len(network.seen), answer))

    network._query = query
    took, result = network.lookup("a.test.")
    assert (took, result.error) == (10, Error.NONE)
    assert [r.end for r in result.rounds] == ["timeout", "timeout", "answered"]


def test_rotate_begins_one_server_further_at_every_name() -> None:
    network, state = Network(fine, "rotate", servers=3), ResolverState(rotation=1)
    for _ in range(3):
        network.lookup("a.test.", state)
    assert [s.server for s in network.seen if s.qtype == A] == [1, 2, 0]


def test_replies_that_are_none_of_ours_are_passed_over() -> None:
    def behaviour(seen: Seen) -> Answer:
        return reply(msgspec.structs.replace(seen, wire=bytes(2) + seen.wire[2:]), NXDOMAIN)

    network = Network(behaviour, "timeout:1 attempts:1")
    assert network.lookup("a.test.")[1].rounds[0].end == "timeout"


def test_replies_may_come_in_either_order_and_in_other_case() -> None:
    held: list[Seen] = []

    def behaviour(seen: Seen) -> Answer:
        held.append(seen)
        return reply(held[-1]).replace(b"test", b"TEST")

    _, result = Network(behaviour).lookup("a.test.")
    assert (result.a, result.aaaa) == ((ADDRESS[A],), (ADDRESS[AAAA],))


@pytest.mark.parametrize("rcode", [SERVFAIL, REFUSED, NOTIMP])
def test_a_bare_header_with_an_error_counts_as_a_reply(rcode: int) -> None:
    network = Network(lambda seen: dnswire.reply(seen.wire, 12, rcode))
    assert network.lookup("a.test.")[0] == 0.006


def test_a_lame_reply_counts_as_an_error() -> None:
    network = Network(lambda seen: reply(seen, flags=0, answers=0))
    took, result = network.lookup("a.test.")
    assert (took, result.error, len(network.seen)) == (0.006, Error.AGAIN, 4)


def test_one_server_fails_and_the_next_answers_at_once() -> None:
    network = Network(lambda s: Problem.REFUSED if s.server == 0 else reply(s), servers=2)
    took, result = network.lookup("a.test.")
    assert (took, result.error, network.wire()) == (0.006, Error.NONE, "A0 AAAA0 A1 AAAA1")
    assert result.lost == 2


def test_truncation_takes_the_whole_pair_to_tcp() -> None:
    def behaviour(seen: Seen) -> Answer:
        return reply(seen) if seen.stream else reply(seen, flags=dnswire.TC | dnswire.RA, answers=0)

    network = Network(behaviour)
    took, result = network.lookup("a.test.")
    assert [(s.stream, s.sock) for s in network.seen] == [(False, 0), (False, 0), (True, 1), (True, 1)]
    assert (round(took, 3), result.detail, result.lost) == (0.009, "by TCP after truncation", 0)


@pytest.mark.parametrize(
    ("problems", "sockets", "error"),
    [
        ([Problem.RESET], 2, Error.NONE),
        ([Problem.RESET, Problem.RESET], 2, Error.AGAIN),
        ([Problem.OTHER], 1, Error.AGAIN),
    ],
)
def test_use_vc_tries_once_more_after_a_reset_only(problems: list[Problem], sockets: int, error: Error) -> None:
    def behaviour(seen: Seen) -> Answer:
        return problems[seen.sock] if seen.sock < len(problems) else reply(seen)

    network = Network(behaviour, "use-vc attempts:3")
    assert network.lookup("a.test.")[1].error is error
    assert len({s.sock for s in network.seen}) == sockets


def test_use_vc_fails_when_the_server_closes_after_one_reply() -> None:
    network = Network(lambda seen: reply(seen) if seen.qtype == A else b"", "use-vc", servers=2)
    result = network.lookup("a.test.")[1]
    assert (result.error, len(result.rounds), result.lost) == (Error.AGAIN, 2, 2)  # each server once


@pytest.mark.parametrize(("options", "tried"), [("use-vc", 1), ("attempts:2", 2)])
def test_a_refused_connection_ends_the_search_at_once(options: str, tried: int) -> None:
    """As when a connection is refused later: errno is ECONNREFUSED, and the list is not gone through."""
    network = Network(fine, f"ndots:5 {options}", search=POD_SEARCH)
    network.refuse_open[0] = Problem.REFUSED
    result = network.lookup("www.example.com")[1]
    assert (result.error, network.opened) == (Error.AGAIN, tried)


@pytest.mark.parametrize("problem", [Problem.NO_PORTS, Problem.NO_FILES])
@pytest.mark.parametrize("options", ["", "use-vc"])
def test_a_machine_without_sockets_is_named(problem: Problem, options: str) -> None:
    network = Network(fine, options)
    network.refuse_open[0] = problem
    result = network.lookup("a.test.")[1]
    assert (result.detail, result.queries, result.rounds) == (problem.value, 0, ())


def test_options_that_change_the_query() -> None:
    for options, flags, size in (("", 0x01, 24), ("edns0", 0x01, 35), ("trust-ad", 0x01, 24)):
        network = Network(fine, options)
        network.lookup("a.test.")
        assert network.seen[0].wire[2] == flags
        assert network.seen[0].wire[3] == (0x20 if options == "trust-ad" else 0)
        assert len(network.seen[0].wire) == size


def test_an_abandoned_lookup_counts_what_it_waits_for() -> None:
    lookup = Lookup("a.test.", resolvconf.ResolvConf(), ResolverState(), random.Random(0))
    assert isinstance(lookup.start(0), Open)
    assert isinstance(lookup.step(Did(0)), Send)
    assert isinstance(lookup.step(Did(0)), Wait)
    result = lookup.abandon()
    assert (result.error, result.lost, result.rounds[0].end) == (Error.ABANDONED, 2, "abandoned")


@given(st.lists(st.binary(max_size=80), max_size=6), st.sampled_from(["", "single-request", "use-vc", "no-aaaa"]))
def test_whatever_a_server_sends_a_lookup_ends(replies: list[bytes], options: str) -> None:
    def behaviour(seen: Seen) -> Answer:
        noise = replies[seen.number % len(replies)] if replies else b""
        return seen.wire[:2] + noise if seen.number % 2 else noise

    network = Network(behaviour, f"timeout:1 {options}")
    assert network.lookup("a.test.")[1].error in set(Error)
