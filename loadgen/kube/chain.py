"""A node's CNI configuration with our plugin at its end: what it says, and how it gets there and away again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from loadgen.core.errors import ConfigError

CONFLIST = "00-loadgen.conflist"
"""Runtimes take the first file by name. Its network keeps the name that the cluster gave it: IPAM and the runtime's
cache go by that."""
PLUGIN = "loadgen-cni"
SUFFIXES = (".conf", ".conflist", ".json")


class Sockets(msgspec.Struct, frozen=True):
    """Where our plugin finds its relay and, behind it, the agent: paths on the host."""

    relay: str
    agent: str


def original(folder: Path) -> Path | None:
    """What the runtime would take without ours; ConfigError when it would take that all the same."""
    names = sorted(path.name for path in folder.iterdir() if path.suffix in SUFFIXES)
    others = [name for name in names if name != CONFLIST]
    if not others:
        return None
    if others[0] < CONFLIST:
        raise ConfigError(f"{folder / others[0]} comes before {CONFLIST}: the runtime would never take ours")
    return folder / others[0]


def extended(source: Path, sockets: Sockets) -> dict[str, Any]:
    """The network of `source` with our plugin behind its own. ConfigError when that cannot be."""
    try:
        network = msgspec.json.decode(source.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ConfigError(f"{source}: {error}") from None
    if "plugins" not in network:  # a single plugin's configuration
        network = {"cniVersion": network.get("cniVersion"), "name": network.get("name"), "plugins": [network]}
    types = [plugin.get("type") for plugin in network["plugins"]]
    if not types or not all(types):
        raise ConfigError(f"{source}: it names no plugin")
    if "cilium-cni" in types:
        raise ConfigError(f"{source}: this node's network is Cilium already; use --cni cilium")
    plugins = [plugin for plugin in network["plugins"] if plugin["type"] != PLUGIN]
    ours = {"type": PLUGIN, "chained": True, "agentSocket": sockets.agent, "relaySocket": sockets.relay}
    return {**network, "plugins": [*plugins, ours]}


def check_plugins(network: dict[str, Any], folder: Path) -> None:
    """ConfigError when the runtime's plugins cannot be those in `folder`, where ours is about to go."""
    for plugin in network["plugins"]:
        if plugin["type"] != PLUGIN and not (folder / plugin["type"]).exists():
            raise ConfigError(
                f"{folder} has no {plugin['type']}: this node's CNI plugins are in another folder; name it by the "
                "value cni_bin of manifests/agent.yaml"
            )


def install_plugin(source: Path, folder: Path) -> bool:
    """Put our plugin into the runtime's folder; False when it is there. One that runs meanwhile is not disturbed."""
    target = folder / PLUGIN
    if target.exists() and target.read_bytes() == source.read_bytes():
        return False
    partial = folder / f".{PLUGIN}.partial"
    shutil.copyfile(source, partial)
    partial.chmod(0o755)
    partial.replace(target)
    return True


def write_conflist(folder: Path, network: dict[str, Any]) -> bool:
    """Write our conflist so that no reader ever sees half of it; False when it is there already.

    containerd before 1.7 hears of a file that is written to, not of one that is renamed into the folder. So a new
    one is renamed and then written again in place; a shorter text than before ends in spaces.
    """
    target, text = folder / CONFLIST, msgspec.json.format(msgspec.json.encode(network)) + b"\n"
    try:
        before = target.read_bytes()
    except FileNotFoundError:
        before = b""
    if before.rstrip() == text.rstrip():
        return False
    if not before:
        partial = folder / f".{CONFLIST}.partial"
        partial.write_bytes(text)
        partial.chmod(0o600)
        partial.replace(target)
    _overwrite(target, text.ljust(len(before)))
    return True


def _overwrite(path: Path, text: bytes) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        if os.write(fd, text) != len(text):
            raise OSError(f"{path}: the disk is full")
    finally:
        os.close(fd)


def remove_conflist(folder: Path) -> bool:
    """False when it was not there."""
    return _gone(folder / CONFLIST)


def remove(config: Path, plugins: Path) -> Iterator[str]:
    """Take both away again, the configuration first; yields what was there. Idempotent."""
    for path in (
        config / CONFLIST,
        config / f".{CONFLIST}.partial",
        plugins / PLUGIN,
        plugins / f".{PLUGIN}.partial",
    ):
        if _gone(path):
            yield path.name


def _gone(path: Path) -> bool:
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True
