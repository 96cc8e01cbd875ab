"""The cache in virtual time: what is kept, for how long, and what a reply out of it looks like."""

from __future__ import annotations

import dns.message
import dns.rcode
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.core import dnscache, dnswire
from loadgen.core.dnscache import Cache, Entry, Key
from loadgen.core.dnswire import NOERROR, NXDOMAIN, REFUSED, SERVFAIL, A
from tests.realdns import NAME, query

SOA = dnswire.record(b"\0", dnswire.SOA, dnswire.IN, 300, b"\0\0" + bytes(16) + (60).to_bytes(4, "big"))


def key(message: bytes) -> Key:
    asked = dnswire.question(message)
    assert asked
    return (asked.name, asked.qtype, asked.qclass)


def said(rcode: int = NOERROR, *, ttl: int = 30, answers: int = 1, name: str = NAME, flags: int = 0) -> bytes:
    asked = query(name)
    rr = dnswire.record(b"\xc0\x0c", A, dnswire.IN, ttl, bytes((192, 0, 2, 1)))
    return dnswire.reply(
        asked, len(asked), rcode, flags=flags | dnswire.AA, answer=(rr,) * answers, authority=b"" if answers else SOA
    )


def cache(**sizes: int) -> Cache:
    return Cache(**{"success": 3, "success_ttl_s": 30, "denial": 2, "denial_ttl_s": 5, **sizes})


LIFETIMES = {
    # reply, seconds it is kept; 0: not at all
    "an answer": (said(ttl=20), 20),
    "a long answer": (said(ttl=3600), 30),
    "a short answer": (said(ttl=0), 5),
    "several records": (said(ttl=10, answers=3), 10),
    "no such name": (said(NXDOMAIN, answers=0), 5),
    "no data": (said(NOERROR, answers=0), 5),
    "SERVFAIL": (said(SERVFAIL, answers=0), 5),
    "REFUSED": (said(REFUSED, answers=0), 0),
    "truncated": (said(flags=dnswire.TC), 0),
}


@pytest.mark.parametrize(("reply", "seconds"), LIFETIMES.values(), ids=LIFETIMES)
def test_how_long_a_reply_is_kept(reply: bytes, seconds: int) -> None:
    kept = cache()
    assert kept.put(key(reply), reply, 100.0)
    assert (kept.get(key(reply), 99.9 + seconds) is not None) is (seconds > 0)
    assert kept.get(key(reply), 100.0 + seconds) is None
    assert len(kept) == 0


def test_a_denial_lasts_as_long_as_the_zone_says() -> None:
    kept = cache(denial_ttl_s=1800)
    reply = said(NXDOMAIN, answers=0)
    kept.put(key(reply), reply, 0.0)
    assert kept.get(key(reply), 59.9)
    assert kept.get(key(reply), 60.0) is None


def test_a_reply_from_the_cache_is_the_clients_own_with_the_time_that_is_left() -> None:
    kept, reply = cache(), said(ttl=20)
    kept.put(key(reply), reply, 0.0)
    entry = kept.get(key(reply), 7.5)
    asked = query(ident=4321).replace(b"datanode", b"DataNode")
    question = dnswire.question(asked)
    assert isinstance(entry, Entry)
    assert question
    message = dns.message.from_wire(dnscache.reply(entry, asked, question, 7.5))
    assert dns.message.from_wire(asked).is_response(message)
    assert b"DataNode" in message.question[0].name.to_wire()
    assert message.answer[0].ttl == 13
    assert dns.message.from_wire(reply).answer[0][0] == message.answer[0][0]
    assert message.flags & dnswire.RA
    assert not message.flags & dnswire.AA


def test_a_full_table_gives_up_its_oldest_and_leaves_the_other_alone() -> None:
    kept = cache()
    for i in range(4):
        reply = said(name=f"a{i}.")
        kept.put(key(reply), reply, 0.0)
    denied = said(NXDOMAIN, answers=0, name="b.")
    kept.put(key(denied), denied, 0.0)
    assert [kept.get(key(query(f"a{i}.")), 1.0) is None for i in range(4)] == [True, False, False, False]
    assert kept.get(key(denied), 1.0)
    assert (len(kept), kept.evicted) == (4, 1)


def test_the_last_word_counts() -> None:
    kept, first, last = cache(), said(), said(NXDOMAIN, answers=0)
    kept.put(key(first), first, 0.0)
    kept.put(key(last), last, 1.0)
    entry = kept.get(key(first), 2.0)
    assert entry
    assert (entry.rcode, len(kept)) == (NXDOMAIN, 1)


def test_a_reply_to_another_question_is_refused() -> None:
    assert not cache().put(key(query("other.")), said(), 0.0)


@given(st.data())
def test_any_bytes_are_kept_as_a_message_or_refused(data: st.DataObject) -> None:
    mutated = bytearray(said(ttl=data.draw(st.integers(0, 1 << 31))))
    for at in data.draw(st.lists(st.integers(0, len(mutated) - 1), max_size=6)):
        mutated[at] = data.draw(st.integers(0, 255))
    whole = bytes(mutated[: data.draw(st.integers(0, len(mutated)))])
    entry = cache().put(key(query()), whole, 0.0)
    asked = dnswire.question(query())
    assert asked
    if entry:
        assert dnswire.records(dnscache.reply(entry, query(), asked, 1.0)) is not None
        assert 5 <= entry.until_s <= 30
