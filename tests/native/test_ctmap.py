"""ct_fill and ct_walk on real LRU maps, checked against a reader of its own. No map is filled beyond a third: LRU."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address

import numpy as np
import pytest

from loadgen.core.conntrack import CT_KEY_DTYPE, CT_VALUE_DTYPE
from loadgen.native import CT_ADDRESS, CT_EXPIRED, ct_fill, ct_walk

pytestmark = pytest.mark.kernel

CAPACITY = 65_536
N = 20_011
NOW = 10_000
PODS = [int(IPv4Address("10.244.0.1")) + i for i in range(7)]
WALKS = pytest.mark.parametrize("batch", [0, 1, 512], ids=["per key", "batch 1, to be doubled", "batch 512"])

HASH, ARRAY, LRU_HASH = 1, 2, 9  # enum bpf_map_type
MAP_CREATE, LOOKUP_ELEM, GET_NEXT_KEY = 0, 1, 4  # enum bpf_cmd
SYS_BPF = {"x86_64": 321, "aarch64": 280}.get(platform.machine(), -1)
libc = ctypes.CDLL(None, use_errno=True)


def bpf(command: int, *words: int) -> int:
    """bpf(2) with `words` as the first 64-bit words of its attribute."""
    attribute = (ctypes.c_uint64 * 16)(*words)
    result = libc.syscall(ctypes.c_long(SYS_BPF), ctypes.c_long(command), attribute, ctypes.c_long(128))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def make_map(kind: int = LRU_HASH, key_size: int = 14, value_size: int = 56, capacity: int = CAPACITY) -> int:
    return bpf(MAP_CREATE, kind | key_size << 32, value_size | capacity << 32)


def keys_in(fd: int) -> set[bytes]:
    """All keys of a map that nobody changes, read without the code under test."""
    found, key, following = set(), None, ctypes.create_string_buffer(14)
    while True:
        try:
            bpf(GET_NEXT_KEY, fd, ctypes.addressof(key) if key else 0, ctypes.addressof(following))
        except FileNotFoundError:
            return found
        found.add(following.raw[:14])
        key = ctypes.create_string_buffer(following.raw[:14], 14)


def value_of(fd: int, key: bytes) -> bytes:
    key_buffer, value = ctypes.create_string_buffer(key, 14), ctypes.create_string_buffer(56)
    bpf(LOOKUP_ELEM, fd, ctypes.addressof(key_buffer), ctypes.addressof(value))
    return value.raw


@pytest.fixture
def table() -> Iterator[int]:
    fd = make_map()
    yield fd
    os.close(fd)


def entries(n: int = N, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """`n` entries of seven pods; the lifetimes of every five in a row are NOW - 1 … NOW + 3."""
    keys, values = np.zeros(n, CT_KEY_DTYPE), np.zeros(n, CT_VALUE_DTYPE)
    number = np.arange(first, first + n)
    keys["daddr"] = np.array(PODS)[number % len(PODS)]
    keys["saddr"] = int(IPv4Address("10.128.0.1")) + number // 1000
    keys["dport"], keys["sport"], keys["proto"] = 50010, number % 60_000 + 1024, 6
    values["lifetime"] = NOW - 1 + number % 5
    return keys, values


def fill(fd: int, n: int = N, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
    keys, values = entries(n, first)
    assert ct_fill(fd, keys.tobytes(), values.tobytes()) == n
    return keys, values


def test_fill_writes_keys_and_values_as_they_are(table: int) -> None:
    keys, values = fill(table)
    assert keys_in(table) == {key.tobytes() for key in keys}
    for at in (0, 1, N // 2, N - 1):
        assert value_of(table, keys[at].tobytes()) == values[at].tobytes()


@pytest.mark.parametrize("batch", [1, 7, N, 65_536])
def test_fill_in_batches_of_any_size(table: int, batch: int) -> None:
    keys, values = entries(1_000)
    assert ct_fill(table, keys.tobytes(), values.tobytes(), batch=batch) == 1_000
    assert len(keys_in(table)) == 1_000


@WALKS
@pytest.mark.parametrize("n", [0, 1, 23, N])
def test_walk_sees_every_entry_once(table: int, batch: int, n: int) -> None:
    fill(table, n)
    walk = ct_walk(table, capacity=CAPACITY, batch=batch)
    assert tuple(walk)[:6] == (n, 0, 0, 0, 0, False)
    assert walk.completed
    assert walk.ns > 0
    assert len(keys_in(table)) == n


@WALKS
def test_expired_is_strictly_before_now(table: int, batch: int) -> None:
    keys, values = fill(table)
    walk = ct_walk(table, capacity=CAPACITY, batch=batch, now=NOW)
    assert (walk.seen, walk.expired, walk.deleted) == (N, int((values["lifetime"] < NOW).sum()), 0)
    assert len(keys_in(table)) == len(keys)


@WALKS
def test_expired_entries_are_deleted_and_no_others(table: int, batch: int) -> None:
    keys, values = fill(table)
    kept = {key.tobytes() for key in keys[values["lifetime"] >= NOW]}
    walk = ct_walk(table, capacity=CAPACITY, batch=batch, now=NOW, delete=CT_EXPIRED)
    assert (walk.expired, walk.deleted) == (N - len(kept), N - len(kept))
    assert keys_in(table) == kept
    assert ct_walk(table, capacity=CAPACITY, batch=batch, now=NOW, delete=CT_EXPIRED).deleted == 0


@WALKS
def test_all_entries_can_be_deleted_under_the_walk(table: int, batch: int) -> None:
    fill(table)
    walk = ct_walk(table, capacity=CAPACITY, batch=batch, now=NOW + 100, delete=CT_EXPIRED)
    assert (walk.seen, walk.deleted, walk.completed) == (N, N, True)
    assert keys_in(table) == set()


@WALKS
def test_an_address_is_deleted_on_either_side(table: int, batch: int) -> None:
    keys, values = entries(700)
    pod = PODS[3]
    mirrored = keys[keys["daddr"] == PODS[4]].copy()
    mirrored["saddr"], mirrored["daddr"] = pod, mirrored["saddr"]
    mirrored["flags"] = 1
    ct_fill(table, keys.tobytes(), values.tobytes())
    ct_fill(table, mirrored.tobytes(), np.zeros(len(mirrored), CT_VALUE_DTYPE).tobytes())
    walk = ct_walk(table, capacity=CAPACITY, batch=batch, now=NOW, delete=CT_ADDRESS, address=pod)
    assert walk.deleted == 100 + len(mirrored)
    assert walk.expired == 140 + len(mirrored)
    assert keys_in(table) == {key.tobytes() for key in keys[keys["daddr"] != pod]}


@WALKS
def test_a_flag_that_is_set_stops_the_walk_at_once(table: int, batch: int) -> None:
    fill(table)
    walk = ct_walk(table, capacity=CAPACITY, batch=batch, now=NOW, delete=CT_EXPIRED, cancel=bytearray(b"\0\0\0\1"))
    assert (walk.cancelled, walk.completed, walk.seen) == (True, False, 0)
    assert len(keys_in(table)) == N


def test_a_flag_that_is_set_stops_the_fill(table: int) -> None:
    keys, values = entries()
    assert ct_fill(table, keys.tobytes(), values.tobytes(), cancel=bytearray(b"\1\0\0\0")) == 0
    assert keys_in(table) == set()


@WALKS
def test_a_walk_is_cancelled_from_another_thread(table: int, batch: int) -> None:
    fill(table)
    flag = bytearray(4)

    def walk_on() -> int:
        walks = 0
        while not ct_walk(table, capacity=CAPACITY, batch=batch, cancel=flag).cancelled:
            walks += 1
        return walks

    with ThreadPoolExecutor(1) as pool:
        walks = pool.submit(walk_on)
        flag[2] = 1
        assert walks.result(timeout=10) >= 0


def while_others_work(table: int, act: Callable[[], bool]) -> None:
    """Call `act` until it says True, while another thread inserts and deletes 5,000 expired entries."""
    keys, values = entries(5_000, first=1_000_000)
    values["lifetime"] = 1
    done = threading.Event()

    def disturb() -> None:
        while not done.is_set():
            ct_fill(table, keys.tobytes(), values.tobytes())
            ct_walk(table, capacity=CAPACITY, batch=4096, now=2, delete=CT_EXPIRED)

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(disturb)
        try:
            deadline = time.monotonic() + 10
            while not act():
                assert time.monotonic() < deadline, "the two threads never met"
        finally:
            done.set()
        other.result()


def test_a_walk_by_key_survives_deletions_and_insertions(table: int) -> None:
    fill(table)
    walks = []

    def walk() -> bool:
        walks.append(ct_walk(table, capacity=CAPACITY))
        return walks[-1].fallbacks > 0

    while_others_work(table, walk)
    # The entries that nobody touched are all seen; what is seen twice after a restart is bounded.
    assert all(N <= walk.seen <= 4 * CAPACITY and walk.completed for walk in walks)


def test_a_walk_in_batches_survives_deletions_and_insertions(table: int) -> None:
    fill(table)
    walks = []

    def walk() -> bool:
        walks.append(ct_walk(table, capacity=CAPACITY, batch=512))
        return walks[-1].seen > N

    while_others_work(table, walk)
    assert all(N <= walk.seen <= N + 5_000 and walk.completed for walk in walks)


def test_two_walks_that_delete_count_each_deletion_once(table: int) -> None:
    _, values = fill(table)
    gone = int((values["lifetime"] < NOW).sum())
    with ThreadPoolExecutor(2) as pool:
        both = [
            pool.submit(ct_walk, table, capacity=CAPACITY, batch=batch, now=NOW, delete=CT_EXPIRED)
            for batch in (0, 512)
        ]
        assert sum(walk.result().deleted for walk in both) == gone
    assert len(keys_in(table)) == N - gone


def test_a_walk_that_gets_nowhere_is_given_up(table: int) -> None:
    """A capacity far below the truth stands for a map that changes faster than it can be read."""
    fill(table)
    walk = ct_walk(table, capacity=1_000)
    assert (walk.seen, walk.completed, walk.cancelled) == (4_000, False, False)


@pytest.mark.parametrize(
    ("kind", "key_size", "value_size"),
    [(LRU_HASH, 14, 64), (HASH, 16, 56), (ARRAY, 4, 56)],
    ids=["larger values", "larger keys", "array"],
)
def test_a_map_of_another_layout_is_refused(kind: int, key_size: int, value_size: int) -> None:
    fd = make_map(kind, key_size, value_size, 64)
    keys, values = entries(1)
    try:
        with pytest.raises(ValueError, match="no conntrack map"):
            ct_walk(fd, capacity=64)
        with pytest.raises(ValueError, match="no conntrack map"):
            ct_fill(fd, keys.tobytes(), values.tobytes())
    finally:
        os.close(fd)


def test_a_descriptor_of_no_map_is_an_os_error() -> None:
    fd = os.open(os.devnull, os.O_RDONLY)
    os.close(fd)
    with pytest.raises(OSError, match="descriptor") as caught:
        ct_walk(fd, capacity=64)
    assert caught.value.errno in (errno.EBADF, errno.EBADFD)  # bpf(2) answers with either, by kernel


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"capacity": 0}, "capacity is 0"),
        ({"capacity": 9, "batch": -1}, "batch is -1"),
        ({"capacity": 9, "now": 2**32}, "now is 4294967296"),
        ({"capacity": 9, "delete": 3}, "delete is 3"),
        ({"capacity": 9, "delete": CT_EXPIRED}, "now, with delete=CT_EXPIRED"),
        ({"capacity": 9, "delete": CT_ADDRESS}, "address, with delete=CT_ADDRESS"),
        ({"capacity": 9, "cancel": bytearray(3)}, "at least 4 bytes"),
    ],
)
def test_arguments_that_cannot_be_meant(table: int, arguments: dict[str, int], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ct_walk(table, **arguments)


def test_keys_and_values_have_to_match(table: int) -> None:
    with pytest.raises(ValueError, match="28 bytes of keys and 56 of values"):
        ct_fill(table, bytes(28), bytes(56))
    with pytest.raises(ValueError, match="15 bytes of keys"):
        ct_fill(table, bytes(15), bytes(56))
