"""Zips, tars and gzips: `cilium sysdump`, with `cilium-bugtool`'s tars in it. Streamed, never unpacked to disk.

A member whose name leads out of the archive is refused though nothing would be written there: no honest archive has
one. An archive that unpacks to more than Allowance allows is refused from there on; what came before stays read.
"""

from __future__ import annotations

import gzip
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import IO, cast

from loadgen.core.incident import Problem
from loadgen.diagnose.streams import READ_ERRORS, Allowance, ChunkReader, Readable, Source

MEMBERS_MAX = 100_000


def is_outside(name: str) -> bool:
    """Whether a member's name leads out of the directory that it would be unpacked to."""
    path = PurePosixPath(name.replace("\\", "/"))
    return path.is_absolute() or ".." in path.parts or name[1:2] == ":" or "\0" in name


def of_zip(name: str, file: IO[bytes], allowance: Allowance) -> Iterator[Source | Problem]:
    """The members of a zip; a damaged one is a Problem, and the next follows."""
    try:
        archive = zipfile.ZipFile(file)
        members = archive.infolist()
    except READ_ERRORS as error:
        yield Problem(name, "", f"not a whole zip: {error}")
        return
    if len(members) > MEMBERS_MAX:
        yield Problem(name, "", f"has {len(members)} members, only {MEMBERS_MAX} are read")
    for member in members[:MEMBERS_MAX]:
        inner = f"{name}:{member.filename}"
        if is_outside(member.filename):
            yield Problem(inner, f"offset {member.header_offset}", "its name leads out of the archive: refused")
        elif not member.is_dir():
            try:
                with archive.open(member) as stream:
                    yield Source(inner, cast(Readable, stream), allowance, is_member=True)
            except READ_ERRORS as error:
                yield Problem(inner, f"offset {member.header_offset}", f"cannot be read: {error}")
            if allowance.is_spent:
                return


def of_tar(source: Source, allowance: Allowance) -> Iterator[Source | Problem]:
    """The members of a tar, plain or gzipped, in one pass."""
    reader = cast(IO[bytes], ChunkReader(source))
    count = 0
    try:
        with tarfile.open(fileobj=reader, mode="r|*") as archive:
            for member in archive:
                count += 1
                inner = f"{source.name}:{member.name}"
                if count > MEMBERS_MAX:
                    yield Problem(source.name, "", f"has more than {MEMBERS_MAX} members: the rest is not read")
                    return
                if is_outside(member.name):
                    yield Problem(inner, f"offset {member.offset}", "its name leads out of the archive: refused")
                elif member.isfile() and (stream := archive.extractfile(member)) is not None:
                    yield Source(inner, cast(Readable, stream), is_member=True)  # the tar's bytes, already counted
                archive.__dict__["members"] = []  # it would remember every member otherwise
                if allowance.is_spent:
                    return
    except READ_ERRORS as error:
        yield Problem(source.name, f"after {count} members", f"not a whole tar: {error}")


def of_gzip(source: Source, allowance: Allowance) -> Iterator[Source | Problem]:
    """What is in a gzip file."""
    try:
        with gzip.GzipFile(fileobj=cast(IO[bytes], ChunkReader(source))) as stream:
            yield Source(
                source.name.removesuffix(".gz"), cast(Readable, stream), allowance, is_member=source.is_member
            )
    except READ_ERRORS as error:
        yield Problem(source.name, "", f"not a whole gzip file: {error}")
