"""Reads a scenario: YAML text, overrides, the keys, the types, and what must fit together.

Everything wrong with it is known before anything runs; each error names the file, the path in it and what is allowed.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import yaml

from loadgen.core import thresholds
from loadgen.core.errors import ConfigError
from loadgen.core.model import SCENARIO_FORMAT, Fault, Load, Scenario, Variant
from loadgen.core.units import DURATION_PATTERN, Duration, dec_hook, enc_hook
from loadgen.scenarios import keys

_SUFFIX = ".yaml"


def builtin_names() -> list[str]:
    folder = resources.files("loadgen.scenarios")
    return sorted(p.name.removesuffix(_SUFFIX) for p in folder.iterdir() if p.name.endswith(_SUFFIX))


def load(name: str, overrides: Sequence[str] = ()) -> Scenario:
    """The built-in scenario of that name, or the file at that path, with `a.b=value` overrides applied."""
    if name in builtin_names():
        text = (resources.files("loadgen.scenarios") / f"{name}{_SUFFIX}").read_text()
        return parse(text, name, overrides)
    path = Path(name)
    if not path.exists():
        raise ConfigError(
            f"no scenario {name!r}: it is neither a file nor one of the built-in {', '.join(builtin_names())}"
        )
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}: not readable: {error}") from None
    return parse(text, name, overrides)


def parse(text: str, source: str, overrides: Sequence[str] = ()) -> Scenario:
    """A scenario from YAML text. `source` names it in errors."""
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise ConfigError(
            f"{source}: a scenario is a mapping with name, hypothesis, variants, loads, phases, thresholds"
        )
    for text_of_override in overrides:
        override(raw, text_of_override)
    return from_raw(raw, source)


def from_raw(raw: dict[str, Any], source: str) -> Scenario:
    """A scenario from decoded YAML or JSON: keys, types and references are checked, variants get their settings."""
    keys.check(raw, Scenario, source)
    try:
        scenario = msgspec.convert(_merged(raw), Scenario, dec_hook=dec_hook)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {_named(readable(str(error)), raw)}") from None
    _check_references(scenario, source)
    return scenario


def to_raw(scenario: Scenario) -> dict[str, Any]:
    """The scenario as plain values, from which `from_raw` makes the same scenario."""
    return msgspec.to_builtins(scenario, enc_hook=enc_hook, str_keys=True)


def json_schema() -> dict[str, Any]:
    """JSON Schema of a scenario file, for editors."""
    schema = msgspec.json.schema(Scenario, schema_hook=_schema_hook)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = f"loadgen scenario, format {SCENARIO_FORMAT}"
    return schema


def _schema_hook(kind: type) -> dict[str, Any]:
    if kind is Duration:
        return {"type": "string", "pattern": DURATION_PATTERN, "examples": ["60s", "500ms", "1m30s", "12h"]}
    raise NotImplementedError(kind)


def readable(message: str) -> str:
    """msgspec's `… - at `$.phases[0].duration`` becomes `phases[0].duration: …`."""
    found = re.fullmatch(r"(.*) - at `\$\.?(.*)`", message, re.DOTALL)
    if not found:
        return message
    what = found[1].replace("`", "'")
    if re.fullmatch(r"Expected 'str', got '(int|float)'", what):
        what += "; a version that looks like a number needs quotes, '\"1.18\"'"
    return f"{found[2]}: {what}" if found[2] else what


def _named(message: str, raw: dict[str, Any]) -> str:
    """msgspec writes `[...]` for a mapping's key; put the key that is meant in its place."""
    for section, kind in (("variants", Variant), ("loads", Load), ("faults", Fault)):
        if not message.startswith(f"{section}[...]"):
            continue
        for name, item in raw[section].items():
            try:
                msgspec.convert(item, kind, dec_hook=dec_hook)
            except msgspec.ValidationError:
                return message.replace(f"{section}[...]", f"{section}.{name}", 1)
    return message


def override(raw: dict[str, Any], text: str) -> None:
    """Apply `a.b.c=value` (value in YAML) to the decoded file. Items of a list go by number or by their name."""
    path, equals, value_text = text.partition("=")
    if not equals or not path:
        raise ConfigError(f"--set {text!r}: write PATH=VALUE, e.g. faults.race.probability=0")
    try:
        value = yaml.safe_load(value_text)
    except yaml.YAMLError:
        raise ConfigError(f"--set {text!r}: the value is not YAML") from None
    *parents, last = path.split(".")
    node: Any = raw
    for depth, key in enumerate(parents):
        where = ".".join(parents[: depth + 1])
        node = _item(node, key, where, text)
    if isinstance(node, list):
        node[_index(node, last, path, text)] = value
    elif isinstance(node, dict):
        node[last] = value
    else:
        raise ConfigError(f"--set {text!r}: {'.'.join(parents)} is a plain value and has nothing inside")


def _item(node: Any, key: str, where: str, text: str) -> Any:
    if isinstance(node, list):
        return node[_index(node, key, where, text)]
    if not isinstance(node, dict):
        raise ConfigError(f"--set {text!r}: {where.rpartition('.')[0]} is a plain value and has nothing inside")
    if node.get(key) is None:
        node[key] = {}
    return node[key]


def _index(items: list[Any], key: str, where: str, text: str) -> int:
    names = [item.get("name", str(i)) if isinstance(item, dict) else str(i) for i, item in enumerate(items)]
    if key in names:
        return names.index(key)
    if key.isdecimal() and int(key) < len(items):
        return int(key)
    raise ConfigError(f"--set {text!r}: {where}: no such item; there are {', '.join(names)}")


def _merged(raw: dict[str, Any]) -> dict[str, Any]:
    """Each variant gets its name and the scenario's settings under its own."""
    merged = dict(raw)
    variants = raw.get("variants")
    if isinstance(variants, dict):
        merged["variants"] = {
            name: {**v, "name": name, "settings": laid_under(raw.get("settings") or {}, v.get("settings") or {})}
            if isinstance(v, dict)
            else v
            for name, v in variants.items()
        }
    return merged


def laid_under(base: Any, over: Any) -> Any:
    """`over` laid on `base`, mapping by mapping; null takes a value back to its default."""
    if not (isinstance(base, dict) and isinstance(over, dict)):
        return copy.deepcopy(over)
    result = copy.deepcopy(base)
    for key, value in over.items():
        result[key] = laid_under(result[key], value) if key in result else copy.deepcopy(value)
    return result


def _check_references(scenario: Scenario, source: str) -> None:
    if scenario.format != SCENARIO_FORMAT:
        raise ConfigError(f"{source}: format: {scenario.format}; this loadgen reads format {SCENARIO_FORMAT}")
    for text in scenario.thresholds:
        try:
            thresholds.parse(text)
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}") from None
    _check_phases(scenario, source)
    baselines = [name for name, variant in scenario.variants.items() if variant.baseline]
    if not scenario.variants:
        raise ConfigError(f"{source}: variants: there are none; name at least one")
    if len(baselines) > 1 or (len(scenario.variants) > 1 and not baselines):
        raise ConfigError(
            f"{source}: variants: exactly one of several is the baseline; now {', '.join(baselines) or 'none'}"
        )
    known = {thresholds.parse(text).metric.name for text in scenario.thresholds}
    for metric in scenario.reproduces:
        _known(metric, known, f"{source}: reproduces", "no threshold names this metric; thresholds name")


def _check_phases(scenario: Scenario, source: str) -> None:
    names = [phase.name for phase in scenario.phases]
    if not names or len(set(names)) != len(names):
        raise ConfigError(f"{source}: phases: at least one, each with its own name; now {', '.join(names) or 'none'}")
    for phase in scenario.phases:
        where = f"{source}: phases.{phase.name}"
        if phase.duration <= 0:
            raise ConfigError(f"{where}.duration: it must be longer than 0s")
        for load_name in phase.loads:
            _known(load_name, scenario.loads, f"{where}.loads", "no such load; there are")
        for fault in phase.faults:
            _known(fault, scenario.faults, f"{where}.faults", "no such fault; there are")
        if phase.until is not None:
            _known(phase.until, phase.loads, f"{where}.until", "not a load of this phase; it has")


def _known(name: str, allowed: Iterable[str], where: str, what: str) -> None:
    if name not in allowed:
        raise ConfigError(f"{where}: {name!r}: {what} {', '.join(allowed) or 'none'}")
