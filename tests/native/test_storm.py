"""Storm against Sink and against raw servers of the test's own: every operation is accounted for, and honestly."""

from __future__ import annotations

import random
import socket
import struct
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest

from loadgen.core.samples import Outcome
from loadgen.kernel import netns
from loadgen.native import STORM_DETAILS, Sink
from tests.storms import (
    MS,
    REPLY,
    REQUEST,
    S,
    closed_port,
    descriptors_left,
    due_in,
    make_storm,
    mute_server,
    open_descriptors,
    outcomes,
    raw_server,
    read_exactly,
    rows,
    run_to_the_end,
    served,
    target,
)


@pytest.fixture
def sink() -> Iterator[Sink]:
    """A sink at work. Its counters are exact once `served` has ended: it counts just after its peer may go on."""
    with closing(Sink(0, REQUEST, REPLY)) as made, served(made):
        yield made


# --- counting -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("close", ["fin", "rst"])
def test_twenty_three_operations_are_twenty_three_samples(close: str) -> None:
    with closing(Sink(0, REQUEST, REPLY)) as sink:
        with served(sink), closing(make_storm(sink.port, close=close)) as storm:
            due = due_in(20 * MS, 23, MS)
            storm.push(due)
            assert (storm.queued, storm.open) == (23, 0)
            samples = run_to_the_end(storm)
        assert (sink.accepted, sink.served) == (23, 23)
    assert outcomes(samples) == {(Outcome.OK, ""): 23}
    assert sorted(samples["seq"]) == list(range(23))
    assert samples[np.argsort(samples["seq"])]["due_ns"].tolist() == due.tolist()
    assert set(samples["tries"]) == {1}
    assert set(samples["lost"]) == {0}


def test_each_target_has_a_port_of_its_own() -> None:
    """Operation number `seq` goes to target seq % n, so each of three servers answers every third."""
    with ExitStack() as stack:
        sinks = [stack.enter_context(closing(Sink(0, REQUEST, REPLY))) for _ in range(3)]
        with ExitStack() as running:
            for sink in sinks:
                running.enter_context(served(sink))
            targets = b"".join(target("127.0.0.1", sink.port) for sink in sinks)
            storm = running.enter_context(closing(make_storm(0, targets=targets)))
            storm.push(due_in(0, 23))
            assert outcomes(run_to_the_end(storm)) == {(Outcome.OK, ""): 23}
        assert [sink.served for sink in sinks] == [8, 8, 7]


@pytest.mark.kernel
def test_five_thousand_at_a_rate_in_a_namespace_of_their_own(netns_factory: Callable[[str], Path]) -> None:
    n = 5_000

    def storm_and_sink() -> tuple[np.ndarray, int, int]:
        with closing(Sink(0, REQUEST, REPLY)) as sink:
            targets = b"".join(target(f"127.1.{i // 250}.{i % 250 + 1}", sink.port) for i in range(500))
            with served(sink), closing(make_storm(sink.port, targets=targets)) as storm:
                storm.push(due_in(20 * MS, n, S // 5_000))
                samples = run_to_the_end(storm)
            return samples, sink.accepted, sink.served

    samples, accepted, replies = netns.call(netns_factory("storm"), storm_and_sink)
    assert outcomes(samples) == {(Outcome.OK, ""): n}
    assert sorted(samples["seq"]) == list(range(n))
    assert (accepted, replies) == (n, n)
    # Loopback answers in less than a timeout; nothing was sent before it was due or ended before it was sent.
    assert (samples["sent_ns"] >= samples["due_ns"]).all()
    assert (samples["done_ns"] > samples["sent_ns"]).all()


def test_each_sample_is_drained_once_and_numbering_goes_on(sink: Sink) -> None:
    seen: list[int] = []
    with closing(make_storm(sink.port)) as storm:
        for size in (0, 1, 5, 0, 17):
            storm.push(due_in(0, size))
            seen += run_to_the_end(storm)["seq"].tolist()
            assert storm.drain() == b""
    assert sorted(seen) == list(range(23))


def test_targets_take_turns_by_number(sink: Sink) -> None:
    """Three addresses of loopback; a listener on one of them alone sees the operations of that number modulo 3."""
    with socket.socket() as other:
        other.bind(("127.0.0.9", 0))
        other.listen(16)
        port = other.getsockname()[1]
        targets = b"".join(target(f"127.0.0.{n}", port) for n in (8, 9, 10))
        with closing(make_storm(0, targets=targets, timeout_ns=100 * MS)) as storm:
            storm.push(due_in(0, 9))
            samples = run_to_the_end(storm)
    by_number = {int(row["seq"]): STORM_DETAILS[row["detail"]] for row in samples}
    assert by_number == {n: "timeout" if n % 3 == 1 else "refused" for n in range(9)}


# --- time -----------------------------------------------------------------------------------------------------


def test_nothing_starts_before_it_is_due_and_run_returns_when_all_is_over(sink: Sink) -> None:
    rng = random.Random(1)
    gaps = [rng.randrange(0, 4 * MS) for _ in range(100)]
    start = time.monotonic_ns()
    due = array("q", [start + sum(gaps[: i + 1]) for i in range(100)])
    with closing(make_storm(sink.port)) as storm:
        storm.push(due)
        samples = run_to_the_end(storm)
    assert len(samples) == 100
    assert (samples["sent_ns"] >= samples["due_ns"]).all()
    started = samples[np.argsort(samples["sent_ns"], kind="stable")]
    assert started["due_ns"].tolist() == sorted(due)


def test_run_ends_at_its_time_with_work_left(sink: Sink) -> None:
    with closing(make_storm(sink.port)) as storm:
        storm.push(due_in(60 * S, 3))
        until = time.monotonic_ns() + 30 * MS
        storm.run(until)
        assert time.monotonic_ns() >= until
        assert (storm.open, storm.queued, storm.drain()) == (0, 3, b"")


def test_run_returns_at_once_without_work() -> None:
    with closing(make_storm(9)) as storm:
        until = time.monotonic_ns() + 60 * S
        storm.run(until)
        assert time.monotonic_ns() < until


def test_a_late_start_is_lag_and_not_loss(sink: Sink) -> None:
    with closing(make_storm(sink.port)) as storm:
        storm.push(due_in(-2 * S, 50, MS))
        samples = run_to_the_end(storm)
    assert outcomes(samples) == {(Outcome.OK, ""): 50}
    assert (samples["sent_ns"] - samples["due_ns"] > 1.9 * S).all()


def test_a_full_house_delays_operations_and_drops_none(sink: Sink) -> None:
    with closing(make_storm(sink.port, max_open=2)) as storm:
        storm.push(due_in(0, 101))
        storm.run(time.monotonic_ns())
        assert storm.open <= 2
        samples = run_to_the_end(storm)
    assert outcomes(samples) == {(Outcome.OK, ""): 101}
    by_start = samples[np.argsort(samples["sent_ns"], kind="stable")]
    # While two were open nothing else was started: number k + 2 begins after one of the first k + 1 has ended.
    assert all(by_start["sent_ns"][k + 2] >= np.sort(by_start["done_ns"])[k] for k in range(99))


# --- what the network does ------------------------------------------------------------------------------------


def test_a_closed_port_is_a_failure() -> None:
    with closed_port() as port, closing(make_storm(port)) as storm:
        storm.push(due_in(0, 23))
        assert outcomes(run_to_the_end(storm)) == {(Outcome.FAIL, "refused"): 23}


def test_silence_is_unknown_and_censored_at_the_timeout() -> None:
    with mute_server() as port, closing(make_storm(port, timeout_ns=80 * MS)) as storm:
        storm.push(due_in(0, 23, MS))
        samples = run_to_the_end(storm)
    assert outcomes(samples) == {(Outcome.UNKNOWN, "timeout"): 23}
    assert (samples["done_ns"] - samples["sent_ns"] >= 80 * MS).all()
    assert samples["seq"].tolist() == list(range(23))  # they time out in the order in which they were started


@pytest.mark.kernel
def test_no_route_is_unreachable(netns_factory: Callable[[str], Path]) -> None:
    def storm_into_nothing() -> np.ndarray:
        with closing(make_storm(0, targets=target("10.99.0.1", 9))) as storm:
            storm.push(due_in(0, 5))
            return run_to_the_end(storm)

    samples = netns.call(netns_factory("nowhere"), storm_into_nothing)
    assert outcomes(samples) == {(Outcome.FAIL, "unreachable"): 5}


@pytest.mark.kernel
def test_ports_run_out(netns_factory: Callable[[str], Path]) -> None:
    path = netns_factory("ports")
    netns.sysctl(path, "net.ipv4.ip_local_port_range", "40000 40009")

    def storm_of_thirty() -> np.ndarray:
        with mute_server(50010) as port, closing(make_storm(port, timeout_ns=100 * MS)) as storm:
            storm.push(due_in(0, 30))
            return run_to_the_end(storm)

    counts = outcomes(netns.call(path, storm_of_thirty))
    assert counts == {(Outcome.FAIL, "no ports"): 20, (Outcome.UNKNOWN, "timeout"): 10}


def test_descriptors_run_out() -> None:
    with mute_server() as port, closing(make_storm(port, timeout_ns=100 * MS)) as storm:
        storm.push(due_in(0, 30))
        with descriptors_left(8):
            counts = outcomes(run_to_the_end(storm))
    assert counts == {(Outcome.FAIL, "no files"): 22, (Outcome.UNKNOWN, "timeout"): 8}


def test_a_reply_cut_short_is_a_failure() -> None:
    def half_a_reply(connection: socket.socket) -> bytes:
        request = read_exactly(connection, REQUEST)
        connection.sendall(b"y" * (REPLY - 1))
        return request

    with raw_server(half_a_reply) as (port, seen), closing(make_storm(port)) as storm:
        storm.push(due_in(0))
        assert outcomes(run_to_the_end(storm)) == {(Outcome.FAIL, "short reply"): 1}
        assert seen.result(5) == b"x" * REQUEST


def test_a_reset_by_the_server_is_a_failure() -> None:
    def reset(connection: socket.socket) -> bytes:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return read_exactly(connection, REQUEST)

    with raw_server(reset) as (port, _), closing(make_storm(port)) as storm:
        storm.push(due_in(0))
        assert outcomes(run_to_the_end(storm)) == {(Outcome.FAIL, "reset"): 1}


def test_a_reply_in_pieces_ends_with_its_last_byte() -> None:
    last_sent: list[int] = []

    def byte_by_byte(connection: socket.socket) -> bytes:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        read_exactly(connection, REQUEST)
        for _ in range(REPLY):
            last_sent.append(time.monotonic_ns())
            connection.sendall(b"y")
        return connection.recv(1)

    with raw_server(byte_by_byte) as (port, seen), closing(make_storm(port)) as storm:
        storm.push(due_in(0))
        samples = run_to_the_end(storm)
        assert outcomes(samples) == {(Outcome.OK, ""): 1}
        assert samples["done_ns"][0] > last_sent[-1]
        assert seen.result(5) == b""  # the client's FIN


@pytest.mark.parametrize(("close", "end"), [("fin", b""), ("rst", b"reset")])
def test_the_client_closes_as_it_was_told(close: str, end: bytes) -> None:
    def how_it_ends(connection: socket.socket) -> bytes:
        read_exactly(connection, REQUEST)
        connection.sendall(b"y" * REPLY)
        try:
            return connection.recv(1)
        except ConnectionResetError:
            return b"reset"

    with raw_server(how_it_ends) as (port, seen), closing(make_storm(port, close=close)) as storm:
        storm.push(due_in(0))
        assert outcomes(run_to_the_end(storm)) == {(Outcome.OK, ""): 1}
        assert seen.result(5) == end


def test_requests_and_replies_larger_than_any_buffer() -> None:
    size = 5_000_011
    with closing(Sink(0, size, size)) as large:
        with served(large), closing(make_storm(large.port, request_bytes=size, reply_bytes=size)) as storm:
            storm.push(due_in(0, 3))
            assert outcomes(run_to_the_end(storm)) == {(Outcome.OK, ""): 3}
        assert (large.accepted, large.served) == (3, 3)


# --- giving up ------------------------------------------------------------------------------------------------


def test_abandon_accounts_for_what_is_open_and_what_is_queued() -> None:
    with mute_server() as port, closing(make_storm(port)) as storm:
        storm.push(due_in(0, 7))
        storm.push(due_in(60 * S, 16))
        storm.run(time.monotonic_ns() + 20 * MS)
        assert (storm.open, storm.queued) == (7, 16)
        before = time.monotonic_ns()
        storm.abandon()
        after = time.monotonic_ns()
        assert (storm.open, storm.queued) == (0, 0)
        samples = rows(storm)
    assert outcomes(samples) == {(Outcome.UNKNOWN, "abandoned"): 23}
    assert sorted(samples["seq"]) == list(range(23))
    assert ((before <= samples["done_ns"]) & (samples["done_ns"] <= after)).all()
    never_sent = samples[samples["seq"] >= 7]
    assert (never_sent["sent_ns"] == never_sent["done_ns"]).all()


def test_abandon_tells_what_found_no_room_from_what_was_not_due() -> None:
    with mute_server() as port, closing(make_storm(port, max_open=4)) as storm:
        storm.push(due_in(0, 10))
        storm.push(due_in(60 * S, 3))
        storm.run(time.monotonic_ns() + 20 * MS)
        storm.abandon()
        details = outcomes(rows(storm))
    assert details == {(Outcome.UNKNOWN, "abandoned"): 4 + 3, (Outcome.UNKNOWN, "too many open"): 6}


def test_every_descriptor_is_returned() -> None:
    before = open_descriptors()
    with mute_server() as port:
        closed, forgotten = make_storm(port), make_storm(port, close="rst")
        for storm in (closed, forgotten):
            storm.push(due_in(0, 11))
            storm.run(time.monotonic_ns() + 10 * MS)
            assert storm.open == 11
        closed.close()
        closed.close()
        del storm, forgotten
    with closing(Sink(0, REQUEST, REPLY)) as sink, served(sink):
        for close in ("fin", "rst"):
            with closing(make_storm(sink.port, close=close)) as storm:
                storm.push(due_in(0, 200))
                assert len(run_to_the_end(storm)) == 200
        left_open = socket.create_connection(("127.0.0.1", sink.port))
    left_open.close()
    assert open_descriptors() == before
