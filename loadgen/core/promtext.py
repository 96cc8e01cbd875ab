"""Samples out of Prometheus' text format (0.0.4), only of the metrics that are wanted.

A kubelet's page has 2,000 lines, containerd's 3,000, and a run reads a few dozen of them every few seconds: lines
of other metrics are never looked into. A line that is wanted and malformed is an error, not a gap.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

_QUOTED = r'"((?:[^"\\]|\\.)*)"'
_LINE = re.compile(
    r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*"
    rf"(?:\{{(?P<labels>(?:[^\"}}]|{_QUOTED})*)\}})?[ \t]*"
    r"(?<=[ \t}])(?P<value>[^ \t]+)(?:[ \t]+-?\d+)?[ \t]*"
)
_LABEL = re.compile(rf"[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*{_QUOTED}[ \t]*(?:,|$)")
_ESCAPED = re.compile(r'\\([\\"n])')
_NAME_ENDS = " \t{"


class Sample(NamedTuple):
    """One line: a metric's name with its labels, and the value."""

    name: str
    labels: dict[str, str]
    value: float


def samples(text: str, wanted: Collection[str]) -> Iterator[Sample]:
    """Samples of the metrics named in `wanted` (a histogram's have _bucket, _sum and _count), in order.

    ValueError for a line of theirs that is not in the format.
    """
    names = frozenset(wanted)
    prefixes = tuple(names)
    for line in text.split("\n"):
        # Most pages indent nothing; a line that begins with blanks is rare enough to be stripped.
        if line[:1] in (" ", "\t"):
            line = line.lstrip(" \t")
        if line.startswith(prefixes) and _name(line) in names:
            yield _sample(line)


def _name(line: str) -> str:
    end = min((at for at in map(line.find, _NAME_ENDS) if at >= 0), default=len(line))
    return line[:end]


def _sample(line: str) -> Sample:
    found = _LINE.fullmatch(line.rstrip("\r"))
    if found is None:
        raise ValueError(f"not a sample in Prometheus' text format: {line[:200]!r}")
    labels = _labels(found["labels"] or "", line)
    try:
        value = float(found["value"])
    except ValueError:
        raise ValueError(f"not a number: {found['value']!r} in {line[:200]!r}") from None
    return Sample(found["name"], labels, value)


def _labels(text: str, line: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    end = 0
    while end < len(text):
        found = _LABEL.match(text, end)
        if found is None:
            raise ValueError(f"not labels in Prometheus' text format: {line[:200]!r}")
        labels[found[1]] = _ESCAPED.sub(lambda m: "\n" if m[1] == "n" else m[1], found[2])
        end = found.end()
    return labels
