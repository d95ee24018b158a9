"""The names that every part of the protocol uses: refs, nodes, versions, streams, calls.

They are made outside (a shell draws refs and node identities at random, the simulator counts) because the
protocol has no randomness of its own; here are only their forms and the few rules that relate them.
"""

from functools import lru_cache
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

REF_BYTES = 16

Ref: TypeAlias = Annotated[bytes, Meta(min_length=REF_BYTES, max_length=REF_BYTES)]
"""16 random bytes that name an object, perhaps before the object exists."""

NodeId: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 62)]
"""One life of one node: an identity drawn at the process's start, and a generation in the low bits."""

CallId: TypeAlias = int
"""A user's call, unique within its node while the node lives."""

GENERATION_BITS = 16
_GENERATION_MASK = (1 << GENERATION_BITS) - 1


def node_id(identity: int, generation: int = 0) -> NodeId:
    return identity << GENERATION_BITS | generation


def identity_of(node: NodeId) -> int:
    return node >> GENERATION_BITS


def generation_of(node: NodeId) -> int:
    return node & _GENERATION_MASK


def next_life(node: NodeId) -> NodeId:
    """The name under which a fenced node comes back: a new generation of the same identity."""
    return node_id(identity_of(node), (generation_of(node) + 1) & _GENERATION_MASK)


class Version(Struct, frozen=True, array_like=True, order=True):
    """What a byte belongs to. Bytes of two versions never mix; a higher version of a ref replaces a lower one."""

    ref: Ref
    incarnation: Annotated[int, Meta(ge=0, lt=1 << 62)]
    counter: Annotated[int, Meta(ge=0, lt=1 << 62)]

    def __str__(self) -> str:
        return f"{short(self.ref)}v{self.incarnation}.{self.counter}"


NO_SLOT = b""
"""The `into` of bytes that are kept as an object; of others it names the slot that combines them."""

ReceiverKey: TypeAlias = NodeId | tuple[NodeId, bytes]
"""Who receives a version: a node, for its store, or one slot on a node, which combines the bytes and keeps none."""


def receiver_key(node: NodeId, into: bytes) -> ReceiverKey:
    return (node, into) if into else node


class StreamId(Struct, frozen=True, array_like=True):
    """One transfer of one version, numbered by its receiver and never used again."""

    receiver: NodeId
    number: Annotated[int, Meta(ge=0)]

    def __str__(self) -> str:
        return f"{label(self.receiver)}#{self.number}"


def short(ref: bytes) -> str:
    """A ref as people see it: enough of it to tell objects apart."""
    return ref.hex()[:8]


@lru_cache(4096)
def label(node: NodeId) -> str:
    """A node as people see it; later lives of one identity carry their generation."""
    generation = generation_of(node)
    name = f"n{identity_of(node):x}"
    return f"{name}.{generation}" if generation else name
