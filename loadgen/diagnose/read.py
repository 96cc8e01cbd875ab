"""From files to evidence: open, recognise by content, hand to the reader of that kind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO

import msgspec

from loadgen.core.errors import ConfigError
from loadgen.core.incident import Evidence, Kind, Problem, kind_of
from loadgen.diagnose import archives, capture, goroutines, logs, pages, tables
from loadgen.diagnose.streams import Allowance, Source, lines

DEPTH_MAX = 4
"""A tar in a gzip in a zip, and one to spare."""


class Reading(msgspec.Struct, frozen=True):
    """What was read: the evidence, the kind of each file, and what could not be read."""

    evidence: Evidence
    kinds: tuple[tuple[str, Kind], ...]
    skipped: int
    """Members of archives of no kind that says anything here: a sysdump has hundreds."""
    problems: tuple[Problem, ...]


def read_files(paths: Sequence[Path], uptime_s: int | None = None) -> Reading:
    """Read every file. ConfigError for one that cannot be opened; whatever is in them is a Problem at most."""
    collector = _Collector()
    for path in paths:
        try:
            with path.open("rb") as file:
                collector.file(str(path), file, path.stat().st_size)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    return collector.reading(uptime_s)


class _Collector:
    def __init__(self) -> None:
        self._found: dict[str, list] = {
            name: [] for name in ("tables", "goroutines", "statuses", "metrics", "logs", "conntrack", "dns")
        }
        self._kinds: list[tuple[str, Kind]] = []
        self._problems: list[Problem] = []
        self._skipped = 0

    def reading(self, uptime_s: int | None) -> Reading:
        found = {name: tuple(values) for name, values in self._found.items()}
        return Reading(Evidence(**found, uptime_s=uptime_s), tuple(self._kinds), self._skipped, tuple(self._problems))

    def file(self, name: str, file: IO[bytes], size: int) -> None:
        """A file of the command line, seekable or a pipe."""
        source = Source(name, file)
        if kind_of(source.head) is Kind.ZIP:
            self._kinds.append((name, Kind.ZIP))
            if not file.seekable():
                self._problems.append(Problem(name, "", "a zip is read from its end: a pipe will not do"))
                return
            allowance = Allowance(size)
            for member in archives.of_zip(name, file, allowance):
                self._member(member, allowance, depth=1)
        else:
            self._source(source, Allowance(size), depth=0)

    def _member(self, member: Source | Problem, allowance: Allowance, depth: int) -> None:
        if isinstance(member, Problem):
            self._problems.append(member)
        else:
            self._source(member, allowance, depth)

    def _source(self, source: Source, allowance: Allowance, depth: int) -> None:
        kind = kind_of(source.head)
        if kind in (Kind.TAR, Kind.GZIP) and depth < DEPTH_MAX:
            self._kinds.append((source.name, kind))
            unpack = archives.of_tar if kind is Kind.TAR else archives.of_gzip
            for member in unpack(source, source.allowance or allowance):
                self._member(member, source.allowance or allowance, depth + 1)
        elif kind in (Kind.UNKNOWN, Kind.EMPTY, Kind.ZIP, Kind.TAR, Kind.GZIP):
            self._none(source, kind, depth)
        else:
            self._kinds.append((source.name, kind))
            self._problems += self._evidence(source, kind)
        if source.broken:
            where = f"offset {source.bytes_read}"
            self._problems.append(Problem(source.name, where, f"the rest cannot be read: {source.broken}"))

    def _none(self, source: Source, kind: Kind, depth: int) -> None:
        if depth and kind in (Kind.UNKNOWN, Kind.EMPTY):
            self._skipped += 1
            return
        self._kinds.append((source.name, kind))
        if source.broken:
            return  # which is told
        what = "is empty" if kind is Kind.EMPTY else "is of no kind that is known here; see `loadgen diagnose --help`"
        if kind in (Kind.ZIP, Kind.TAR, Kind.GZIP):
            what = "an archive too deep in others: unpack it first"
        self._problems.append(Problem(source.name, "", what))

    def _evidence(self, source: Source, kind: Kind) -> list[Problem]:
        """Hand `source` to its reader; the problems it met."""
        add, problems = self._found, []
        if kind in (Kind.CT_TEXT, Kind.CT_JSON):
            value, problems = tables.read(source, json=kind is Kind.CT_JSON)
            add["tables"].append(value)
        elif kind is Kind.GOROUTINES:
            reader = goroutines.GoroutineReader()
            for _, line, _ in lines(source):
                reader.line(line)
            add["goroutines"].append(reader.dump(source.name))
        elif kind is Kind.STATUS:
            value, problems = pages.status(source)
            add["statuses"].append(value)
        elif kind is Kind.METRICS:
            value, problems = pages.metrics(source)
            add["metrics"].append(value)
        elif kind is Kind.CONNTRACK:
            values, problems = pages.conntrack(source)
            add["conntrack"] += values
        elif kind is Kind.CAPTURE:
            value, problems = capture.read(source)
            add["dns"].append(value)
        else:
            facts, dump, problems = logs.read(source, "kernel" if kind is Kind.DMESG else "")
            add["logs"].append(facts)
            add["goroutines"] += [dump] if dump.total else []
        return problems
