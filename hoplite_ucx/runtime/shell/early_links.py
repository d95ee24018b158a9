"""In a small cluster the directory introduces nodes to each other as they join, and they open sessions and links early.

Opening them takes several round trips of two proofs, for every unused hop of a tree: in a chain of eight hosts that is
as long as a tenth of a 32 MiB object. Only the shells know of it. The machines do not, nothing depends on it, and a
node that was not introduced opens its links when it needs them.
"""

import msgspec

from hoplite_ucx.protocol.ids import NodeId

__all__ = ["MOST", "introduced", "introduction"]

MOST = 1024
"""A node opens no more than this, whatever a directory names. How many it names is `cluster.introductions`."""

_MARK = b"\xc1meet"
"""No message of the protocol begins with this byte."""

_decoder = msgspec.msgpack.Decoder(list[tuple[NodeId, str]])


def introduction(nodes: list[tuple[NodeId, str]]) -> bytes:
    """The frame in which a directory names nodes and their addresses."""
    return _MARK + msgspec.msgpack.encode(nodes)


def introduced(frame: bytes) -> list[tuple[NodeId, str]] | None:
    """The nodes that a frame from the directory introduces; None if the frame is a message of the protocol.

    An introduction may be empty (the first node of a cluster is alone). An invalid one counts as empty.
    """
    if not frame.startswith(_MARK):
        return None
    try:
        return _decoder.decode(frame[len(_MARK) :])[:MOST]
    except msgspec.DecodeError:
        return []
