"""A picture as plain data: panels beside each other on the same scales. The page's script draws it, decides nothing.

What is too much for a picture is thinned the same way every time: extremes, slow operations and those that did not
end well stay, and the picture says how many of how many points it shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise

import msgspec
import numpy as np


class Axis(msgspec.Struct, frozen=True):
    """unit: `s`, `h` (hours), `count` or `share`; how the script writes the ticks."""

    label: str
    unit: str
    low: float
    high: float
    log: bool = False


class Band(msgspec.Struct, frozen=True):
    """A phase behind the data."""

    name: str
    start: float
    end: float
    measured: bool


class Line(msgspec.Struct, frozen=True):
    """style: `hold` (a reading lasts until the next), `area` (the same, filled to the floor) or `drop` (of a tail).

    `colour` names a colour of the page: a variant's, `entries`, `expired`, or a gauge with dashes for dots.
    """

    name: str
    x: list[float]
    y: list[float]
    style: str
    colour: str


class Points(msgspec.Struct, frozen=True):
    """symbol: `dot` (ended well), `cross` (failed), `open` (given up there: took at least this long)."""

    name: str
    symbol: str
    x: list[float]
    y: list[float]
    colour: str | None = None
    """None: the panel's."""


class Bars(msgspec.Struct, frozen=True):
    """Counts between `edges` (one more than counts)."""

    edges: list[float]
    counts: list[int]


class Lane(msgspec.Struct, frozen=True, array_like=True):
    """One sandbox: due, ended, how it ended, and when attempts of it failed."""

    start: float
    end: float
    symbol: str
    failed: list[float]


class Label(msgspec.Struct, frozen=True):
    x: float
    y: float
    text: str


class Limit(msgspec.Struct, frozen=True):
    """A threshold's limit across a panel. axis: `x` or `y`."""

    axis: str
    value: float
    text: str


class Panel(msgspec.Struct, frozen=True):
    """`colour` is the variant's, for what has no colour of its own."""

    title: str
    colour: str
    bands: list[Band] = []
    ticks: list[float] = []
    """Instants at which a GC pass ended."""
    lines: list[Line] = []
    points: list[Points] = []
    bars: Bars | None = None
    lanes: list[Lane] = []
    labels: list[Label] = []
    limits: list[Limit] = []


class Chart(msgspec.Struct, frozen=True):
    """One picture. `alt` says its key numbers in words; `notes` what was thinned or left out."""

    name: str
    title: str
    caption: str
    alt: str
    x: Axis
    y: Axis
    panels: list[Panel]
    key: list[tuple[str, str]]
    """(symbol, meaning)"""
    height: int = 240
    notes: list[str] = []


def thin_line(x: np.ndarray, y: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """At most about `limit` points with the same outline: lowest and highest of each stretch, first and last."""
    if len(x) <= limit:
        return x, y
    edges = np.linspace(0, len(x), limit // 2).astype(int)
    keep = {0, len(x) - 1}
    for a, b in pairwise(edges.tolist()):
        keep |= {a + int(np.argmin(y[a:b])), a + int(np.argmax(y[a:b]))}
    index = np.array(sorted(keep))
    return x[index], y[index]


def thin_points(y: np.ndarray, precious: np.ndarray, limit: int) -> np.ndarray:
    """Ascending indices of the points to show: every `precious` one; for the rest of `limit` the fastest, a quarter
    for the slowest, and an even choice of the others. Too many precious ones: an even choice of them alone.
    """
    index = np.arange(len(y))
    if len(y) <= limit:
        return index
    first, rest = index[precious], index[~precious]
    if len(first) >= limit:
        return _evenly(first, limit)
    room = limit - len(first)
    by_y = rest[np.argpartition(y[rest], (0, len(rest) - 1 - room // 4))]
    slow, others = by_y[len(by_y) - room // 4 :], np.sort(by_y[1 : len(by_y) - room // 4])
    return np.sort(np.concatenate([first, slow, by_y[:1], _evenly(others, room - len(slow) - 1)]))


def _evenly(index: np.ndarray, count: int) -> np.ndarray:
    return index[np.linspace(0, len(index) - 1, max(count, 0)).astype(int)] if len(index) > count else index


def rounded(values: Iterable[float] | np.ndarray, digits: int = 4) -> list[float]:
    """To `digits` significant digits, which is more than a picture shows."""
    return [float(f"{float(v):.{digits}g}") for v in values]


def variant_colour(number: int) -> str:
    """The page has six of them; a seventh variant begins anew."""
    return f"v{number % 6}"


def log_ends(low: float, high: float) -> tuple[float, float]:
    """Ends of a log axis around two positive values: 1, 2 or 5 times a power of ten, at least a decade apart."""
    below = max(v for v in _round_numbers(low) if v <= low * (1 + 1e-9))
    above = min(v for v in _round_numbers(high) if v >= high * (1 - 1e-9))
    return below, max(above, below * 10)


def _round_numbers(near: float) -> list[float]:
    power = math.floor(math.log10(near))
    return [m * 10.0**e for e in (power - 1, power, power + 1) for m in (1, 2, 5)]
