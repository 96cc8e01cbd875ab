"""A file's bytes as chunks, its head looked at first; lines of bounded length; and an allowance against bombs."""

from __future__ import annotations

import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from typing import Protocol

from loadgen.core.incident import HEAD_BYTES

CHUNK_BYTES = 1 << 20
LINE_BYTES = 65_536


class Readable(Protocol):
    """What can be read from: a file, a member of an archive."""

    def read(self, size: int, /) -> bytes: ...


class TooLarge(Exception):
    """An archive gave more bytes than any honest one of its size does."""


READ_ERRORS = (TooLarge, zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError,
    RuntimeError, NotImplementedError, ValueError, KeyError, OverflowError)  # fmt: skip
"""What a file on a bad disk or a damaged, encrypted or hostile archive raises."""


class Allowance:
    """Bytes that may still come out of one archive, its members and what is packed in them together."""

    RATIO, LEAST = 250, 64 << 20
    """Ten times what repetitive logs and lists are packed to; and never less than this."""

    def __init__(self, packed_bytes: int) -> None:
        self._left = max(packed_bytes * self.RATIO, self.LEAST)

    @property
    def is_spent(self) -> bool:
        return self._left < 0

    def take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise TooLarge(f"unpacks to more than {self.RATIO} times its size: refused as a zip bomb")


class Source:
    """A stream whose first bytes have been looked at. Read it once, by `chunks`.

    An error ends it early: what came before counts, and `broken` says why there is no more.
    """

    def __init__(
        self, name: str, stream: Readable, allowance: Allowance | None = None, *, is_member: bool = False
    ) -> None:
        self.name = name
        self.is_member = is_member
        self._stream = stream
        self.allowance = allowance
        self.broken = ""
        self.bytes_read = 0
        self.head = self._read(HEAD_BYTES)

    def chunks(self) -> Iterator[bytes]:
        """Everything from the first byte on."""
        yield self.head
        while data := self._read(CHUNK_BYTES):
            yield data

    def _read(self, size: int) -> bytes:
        """`size` bytes unless the stream ends before: members of archives give what they like."""
        parts: list[bytes] = []
        try:
            while size > 0 and not self.broken and (data := self._stream.read(size)):
                if self.allowance is not None:
                    self.allowance.take(len(data))
                parts.append(data)
                size -= len(data)
        except READ_ERRORS as error:
            self.broken = str(error) or type(error).__name__
        self.bytes_read += sum(map(len, parts))
        return b"".join(parts)


class ChunkReader:
    """The chunks of a Source as something that can be read from again, for a reader of packed files."""

    def __init__(self, source: Source) -> None:
        self._chunks = source.chunks()
        self._rest = b""

    def read(self, size: int = -1, /) -> bytes:
        while size < 0 or len(self._rest) < size:
            more = next(self._chunks, None)
            if more is None:
                break
            self._rest += more
        end = len(self._rest) if size < 0 else size
        out, self._rest = self._rest[:end], self._rest[end:]
        return out


def lines(source: Source) -> Iterator[tuple[int, bytes, bool]]:
    """(number from 1, line without its newline, whether it was cut at LINE_BYTES)."""
    number, rest, cut = 1, b"", False
    for chunk in source.chunks():
        pieces = chunk.split(b"\n")
        for piece in pieces[:-1]:
            line = rest + piece
            yield number, line[:LINE_BYTES].rstrip(b"\r"), cut or len(line) > LINE_BYTES
            number, rest, cut = number + 1, b"", False
        rest += pieces[-1]
        if len(rest) > LINE_BYTES:
            rest, cut = rest[:LINE_BYTES], True
    if rest:
        yield number, rest, cut
