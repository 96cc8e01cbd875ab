"""nftables through `nft -j`: JSON in, JSON out (libnftables-json(5)), one transaction a call."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import msgspec

from loadgen.core.errors import HarnessError, NotSupported
from loadgen.kernel import netns as namespaces

_TIMEOUT_S = 30


class Counter(msgspec.Struct, frozen=True):
    """A named counter object of a table."""

    packets: int
    bytes: int


def apply(netns: Path | None, ruleset: list[dict[str, Any]]) -> None:
    """Apply the commands and objects of `ruleset` as one transaction: all of it or, with HarnessError, nothing."""
    _nft(netns, "-f", "-", stdin=msgspec.json.encode({"nftables": ruleset}))


def counters(netns: Path | None, table: str, family: str = "ip") -> dict[str, Counter]:
    """Every named counter of the table, by name. HarnessError when there is no such table."""
    found = _nft(netns, "list", "counters", "table", family, table)
    return {
        item["counter"]["name"]: msgspec.convert(item["counter"], Counter)
        for item in msgspec.json.decode(found)["nftables"]
        if "counter" in item
    }


def tables(netns: Path | None, family: str) -> set[str]:
    """Names of the tables of a family."""
    found = msgspec.json.decode(_nft(netns, "list", "tables", family))["nftables"]
    return {item["table"]["name"] for item in found if "table" in item}


def delete_table(netns: Path | None, family: str, name: str) -> None:
    """Delete the table and all in it. A missing one is no error: it is added and deleted in one transaction."""
    table = {"family": family, "name": name}
    apply(netns, [{"add": {"table": table}}, {"delete": {"table": table}}])


def version() -> str:
    """What `nft --version` says, e.g. "nftables v1.0.6 (Lester Gooch #5)"."""
    return _run(None, ["nft", "--version"], b"").decode().strip()


def _nft(netns: Path | None, *args: str, stdin: bytes = b"") -> bytes:
    return _run(netns, ["nft", "-j", *args], stdin)


def _run(netns: Path | None, command: list[str], stdin: bytes) -> bytes:
    try:
        done = namespaces.call(
            netns, subprocess.run, command, input=stdin, capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except FileNotFoundError as error:
        if error.filename != command[0]:
            raise
        raise NotSupported("nft", "the program is not installed", "apt install nftables") from error
    except subprocess.TimeoutExpired as error:
        raise HarnessError(f"{' '.join(command)} did not end within {_TIMEOUT_S} s") from error
    if done.returncode:
        where = f" in {netns}" if netns else ""
        raise HarnessError(f"{' '.join(command)}{where}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout
