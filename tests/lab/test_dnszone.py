"""What the lab's name server says to a query, without a socket."""

from __future__ import annotations

import ipaddress

import dns.message
import dns.rcode
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.core import dnswire
from loadgen.core.dnswire import AAAA, NOERROR, NXDOMAIN, SERVFAIL, A
from loadgen.core.errors import ConfigError
from loadgen.lab.dnszone import Policy, Rule, Zone
from tests.realdns import NAME, query

ZONE = Zone((NAME, "www.example.com"), ("pod.cluster.local",), ttl=30)

ANSWERS = {
    # name, type, rcode, answers
    "A": (NAME, A, NOERROR, 1),
    "AAAA": (NAME, AAAA, NOERROR, 1),
    "another type": (NAME, dnswire.TXT, NOERROR, 0),
    "with a search domain": (NAME + "cluster.local.", A, NXDOMAIN, 0),
    "below a name": ("x." + NAME, A, NXDOMAIN, 0),
    "below a zone": ("10-0-0-1.default.pod.cluster.local.", A, NOERROR, 1),
    "the zone itself": ("pod.cluster.local.", A, NXDOMAIN, 0),
    "not below a zone": ("x.tripod.cluster.local.", A, NXDOMAIN, 0),
    "the root": (".", A, NXDOMAIN, 0),
}


@pytest.mark.parametrize(("name", "qtype", "rcode", "answers"), ANSWERS.values(), ids=ANSWERS)
def test_the_names_that_exist_and_those_that_do_not(name: str, qtype: int, rcode: int, answers: int) -> None:
    asked = query(name, qtype)
    answer = ZONE.answer(asked)
    assert answer is not None
    message = dns.message.from_wire(asked[:2] + answer.body)
    assert dns.message.from_wire(asked).is_response(message)
    assert (message.rcode(), len(message.answer), len(message.authority)) == (rcode, answers, 1 - answers)
    assert answer.label == {A: "A", AAAA: "AAAA"}.get(qtype, "other")


def test_a_name_is_the_same_in_any_case_and_comes_back_as_it_was_spelt() -> None:
    asked = query().replace(b"datanode", b"DataNODE")
    answer, other = ZONE.answer(asked), ZONE.answer(query())
    assert answer is not None
    assert other is not None
    assert b"DataNODE" in answer.body
    assert dnswire.addresses(b"\0\0" + answer.body, A) == dnswire.addresses(b"\0\0" + other.body, A)


def test_addresses_are_the_same_every_time_and_of_no_real_network() -> None:
    def address(name: str, qtype: int) -> str:
        answer = ZONE.answer(query(name, qtype))
        assert answer is not None
        (packed,) = dnswire.addresses(b"\0\0" + answer.body, qtype) or ()
        return str(ipaddress.ip_address(packed))

    assert address(NAME, A) == address(NAME, A) != address("www.example.com.", A)
    assert ipaddress.ip_address(address(NAME, A)) in ipaddress.ip_network("198.18.0.0/15")
    assert ipaddress.ip_address(address(NAME, AAAA)) in ipaddress.ip_network("2001:db8::/32")


@pytest.mark.parametrize(
    ("message", "rcode"),
    [
        (b"", None),
        (query()[:11], None),
        (b"\0\1\x81\x80" + query()[4:], None),  # a reply
        (query()[:14], dns.rcode.FORMERR),
        (query()[:4] + b"\0\2" + query()[6:], dns.rcode.FORMERR),
        (b"\0\1\x10\0" + query()[4:], dns.rcode.NOTIMP),  # a status request
    ],
)
def test_what_makes_no_sense_is_refused_or_passed_over(message: bytes, rcode: int | None) -> None:
    answer = ZONE.answer(message)
    assert (answer and dns.message.from_wire(message[:2] + answer.body).rcode()) == rcode


def test_a_name_that_cannot_be_is_a_mistake_in_the_configuration() -> None:
    with pytest.raises(ConfigError, match="empty label"):
        Zone(("a..b",), (), 30)


def outcomes(policy: Policy, *asked: tuple[str, int], stream: bool = False) -> list[str]:
    out = []
    for name, qtype in asked:
        message = query(name, qtype)
        answer = ZONE.answer(message)
        assert answer is not None
        reply = policy.reply(message, answer, stream=stream)
        head = dnswire.header(reply or b"")
        out.append("" if not head else "TC" if head.truncated else dns.rcode.to_text(dns.rcode.Rcode(head.rcode)))
    return out


def test_the_first_rule_that_fits_counts_and_as_often_as_it_says() -> None:
    rules = (Rule("drop", "AAAA", NAME, times=1), Rule("SERVFAIL", "AAAA", times=2), Rule("truncate", "A"))
    pair = ((NAME, AAAA), (NAME, A))
    assert outcomes(Policy(rules, 0, 0), *pair * 4) == ["", "TC", "SERVFAIL", "TC", "SERVFAIL", "TC", "NOERROR", "TC"]
    assert outcomes(Policy(rules, 0, 0), *pair, stream=True) == ["", "NOERROR"]
    assert outcomes(Policy(rules, 0, 0), ("www.example.com.", AAAA)) == ["SERVFAIL"]


def test_losses_are_a_share_drawn_from_the_seed() -> None:
    def lost(loss: float, seed: int) -> list[bool]:
        return [not said for said in outcomes(Policy((), loss, seed), *[(NAME, A)] * 2000)]

    assert sum(lost(0.0, 1)) == 0
    assert sum(lost(1.0, 1)) == 2000
    assert 500 < sum(lost(0.3, 1)) < 700  # 600 ± 5 standard deviations of 20.5
    assert lost(0.3, 1) == lost(0.3, 1) != lost(0.3, 2)


@given(st.binary(max_size=300))
def test_any_bytes_get_a_message_or_nothing(data: bytes) -> None:
    for message in (data, b"\0\1\1\0\0\1\0\0\0\0\0\0" + data):
        answer = ZONE.answer(message)
        if answer is not None:
            reply = Policy((Rule("truncate", times=1),), 0, 0).reply(message, answer, stream=False)
            assert dnswire.header(reply or b"")
            assert answer.body[1] & 0xF != SERVFAIL
