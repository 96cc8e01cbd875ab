"""`python -m loadgen.kube.install follow|remove|show PLACES.json`: our part of a node's network, put in and out.

follow  puts the plugin and the chained configuration in, and follows when the cluster's own configuration changes,
        until SIGTERM. Then it takes everything out if the agent's DaemonSet is going. If it is not, the agent is only
        being restarted, and pods wait for it meanwhile, as they do for Cilium.
remove  takes everything out at once, and has `follow` stop.
show    prints the chain's plugins, one a line.
"""

from __future__ import annotations

import logging
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from loadgen.core.errors import ConfigError, HarnessError
from loadgen.kernel import bpf
from loadgen.kube import chain, incluster
from loadgen.kube.chain import Sockets

log = logging.getLogger("install")

EVERY_S = 1.0
AGENT_LIMIT_S = 5.0
"""What the agent may take to end, when everything of it is taken away after it."""

_REMOVED = "removed"
_NO_NETWORK = "{} has no CNI configuration: the cluster's own network is not installed (yet)"


class Places(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a node's things are, as the pod sees them. `run` is the same path on the host and in the pod."""

    config: str
    """The runtime's CNI configurations."""
    plugins: str
    run: str
    """Sockets and state of the agent and its relay."""
    pins: str
    """Where the agent pins its tables."""
    program: str
    """Our compiled plugin, in the image."""
    daemonset: str
    """API path of the agent's DaemonSet."""

    @property
    def sockets(self) -> Sockets:
        return Sockets(relay=f"{self.run}/cni.sock", agent=f"{self.run}/cilium.sock")


def load(path: Path) -> Places:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Places)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path}: {error}") from None


def put_in(places: Places) -> list[str]:
    """Bring the node to what it should be; returns what had to be done. ConfigError says why it cannot be."""
    folder, plugins = Path(places.config), Path(places.plugins)
    source = chain.original(folder)
    if source is None:
        if chain.remove_conflist(folder):
            return [f"{folder / chain.CONFLIST}: removed, for the cluster's own configuration is gone"]
        raise ConfigError(_NO_NETWORK.format(folder))
    network = chain.extended(source, places.sockets)
    chain.check_plugins(network, plugins)
    done = []
    if chain.install_plugin(Path(places.program), plugins):
        done.append(f"{plugins / chain.PLUGIN}: installed")
    if chain.write_conflist(folder, network):
        done.append(f"{folder / chain.CONFLIST}: {source.name} with {chain.PLUGIN} behind it")
    return done


def take_out(places: Places) -> list[str]:
    """Leave nothing of ours on the node; returns what was there. Idempotent.

    The configuration goes first: from then on pods are set up without us. Tables live as long as any program uses
    them, so the programs come off every interface.
    """
    found = list(chain.remove(Path(places.config), Path(places.plugins)))
    found += [f"programs on {name}" for index, name in socket.if_nameindex() if bpf.detach(index)]
    found += _unpin(Path(places.pins))
    state = Path(places.run) / "endpoints"
    if state.exists():
        shutil.rmtree(state)
        found.append("endpoints' state")
    return found


def _unpin(folder: Path) -> Iterator[str]:
    for name in (bpf.TCP_MAP, bpf.ANY_MAP):
        try:
            (folder / name).unlink()
        except FileNotFoundError:
            continue
        yield name
    for parent in (folder, folder.parent):
        try:
            parent.rmdir()
        except OSError:
            return  # others have pins there


def follow(places: Places, wait: Callable[[], bool]) -> None:
    """Keep the node as it should be until `wait` says that it is over."""
    removed = Path(places.run) / _REMOVED
    removed.unlink(missing_ok=True)
    said = ""
    while True:
        if not removed.exists():
            try:
                for line in put_in(places):
                    log.info("%s", line)
                trouble = ""
            except (ConfigError, OSError) as error:
                trouble = str(error)
            if trouble and trouble != said:
                log.error("%s", trouble)
            said = trouble
        if wait():
            return


def leave(places: Places, is_going: Callable[[], bool]) -> None:
    """At the end of the pod: everything out, if its DaemonSet is going too."""
    try:
        if not is_going():
            log.info("the agent is being restarted: the node's configuration stays")
            return
    except OSError as error:
        log.error("the node's configuration stays, for it is not known whether the agent will be back: %s", error)
        return
    agent, deadline = Path(places.sockets.agent), time.monotonic() + AGENT_LIMIT_S
    while agent.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    for line in take_out(places):
        log.info("removed: %s", line)
    (Path(places.run) / _REMOVED).unlink(missing_ok=True)


def remove_now(places: Places) -> None:
    (Path(places.run) / _REMOVED).touch()
    sys.stdout.write("".join(f"{line}\n" for line in take_out(places)))


def show(places: Places) -> None:
    source = chain.original(Path(places.config))
    if source is None:
        raise ConfigError(_NO_NETWORK.format(places.config))
    network = chain.extended(source, places.sockets)
    sys.stdout.write("".join(f"{plugin['type']}\n" for plugin in network["plugins"]))


def _until_terminated(places: Places) -> None:
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    follow(places, lambda: signal.sigtimedwait(ends, EVERY_S) is not None)
    server = incluster.here()
    leave(places, lambda: server is not None and incluster.is_going(server, places.daemonset))


COMMANDS = {"follow": _until_terminated, "remove": remove_now, "show": show}


def main(argv: list[str]) -> int:
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="time=%(asctime)s level=%(levelname)s msg=%(message)s"
    )
    try:
        if len(argv) != 3 or argv[1] not in COMMANDS:
            raise ConfigError(f"usage: python -m loadgen.kube.install {'|'.join(COMMANDS)} PLACES.json")
        COMMANDS[argv[1]](load(Path(argv[2])))
    except ConfigError as error:
        log.error("%s", error)
        return 4
    except (HarnessError, OSError) as error:
        log.error("%s", error)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
