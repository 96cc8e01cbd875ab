"""Endpoints that outlive the agent's process: a small file each, as Cilium keeps them in /var/run/cilium/state."""

from __future__ import annotations

import logging
from ipaddress import IPv4Address
from pathlib import Path

import msgspec

from loadgen.lab.agent.endpoints import NewEndpoint

log = logging.getLogger("agent")


class _Saved(msgspec.Struct, frozen=True):
    cni_id: str
    container_id: str
    address: str
    ifname: str
    pod: str
    ref: str


class EndpointFiles:
    """The folder of files, named by the endpoints' numbers. Writes are tiny and go to a tmpfs (/run)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def save(self, number: int, spec: NewEndpoint) -> None:
        saved = _Saved(spec.cni_id, spec.container_id, str(spec.address), spec.ifname, spec.pod, spec.ref)
        partial = self._folder / f".{number}"
        partial.write_bytes(msgspec.json.encode(saved))
        partial.replace(self._path(number))

    def forget(self, number: int) -> None:
        self._path(number).unlink(missing_ok=True)

    def load(self) -> dict[int, NewEndpoint]:
        """What the last process had saved. A file that is none of ours is left alone, one cut short is dropped."""
        found: dict[int, NewEndpoint] = {}
        for path in self._folder.glob("*.json"):
            if not path.stem.isdecimal():
                continue
            try:
                saved = msgspec.json.decode(path.read_bytes(), type=_Saved)
                spec = NewEndpoint(
                    cni_id=saved.cni_id,
                    container_id=saved.container_id,
                    address=IPv4Address(saved.address),
                    ifname=saved.ifname,
                    pod=saved.pod,
                    ref=saved.ref,
                )
            except ValueError as error:
                log.warning("Unable to restore endpoint %s: %s", path, error)
                path.unlink(missing_ok=True)
            else:
                found[int(path.stem)] = spec
        return dict(sorted(found.items()))

    def _path(self, number: int) -> Path:
        return self._folder / f"{number}.json"
