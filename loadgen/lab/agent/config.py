"""What the agent is started with: a JSON file."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Literal

import msgspec

from loadgen.core import cilium
from loadgen.core.errors import ConfigError
from loadgen.core.model import Cilium
from loadgen.core.units import dec_hook, enc_hook


class AgentConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The agent runs in the node's network namespace; `netns` enters it first, for who starts it from elsewhere."""

    socket: str
    pin_dir: str
    """Directory on a bpffs where the CT tables are, or get, pinned."""
    chained: bool = False
    """Another CNI plugin makes the pods' links and gives them their addresses, as with Cilium's generic-veth."""
    pod_cidr: str = ""
    gateway: str = ""
    """Address of the node towards its pods, within pod_cidr. Both are needed unless `chained`, and unused then."""
    spans_by: Literal["container", "pod"] = "container"
    """What spans call an operation by: the id of a sandbox's container, or NAMESPACE/NAME of its pod."""
    metrics_listen: str = ""
    """HOST:PORT where /metrics and /v1/loadgen/state are served over TCP too; without HOST on every address."""
    state_dir: str = ""
    """Where endpoints are kept for the next start, which takes over those whose interface is still there."""
    cilium: Cilium = Cilium()
    attach: bool = True
    """Put the datapath on every pod's veth. Without it the tables change only by hand."""
    netns: str = ""


def load(path: Path) -> AgentConfig:
    """Read and check a configuration; ConfigError says which file, which key, what is wrong."""
    try:
        config = msgspec.json.decode(path.read_bytes(), type=AgentConfig, dec_hook=dec_hook)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path}: {error}") from None
    check(config, str(path))
    return config


def settings_text(settings: Cilium) -> str:
    """As the agent reports them (AgentState.settings): the same text for the same settings."""
    return msgspec.json.encode(settings, enc_hook=enc_hook, order="sorted").decode()


def check(config: AgentConfig, source: str) -> None:
    if not config.chained:
        try:
            network = IPv4Network(config.pod_cidr)
            gateway = IPv4Address(config.gateway)
        except ValueError as error:
            raise ConfigError(f"{source}: {error}") from None
        if gateway not in network:
            raise ConfigError(f"{source}: gateway: {gateway} is not within podCIDR {network}")
    if config.metrics_listen:
        listen_address(config.metrics_listen, source)
    profile = cilium.profile(config.cilium.profile)
    cilium.api_limits(profile, config.cilium.api_rate_limit)


def listen_address(text: str, source: str = "metrics_listen") -> tuple[str | None, int]:
    """Host and port of HOST:PORT or :PORT; None is every address."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(f"{source}: metrics_listen: {text!r} is not HOST:PORT, nor :PORT for every address")
    return host.strip("[]") or None, int(port)
