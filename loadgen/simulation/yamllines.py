"""In which line of a YAML file a path stands, for errors."""

from __future__ import annotations

import re

import yaml

Path = tuple[str | int, ...]


def lines(text: str) -> dict[Path, int]:
    """The line, from 1, of every key and list item of one YAML document that can be parsed."""
    found: dict[Path, int] = {}
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is not None:
        _walk(root, (), found)
    return found


def _walk(node: yaml.Node, path: Path, found: dict[Path, int]) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            at = (*path, str(key.value))
            found[at] = key.start_mark.line + 1
            _walk(value, at, found)
    elif isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            found[(*path, i)] = item.start_mark.line + 1
            _walk(item, (*path, i), found)


def line_of(where: str, found: dict[Path, int]) -> int | None:
    """The line of `nodes.big.workloads[0]`, or of the innermost part of it that the file has.

    Names may have dots themselves, so at each step the longest name that fits is taken.
    """
    parts: list[str | int] = [
        int(index) if index else name for index, name in re.findall(r"\[(\d+)\]|([^.\[\]]+)", where)
    ]
    path: Path = ()
    while parts:
        fits = [n for n in range(len(parts), 0, -1) if (*path, _joined(parts[:n])) in found]
        if not fits:
            break
        path, parts = (*path, _joined(parts[: fits[0]])), parts[fits[0] :]
    return found.get(path)


def _joined(parts: list[str | int]) -> str | int:
    return parts[0] if len(parts) == 1 else ".".join(map(str, parts))
