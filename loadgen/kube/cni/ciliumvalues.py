"""A variant's settings as Cilium takes them: Helm values, keys of its ConfigMap, what an agent then says. Pure.

Names and types are those of the charts 1.14 to 1.20.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from loadgen.core import cilium
from loadgen.core.errors import ConfigError
from loadgen.core.model import ApiLimit, Cilium
from loadgen.core.units import Duration

GC_INTERVAL, GC_MAX_INTERVAL = "conntrack-gc-interval", "conntrack-gc-max-interval"
TCP_MAX, ANY_MAX = "bpf-ct-global-tcp-max", "bpf-ct-global-any-max"
RATE_LIMIT = "api-rate-limit"
KEYS = (GC_INTERVAL, GC_MAX_INTERVAL, TCP_MAX, ANY_MAX, RATE_LIMIT)
"""What a variant may change in the ConfigMap cilium-config."""

_SHOWN = {
    GC_INTERVAL: "ConntrackGCInterval",
    GC_MAX_INTERVAL: "ConntrackGCMaxInterval",
    TCP_MAX: "CTMapEntriesGlobalTCP",
    ANY_MAX: "CTMapEntriesGlobalAny",
}
"""ConfigMap key → name in `cilium-dbg config --all` (pkg/option.DaemonConfig). From 1.19 on the GC flags belong to a
hive cell and may be missing there."""


class Version(NamedTuple):
    """Of Cilium, or of its chart."""

    major: int
    minor: int
    patch: int

    @classmethod
    def parse(cls, text: str) -> Version:
        """Of 1.16.15, v1.16.15 or 1.20.0-pre.1. ConfigError for a text that has none."""
        found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
        if found is None:
            raise ConfigError(f"{text!r} is no version of Cilium; write it as 1.16.15 or 1.16")
        return cls(int(found[1]), int(found[2]), int(found[3] or 0))

    @property
    def profile(self) -> str:
        """Name of the modelled version whose rules it follows: the nearest before it, or the oldest."""
        known = {Version.parse(name): name for name in cilium.PROFILES}
        before = [version for version in known if version[:2] <= self[:2]]
        return known[max(before) if before else min(known)]

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


RATE_LIMIT_SINCE = Version(1, 15, 0)
"""Value apiRateLimit; before, the ConfigMap key goes through extraConfig."""
GC_MAX_SINCE = Version(1, 14, 3)
TYPED_SIZES_SINCE = Version(1, 16, 0)
"""Charts before have no schema and print a number of seven digits as 4.194304e+06, which no agent reads."""


def check(settings: Cilium, where: str, running: Version | None) -> None:
    """ConfigError for what that Cilium has no setting for; running=None: what no Cilium has."""
    if settings.build_permits is not None:
        raise ConfigError(f"{where}.buildPermits: Cilium has no such setting; it is max(2, CPUs) of the node")
    try:
        cilium.api_limits(cilium.profile(settings.profile), settings.api_rate_limit)
    except ConfigError as error:
        raise ConfigError(f"{where.removesuffix('.cilium')}.{error}") from None
    if running is None:
        return
    if settings.profile != running.profile:
        raise ConfigError(
            f"{where}.profile: {settings.profile}, but Cilium {running} runs here, which follows the rules of "
            f"{running.profile}; --set settings.cilium.profile={running.profile}, or another --cilium-version"
        )
    if settings.gc_max_interval is not None and running < GC_MAX_SINCE:
        raise ConfigError(f"{where}.conntrackGCMaxInterval: Cilium has it since {GC_MAX_SINCE}, here runs {running}")


def fixed_interval(settings: Cilium) -> Duration | None:
    """conntrackGCInterval. An interval that has drifted can be had in one way only: by fixing it there."""
    if settings.gc_interval or not settings.gc_interval_now:
        return settings.gc_interval or None
    drifted = settings.gc_interval_now
    return min(drifted, settings.gc_max_interval) if settings.gc_max_interval else drifted


def helm(settings: Cilium, version: Version) -> dict[str, Any]:
    """Values that say all of it, also what is to be as by default: they are laid over those of another variant."""
    limits = rate_limits(settings.api_rate_limit)
    sizes: dict[str, Any] = {"ctTcpMax": settings.bpf.ct_tcp_max, "ctAnyMax": settings.bpf.ct_any_max}
    if version < TYPED_SIZES_SINCE:
        sizes = {name: str(size) for name, size in sizes.items()}
    found: dict[str, Any] = {
        "conntrackGCInterval": str(fixed_interval(settings) or ""),
        "conntrackGCMaxInterval": str(settings.gc_max_interval or ""),
        "bpf": sizes,
    }
    if version >= RATE_LIMIT_SINCE:
        found["apiRateLimit"] = limits
    else:
        found["extraConfig"] = {RATE_LIMIT: limits or None}
    return found


def config_map(settings: Cilium) -> dict[str, str | None]:
    """Keys of cilium-config; None: not in there."""
    interval = fixed_interval(settings)
    return {
        GC_INTERVAL: str(interval) if interval else None,
        GC_MAX_INTERVAL: str(settings.gc_max_interval) if settings.gc_max_interval else None,
        TCP_MAX: str(settings.bpf.ct_tcp_max),
        ANY_MAX: str(settings.bpf.ct_any_max),
        RATE_LIMIT: rate_limits(settings.api_rate_limit) or None,
    }


def rate_limits(limits: Mapping[str, ApiLimit]) -> str:
    """`CALL=key:value,key:value,CALL=…` (Documentation/configuration/api-rate-limiting.rst).

    Other patch levels take JSON as well; 1.15.0 to 1.15.8, 1.16.0 and 1.16.1 take this form alone, of one call
    (cilium#34249).
    """
    told = []
    for call, limit in limits.items():
        parts = {
            "rate-limit": None if limit.rate_limit is None else f"{limit.rate_limit:g}/s",
            "rate-burst": limit.rate_burst,
            "parallel-requests": limit.parallel_requests,
            "max-wait-duration": limit.max_wait_duration,
            "auto-adjust": None if limit.auto_adjust is None else str(limit.auto_adjust).lower(),
        }
        pairs = ",".join(f"{key}:{value}" for key, value in parts.items() if value is not None)
        if pairs:
            told.append(f"{call}={pairs}")
    return ",".join(told)


# --- what an agent says ---------------------------------------------------------------------------------------


class Running(msgspec.Struct, frozen=True):
    """What one agent runs with. `shown`: its own word; `files`: the settings that its pod was started with."""

    shown: dict[str, int]
    files: dict[str, str]

    @classmethod
    def parse(cls, config: str, files: str) -> Running:
        """From `cilium-dbg config --all` and the lines of FILES_SCRIPT."""
        shown = {}
        for name in _SHOWN.values():
            if match := re.search(rf"^\s*{name}\s*:?\s+(\d+)\s*$", config, re.MULTILINE):
                shown[name] = int(match[1])
        return cls(shown, dict(line.split("\t", 1) for line in files.splitlines() if "\t" in line))


FILES = "/tmp/cilium/config-map"
"""Where an init container lays the settings out, once in the life of a pod; the agent reads them as it starts."""
FILES_SCRIPT = (
    f"cd {FILES} && for key in {' '.join(KEYS)}; do test ! -e $key || printf '%s\\t%s\\n' $key \"$(cat $key)\"; done"
)


def differences(wanted: Mapping[str, str | None], running: Running) -> list[str]:
    """Of KEYS that are `wanted` (None: not set), those that an agent runs otherwise with, and how."""
    found = []
    for key, text in wanted.items():
        name = _SHOWN.get(key, "")
        if key in (TCP_MAX, ANY_MAX) and text is None:
            continue  # the agent reckons them itself then
        if name in running.shown:
            there, told = running.shown[name], f"{name} {running.shown[name]}"
        elif key in running.files:
            there, told = _meaning(key, running.files[key]), f"{key} {running.files[key]!r}"
        else:
            there, told = _meaning(key, None), f"{key} not set"
        if there != _meaning(key, text):
            found.append(f"{told} instead of {text or 'its default'}")
    return found


def _meaning(key: str, text: str | None) -> Any:
    """A setting as something that is equal when it means the same. A duration that is not set is 0."""
    try:
        if key in (GC_INTERVAL, GC_MAX_INTERVAL):
            return int(Duration.parse(text)) if text and text != "0" else 0
        if key in (TCP_MAX, ANY_MAX):
            return int(text) if text else None
    except ValueError:
        return text
    return frozenset(re.split(r",(?=[\w-]+=)", text)) if text else frozenset()
