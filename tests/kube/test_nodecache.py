"""The cache's address on a node, made and taken away in a network namespace that stands for the node's."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from loadgen.core.errors import ConfigError
from loadgen.kernel import netns, nft
from loadgen.kernel.links import Links
from loadgen.kube import nodecache

ADDRESS = IPv4Address("169.254.20.10")


def addresses(node: Path) -> str:
    argv = ["ip", "-4", "-o", "addr", "show", "dev", "lo"]
    return netns.call(node, subprocess.run, argv, capture_output=True, text=True, check=True).stdout


def start(node: Path, command: str, address: str = str(ADDRESS)) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "loadgen.kube.nodecache", command, address]
    return netns.call(node, subprocess.Popen, argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def node(netns_factory: Callable[[str], Path]) -> Path:
    return netns_factory("node")


@pytest.mark.kernel
def test_the_address_is_there_from_up_until_hold_is_ended(node: Path) -> None:
    with start(node, "up") as up:
        assert up.wait() == 0
    assert f" {ADDRESS}/32 " in addresses(node)
    assert nft.tables(node, "ip") == {nodecache.TABLE}
    with start(node, "hold") as hold:
        assert hold.stdout is not None
        assert hold.stdout.readline() == "holding 169.254.20.10\n"
        hold.send_signal(signal.SIGTERM)
        assert (hold.communicate()[1], hold.returncode) == ("", 0)
    assert str(ADDRESS) not in addresses(node)
    assert nft.tables(node, "ip") == set()
    nodecache.down(ADDRESS, node)


@pytest.mark.kernel
def test_what_a_killed_one_left_is_taken_over_and_what_is_anothers_is_not(node: Path) -> None:
    nodecache.up(ADDRESS, node)
    nodecache.up(ADDRESS, node)
    nodecache.down(ADDRESS, node)
    with Links(node) as links:
        links.address("lo", f"{ADDRESS}/32")
    with pytest.raises(ConfigError, match="another DNS cache uses it"):
        nodecache.up(ADDRESS, node)
    assert nft.tables(node, "ip") == set()
    assert str(ADDRESS) in addresses(node)


@pytest.mark.parametrize("argv", [["up"], ["stop", "1.2.3.4"], ["up", "1.2.3"]])
def test_misuse_is_one_line(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert nodecache.main(["nodecache", *argv]) == 4
    assert capsys.readouterr().err.count("\n") == 1
