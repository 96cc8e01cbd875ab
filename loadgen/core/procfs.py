"""Texts of /proc as values. Who reads the files is in loadgen.kernel."""

from __future__ import annotations

import msgspec


class NfConntrack(msgspec.Struct, frozen=True):
    """Counters of one network namespace from /proc/net/stat/nf_conntrack; all but `entries` only ever grow."""

    entries: int
    found: int
    invalid: int
    insert_failed: int
    drop: int
    early_drop: int
    clash_resolve: int
    chaintoolong: int
    search_restart: int
    missing: tuple[str, ...] = ()
    """Fields that this kernel does not report; they read 0. clash_resolve is there since 5.10, chaintoolong 5.15."""


# Field → column, where the file has another name for it. `chainlength` counts the inserts that were refused because
# the hash chain was too long (net/netfilter/nf_conntrack_standalone.c).
_COLUMN = {"clash_resolve": "clashres", "chaintoolong": "chainlength"}


def parse_nf_conntrack(text: str) -> NfConntrack:
    """Read the header line of names and one line of hexadecimal numbers per CPU.

    `entries` is the namespace's total, repeated on every line; the others are summed. ValueError when the text is
    not such a table.
    """
    header, *rows = [line.split() for line in text.splitlines() if line.strip()] or [[]]
    if "entries" not in header or not rows or any(len(row) != len(header) for row in rows):
        raise ValueError(f"not a table of nf_conntrack counters: {text[:80]!r}")
    per_cpu = [dict(zip(header, (int(cell, 16) for cell in row), strict=True)) for row in rows]
    fields = [field for field in NfConntrack.__struct_fields__ if field != "missing"]
    columns = {field: _COLUMN.get(field, field) for field in fields}
    values = {field: sum(row.get(column, 0) for row in per_cpu) for field, column in columns.items()}
    values["entries"] = per_cpu[0]["entries"]
    return NfConntrack(**values, missing=tuple(field for field in fields if columns[field] not in header))


def parse_start_time(stat: str) -> int:
    """Field 22 of /proc/PID/stat (proc(5)): clock ticks after boot. The name in field 2 may contain anything."""
    _, _, after_name = stat.rpartition(")")
    return int(after_name.split()[22 - 3])


def parse_mem_available(meminfo: str) -> int:
    """MemAvailable of /proc/meminfo in bytes; ValueError when it is not there."""
    for line in meminfo.splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise ValueError("no MemAvailable in meminfo")
