"""Go's resolver in virtual time: what is sent, when, and what comes of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.core import dnswire
from loadgen.core.dnswire import AAAA, NXDOMAIN, REFUSED, SERVFAIL, A
from loadgen.core.golang import GoState
from loadgen.core.lookup import Error, Mode, Problem
from tests.virtualdns import (
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

PAIR = "A0 AAAA1"


def second_lost_once(seen: Seen) -> Answer:
    return None if seen.number == 2 else reply(seen)


# behaviour, options, seconds, error, the queries
SIGNATURES = {
    "fine": (fine, "", 0.003, "", PAIR),
    "the race cannot happen": (Race(), "", 0.003, "", PAIR),
    "AAAA lost": (second_lost_once, "", 5.003, "", f"{PAIR} AAAA2"),
    "AAAA lost, timeout:1": (second_lost_once, "timeout:1", 1.003, "", f"{PAIR} AAAA2"),
    "AAAA never": (no_aaaa_ever, "", 10.0, "", f"{PAIR} AAAA2"),
    "A never": (no_a_ever, "", 10.0, "", f"{PAIR} A2"),
    "nothing": (silent, "", 10.0, "EAI_AGAIN", f"{PAIR} A2 AAAA3"),
    "single-request": (fine, "single-request", 0.006, "", PAIR),
    "single-request-reopen": (fine, "single-request-reopen", 0.006, "", PAIR),
    "use-vc": (fine, "use-vc", 0.006, "", PAIR),
    "options that it does not know": (fine, "no-aaaa edns0", 0.003, "", PAIR),
    "SERVFAIL": (always(SERVFAIL), "", 0.006, "EAI_AGAIN", f"{PAIR} A2 AAAA3"),
    "SERVFAIL for AAAA": (always(SERVFAIL, AAAA), "", 0.006, "", f"{PAIR} AAAA2"),
    "REFUSED": (always(REFUSED), "", 0.006, "NO_RECOVERY", f"{PAIR} A2 AAAA3"),
    "NXDOMAIN": (always(NXDOMAIN), "", 0.003, "NXDOMAIN", PAIR),
    "no data": (lambda seen: reply(seen, answers=0), "", 0.003, "NXDOMAIN", PAIR),
    "lame": (lambda seen: reply(seen, flags=0, answers=0), "", 0.006, "NO_RECOVERY", f"{PAIR} A2 AAAA3"),
    "no server": (lambda _: Problem.REFUSED, "", 0.006, "EAI_AGAIN", f"{PAIR} A2 AAAA3"),
}


@pytest.mark.parametrize(("behaviour", "options", "seconds", "error", "wire"), SIGNATURES.values(), ids=SIGNATURES)
def test_signatures_of_go(behaviour: Behaviour, options: str, seconds: float, error: str, wire: str) -> None:
    network = Network(behaviour, options, stub="go")
    took, result = network.lookup("a.test.")
    assert (round(took, 3), result.error.value, network.wire()) == (seconds, error, wire)
    assert len({seen.id for seen in network.seen}) == len(network.seen)  # a new id at every try
    assert {round_.mode for round_ in result.rounds} == {Mode.SEPARATE}
    assert result.queries == len(network.seen)


def test_every_query_offers_1232_bytes() -> None:
    network = Network(fine, stub="go")
    network.lookup("a.test.")
    assert {seen.wire[-11:-6] for seen in network.seen} == {b"\0\0\x29" + (1232).to_bytes(2, "big")}


LONG = ".".join(["l" * 62] * 3 + ["l" * 63])
SEARCHES = {
    "ndots reached": ("ndots:2", "a.b.c", ["a.b.c.", "a.b.c.x.", "a.b.c.y."]),
    "ndots not reached": ("ndots:3", "a.b.c", ["a.b.c.x.", "a.b.c.y.", "a.b.c."]),
    "dot at the end": ("ndots:5", "a.b.", ["a.b."]),
    "too long with a domain": ("ndots:5", LONG, [LONG + "."]),
    "a bad name": ("", "a..b", []),
}


@pytest.mark.parametrize(("options", "name", "asked"), SEARCHES.values(), ids=SEARCHES)
def test_order_of_the_search_list(options: str, name: str, asked: list[str]) -> None:
    network = Network(always(NXDOMAIN), options, search=("x.", "y"), stub="go")
    assert network.lookup(name)[1].error is Error.NXDOMAIN
    assert [seen.name for seen in network.seen if seen.qtype == A] == asked


def test_the_list_goes_on_after_any_error() -> None:
    said = {"a.b.x.": SERVFAIL, "a.b.y.": REFUSED}
    network = Network(lambda seen: reply(seen, said.get(seen.name, 0)), "ndots:2", search=("x", "y"), stub="go")
    result = network.lookup("a.b")[1]
    assert (result.error, len(network.seen)) == (Error.NONE, 10)


def test_truncation_takes_only_that_query_to_tcp_with_its_id() -> None:
    def behaviour(seen: Seen) -> Answer:
        short = seen.qtype == A and not seen.stream
        return reply(seen, flags=dnswire.TC | dnswire.RA, answers=0) if short else reply(seen)

    network = Network(behaviour, stub="go")
    took, result = network.lookup("a.test.")
    assert (round(took, 3), result.detail) == (0.009, "by TCP after truncation")
    assert [(seen.qtype, seen.stream) for seen in network.seen] == [(A, False), (AAAA, False), (A, True)]
    assert [len(ids) for ids in network.ids()] == [1, 1]


def test_rotate_begins_one_server_further_at_every_query() -> None:
    network, state = Network(fine, "rotate", servers=3, stub="go"), GoState()
    for _ in range(2):
        network.lookup("a.test.", state)
    assert [seen.server for seen in network.seen] == [0, 1, 2, 0]


def test_servers_take_turns_within_an_attempt() -> None:
    network = Network(silent, "timeout:1", servers=2, stub="go")
    took, _ = network.lookup("a.test.")
    assert took == 4
    assert [seen.server for seen in network.seen if seen.qtype == A] == [0, 1, 0, 1]


def test_a_reply_that_does_not_fit_is_passed_over() -> None:
    network = Network(lambda seen: bytes(2) + reply(seen)[2:], "timeout:1 attempts:1", stub="go")
    assert network.lookup("a.test.")[0] == 1


@given(st.lists(st.binary(max_size=80), max_size=6), st.sampled_from(["", "single-request", "use-vc"]))
def test_whatever_a_server_sends_a_lookup_ends(replies: list[bytes], options: str) -> None:
    def behaviour(seen: Seen) -> Answer:
        noise = replies[seen.number % len(replies)] if replies else b""
        return seen.wire[:2] + noise if seen.number % 2 else noise

    took, result = Network(behaviour, f"timeout:1 {options}", stub="go").lookup("a.test.")
    assert result.error in set(Error)
    assert took <= 4.1
