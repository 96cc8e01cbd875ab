"""Resolvers by their retries, and what was lost, from datagrams that are laid out by hand."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.core.dnscapture import DnsStory, DnsWatch, Retry, libc_of
from loadgen.core.units import NS_PER_S

CLIENT, SERVER = b"\x0a\0\0\7", (b"\x0a\x60\0\x0a", 53)
A, AAAA = 1, 28


class Wire:
    """A capture being written: seconds, ports and ids are the test's own."""

    def __init__(self) -> None:
        self.watch = DnsWatch()

    def ask(
        self, at: float, port: int, ident: int, qtype: int, *, answered: bool = True, name: bytes = b"\1x\0"
    ) -> None:
        question = name + struct.pack(">HH", qtype, 1)
        head = struct.pack(">HHHHHH", ident, 0x0100, 1, 0, 0, 0)
        self.watch.see(round(at * NS_PER_S), (CLIENT, port), SERVER, head + question)
        if answered:
            head = struct.pack(">HHHHHH", ident, 0x8180, 1, 0, 0, 0)
            self.watch.see(round(at * NS_PER_S) + 1000, SERVER, (CLIENT, port), head + question)

    def story(self) -> DnsStory:
        return self.watch.story("f")


def lose_second(wire: Wire) -> None:
    wire.ask(0.0, 4000, 1, A)
    wire.ask(0.001, 4000, 2, AAAA, answered=False)


def test_glibc_asks_both_again_from_the_same_port() -> None:
    wire = Wire()
    lose_second(wire)
    wire.ask(5.0, 4000, 1, A)
    wire.ask(5.002, 4000, 2, AAAA)
    story = wire.story()
    assert (story.pairs, story.one_lost, story.second_lost, story.both_lost, story.other_lost) == (1, 1, 1, 0, 0)
    assert story.libc == (("glibc", 2),)
    assert story.retries == (("after 5.0 s from the same port", 2),)


def test_glibc_with_another_timeout_still_asks_for_what_it_has() -> None:
    wire = Wire()
    lose_second(wire)
    wire.ask(1.0, 4000, 1, A)
    assert wire.story().libc == (("glibc", 1),)


def test_musl_asks_for_what_is_missing() -> None:
    wire = Wire()
    lose_second(wire)
    wire.ask(2.5, 4000, 2, AAAA)
    assert wire.story().libc == (("musl", 1),)


def test_c_ares_retries_from_a_new_port() -> None:
    wire = Wire()
    lose_second(wire)
    wire.ask(2.01, 4001, 9, AAAA)
    story = wire.story()
    assert story.libc == (("c-ares", 1),)
    assert story.one_lost == 1


def test_go_asks_from_two_ports() -> None:
    wire = Wire()
    wire.ask(0.0, 4000, 1, A)
    wire.ask(0.0001, 4001, 2, AAAA, answered=False)
    wire.ask(5.0, 4002, 3, AAAA)
    story = wire.story()
    assert story.libc == (("Go", 1),)
    assert (story.pairs, story.other_lost) == (0, 1)


def test_busy_processes_that_ask_for_one_name_are_no_retries() -> None:
    wire = Wire()
    for i in range(101):
        wire.ask(i * 0.01, 5000 + i, i, A)
        wire.ask(i * 0.01 + 0.001, 5000 + i, 1000 + i, AAAA)
    story = wire.story()
    assert (story.pairs, story.one_lost, story.retries) == (101, 0, ())
    assert story.answered == story.queries == 202


def test_a_first_query_lost_is_not_the_second() -> None:
    wire = Wire()
    wire.ask(0.0, 4000, 1, A, answered=False)
    wire.ask(0.001, 4000, 2, AAAA)
    story = wire.story()
    assert (story.one_lost, story.second_lost) == (1, 0)


def test_both_lost_is_the_servers() -> None:
    wire = Wire()
    wire.ask(0.0, 4000, 1, A, answered=False)
    wire.ask(0.001, 4000, 2, AAAA, answered=False)
    assert wire.story().both_lost == 1


@pytest.mark.parametrize(
    ("retry", "libc"),
    [
        (Retry(5.01, True, True, False), "glibc"),
        (Retry(2.506, True, True, False), "musl"),
        (Retry(3.0, True, True, False), None),
        (Retry(5.0, True, False, False), None),
        (Retry(2.03, False, False, False), "c-ares"),
        (Retry(5.0, False, False, False), "Go"),
        (Retry(1.0, False, False, False), None),
        (Retry(1.0, True, True, True), "glibc"),
    ],
)
def test_signatures(retry: Retry, libc: str | None) -> None:
    assert libc_of(retry) == libc


@given(st.lists(st.tuples(st.integers(0, 10**10), st.booleans(), st.binary(max_size=40)), max_size=30))
def test_any_payload_is_counted(datagrams: list[tuple[int, bool, bytes]]) -> None:
    watch = DnsWatch()
    for at, asks, payload in datagrams:
        ends = ((CLIENT, 4000), SERVER) if asks else (SERVER, (CLIENT, 4000))
        watch.see(at, *ends, payload)
    assert watch.story("f").packets == len(datagrams)
