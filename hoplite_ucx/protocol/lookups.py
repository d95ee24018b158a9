"""What a *reader* may ask of the directory: is a small object there? It is answered at once, and nothing changes.

A reader is a worker, not a node: it never joins, is never sent anything but the answer to its last question, and has
one kind of message. So the shells keep its session apart, and these are the only forms that travel there.
"""

from typing import TypeAlias

import msgspec
from msgspec import Struct

from hoplite_ucx.protocol.ids import Ref, Version
from hoplite_ucx.protocol.messages import Data, Layout, malformed

MAX_LOOK = 64
MAX_ANSWER = 4 << 20
"""A small object and its layout."""


class Look(Struct, frozen=True, array_like=True, tag=True):
    ref: Ref


class _Answer(Struct, frozen=True, array_like=True, tag=True):
    pass


class Found(_Answer, frozen=True):
    """The bytes of a version that users may have."""

    version: Version
    layout: Layout
    data: Data


class Absent(_Answer, frozen=True):
    """There is nothing to be given here and now. It says nothing more: the object may be large, deleted or to come."""

    ref: Ref


Answer: TypeAlias = Found | Absent


def encode_incarnation(incarnation: int) -> bytes:
    """How a directory names itself in the handshake, so that a reader knows one that was replaced."""
    return incarnation.to_bytes(8, "little")


def decode_incarnation(info: bytes) -> int:
    return int.from_bytes(info, "little")


_encoder = msgspec.msgpack.Encoder()
_looks: msgspec.msgpack.Decoder[Look] = msgspec.msgpack.Decoder(Look)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def encode(message: Look | Answer) -> bytes:
    return _encoder.encode(message)


def decode_look(frame: bytes) -> Look:
    try:
        return _looks.decode(frame)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise malformed(str(error)).exception() from error


def decode_answer(frame: bytes) -> Answer:
    try:
        return _answers.decode(frame)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise malformed(str(error)).exception() from error
