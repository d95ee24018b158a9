"""What a *reader* may ask the directory: does it have a small object? The answer comes at once, and nothing changes.

A reader is a worker, not a node: it never joins, and is never sent anything but the answer to its last question, which
is a ref and nothing else. So the shells keep its session apart, and these are the only forms that travel there.
"""

from typing import TypeAlias

import msgspec
from msgspec import Struct

from hoplite_ucx.protocol.ids import REF_BYTES, Ref, Version
from hoplite_ucx.protocol.messages import Data, Layout, malformed

QUESTION = REF_BYTES.to_bytes(4, "little")
"""How the frame of every question begins, with its length; the ref follows, and that is all."""

MAX_ANSWER = 4 << 20
"""A small object and its layout."""


class _Answer(Struct, frozen=True, array_like=True, tag=True):
    pass


class Found(_Answer, frozen=True):
    """The bytes of a version that users may have."""

    version: Version
    layout: Layout
    data: Data


class Absent(_Answer, frozen=True):
    """The directory has nothing to give now. It says nothing more: the object may be large, deleted or still to
    come."""

    ref: Ref


Answer: TypeAlias = Found | Absent


def encode_incarnation(incarnation: int) -> bytes:
    """How a directory names itself in the handshake, so that a reader knows one that was replaced."""
    return incarnation.to_bytes(8, "little")


def decode_incarnation(info: bytes) -> int:
    return int.from_bytes(info, "little")


_encoder = msgspec.msgpack.Encoder()
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def encode(message: Answer) -> bytes:
    return _encoder.encode(message)


def decode_answer(frame: bytes | memoryview) -> Answer:
    try:
        return _answers.decode(frame)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise malformed(str(error)).exception() from error
