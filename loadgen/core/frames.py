"""Messages between a worker and the engine's process: length-prefixed MessagePack, one message a frame."""

from __future__ import annotations

import struct

import msgspec

from loadgen.core.samples import Message

_LENGTH = struct.Struct("<I")
HEADER_BYTES = _LENGTH.size

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def body_length(header: bytes) -> int:
    return _LENGTH.unpack(header)[0]


def decode(body: bytes) -> Message:
    """Raises msgspec.DecodeError for bytes that are no message."""
    return _decoder.decode(body)
