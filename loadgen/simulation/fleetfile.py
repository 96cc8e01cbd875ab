"""Reads a fleet file: YAML, overrides, keys, types, references. Errors say file, line, key and what is allowed."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from loadgen.core.cilium import api_limits, profile
from loadgen.core.errors import ConfigError
from loadgen.core.simulate.fleet import (
    CURRENT,
    FLEET_FORMAT,
    AgentSettings,
    Fleet,
    Memory,
    NodeType,
    Policy,
    Workload,
    dec_hook,
    enc_hook,
    schema_hook,
)
from loadgen.scenarios import keys
from loadgen.scenarios.loader import laid_under, override, readable
from loadgen.simulation import yamllines

T = TypeVar("T")
_SUFFIX = ".yaml"
MAX_NODES = 1_000_000
MOST_BURST = 10_000


def builtin_names() -> list[str]:
    folder = resources.files("loadgen.simulation") / "fleets"
    return sorted(p.name.removesuffix(_SUFFIX) for p in folder.iterdir() if p.name.endswith(_SUFFIX))


def load(name: str, overrides: Sequence[str] = ()) -> Fleet:
    """The built-in fleet of that name, or the file at that path, with `a.b=value` overrides applied."""
    if name in builtin_names():
        return parse(
            (resources.files("loadgen.simulation") / "fleets" / f"{name}{_SUFFIX}").read_text(), name, overrides
        )
    path = Path(name)
    if not path.exists():
        raise ConfigError(f"no fleet {name!r}: it is neither a file nor a built-in one: {', '.join(builtin_names())}")
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}: not readable: {error}") from None
    return parse(text, name, overrides)


def parse(text: str, source: str, overrides: Sequence[str] = ()) -> Fleet:
    """A fleet from YAML text; `source` names it in errors. `settings: {a.b: 1}` may not be written for nesting."""
    try:
        raw = yaml.safe_load(text)
        lines = yamllines.lines(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{source}: not YAML: {' '.join(str(error).split())[:300]}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{source}: a fleet is a mapping with name, nodes, workloads and maybe policies")
    for text_of in overrides:
        override(raw, text_of)
    try:
        return from_raw(raw)
    except _Wrong as wrong:
        line = yamllines.line_of(wrong.where, lines)
        # An override may have brought in what the file has no line for.
        place = f"{source}:{line}" if line and not _overridden(wrong.where, overrides) else source
        where = f"{wrong.where}: " if wrong.where else ""
        raise ConfigError(f"{place}: {where}{wrong.what}") from None


def _overridden(where: str, overrides: Sequence[str]) -> bool:
    return any(where.startswith(text.partition("=")[0]) for text in overrides)


class _Wrong(Exception):
    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}")
        self.where, self.what = where, what


def from_raw(raw: dict[str, Any]) -> Fleet:
    """Check keys, types and references of decoded YAML."""
    _keys(raw, Fleet, "")
    kinds: Mapping[str, type] = {"nodes": NodeType, "workloads": Workload, "policies": Policy}
    for section, kind in kinds.items():
        for name, item in (raw.get(section) or {}).items() if isinstance(raw.get(section), dict) else ():
            _convert(item, kind, f"{section}.{name}")
    fleet = _convert(raw, Fleet, "")
    _check(fleet)
    return fleet


def _keys(raw: Any, kind: type, where: str) -> None:
    try:
        keys.check(raw, kind, "")
    except ConfigError as error:
        inner, _, what = str(error).removeprefix(": ").partition(": ")
        raise _Wrong(f"{where}.{inner}" if where else inner, what) from None


def _convert(item: Any, kind: type[T], where: str) -> T:
    try:
        return msgspec.convert(item, kind, dec_hook=dec_hook)
    except msgspec.ValidationError as error:
        message = readable(str(error))
        inner, colon, what = message.partition(": ")
        if not colon or " " in inner:
            inner, what = "", message
        raise _Wrong(".".join(part for part in (where, inner) if part), what) from None


def to_raw(fleet: Fleet) -> dict[str, Any]:
    """The fleet as plain values, from which `from_raw` makes the same fleet."""
    return msgspec.to_builtins(fleet, enc_hook=enc_hook, str_keys=True)


def json_schema() -> dict[str, Any]:
    """JSON Schema of a fleet file, for editors."""
    schema = msgspec.json.schema(Fleet, schema_hook=schema_hook)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = f"loadgen fleet, format {FLEET_FORMAT}"
    return schema


# --- what must fit together -----------------------------------------------------------------------------------


def _check(fleet: Fleet) -> None:
    if fleet.format != FLEET_FORMAT:
        raise _Wrong("format", f"{fleet.format}; this loadgen reads format {FLEET_FORMAT}")
    if not fleet.nodes:
        raise _Wrong("nodes", "there are none; name at least one type")
    if fleet.goal <= 0:
        raise _Wrong("goal", "it must be longer than 0s")
    if sum(of.count for of in fleet.nodes.values()) > MAX_NODES:
        raise _Wrong("nodes", f"more than {MAX_NODES:,} in all")
    for name, of in fleet.nodes.items():
        _check_type(f"nodes.{name}", of, fleet)
    for name, workload in fleet.workloads.items():
        _check_workload(f"workloads.{name}", workload)
    for name, policy in fleet.policies.items():
        _check_policy(f"policies.{name}", name, policy, fleet)


def _check_type(where: str, of: NodeType, fleet: Fleet) -> None:
    try:
        Memory.parse(of.memory)
    except ValueError as error:
        raise _Wrong(f"{where}.memory", str(error)) from None
    _check_settings(f"{where}.settings", of.settings)
    for i, name in enumerate(of.workloads):
        _known(name, fleet.workloads, f"{where}.workloads[{i}]", "no such workload")
    if len(set(of.workloads)) < len(of.workloads):
        raise _Wrong(f"{where}.workloads", "one is named twice; give it a higher rate, or another name")
    if of.costs.per_entry <= 0 or of.costs.per_entry_batch <= 0:
        raise _Wrong(f"{where}.costs", "perEntry and perEntryBatch must be longer than 0s")


def _check_settings(where: str, settings: AgentSettings) -> None:
    try:
        api_limits(profile(settings.profile), settings.api_rate_limit)
    except ConfigError as error:
        key, _, what = str(error).removeprefix("cilium.").partition(": ")
        raise _Wrong(f"{where}.{key}", what) from None
    for key, value in (
        ("conntrackGCInterval", settings.gc_interval),
        ("conntrackGCMaxInterval", settings.gc_max_interval),
    ):
        if value is not None and 0 < value < 1_000_000_000:
            raise _Wrong(f"{where}.{key}", f"{value} is shorter than a second")


def _check_workload(where: str, workload: Workload) -> None:
    if workload.connections is None and workload.pods is None and not workload.lookups:
        raise _Wrong(where, "it does nothing; give it connections, lookups or pods")
    if workload.duration is not None and workload.duration <= 0:
        raise _Wrong(f"{where}.duration", "it must be longer than 0s")
    if workload.duration is not None and workload.start is None:
        raise _Wrong(f"{where}.duration", "it needs a start; without one the workload has been there since the boot")
    if workload.pods is not None:
        if workload.pods.every.span.low_ns < 1_000_000_000:
            raise _Wrong(f"{where}.pods.every", "it must be at least 1s")
        if workload.pods.burst > MOST_BURST:
            raise _Wrong(f"{where}.pods.burst", f"more than {MOST_BURST:,} at once")
        if workload.pods.give_up <= 0:
            raise _Wrong(f"{where}.pods.giveUp", "it must be longer than 0s")


def _check_policy(where: str, name: str, policy: Policy, fleet: Fleet) -> None:
    if name == CURRENT:
        raise _Wrong(where, f"{CURRENT!r} is what the settings as written are called; take another name")
    for i, type_name in enumerate(policy.nodes):
        _known(type_name, fleet.nodes, f"{where}.nodes[{i}]", "no such node type")
    _keys(policy.settings, AgentSettings, f"{where}.settings")
    for type_name, of in fleet.nodes.items():
        if not policy.nodes or type_name in policy.nodes:
            _check_settings(f"{where}.settings", under(of.settings, policy, f"{where}.settings"))


def _known(name: str, allowed: Iterable[str], where: str, what: str) -> None:
    if name not in allowed:
        close = difflib.get_close_matches(name, list(allowed), n=1)
        meant = f" (did you mean {close[0]!r}?)" if close else ""
        raise _Wrong(where, f"{name!r}: {what}{meant}; there are {', '.join(allowed) or 'none'}")


# --- policies -------------------------------------------------------------------------------------------------


def under(settings: AgentSettings, policy: Policy, where: str = "settings") -> AgentSettings:
    """A node type's settings with a policy's laid over them; null takes a value back to its default."""
    raw = msgspec.to_builtins(settings, enc_hook=enc_hook, str_keys=True)
    return _convert(_without_none(laid_under(raw, copy.deepcopy(policy.settings))), AgentSettings, where)


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return value


def policies(fleet: Fleet, only: Sequence[str] = ()) -> dict[str, Fleet]:
    """The fleet as it is written, under the name `current`, and under each policy; `only`: these, and `current`."""
    for name in only:
        if name != CURRENT and name not in fleet.policies:
            known = ", ".join([CURRENT, *fleet.policies])
            raise ConfigError(f"--policy {name!r}: no such policy; there are {known}")
    found = {CURRENT: fleet}
    for name, policy in fleet.policies.items():
        if only and name not in only:
            continue
        nodes = {
            type_name: msgspec.structs.replace(of, settings=under(of.settings, policy))
            if not policy.nodes or type_name in policy.nodes
            else of
            for type_name, of in fleet.nodes.items()
        }
        found[name] = msgspec.structs.replace(fleet, nodes=nodes)
    return found
