"""c-ares, and Node's use of it, in virtual time: what is sent, when, and what comes of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.core import dnswire
from loadgen.core.cares import Channel
from loadgen.core.dnswire import AAAA, FORMERR, NXDOMAIN, REFUSED, SERVFAIL, A
from loadgen.core.lookup import Error, Problem
from tests.virtualdns import Answer, Behaviour, Network, Race, Seen, always, fine, no_aaaa_ever, reply, silent

PAIR = "A0 AAAA0"

# behaviour, options, seconds of the first lookup, error, the queries
SIGNATURES = {
    "fine": (fine, "", 0.003, "", PAIR),
    "race: A is answered, so AAAA is not asked again": (Race(), "", 2.0, "", PAIR),
    "race, timeout:1": (Race(), "timeout:1", 1.0, "", PAIR),
    "A lost": (lambda seen: None if seen.number == 1 else reply(seen), "", 2.003, "", f"{PAIR} A1"),
    "NXDOMAIN": (always(NXDOMAIN), "", 0.003, "NXDOMAIN", PAIR),
    "no data": (lambda seen: reply(seen, answers=0), "", 0.003, "EAI_NODATA", PAIR),
    "use-vc is overwritten": (fine, "use-vc", 0.003, "", PAIR),
}


@pytest.mark.parametrize(("behaviour", "options", "seconds", "error", "wire"), SIGNATURES.values(), ids=SIGNATURES)
def test_signatures_of_c_ares(behaviour: Behaviour, options: str, seconds: float, error: str, wire: str) -> None:
    network = Network(behaviour, options, stub="c-ares")
    took, result = network.lookup("a.test.")
    assert (round(took, 3), result.error.value, network.wire()) == (seconds, error, wire)
    assert result.queries == len(network.seen)


def test_the_wait_doubles_and_shrinks_at_random_by_up_to_a_half() -> None:
    network = Network(silent, "timeout:1 attempts:3", stub="c-ares")
    took, result = network.lookup("a.test.")
    at = [seen.t_ns / 1e9 for seen in network.seen if seen.qtype == A]
    assert at[1] == 1
    assert 1 <= at[2] - at[1] <= 2
    assert 2 <= took - at[2] <= 4
    assert result.error is Error.AGAIN
    assert len({seen.sock for seen in network.seen}) == 5  # both first ones share a socket, later ones have their own


@pytest.mark.parametrize("rcode", [SERVFAIL, REFUSED])
def test_an_error_is_asked_again_at_once_from_a_new_port(rcode: int) -> None:
    network = Network(always(rcode), stub="c-ares")
    took, result = network.lookup("a.test.")
    assert (took < 0.02, len(network.seen)) == (True, 6)
    assert result.error is (Error.AGAIN if rcode == SERVFAIL else Error.NO_RECOVERY)


def test_node_hands_an_error_on_and_asks_for_the_name_as_it_stands() -> None:
    network = Network(always(SERVFAIL), "ndots:5", search=("x", "y"), stub="node-resolve")
    took, result = network.lookup("a.test")
    assert (took, result.error, network.wire()) == (0.003, Error.AGAIN, PAIR)
    assert {seen.name for seen in network.seen} == {"a.test."}


def test_node_looks_at_its_timeouts_once_a_second() -> None:
    """As measured: 2.0 s, not 2.0 + 3 ms after the last answer, then 1.0 s although c-ares would wait 0.25 s."""
    network, channel = Network(Race(), stub="node-resolve"), Channel()
    took = [round(network.lookup("a.test.", channel)[0], 2) for _ in range(3)]
    assert took == [2.01, 2.01, 1.01]


def test_a_channel_that_knows_its_server_waits_five_times_its_mean_and_a_quarter_of_a_second_at_least() -> None:
    network, channel = Network(fine, stub="c-ares"), Channel()
    for _ in range(2):
        network.lookup("a.test.", channel)
    network.behaviour = no_aaaa_ever
    assert round(network.lookup("a.test.", channel)[0], 3) == 0.25


def test_a_failed_server_is_asked_after_the_others() -> None:
    network, channel = (
        Network(lambda seen: None if seen.server == 0 else reply(seen), servers=2, stub="c-ares"),
        Channel(),
    )
    network.lookup("a.test.", channel)
    network.lookup("a.test.", channel)
    assert [seen.server for seen in network.seen] == [0, 0, 1, 1, 1, 1]


def test_a_cookie_is_sent_until_a_server_answers_without_one() -> None:
    network, channel = Network(fine, stub="c-ares"), Channel()
    for _ in range(2):
        network.lookup("a.test.", channel)
    assert [len(seen.wire) for seen in network.seen] == [47, 47, 35, 35]


def test_a_server_that_knows_no_edns_is_asked_without() -> None:
    def behaviour(seen: Seen) -> Answer:
        return reply(seen, FORMERR) if seen.wire[11] else reply(seen)

    network = Network(behaviour, stub="c-ares")
    assert network.lookup("a.test.")[1].error is Error.NONE
    assert [len(seen.wire) for seen in network.seen] == [47, 47, 24, 24]


def test_names_of_a_search_list_go_by_the_same_socket() -> None:
    said = {"a.b.": 0}
    network = Network(
        lambda seen: reply(seen, said.get(seen.name, NXDOMAIN)), "ndots:2", search=("x", "y"), stub="c-ares"
    )
    result = network.lookup("a.b")[1]
    assert (result.error, network.wire()) == (Error.NONE, " ".join([PAIR] * 3))


def test_truncation_takes_both_to_one_connection() -> None:
    def behaviour(seen: Seen) -> Answer:
        return reply(seen) if seen.stream else reply(seen, flags=dnswire.TC | dnswire.RA, answers=0)

    network = Network(behaviour, stub="c-ares")
    result = network.lookup("a.test.")[1]
    assert (result.error, result.detail) == (Error.NONE, "by TCP after truncation")
    assert [(seen.stream, seen.sock) for seen in network.seen] == [(False, 0), (False, 0), (True, 1), (True, 1)]


def test_garbage_breaks_the_socket_and_all_on_it_is_asked_again() -> None:
    network = Network(lambda seen: b"\xff" * 20 if seen.number == 1 else reply(seen), stub="c-ares")
    result = network.lookup("a.test.")[1]
    assert result.error is Error.NONE
    assert [seen.qtype for seen in network.seen] == [A, AAAA, A, AAAA]


def test_an_unreachable_server_costs_no_time() -> None:
    took, result = Network(lambda _: Problem.REFUSED, stub="c-ares").lookup("a.test.")
    assert (took < 0.1, result.error) == (True, Error.AGAIN)


@given(st.lists(st.binary(max_size=80), max_size=6), st.sampled_from(["c-ares", "node-resolve"]))
def test_whatever_a_server_sends_a_lookup_ends(replies: list[bytes], stub: str) -> None:
    def behaviour(seen: Seen) -> Answer:
        noise = replies[seen.number % len(replies)] if replies else b""
        return seen.wire[:2] + noise if seen.number % 2 else noise

    network = Network(behaviour, "timeout:1", stub=stub)
    assert network.lookup("a.test.")[1].error in set(Error)
