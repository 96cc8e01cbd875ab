"""What things are called on a cluster: generator pods, and the Services that a scenario's lookups ask for."""

from __future__ import annotations

import re
from collections.abc import Iterable

from loadgen.core.errors import ConfigError

DOMAIN = "cluster.local"
LABEL_MAX = 63

_SERVICE = re.compile(rf"([^.]+)\.([^.]+)\.svc\.{re.escape(DOMAIN)}(\.?)", re.IGNORECASE)
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # RFC 1035, as a Service's name has to be


def service(name: str) -> str | None:
    """The Service of ours that stands for `SVC.NS.svc.cluster.local`; None for any other name.

    ConfigError when no Service can be called so.
    """
    found = _SERVICE.fullmatch(name)
    if found is None:
        return None
    label = f"{found[1]}-{found[2]}".lower()
    if len(label) > LABEL_MAX or not _LABEL.fullmatch(label):
        raise ConfigError(
            f"{name}: on a cluster it is Service {label!r} of our namespace, and that is no name for one (letters, "
            f"digits and dashes, a letter first, at most {LABEL_MAX})"
        )
    return label


def lookup(name: str, namespace: str) -> str:
    """What is looked up for `name`: its Service in our namespace, with or without the final dot as `name` has it."""
    label = service(name)
    return name if label is None else f"{label}.{namespace}.svc.{DOMAIN}{'.' if name.endswith('.') else ''}"


def services(names: Iterable[str]) -> list[str]:
    """The Services that these lookups need, each once."""
    return sorted({label for name in names if (label := service(name)) is not None})


def pods(loads: Iterable[tuple[str, int]]) -> dict[str, tuple[str, ...]]:
    """Names of the generator pods of each load (its name, how many). ConfigError when two loads would share one."""
    found: dict[str, tuple[str, ...]] = {}
    owners: dict[str, str] = {}
    for load, n in loads:
        slug = re.sub(r"[^a-z0-9]+", "-", load.lower()).strip("-")[: LABEL_MAX - 20] or "load"
        if slug in owners:
            raise ConfigError(
                f"loads {owners[slug]} and {load}: on a cluster both have pods called {slug}; rename one"
            )
        owners[slug] = load
        found[load] = tuple(f"generator-{slug}-{i}" for i in range(n))
    return found
