"""Unknown keys in a scenario file, found with their path and the names that are allowed there."""

from __future__ import annotations

import difflib
from typing import Any

from msgspec import inspect

from loadgen.core.errors import ConfigError


def check(raw: Any, kind: type, source: str) -> None:
    """Raise ConfigError for the first key in `raw` that the Struct `kind` does not know."""
    _check(raw, inspect.type_info(kind), source, "")


def _check(raw: Any, kind: inspect.Type, source: str, path: str) -> None:
    match kind:
        case inspect.StructType() if isinstance(raw, dict):
            _check_struct(raw, kind, source, path)
        case inspect.UnionType() if isinstance(raw, dict):
            _check_union(raw, kind, source, path)
        case inspect.DictType(value_type=value) if isinstance(raw, dict):
            for key, item in raw.items():
                _check(item, value, source, _join(path, key))
        case inspect.VarTupleType(item_type=item_type) if isinstance(raw, list):
            for i, item in enumerate(raw):
                _check(item, item_type, source, f"{path}[{i}]")


def _check_struct(raw: dict[Any, Any], kind: inspect.StructType, source: str, path: str) -> None:
    fields = {field.encode_name: field for field in kind.fields}
    allowed = sorted(fields) + ([kind.tag_field] if kind.tag_field else [])
    for key, value in raw.items():
        if key == kind.tag_field:
            continue
        if key not in fields:
            raise ConfigError(
                f"{source}: {_join(path, key)}: unknown key{_meant(key, allowed)}; allowed: {', '.join(allowed)}"
            )
        _check(value, fields[key].type, source, _join(path, key))


def _check_union(raw: dict[Any, Any], kind: inspect.UnionType, source: str, path: str) -> None:
    structs = [t for t in kind.types if isinstance(t, inspect.StructType)]
    if len(structs) == 1:
        return _check_struct(raw, structs[0], source, path)
    tag_field = structs[0].tag_field
    if tag_field is None:
        return None
    tags = {str(t.tag): t for t in structs}
    if tag_field not in raw:
        raise ConfigError(f"{source}: {path}: {tag_field!r} is missing; one of {', '.join(tags)}")
    found = tags.get(str(raw[tag_field]))
    if found is None:
        raise ConfigError(
            f"{source}: {_join(path, tag_field)}: unknown {tag_field} {raw[tag_field]!r}; allowed: {', '.join(tags)}"
        )
    return _check_struct(raw, found, source, path)


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _meant(key: object, allowed: list[str]) -> str:
    close = difflib.get_close_matches(str(key), allowed, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
