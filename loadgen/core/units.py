"""Durations and counts as people write them: `60s`, `1m30s`, `500ms`, `12h`."""

from __future__ import annotations

import re
from typing import Any

NS_PER_S = 1_000_000_000

_UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": NS_PER_S,
    "m": 60 * NS_PER_S,
    "h": 3600 * NS_PER_S,
}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|ms|s|m|h)")
DURATION_PATTERN = r"^(\d+(\.\d+)?(ns|us|ms|s|m|h))+$"


class Duration(int):
    """A length of time in whole nanoseconds, written in scenario files as Go writes it (`1m30s`)."""

    @classmethod
    def parse(cls, text: str) -> Duration:
        """Read `text`; a ValueError says what is wrong with it and what would be right."""
        if not isinstance(text, str):
            raise ValueError(f"bad duration {text!r}: write a number and a unit, e.g. 60s, 500ms, 12h")
        total, end = 0.0, 0
        for part in _PART.finditer(text):
            if part.start() != end:
                break
            total += float(part[1]) * _UNITS_NS[part[2]]
            end = part.end()
        if end == 0 or end != len(text):
            why = "it has no unit" if re.fullmatch(r"\d+(\.\d+)?", text) else "it is not a number and a unit"
            raise ValueError(f"bad duration {text!r}: {why}; write e.g. 60s, 500ms, 1m30s, 12h")
        return cls(round(total))

    @property
    def seconds(self) -> float:
        return self / NS_PER_S

    def __str__(self) -> str:
        """Exact, in the largest unit that divides it: 12h, 150s, 2500us. `parse` reads it back."""
        for unit in ("h", "m", "s", "ms", "us"):
            if self and self % _UNITS_NS[unit] == 0:
                return f"{self // _UNITS_NS[unit]}{unit}"
        return f"{int(self)}ns" if self else "0s"

    __repr__ = __str__


def enc_hook(value: Any) -> str:
    """msgspec hook: durations travel as text."""
    if isinstance(value, Duration):
        return str(value)
    raise NotImplementedError(f"no encoding for {type(value).__name__}")


def dec_hook(kind: type, value: Any) -> Any:
    """msgspec hook: the other way; a bad duration is a ValueError, which msgspec gives its path."""
    if kind is Duration:
        return Duration.parse(value)
    raise NotImplementedError(f"no decoding for {kind.__name__}")


def format_duration(seconds: float) -> str:
    """Shortest exact-looking form with at most four significant digits: 12h, 7m30s, 5.01s, 350ms, 12us."""
    if seconds < 0:
        return "-" + format_duration(-seconds)
    if seconds >= 60:
        whole = round(seconds)
        hours, rest = divmod(whole, 3600)
        minutes, secs = divmod(rest, 60)
        return "".join(f"{n}{u}" for n, u in ((hours, "h"), (minutes, "m"), (secs, "s")) if n)
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale or unit == "us":
            return f"{seconds / scale:.4g}{unit}" if seconds else "0s"
    raise AssertionError("unreachable")


def format_count(value: float) -> str:
    """12345678 → `12,345,678`; non-integers keep four significant digits."""
    return f"{int(value):,}" if float(value).is_integer() else f"{value:.4g}"
