"""`python -m loadgen.kube.nodecache up|hold ADDRESS`: a link-local address of the node for a DNS cache of ours.

What NodeLocal DNSCache does on a node before it listens: the address becomes one of the node's own, and packets from
and to it are not tracked. `up` does that; `hold` waits for SIGTERM and undoes it. An error is one line on stderr.
"""

from __future__ import annotations

import errno
import signal
import sys
from ipaddress import IPv4Address
from pathlib import Path

from loadgen.core.errors import ConfigError, LoadgenError
from loadgen.kernel import nft
from loadgen.kernel.links import Links
from loadgen.lab import rules

TABLE = "loadgen_nodelocal"
PORT = 53


def up(address: IPv4Address, netns: Path | None = None) -> None:
    """Idempotent. ConfigError when the address is there and not by us: somebody else's cache uses it."""
    left = TABLE in nft.tables(netns, "ip")  # by one of ours that was killed
    if not left:
        nft.apply(netns, rules.untracked_nodelocal(address, PORT, TABLE))
    try:
        with Links(netns) as links:
            links.address("lo", f"{address}/32")
    except OSError as error:
        if left and error.errno == errno.EEXIST:
            return
        nft.delete_table(netns, "ip", TABLE)
        if error.errno == errno.EEXIST:
            raise ConfigError(f"{address} is an address of this node already: another DNS cache uses it") from None
        raise


def down(address: IPv4Address, netns: Path | None = None) -> None:
    """Idempotent."""
    with Links(netns) as links:
        links.remove_address("lo", f"{address}/32")
    nft.delete_table(netns, "ip", TABLE)


def main(argv: list[str]) -> int:
    try:
        if len(argv) != 3 or argv[1] not in ("up", "hold"):
            raise ConfigError("usage: python -m loadgen.kube.nodecache up|hold ADDRESS")
        address = IPv4Address(argv[2])
        if argv[1] == "up":
            up(address)
            return 0
        ends = {signal.SIGTERM, signal.SIGINT}
        signal.pthread_sigmask(signal.SIG_BLOCK, ends)
        sys.stdout.write(f"holding {address}\n")
        sys.stdout.flush()
        signal.sigwait(ends)
        down(address)
    except (ConfigError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 4
    except (LoadgenError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
