"""nf_conntrack's counters belong to a namespace, and are what conntrack-tools reads over netlink."""

from __future__ import annotations

import re
import socket
import subprocess

import pytest

from loadgen.kernel import netns, nfct, nft

pytestmark = pytest.mark.kernel

TABLE = {"family": "ip", "table": "test"}


def test_entries_are_the_flows_of_that_namespace(netns_factory):
    """Nothing is tracked in a namespace until a rule needs it; then one entry stands for one flow."""
    pod, other = netns_factory("pod"), netns_factory("other")
    state = {"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": "invalid"}}
    chain = {**TABLE, "name": "in", "type": "filter", "hook": "input", "prio": 0, "policy": "accept"}
    nft.apply(
        pod,
        [
            {"add": {"table": {"family": "ip", "name": "test"}}},
            {"add": {"chain": chain}},
            {"add": {"rule": {**TABLE, "chain": "in", "expr": [state, {"drop": None}]}}},
        ],
    )
    before = nfct.read(pod)

    def flows():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
            server.bind(("127.0.0.1", 0))
            for _ in range(5):
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
                    client.sendto(b"x", server.getsockname())
                    server.recv(1)

    netns.call(pod, flows)
    after = nfct.read(pod)
    assert (before.entries, after.entries) == (0, 5)
    assert after.insert_failed == after.drop == 0
    assert nfct.read(other).entries == 0

    shown = netns.call(pod, subprocess.run, ["conntrack", "-S"], capture_output=True, check=True).stdout.decode()
    for name in ("invalid", "insert_failed", "drop", "early_drop", "search_restart", "clash_resolve"):
        assert sum(map(int, re.findall(rf"\b{name}=(\d+)", shown))) == getattr(after, name)
