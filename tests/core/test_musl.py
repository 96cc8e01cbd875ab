"""musl's resolver in virtual time: what is sent, when, and what comes of it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.core import dnswire
from loadgen.core.dnswire import NOERROR, NXDOMAIN, REFUSED, SERVFAIL, A
from loadgen.core.lookup import Error, Problem
from loadgen.core.units import NS_PER_S
from tests.virtualdns import Answer, Behaviour, Network, Race, Seen, always, fine, no_aaaa_ever, reply, silent

OLD, NEW = "musl-1.2.3", "musl-1.2.5"
PAIR = "A0 AAAA0"
NODE_SEARCH = ("default.svc.cluster.local", "svc.cluster.local", "cluster.local", "node.test")


def first_pair_raced(seen: Seen) -> Answer:
    return Race()(seen) if seen.number > 2 else fine(seen)


# behaviour, options, seconds, error, the queries. Seconds as musl 1.2.3 was measured to take, server 3 ms away.
SIGNATURES = {
    "fine": (fine, "", 0.003, "", PAIR),
    "race": (Race(), "", 2.503, "", f"{PAIR} AAAA0"),
    "race, timeout:1 attempts:4": (Race(), "timeout:1 attempts:4", 0.253, "", f"{PAIR} AAAA0"),
    "options that it does not know": (Race(), "single-request-reopen use-vc no-aaaa", 2.503, "", f"{PAIR} AAAA0"),
    "AAAA never": (no_aaaa_ever, "", 5.0, "EAI_AGAIN", f"{PAIR} AAAA0"),
    "nothing": (silent, "", 5.0, "EAI_AGAIN", f"{PAIR} {PAIR}"),
    "SERVFAIL": (always(SERVFAIL), "", 5.0, "EAI_AGAIN", " ".join([PAIR] * 6)),
    "REFUSED": (always(REFUSED), "", 5.0, "EAI_AGAIN", f"{PAIR} {PAIR}"),
    "NXDOMAIN": (always(NXDOMAIN), "", 0.003, "NXDOMAIN", PAIR),
    "no server": (lambda _: Problem.REFUSED, "", 5.0, "EAI_AGAIN", f"{PAIR} {PAIR}"),
}


@pytest.mark.parametrize(("behaviour", "options", "seconds", "error", "wire"), SIGNATURES.values(), ids=SIGNATURES)
@pytest.mark.parametrize("stub", [OLD, NEW])
def test_signatures_of_musl(
    stub: str, behaviour: Behaviour, options: str, seconds: float, error: str, wire: str
) -> None:
    if isinstance(behaviour, Race):
        behaviour = Race()
    network = Network(behaviour, options, stub=stub)
    took, result = network.lookup("a.test.")
    assert (round(took, 3), result.error.value, network.wire()) == (seconds, error, wire)
    assert all(len(ids) == 1 for ids in network.ids())  # the same id at every try
    assert {len(seen.wire) for seen in network.seen} == {24}  # no EDNS
    assert result.queries == len(network.seen)


def test_it_never_learns() -> None:
    network = Network(Race(), stub=OLD)
    assert [round(network.lookup("a.test.")[0], 1) for _ in range(3)] == [2.5, 2.5, 2.5]


def test_every_name_of_a_search_list_pays_for_the_race() -> None:
    race = Race()

    def behaviour(seen: Seen) -> Answer:
        said = race(seen)
        return said if said is None or seen.name == "www.example.com." else reply(seen, NXDOMAIN)

    network = Network(behaviour, "ndots:5", search=NODE_SEARCH, stub=OLD)
    took, result = network.lookup("www.example.com")
    assert (round(took, 1), result.error) == (12.5, Error.NONE)
    assert [seen.sock for seen in network.seen] == [i for i in range(5) for _ in range(3)]  # a new port for each name


WALKS = {
    "NXDOMAIN goes on": ({"a.b.x.": NXDOMAIN}, "ndots:2", ["a.b.x.", "a.b.y."], ""),
    "NODATA ends it": ({"a.b.x.": "nodata"}, "ndots:2", ["a.b.x."], "EAI_NODATA"),
    "SERVFAIL ends it": ({"a.b.x.": SERVFAIL}, "ndots:2 timeout:1", ["a.b.x."] * 6, "EAI_AGAIN"),
    "silence ends it": ({"a.b.x.": None}, "ndots:2 timeout:1", ["a.b.x."] * 2, "EAI_AGAIN"),
    "ndots reached": ({"a.b.": NXDOMAIN}, "ndots:1", ["a.b."], "NXDOMAIN"),
}


@pytest.mark.parametrize(("said", "options", "asked", "error"), WALKS.values(), ids=WALKS)
def test_only_a_name_that_does_not_exist_goes_on_with_the_list(
    said: dict, options: str, asked: list[str], error: str
) -> None:
    def behaviour(seen: Seen) -> Answer:
        what = said.get(seen.name, NOERROR)
        if what == "nodata":
            return reply(seen, answers=0)
        return reply(seen, what) if isinstance(what, int) else what

    network = Network(behaviour, options, search=("x", "y"), stub=NEW)
    assert network.lookup("a.b")[1].error.value == error
    assert [seen.name for seen in network.seen if seen.qtype == A] == asked


def test_all_servers_are_asked_at_once_and_the_first_answer_counts() -> None:
    network = Network(lambda seen: fine(seen) if seen.server == 2 else None, servers=3, stub=NEW)
    took, result = network.lookup("a.test.")
    assert (took, result.error) == (0.003, Error.NONE)
    assert [(seen.server, seen.sock) for seen in network.seen] == [(i, 0) for _ in "ab" for i in range(3)]


def test_an_answer_from_a_stranger_is_passed_over() -> None:
    network = Network(fine, "timeout:1", stub=NEW)
    later = network._later
    network._later = lambda event: later(msgspec.structs.replace(event, server=None))
    assert network.lookup("a.test.")[1].error is Error.AGAIN


def truncated_by_udp(seen: Seen) -> Answer:
    return reply(seen) if seen.stream else reply(seen, flags=dnswire.TC | dnswire.RA, answers=0)


def test_a_truncated_answer_is_taken_before_1_2_4_and_asked_for_by_tcp_since() -> None:
    old, new = Network(truncated_by_udp, stub=OLD), Network(truncated_by_udp, stub=NEW)
    assert old.lookup("a.test.")[1].error is Error.NO_ADDRESS
    took, result = new.lookup("a.test.")
    assert (round(took, 3), result.error, result.detail) == (0.009, Error.NONE, "by TCP after truncation")
    assert [(seen.stream, seen.sock) for seen in new.seen] == [(False, 0), (False, 0), (True, 1), (True, 2)]


@pytest.mark.parametrize("how", [b"", Problem.RESET, "servfail"])
def test_a_stream_that_breaks_ends_the_lookup(how: object) -> None:
    def behaviour(seen: Seen) -> Answer:
        broken = reply(seen, SERVFAIL) if how == "servfail" else how
        return broken if seen.stream else truncated_by_udp(seen)

    took, result = Network(behaviour, stub=NEW).lookup("a.test.")
    assert (round(took, 3), result.error) == (0.009, Error.AGAIN)


def test_ids_differ_in_their_first_byte_since_1_2_4() -> None:
    for seed in range(40):
        network = Network(fine, stub=NEW)
        network.lookup("a.test.", seed=seed)
        first, second = (seen.id for seen in network.seen)
        assert first >> 8 != second >> 8


def test_a_bad_name_is_not_sent() -> None:
    network = Network(fine, stub=NEW)
    assert network.lookup("a..b.")[1].error is Error.NXDOMAIN
    assert network.seen == []


@given(st.lists(st.binary(max_size=80), max_size=6), st.sampled_from([OLD, NEW]))
def test_whatever_a_server_sends_a_lookup_ends(replies: list[bytes], stub: str) -> None:
    def behaviour(seen: Seen) -> Answer:
        noise = replies[seen.number % len(replies)] if replies else b""
        return seen.wire[:2] + noise if seen.number % 2 else noise

    network = Network(behaviour, "timeout:1", stub=stub)
    took, result = network.lookup("a.test.")
    assert result.error in set(Error)
    assert took <= 1 + 0.01
    assert network.now <= 2 * NS_PER_S
