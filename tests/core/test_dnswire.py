"""DNS bytes: against dnspython, truncated at every place, mutated, and random."""

from __future__ import annotations

import ipaddress

import dns.flags
import dns.message
import dns.name
import dns.rdatatype
import dns.rrset
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.core import dnswire
from loadgen.core.dnswire import AAAA, CH, SERVFAIL, TXT, A, Malformed

NAME = "datanode.hdfs.svc.cluster.local."
# A reply as a server with compression sends it: two aliases, two addresses, a record of somebody else, an SOA.
ANSWER = """\
id 4711
opcode QUERY
rcode NOERROR
flags QR AA RD RA
;QUESTION
www.example.com. IN A
;ANSWER
www.example.com. 30 IN CNAME web.example.com.
web.example.com. 30 IN CNAME host.example.net.
host.example.net. 30 IN A 192.0.2.1
host.example.net. 30 IN A 192.0.2.2
other.example.net. 30 IN A 192.0.2.9
;AUTHORITY
example.net. 60 IN SOA ns.example.net. hostmaster.example.net. 1 2 3 4 5
;ADDITIONAL
host.example.net. 30 IN A 192.0.2.3
"""


def wire(text: str = ANSWER) -> bytes:
    return dns.message.from_text(text).to_wire()


def qname(text: str) -> bytes:
    found = dnswire.name(text)
    assert found, found
    return found


# --- names ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [NAME, "a", "a.", ".", "_dns._udp.X-y.example", "l" * 63 + ".test"])
def test_a_name_is_what_dnspython_makes_of_it(text: str) -> None:
    expected = dns.name.from_text(text).canonicalize().to_wire()
    assert dnswire.name(text) == expected
    assert dnswire.text(expected) == dns.name.from_text(text).canonicalize().to_text()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty label"),
        ("a..b", "empty label"),
        (".a", "empty label"),
        ("l" * 64 + ".test", "more than 63"),
        (".".join(["l" * 63] * 4), "longer than 255"),
        ("bücher.example", "no host name character"),
        ("a b", "no host name character"),
        ("a\n", "no host name character"),
        ("a\\.b", "no host name character"),
    ],
)
def test_a_name_that_cannot_travel_says_why(text: str, why: str) -> None:
    found = dnswire.name(text)
    assert isinstance(found, Malformed)
    assert why in found.why


def test_the_longest_name_fits() -> None:
    assert len(qname(".".join(["l" * 63] * 3 + ["l" * 61]))) == 255


def test_odd_bytes_of_a_name_can_be_read_by_people() -> None:
    assert dnswire.text(b"\x04a.\\\xff\x00") == "a\\046\\092\\255."


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\xc0\x00", "backwards"),
        (b"\x01a\xc0\x02", "backwards"),
        (b"\x01a\xc0\x00", "backwards"),
        (b"\xc0", "half"),
        (b"\x05ab", "end"),
        (b"\x80ab\0", "kind"),
        (b"\x01a", "end"),
        (b"\x3f" * 320 + b"\0", "too long"),
    ],
)
def test_a_name_that_cannot_be_read_says_why(data: bytes, why: str) -> None:
    found = dnswire.read_name(data, 2 if data[:4] == b"\x01a\xc0\x02" else 0)
    assert isinstance(found, Malformed)
    assert why in found.why


def test_pointers_may_follow_one_another_backwards() -> None:
    data = b"\x03com\x00" + b"\x01b\xc0\x00" + b"\x01a\xc0\x05"
    assert dnswire.read_name(data, 9) == (b"\x01a\x01b\x03com\x00", 13)


# --- queries --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qtype", [A, AAAA])
@pytest.mark.parametrize("edns", [False, True])
@pytest.mark.parametrize("authentic", [False, True])
def test_a_query_is_what_dnspython_makes_of_it(qtype: int, edns: bool, authentic: bool) -> None:
    options = {"use_edns": 0, "payload": dnswire.EDNS_BYTES} if edns else {}
    expected = dns.message.make_query(NAME, qtype, id=4711, **options)
    expected.flags = dns.flags.RD | (dns.flags.AD if authentic else 0)
    made = dnswire.query(4711, qname(NAME), qtype, edns=edns, authentic=authentic)
    assert made.wire == expected.to_wire()
    assert (made.id, made.qtype) == (4711, qtype)


def test_only_a_reply_to_the_query_answers_it() -> None:
    query = dnswire.query(4711, qname("www.example.com."), A)
    reply = wire()
    assert dnswire.answers(query, reply)
    assert dnswire.answers(query, reply.replace(b"www", b"WwW"))
    others = (
        dnswire.query(4712, qname("www.example.com."), A),
        dnswire.query(4711, qname("www.example.com."), AAAA),
        dnswire.query(4711, qname("www.example.com."), A, qclass=CH),
        dnswire.query(4711, qname("www.example.org."), A),
    )
    assert not any(dnswire.answers(other, reply) for other in others)
    assert not dnswire.answers(query, reply[:4] + b"\0\2" + reply[6:])


def test_a_bare_header_answers_only_with_an_error_and_only_when_that_is_asked_for() -> None:
    query = dnswire.query(4711, qname("a."), A)
    bare = dnswire.reply(query.wire, dnswire.HEADER_BYTES, SERVFAIL)
    assert dnswire.answers(query, bare, short_error=True)
    assert not dnswire.answers(query, bare)
    assert not dnswire.answers(query, dnswire.reply(query.wire, 12, dnswire.NXDOMAIN), short_error=True)
    assert not dnswire.answers(dnswire.query(1, qname("a."), A), bare, short_error=True)


# --- replies --------------------------------------------------------------------------------------------------


def test_a_reply_is_read_as_it_was_meant() -> None:
    data = wire()
    head, asked, found = dnswire.header(data), dnswire.question(data), dnswire.records(data)
    assert head
    assert asked
    assert found
    assert (head.id, head.rcode, head.ancount, head.truncated, head.lame) == (4711, 0, 5, False, False)
    assert (dnswire.text(asked.name), asked.qtype, asked.qclass) == ("www.example.com.", A, 1)
    assert [(dnswire.text(r.name), r.rtype, r.ttl, r.section) for r in found[2:]] == [
        ("host.example.net.", A, 30, 0),
        ("host.example.net.", A, 30, 0),
        ("other.example.net.", A, 30, 0),
        ("example.net.", dnswire.SOA, 60, 1),
        ("host.example.net.", A, 30, 2),
    ]
    assert data[found[2].ttl_at : found[2].ttl_at + 4] == (30).to_bytes(4, "big")


def test_addresses_are_those_at_the_end_of_the_aliases() -> None:
    assert sorted(dnswire.addresses(wire(), A) or ()) == [bytes((192, 0, 2, 1)), bytes((192, 0, 2, 2))]
    assert dnswire.addresses(wire(), AAAA) == ()


def test_an_address_of_the_wrong_size_is_none() -> None:
    query = dnswire.query(1, qname("a."), A).wire
    rr = dnswire.record(b"\xc0\x0c", A, dnswire.IN, 1, b"\1\2\3")
    assert dnswire.addresses(dnswire.reply(query, len(query), 0, answer=(rr,)), A) == ()


def test_a_reply_that_we_write_is_one_that_dnspython_reads() -> None:
    query = dnswire.query(77, qname(NAME), AAAA).wire
    address = bytes(range(16))
    rr = dnswire.record(b"\xc0\x0c", AAAA, dnswire.IN, 30, address)
    message = dns.message.from_wire(dnswire.reply(query, len(query), 0, flags=dnswire.AA | dnswire.RA, answer=(rr,)))
    assert dns.message.from_wire(query).is_response(message)
    assert message.flags == dns.flags.QR | dns.flags.AA | dns.flags.RD | dns.flags.RA
    assert message.answer == [dns.rrset.from_text(NAME, 30, "IN", "AAAA", str(ipaddress.ip_address(address)))]


def test_the_short_forms_of_a_reply() -> None:
    query = dnswire.query(77, qname(NAME), A).wire
    reply = dnswire.reply(query, len(query), 0, answer=(dnswire.record(b"\xc0\x0c", A, 1, 30, bytes(4)),))
    short = dns.message.from_wire(dnswire.truncated(reply, len(query)))
    assert short.flags & dns.flags.TC
    assert (len(short.question), len(short.answer)) == (1, 0)
    error = dns.message.from_wire(dnswire.reply(query[:14], dnswire.HEADER_BYTES, dnswire.FORMERR))
    assert (error.rcode(), error.id, len(error.question)) == (dnswire.FORMERR, 77, 0)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 700])
def test_text_of_any_length_survives(size: int) -> None:
    content = bytes(i % 251 for i in range(size))
    query = dnswire.query(5, dnswire.STATS_NAME, TXT, qclass=CH).wire
    rr = dnswire.record(b"\xc0\x0c", TXT, CH, 0, dnswire.txt_rdata(content))
    reply = dnswire.reply(query, len(query), 0, answer=(rr,))
    assert dnswire.strings(reply) == content
    assert dns.message.from_wire(reply).answer[0].rdtype == dns.rdatatype.TXT


@pytest.mark.parametrize(
    ("flags", "answers", "lame"),
    [(0, 0, True), (dnswire.RA, 0, False), (dnswire.AA, 0, False), (0, 1, False), (SERVFAIL, 0, False)],
)
def test_lame_is_an_empty_answer_of_a_server_with_no_business_to_give_one(
    flags: int, answers: int, lame: bool
) -> None:
    assert dnswire.Header(0, dnswire.QR | flags, 1, answers, 0, 0).lame is lame


# --- garbage --------------------------------------------------------------------------------------------------


def read_everything(data: bytes) -> list[object]:
    """Every reader; each gives a value or Malformed, never an exception."""
    query = dnswire.query(4711, qname("www.example.com."), A)
    out: list[object] = [dnswire.header(data), dnswire.question(data), dnswire.records(data), dnswire.strings(data)]
    out += [dnswire.addresses(data, t) for t in (A, AAAA)]
    out += [dnswire.answers(query, data), dnswire.answers(query, data, short_error=True), dnswire.text(data)]
    return out


def test_a_message_cut_off_anywhere_is_malformed() -> None:
    whole = wire()
    for size in range(len(whole)):
        assert isinstance(dnswire.records(whole[:size]), Malformed)
        assert read_everything(whole[:size])


@given(st.data())
def test_a_mutated_message_is_read_or_refused(data: st.DataObject) -> None:
    mutated = bytearray(wire())
    for at in data.draw(st.lists(st.integers(0, len(mutated) - 1), max_size=8)):
        mutated[at] = data.draw(st.integers(0, 255))
    assert read_everything(bytes(mutated))


@given(st.binary(max_size=600))
def test_random_bytes_are_read_or_refused(data: bytes) -> None:
    assert read_everything(data)
    assert read_everything(b"\0\1\x81\x80\0\1\0\3\0\1\0\1" + data)


# --- streams --------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=300), max_size=5), st.integers(1, 40))
def test_messages_come_out_of_a_stream_whole_however_it_is_cut(messages: list[bytes], piece: int) -> None:
    stream = b"".join(map(dnswire.frame, messages)) + b"\xff\xff tail"
    buffer, got = bytearray(), []
    for at in range(0, len(stream), piece):
        buffer += stream[at : at + piece]
        got += dnswire.unframe(buffer)
    assert got == messages
    assert buffer == b"\xff\xff tail"
