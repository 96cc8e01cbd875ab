"""Entries put into a user's kubeconfig, and taken out again; everything else in it stays what it was.

kind does this too, but it always makes its cluster the current context.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from loadgen.core.errors import ConfigError

LOCK_LIMIT_S = 5.0
_POLL_S = 0.05
_LISTS = ("clusters", "contexts", "users")


def files(where: str) -> tuple[Path, ...]:
    """Those that a value of KUBECONFIG names."""
    return tuple(Path(path) for path in dict.fromkeys(where.split(os.pathsep)) if path)


def for_new_entries(where: str) -> Path:
    """The first that exists, else the last: kubectl's rule, and kind's."""
    named = files(where)
    return next((path for path in named if path.is_file()), named[-1])


def merge(new: Path, target: Path, *, switch_context: bool) -> None:
    """Put the entries of `new` into `target`, in place of those with the same names. Blocks while it is locked."""
    added = _read(new)
    with _locked(target):
        there = _read(target)
        for kind in _LISTS:
            names = {entry["name"] for entry in added.get(kind) or []}
            kept = [entry for entry in there.get(kind) or [] if entry["name"] not in names]
            there[kind] = kept + (added.get(kind) or [])
        if switch_context:
            there["current-context"] = added["current-context"]
        _write(target, there)


def remove(targets: Sequence[Path], name: str) -> None:
    """Take context, cluster and user `name` out of these files. A current context goes only if it was this one."""
    for target in targets:
        if not target.is_file() or not _has(_read(target), name):
            continue
        with _locked(target):
            there = _read(target)
            for kind in _LISTS:
                there[kind] = [entry for entry in there.get(kind) or [] if entry["name"] != name]
            if there.get("current-context") == name:
                there["current-context"] = ""
            _write(target, there)


def _has(content: dict[str, Any], name: str) -> bool:
    entries = [entry for kind in _LISTS for entry in content.get(kind) or []]
    return content.get("current-context") == name or any(entry["name"] == name for entry in entries)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """FILE.lock, as kubectl and kind make it. One that was killed has left it: it is not waited for without end."""
    lock = Path(f"{path}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + LOCK_LIMIT_S
    while True:
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL))
            break
        except FileExistsError:
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"{path}: locked by {lock.name}; if no other program is at work, remove it"
                ) from None
            time.sleep(_POLL_S)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {"apiVersion": "v1", "kind": "Config", "preferences": {}}
    try:
        found = yaml.safe_load(path.read_text()) or {}
        if not isinstance(found, dict):
            raise TypeError("it is not a mapping")
        for kind in _LISTS:
            for entry in found.get(kind) or []:
                entry["name"]
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, yaml.YAMLError, TypeError, KeyError) as error:
        raise ConfigError(f"{path}: not readable as a kubeconfig: {str(error).splitlines()[0]}") from None
    return found


def _write(path: Path, content: dict[str, Any]) -> None:
    """All or nothing, and for its owner alone: there are keys in it. A link stays one."""
    place = path.resolve()
    try:
        with tempfile.NamedTemporaryFile("w", dir=place.parent, prefix=".loadgen-", delete=False) as file:
            yaml.safe_dump(content, file, sort_keys=False)
        # mkstemp made it 0600.
        os.replace(file.name, place)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None
