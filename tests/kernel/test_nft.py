"""Rulesets go in whole or not at all; named counters come out."""

from __future__ import annotations

import socket

import pytest

from loadgen.core.errors import HarnessError
from loadgen.kernel import netns, nft
from loadgen.kernel.nft import Counter

pytestmark = pytest.mark.kernel

TABLE = {"family": "ip", "table": "test"}
DROP_ON_PORT_9 = [
    {"add": {"table": {"family": "ip", "name": "test"}}},
    {"add": {"counter": {**TABLE, "name": "dropped"}}},
    {"add": {"counter": {**TABLE, "name": "idle"}}},
    {"add": {"chain": {**TABLE, "name": "in", "type": "filter", "hook": "input", "prio": 0, "policy": "accept"}}},
    {
        "add": {
            "rule": {
                **TABLE,
                "chain": "in",
                "expr": [
                    {"match": {"op": "==", "left": {"payload": {"protocol": "udp", "field": "dport"}}, "right": 9}},
                    {"counter": "dropped"},
                    {"drop": None},
                ],
            }
        }
    },
]


def send(count):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        for _ in range(count):
            client.sendto(b"12345", ("127.0.0.1", 9))


def test_named_counters_count_the_packets_of_that_namespace(netns_factory):
    pod, other = netns_factory("pod"), netns_factory("other")
    for path in (pod, other):
        nft.apply(path, DROP_ON_PORT_9)
    netns.call(pod, send, 3)
    assert nft.counters(pod, "test") == {"dropped": Counter(3, 3 * (20 + 8 + 5)), "idle": Counter(0, 0)}
    assert nft.counters(other, "test")["dropped"] == Counter(0, 0)


def test_a_ruleset_is_applied_as_a_whole_or_not_at_all(netns_factory):
    pod = netns_factory("pod")
    broken = [*DROP_ON_PORT_9, {"add": {"rule": {**TABLE, "chain": "nowhere", "expr": [{"drop": None}]}}}]
    with pytest.raises(HarnessError, match=r"nft -j -f -.*No such file or directory"):
        nft.apply(pod, broken)
    with pytest.raises(HarnessError, match="list counters table ip test"):
        nft.counters(pod, "test")


def test_delete_table_is_idempotent(netns_factory):
    pod = netns_factory("pod")
    nft.apply(pod, DROP_ON_PORT_9)
    assert nft.tables(pod, "ip") == {"test"}
    nft.delete_table(pod, "ip", "test")
    assert nft.tables(pod, "ip") == set()
    nft.delete_table(pod, "ip", "test")
    with pytest.raises(HarnessError):
        nft.counters(pod, "test")
