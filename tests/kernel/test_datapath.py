"""Real connections through the tc programs: the entries they leave, byte by byte, as bpftool reads them.

The expected flags and lifetimes are those measured on Cilium 1.16.15 and 1.18.3 with the same kinds of connection.
"""

from __future__ import annotations

import socket
import struct
import time

import numpy as np
import pytest

from loadgen.core import conntrack
from loadgen.core.conntrack import CT_VALUE_DTYPE, ICMP, UDP, CtTimeouts
from loadgen.kernel import bpf, netns, nft

from .conftest import ADDRESSES, eventually, key

pytestmark = pytest.mark.kernel

OUT, IN, RELATED = 0, 1, 2
SYN, FIN, RST = 0x02, 0x01, 0x04
PORT = 50010


def entry(values: dict[bytes, bytes], wanted: bytes) -> np.void:
    return np.frombuffer(values[wanted], dtype=CT_VALUE_DTYPE)[0]


def has_flags(table, wanted: bytes, flags: int, kind: str = "tcp") -> bool:
    values = table(kind)
    return wanted in values and entry(values, wanted)["flags"] == flags


def assert_entry(value: bytes, *, since: int, timeout: int, flags: int, tx: int | None, rx: int | None) -> None:
    """All 56 bytes. Times must lie in the test's own seconds. None: that side has sent nothing, nor been reported."""
    row = np.frombuffer(value, dtype=CT_VALUE_DTYPE)[0]
    last_packet = int(row["lifetime"]) - timeout
    assert since <= last_packet <= time.monotonic()
    reports = int(row["last_tx_report"]), int(row["last_rx_report"])
    for report, seen in zip(reports, (tx, rx), strict=True):
        assert since <= report <= last_packet if seen is not None else report == 0
    assert value == struct.pack(
        "=QQQQIHHHBBIII", 0, 0, 0, 0, last_packet + timeout, flags, 0, 0, tx or 0, rx or 0, 0, *reports
    )


def reset_on_close(end: socket.socket) -> None:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.fixture
def listener(rig):
    with rig.listen(PORT) as server:
        yield server


def close_both(client, server):
    client.close()
    assert server.recv(1) == b""
    server.close()


def reset_by_client(client, server):
    reset_on_close(client)
    client.close()
    with pytest.raises(ConnectionResetError):
        server.recv(1)
    server.close()


def reset_by_server(client, server):
    reset_on_close(server)
    server.close()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    client.close()


# way it ends: (OUT flags, tx, rx), (IN flags, tx, rx); both entries have 10 s left
ENDINGS = {
    close_both: ((0x13, SYN | FIN, SYN | FIN), (0x13, SYN | FIN, SYN | FIN)),
    reset_by_client: ((0x13, SYN | RST, SYN), (0x13, SYN, SYN | RST)),
    reset_by_server: ((0x13, SYN, SYN | RST), (0x13, SYN | RST, SYN)),
}


@pytest.mark.parametrize("end", ENDINGS, ids=lambda end: end.__name__)
def test_a_connection_that_ends_has_ten_seconds_left(rig, datapath, table, listener, end):
    since = int(time.monotonic())
    end(*rig.connect("one", 40_000, listener))
    outgoing, incoming = (key("one", 40_000, "server", PORT, direction) for direction in (OUT, IN))
    assert eventually(lambda: has_flags(table, outgoing, 0x13) and has_flags(table, incoming, 0x13))
    entries = table("tcp")
    assert set(entries) == {outgoing, incoming}
    for wanted, (flags, tx, rx) in zip((outgoing, incoming), ENDINGS[end], strict=True):
        assert_entry(entries[wanted], since=since, timeout=10, flags=flags, tx=tx, rx=rx)


def test_an_established_connection_lives_for_hours(rig, datapath, table, listener):
    since = int(time.monotonic())
    client, server = rig.connect("one", 40_001, listener)
    entries = table("tcp")
    for direction in (OUT, IN):
        wanted = key("one", 40_001, "server", PORT, direction)
        assert_entry(entries[wanted], since=since, timeout=8000, flags=0x10, tx=SYN, rx=SYN)
    client.close()
    server.close()


def test_a_half_closed_connection_keeps_its_hours_until_the_other_side_closes(rig, datapath, table, listener):
    since = int(time.monotonic())
    client, server = rig.connect("one", 40_002, listener)
    client.close()
    outgoing, incoming = (key("one", 40_002, "server", PORT, direction) for direction in (OUT, IN))
    assert eventually(lambda: has_flags(table, outgoing, 0x12) and has_flags(table, incoming, 0x11))
    entries = table("tcp")
    assert_entry(entries[outgoing], since=since, timeout=8000, flags=0x12, tx=SYN | FIN, rx=SYN)
    assert_entry(entries[incoming], since=since, timeout=8000, flags=0x11, tx=SYN, rx=SYN | FIN)

    server.close()
    assert eventually(lambda: has_flags(table, outgoing, 0x13) and has_flags(table, incoming, 0x13))
    left = conntrack.remaining(np.frombuffer(b"".join(table("tcp").values()), CT_VALUE_DTYPE), since)
    assert left.max() <= 10 + time.monotonic() - since


def test_a_refused_connection(rig, datapath, table):
    since = int(time.monotonic())
    with rig.socket("one", socket.SOCK_STREAM, 40_003) as client, pytest.raises(ConnectionRefusedError):
        client.connect((ADDRESSES["server"], 50_099))
    entries = table("tcp")
    outgoing, incoming = (key("one", 40_003, "server", 50_099, direction) for direction in (OUT, IN))
    assert set(entries) == {outgoing, incoming}
    assert_entry(entries[outgoing], since=since, timeout=10, flags=0x13, tx=SYN, rx=RST)
    assert_entry(entries[incoming], since=since, timeout=10, flags=0x13, tx=RST, rx=SYN)
    assert set(table("any")) == related("one", "server")


@pytest.fixture
def deaf_server(rig):
    """The server's pod drops what comes to TCP port 50098."""
    at_port = {"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 50_098}}
    where = {"family": "ip", "table": "deaf"}
    chain = {**where, "name": "in", "type": "filter", "hook": "input", "prio": 0}
    nft.apply(
        rig.pods["server"],
        [
            {"add": {"table": {"family": "ip", "name": "deaf"}}},
            {"add": {"chain": chain}},
            {"add": {"rule": {**where, "chain": "in", "expr": [at_port, {"drop": None}]}}},
        ],
    )
    yield
    nft.delete_table(rig.pods["server"], "ip", "deaf")


def test_an_unanswered_syn_lives_for_a_minute(rig, datapath, table, deaf_server):
    since = int(time.monotonic())
    outgoing, incoming = (key("one", 40_004, "server", 50_098, direction) for direction in (OUT, IN))
    with rig.socket("one", socket.SOCK_STREAM, 40_004) as client:
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.connect((ADDRESSES["server"], 50_098))
        assert eventually(lambda: set(table("tcp")) == {outgoing, incoming})
    entries = table("tcp")
    assert_entry(entries[outgoing], since=since, timeout=60, flags=0, tx=SYN, rx=None)
    assert_entry(entries[incoming], since=since, timeout=60, flags=0, tx=None, rx=SYN)
    assert set(table("any")) == related("one", "server")


def test_a_syn_on_an_ended_connection_opens_its_entry_again(rig, datapath, table, listener):
    reset_by_client(*rig.connect("one", 40_005, listener))
    outgoing, incoming = (key("one", 40_005, "server", PORT, direction) for direction in (OUT, IN))
    assert eventually(lambda: has_flags(table, outgoing, 0x13) and has_flags(table, incoming, 0x13))
    created = datapath.stats().created
    since = int(time.monotonic())
    client, server = rig.connect("one", 40_005, listener)
    entries = table("tcp")
    for wanted in (outgoing, incoming):
        assert_entry(entries[wanted], since=since, timeout=8000, flags=0x10, tx=SYN, rx=SYN)
    assert datapath.stats().created == created
    reset_by_client(client, server)


def related(pod: str, peer: str) -> set[bytes]:
    return {key(pod, 0, peer, 0, direction | RELATED, ICMP) for direction in (OUT, IN)}


def test_udp_lives_for_a_minute_in_the_other_table(rig, datapath, table):
    since = int(time.monotonic())
    with (
        rig.socket("server", socket.SOCK_DGRAM, 53) as server,
        rig.socket("two", socket.SOCK_DGRAM, 40_006) as client,
    ):
        client.sendto(b"query", server.getsockname())
        server.sendto(b"reply", server.recvfrom(100)[1])
        client.recv(100)
    entries = table("any")
    outgoing, incoming = (key("two", 40_006, "server", 53, direction, UDP) for direction in (OUT, IN))
    assert set(entries) == {outgoing, incoming} | related("two", "server")
    for wanted in (outgoing, incoming):
        assert_entry(entries[wanted], since=since, timeout=60, flags=0, tx=0, rx=0)
    assert entry(entries, key("two", 0, "server", 0, OUT | RELATED, ICMP))["flags"] == 0x10
    assert table("tcp") == {}


def test_an_icmp_error_belongs_to_the_pairs_related_entry(rig, datapath, table):
    with rig.socket("two", socket.SOCK_DGRAM, 40_007) as client:
        client.connect((ADDRESSES["server"], 50_097))
        client.send(b"to a closed port")
        with pytest.raises(ConnectionRefusedError):
            client.recv(1)
    entries = table("any")
    outgoing, incoming = (key("two", 40_007, "server", 50_097, direction, UDP) for direction in (OUT, IN))
    assert set(entries) == {outgoing, incoming} | related("two", "server")
    assert entry(entries, key("two", 0, "server", 0, OUT | RELATED, ICMP))["last_rx_report"] > 0
    assert entry(entries, key("two", 0, "server", 0, IN | RELATED, ICMP))["last_tx_report"] > 0


def test_an_echo_is_one_entry_by_its_identifier(rig, datapath, table):
    since = int(time.monotonic())
    header = struct.pack(">BBHHH", 8, 0, 0, 0x1234, 1)
    checksum = 0xFFFF - (8 << 8) - 0x1234 - 1
    with rig.socket("one", socket.SOCK_RAW, 0, socket.IPPROTO_ICMP) as raw:
        raw.sendto(header[:2] + struct.pack(">H", checksum) + header[4:], (ADDRESSES["server"], 0))
        raw.recv(100)
    entries = table("any")
    outgoing, incoming = (key("one", 0x1234, "server", 0, direction, ICMP) for direction in (OUT, IN))
    assert set(entries) == {outgoing, incoming} | related("one", "server")
    for wanted in (outgoing, incoming):
        assert_entry(entries[wanted], since=since, timeout=60, flags=0, tx=0, rx=0)


def test_fragments_make_no_entries_of_their_own(rig, datapath, table):
    with (
        rig.socket("server", socket.SOCK_DGRAM, 53) as server,
        rig.socket("two", socket.SOCK_DGRAM, 40_008) as client,
    ):
        client.sendto(b"\xff" * 8000, server.getsockname())
        assert len(server.recv(9000)) == 8000
    udp = {wanted for wanted in table("any") if wanted[12] == UDP}
    assert udp == {key("two", 40_008, "server", 53, direction, UDP) for direction in (OUT, IN)}


def test_other_ethernet_types_pass_without_an_entry(rig, datapath, table):
    experimental = 0x88B5
    frame = b"\xff" * 6 + b"\x02" * 6 + struct.pack(">H", experimental) + b"\x45" * 50

    def packet_socket(interface):
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(experimental))
        made.settimeout(5)
        made.bind((interface, experimental))
        return made

    with (
        netns.call(rig.pods["one"], packet_socket, "eth0") as inside,
        netns.call(rig.node, packet_socket, "lxc-one") as outside,
    ):
        inside.send(frame)
        assert outside.recv(100) == frame
        outside.send(frame)
        assert inside.recv(100) == frame
    assert table("tcp") == table("any") == {}


def test_other_ip_protocols_pass_without_an_entry(rig, datapath, table):
    experimental = 253
    with (
        rig.socket("one", socket.SOCK_RAW, 0, experimental) as client,
        rig.socket("server", socket.SOCK_RAW, 0, experimental) as server,
    ):
        client.sendto(b"hello", (ADDRESSES["server"], 0))
        assert server.recv(100).endswith(b"hello")
    assert table("tcp") == table("any") == {}


def test_every_connection_is_counted_once_on_each_veth(rig, datapath, table, listener):
    ports = range(41_000, 41_023)
    for port in ports:
        close_both(*rig.connect("one" if port % 2 else "two", port, listener))
    expected = {
        direction: {key("one" if port % 2 else "two", port, "server", PORT, direction) for port in ports}
        for direction in (OUT, IN)
    }
    entries = table("tcp")
    assert {direction: {k for k in entries if k[13] == direction} for direction in (OUT, IN)} == expected
    assert len(expected[OUT]) == len(expected[IN]) == 23
    assert datapath.stats() == bpf.CtStats(created=46, create_failed=0)
    assert set(table("any")) == related("one", "server") | related("two", "server")


def test_timeouts_and_identity_are_set_at_load(rig, pin_dir, table, listener):
    since = int(time.monotonic())
    with bpf.CtDatapath.load(pin_dir, 4096, 4096, identity=17_433, timeouts=CtTimeouts(tcp=21_600)) as loaded:
        rig.attach(loaded)
        client, server = rig.connect("one", 40_009, listener)
        row = entry(table("tcp"), key("one", 40_009, "server", PORT, OUT))
    assert row["src_sec_id"] == 17_433
    assert since <= row["lifetime"] - 21_600 <= time.monotonic()
    close_both(client, server)


def test_a_full_table_evicts_instead_of_failing(rig, pin_dir, table):
    with bpf.CtDatapath.load(pin_dir, 1024, 1024) as loaded:
        rig.attach(loaded)
        sockets = [rig.socket("two", socket.SOCK_DGRAM, port) for port in range(42_000, 42_050)]
        with rig.socket("server", socket.SOCK_DGRAM, 9):
            for client in sockets:
                for port in range(9, 69):
                    client.sendto(b"x", (ADDRESSES["server"], port))
                client.close()
        stats = loaded.stats()
        assert stats.created + stats.create_failed == 2 * 50 * 60
        assert stats.create_failed < stats.created / 100
        assert len(table("any")) <= 1024
