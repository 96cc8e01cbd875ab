import socket
from pathlib import Path

import pytest

from loadgen.kernel import netns
from loadgen.lab import addresses as plan
from loadgen.lab import topology
from loadgen.lab.state import LabState

pytestmark = pytest.mark.kernel


def listen(address: str, port: int) -> socket.socket:
    made = socket.create_server((address, port))
    made.settimeout(10)
    return made


def connect(address: str, port: int) -> socket.socket:
    return socket.create_connection((address, port), timeout=10)


@pytest.mark.parametrize("nodelocal", [False, True])
def test_the_node_reaches_every_datanode_and_back_end(lab_dir: Path, nodelocal: bool) -> None:
    state = LabState(lab_dir / "topologies")
    state.netns.mkdir(parents=True)
    topology.build(state, nodelocal=nodelocal)
    node = state.netns / plan.NODE
    try:
        with netns.call(state.netns / plan.DATANODES, listen, "0.0.0.0", plan.DATANODE_PORT) as server:
            for index in (0, 499, plan.MAX_DATANODES - 1):
                with netns.call(node, connect, str(plan.datanode(index)), plan.DATANODE_PORT):
                    accepted, _ = server.accept()
                    assert accepted.getsockname()[0] == str(plan.datanode(index))
                    accepted.close()
        for index, address in enumerate(topology.dns_backends()):
            with (
                netns.call(state.netns / plan.dns_netns(index), listen, str(address), 53),
                netns.call(node, connect, str(address), 53) as client,
            ):
                assert client.getpeername()[0] == str(address)
                # The Service address leads to one back end or the other, also from the node itself.
        with (
            netns.call(state.netns / plan.dns_netns(0), listen, str(topology.dns_backends()[0]), 53),
            netns.call(state.netns / plan.dns_netns(1), listen, str(topology.dns_backends()[1]), 53),
            netns.call(node, connect, str(plan.CLUSTER_DNS), 53) as client,
        ):
            assert client.getpeername()[0] == str(plan.CLUSTER_DNS)
        bound = netns.call(node, can_bind, str(plan.NODELOCAL_DNS))
        assert bound is nodelocal
    finally:
        for path in state.netns.iterdir():
            netns.delete(path)


def can_bind(address: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind((address, 53))
        except OSError:
            return False
    return True
