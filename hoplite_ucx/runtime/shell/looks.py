"""How a process with the token, a viewer, asks a directory and agents what goes on: each answer is to a question. So a
viewer that does not read gets nothing more, and nobody does anything while nobody asks.
"""

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct

from hoplite_ucx.protocol.ids import Ref
from hoplite_ucx.protocol.messages import Number

MOST_DESCRIBED = 64
MOST_STORIES = 16

_Few: TypeAlias = Annotated[tuple[Ref, ...], Meta(max_length=MOST_DESCRIBED)]


class DirectoryLook(Struct, frozen=True, array_like=True, tag=True):
    """What happened after `number` of the directory's `incarnation`? Also: what is known of some objects, and what
    happened to some. The answer is a `watching.Looked`; if it would be empty, it comes later, but within a second."""

    incarnation: Number = 0
    number: Number = 0
    describe: _Few = ()
    stories: Annotated[tuple[Ref, ...], Meta(max_length=MOST_STORIES)] = ()


class AgentLook(Struct, frozen=True, array_like=True, tag=True):
    """What goes on in an agent, and which streams ended after the moment `since` of its clock? Which names of objects
    did it learn after the first `named` ones? `all`: also what changes slowly, its links and largest objects. The
    answer is a dict."""

    since: float = 0.0
    all: bool = False
    named: Number = 0


_decoder: msgspec.msgpack.Decoder[DirectoryLook | AgentLook] = msgspec.msgpack.Decoder(DirectoryLook | AgentLook)


def asking(question: DirectoryLook | AgentLook) -> bytes:
    return msgspec.msgpack.encode(question)


def asked(frame: bytes) -> DirectoryLook | AgentLook | None:
    """The question in a frame; None if there is none."""
    try:
        return _decoder.decode(frame)
    except (msgspec.DecodeError, ValueError):
        return None


def answer(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)
