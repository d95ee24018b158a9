"""Nodes of a small cluster are introduced to each other as they join, and open sessions and links before they need any.

Opening them takes several round trips of two proofs, for every hop of a tree that nobody has used before: in a chain of
eight hosts that is as long as a tenth of a 32 MiB object. It is a matter between the shells. The machines do not know
of it, nothing depends on it, and whoever was not introduced opens what it needs when it needs it.
"""

import msgspec

from hoplite_ucx.protocol.ids import NodeId

__all__ = ["MOST", "introduced", "introduction"]

MOST = 16
"""How many nodes a newcomer is introduced to at most: each costs two sessions and two links with their threads."""

_MARK = b"\xc1meet"
"""No message of the protocol begins with this byte."""

_decoder = msgspec.msgpack.Decoder(list[tuple[NodeId, str]])


def introduction(nodes: list[tuple[NodeId, str]]) -> bytes:
    """The frame in which a directory names nodes and their addresses."""
    return _MARK + msgspec.msgpack.encode(nodes)


def introduced(frame: bytes) -> list[tuple[NodeId, str]] | None:
    """Who is introduced by a frame from the directory; None if it is no introduction, but a message of the protocol.

    An introduction to nobody is one too (the first node of a cluster is alone), and so is one that makes no sense.
    """
    if not frame.startswith(_MARK):
        return None
    try:
        return _decoder.decode(frame[len(_MARK) :])[:MOST]
    except msgspec.DecodeError:
        return []
