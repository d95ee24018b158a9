"""The wire format: every message between nodes and the directory, and between nodes.

The structs are what the machines handle and, in MessagePack, what travels. Decoding checks forms and bounds
every length before anything else looks at a message; what a message *means* is checked by the machine that
handles it. Three tagged unions, one per direction, so that no process gets a message that is not for it.
"""

import enum
from typing import Annotated, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct

from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.protocol.ids import NO_SLOT, REF_BYTES, CallId, NodeId, Ref, StreamId, Version
from hoplite_ucx.protocol.settings import Seconds, Settings

PROTOCOL = 8
"""Raised whenever two builds could misunderstand each other; compared in the handshake."""

MAX_FRAME = 64 << 20
MAX_LAYOUT = 1 << 20
MAX_TEXT = 4096
_MAX_LIST = 1_000_000
MAX_DESCRIBED = 1000
"""Refs that are described in one answer: with the longest layouts and addresses it is still a small frame."""
MAX_DESCRIBED_LAYOUT = 4096
MAX_DESCRIBED_HOLDERS = 16

Bytes: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 62)]
Number: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 62)]
Call: TypeAlias = Annotated[CallId, Meta(ge=0, lt=1 << 62)]
Rate: TypeAlias = Annotated[float, Meta(ge=1, le=1e15)]
"""Bytes a second; bounded because rates are added up, and infinities would never go away again."""
Rank: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 62)]
RANKS = 1 << 16
"""Ranks of one reduction; those of a later one are above them."""
Text: TypeAlias = Annotated[str, Meta(max_length=MAX_TEXT)]
Layout: TypeAlias = Annotated[bytes, Meta(max_length=MAX_LAYOUT)]
Data: TypeAlias = Annotated[bytes, Meta(max_length=1 << 20)]
Into: TypeAlias = Annotated[bytes, Meta(max_length=REF_BYTES)]
Refs: TypeAlias = Annotated[tuple[Ref, ...], Meta(max_length=_MAX_LIST)]


class Operation(enum.StrEnum):
    """How the parts of a reduction are combined, element by element."""

    SUM = "sum"
    PROD = "prod"
    MIN = "min"
    MAX = "max"
    MEAN = "mean"
    AND = "and"
    OR = "or"
    XOR = "xor"


class StreamFault(enum.StrEnum):
    """Why a stream ended before its last byte, as its receiver saw it."""

    BROKEN = "broken"  # the connection to the sender ended
    STALLED = "stalled"  # silence, or a backlog that does not move
    ABSENT = "absent"  # the sender does not have this version
    BUSY = "busy"  # the sender has no stream to spare


# --- what a node tells the directory --------------------------------------------------------------------------


class _ToDirectory(Struct, frozen=True, array_like=True, tag=True):
    pass


class Put(_ToDirectory, frozen=True):
    """The node begins to put an object; small ones carry their bytes. `told`: its user does not wait for the answer."""

    call: Call
    ref: Ref
    size: Bytes
    layout: Layout
    data: Data | None = None
    told: bool = False


class Delete(_ToDirectory, frozen=True):
    call: Call
    refs: Refs


class Reduce(_ToDirectory, frozen=True):
    """Combine the first `count` of the sources that are ready into the target. `everywhere`: the hosts of the sources
    will all get it (an allreduce), so that it may pay to lay it in stripes."""

    call: Call
    target: Ref
    sources: Refs
    op: Operation
    count: Number
    everywhere: bool = False


class Ask(_ToDirectory, frozen=True):
    """Which sources went into a target?"""

    call: Call
    ref: Ref


class Describe(_ToDirectory, frozen=True):
    """What is known of these refs?"""

    call: Call
    refs: Annotated[tuple[Ref, ...], Meta(max_length=MAX_DESCRIBED)]


class Poll(_ToDirectory, frozen=True):
    """What is known of the ref now? Whatever the node asked before is answered before this, and an `Ask` of the same
    call, if it was not, is over. Without a ref, that order is all that it is for."""

    call: Call
    ref: Ref | None = None


class Origin(Struct, frozen=True, array_like=True):
    """How a decided target was made. Nodes with a copy keep it, to report it to a new directory."""

    spec: Reduce
    contributors: Annotated[tuple[Version, ...], Meta(max_length=_MAX_LIST)]


class Copy(Struct, frozen=True, array_like=True):
    """A complete copy that a joining node holds, or an object that is being put there."""

    version: Version
    size: Bytes
    layout: Layout
    sealed: bool = True
    origin: Origin | None = None
    piece: bool = False
    """It is of a stripe: a new directory builds stripes again."""


class Partial(Struct, frozen=True, array_like=True):
    """What a joining node is receiving, for its store or a slot; `number` 0 means that it has no sender now."""

    version: Version
    size: Bytes
    layout: Layout
    watermark: Bytes
    number: Number = 0
    sender: NodeId = 0
    rate: Rate = 1.0
    sealed: bool = True
    origin: Origin | None = None
    into: Into = NO_SLOT
    piece: bool = False
    """It is of a stripe, or put together from stripes."""


class SlotReport(Struct, frozen=True, array_like=True):
    """A slot that a joining node runs, as it was bound, and the parts that it still needs."""

    bind: "Bind"
    missing: Annotated[tuple[Version, ...], Meta(max_length=_MAX_LIST)]
    undecided: Annotated[tuple[Version, ...], Meta(max_length=_MAX_LIST)] = ()
    """Parts that were not sealed, as far as the node knows: the directory must know them itself."""


class Tombstone(Struct, frozen=True, array_like=True):
    """A ref that was deleted lately, and by which incarnation: what a later one took is another object."""

    ref: Ref
    incarnation: Number


class Join(_ToDirectory, frozen=True):
    """The first message of every session: who the node is, and all that the directory should know of it.

    A new node announces little; a node that comes back announces everything, and what was lost with the old
    session is settled by comparing. `incarnation` is that of the last directory which welcomed it (0: none): a new
    directory learns from its predecessor's nodes what there is.
    """

    protocol: Number
    cluster: Text
    incarnation: Number
    node: NodeId
    host: Text
    address: Text
    up: Rate
    down: Rate
    streams_in: Annotated[int, Meta(ge=1)]
    streams_out: Annotated[int, Meta(ge=1)]
    members: Number = 0
    copies: Annotated[tuple[Copy, ...], Meta(max_length=_MAX_LIST)] = ()
    partials: Annotated[tuple[Partial, ...], Meta(max_length=_MAX_LIST)] = ()
    producing: Annotated[tuple[Copy, ...], Meta(max_length=_MAX_LIST)] = ()
    slots: Annotated[tuple[SlotReport, ...], Meta(max_length=_MAX_LIST)] = ()
    puts: Annotated[tuple[Put, ...], Meta(max_length=_MAX_LIST)] = ()
    wants: Refs = ()
    watches: Refs = ()
    deletes: Annotated[tuple[Delete, ...], Meta(max_length=_MAX_LIST)] = ()
    reduces: Annotated[tuple[Reduce, ...], Meta(max_length=_MAX_LIST)] = ()
    asks: Annotated[tuple[Ask, ...], Meta(max_length=_MAX_LIST)] = ()
    questions: Annotated[tuple[Describe, ...], Meta(max_length=_MAX_LIST)] = ()
    submitted: Annotated[tuple[Reduce, ...], Meta(max_length=_MAX_LIST)] = ()
    """Reductions that were asked for here and, as far as the node knows, are not decided."""
    tombstones: Annotated[tuple[Tombstone, ...], Meta(max_length=_MAX_LIST)] = ()
    """What was deleted from here lately."""


class Leave(_ToDirectory, frozen=True):
    """The node goes on purpose: no suspicion, no lease."""


class Retire(_ToDirectory, frozen=True):
    """The node is going to leave, and stays until `MayLeave` says that nothing is lost with it."""


class Progress(Struct, frozen=True, array_like=True):
    version: Version
    watermark: Bytes
    into: Into = NO_SLOT


class Heartbeat(_ToDirectory, frozen=True):
    """`round_trip` is the least time that the answer to one lately took; 0 if too few have come yet."""

    progress: Annotated[tuple[Progress, ...], Meta(max_length=_MAX_LIST)] = ()
    round_trip: Seconds = 0.0


class Completed(_ToDirectory, frozen=True):
    """All bytes of the version are here, put or received."""

    version: Version


class Aborted(_ToDirectory, frozen=True):
    """The worker that was putting the version is gone."""

    version: Version


class Want(_ToDirectory, frozen=True):
    ref: Ref


class Unwant(_ToDirectory, frozen=True):
    """No call here waits for the ref any more. A running transfer continues: others may depend on it."""

    ref: Ref


class StreamFailed(_ToDirectory, frozen=True):
    """The stream of a placement ended early. `wanted`: someone here still waits for the object."""

    version: Version
    number: Number
    watermark: Bytes
    sender: NodeId
    fault: StreamFault
    wanted: bool
    into: Into = NO_SLOT


class Halted(_ToDirectory, frozen=True):
    """The answer to `Halt`: nothing writes below or above this watermark any more."""

    version: Version
    number: Number
    watermark: Bytes
    wanted: bool
    into: Into = NO_SLOT


class Bound(_ToDirectory, frozen=True):
    """The node has taken a slot and has memory for it; the parts that it needs must be sent to it."""

    version: Version
    number: Number
    missing: Annotated[tuple[Version, ...], Meta(max_length=_MAX_LIST)]


class Consumed(_ToDirectory, frozen=True):
    """A slot has combined the last byte of this version."""

    version: Version
    into: Into


class CombinedInline(_ToDirectory, frozen=True):
    """The result of `CombineInline`. `kept`: the node has a copy of it in its store."""

    version: Version
    data: Data
    kept: bool = False


class Unfit(_ToDirectory, frozen=True):
    """The operation is not defined for the objects that the node was given, as a slot or inline; it has dropped
    them."""

    version: Version
    detail: Text
    remedy: Text


class Declined(_ToDirectory, frozen=True):
    """No memory for this placement or slot; with number 0, for a `Result`."""

    version: Version
    number: Number


class Evict(_ToDirectory, frozen=True):
    version: Version


class Watch(_ToDirectory, frozen=True):
    refs: Refs


class Unwatch(_ToDirectory, frozen=True):
    refs: Refs


ToDirectory: TypeAlias = (
    Join
    | Leave
    | Retire
    | Heartbeat
    | Put
    | Completed
    | Aborted
    | Want
    | Unwant
    | StreamFailed
    | Halted
    | Declined
    | Evict
    | Watch
    | Unwatch
    | Delete
    | Reduce
    | Ask
    | Describe
    | Poll
    | Bound
    | Consumed
    | CombinedInline
    | Unfit
)


def asked_in(message: ToDirectory) -> tuple[tuple[CallId, ...], tuple[bytes, ...]]:
    """The calls that a message is about, and the refs that somebody waits for."""
    match message:
        case Put() | Delete() | Reduce() | Ask() | Describe() | Poll():
            return (message.call,), ()
        case Want():
            return (), (message.ref,)
        case Watch():
            return (), message.refs
        case Join():
            asking: tuple[Put | Delete | Reduce | Ask | Describe, ...] = (
                *message.puts,
                *message.deletes,
                *message.reduces,
                *message.asks,
                *message.questions,
            )
            return tuple(asked.call for asked in asking), (*message.wants, *message.watches)
    return (), ()


# --- what the directory tells a node --------------------------------------------------------------------------


class _ToNode(Struct, frozen=True, array_like=True, tag=True):
    pass


class Welcome(_ToNode, frozen=True):
    incarnation: Number
    cluster: Text
    settings: Settings
    members: Number = 0


class Fenced(_ToNode, frozen=True):
    """The node was declared dead. It may come back as a new life of itself."""

    node: NodeId


class Alive(_ToNode, frozen=True):
    """The answer to a heartbeat. How many `members` there are tells a successor when it has heard them all."""

    members: Number = 0


class PutAccepted(_ToNode, frozen=True):
    """`existing`: the ref has an object already, and the bytes that were offered are not needed."""

    call: Call
    version: Version
    existing: bool


class PutRefused(_ToNode, frozen=True):
    call: Call
    failure: Failure


class Place(_ToNode, frozen=True):
    """Pull this version from that sender, from your watermark on. The newest number wins."""

    version: Version
    number: Number
    size: Bytes
    layout: Layout
    sender: NodeId
    address: Text
    granule: Annotated[int, Meta(ge=1)]
    rate: Rate
    sealed: bool = True
    origin: Origin | None = None
    into: Into = NO_SLOT
    rank: Rank = 0
    """Of a stripe: RANKS times the reduction's turn, and how many hops its bytes have come. What was built first is
    sent first, and of that what has the longest way to go: else later reductions would hold up those before them."""
    piece: bool = False
    """Of a stripe that was cut: only a node that still assembles the object from it has a use for it."""


BIND_ALIGNMENT = 64
"""No element is larger, and none is split: slots and stripes begin at its multiples."""


MAX_CUT = 64
"""Stripes into which a complete object is cut."""


class Stripe(Struct, frozen=True, array_like=True):
    """A piece of an object, made or spread as an object of its own."""

    version: Version
    size: Annotated[int, Meta(ge=1, lt=1 << 62)]


class Assemble(_ToNode, frozen=True):
    """Put this version together from its stripes, in this order; each will be placed. The newest number wins."""

    version: Version
    number: Number
    size: Bytes
    layout: Layout
    stripes: Annotated[tuple[Stripe, ...], Meta(min_length=1, max_length=_MAX_LIST)]
    sealed: bool = False
    origin: Origin | None = None


class Cut(_ToNode, frozen=True):
    """Of this version you have all bytes: let others pull its stripes, which follow each other in it."""

    version: Version
    size: Bytes
    stripes: Annotated[tuple[Stripe, ...], Meta(min_length=2, max_length=MAX_CUT)]

    def __post_init__(self) -> None:
        refs = {self.version.ref, *(stripe.version.ref for stripe in self.stripes)}
        if len(refs) <= len(self.stripes):
            raise ValueError("a stripe is named twice, or is of itself")
        if (total := sum(stripe.size for stripe in self.stripes)) != self.size:
            raise ValueError(f"stripes of {total} bytes do not fill {self.size}")


class Bind(_ToNode, frozen=True):
    """Combine these parts, in this order, into a version of your own. The newest number wins.

    Combine only from `start` on: the receivers have what is below. `resume`: you were getting the version yourself and
    have received it as far as `start`, or a few bytes more; that stays, and you will have all of it. With `offset` it
    is a slot of a stripe: of the first part, a source that is here, only `size` bytes from there on go in.
    """

    version: Version
    number: Number
    size: Bytes
    layout: Layout
    op: Operation
    parts: Annotated[tuple[Version, ...], Meta(min_length=1, max_length=_MAX_LIST)]
    target: Ref
    spec: Reduce | None = None
    """What the slot is for: some slots of every reduction carry it, in case the directory is lost."""
    start: Bytes = 0
    resume: bool = False
    offset: Bytes | None = None
    divisor: Number = 0
    """What is combined is divided by it, unless it is 0: a mean is, where the last of it is combined."""

    @property
    def available_from(self) -> int:
        """The first byte of the output that the host will have."""
        return 0 if self.resume else self.start


class CombineInline(_ToNode, frozen=True):
    """Combine these small objects, in this order, and send the result back."""

    version: Version
    layout: Layout
    op: Operation
    parts: Annotated[tuple[Data, ...], Meta(min_length=1, max_length=_MAX_LIST)]
    divisor: Number = 0


class Sealed(_ToNode, frozen=True):
    """The version is decided: it may be given to users."""

    version: Version
    origin: Origin | None = None


class Over(_ToNode, frozen=True):
    """A reduction that the node asked for is decided or cancelled, and need not be remembered."""

    target: Ref


class Result(_ToNode, frozen=True):
    """A small target that the node asked for is decided, and this is all of it: a copy to keep, which the directory
    counts on. A node without room for it says `Declined`. Like `Over`, it ends the reduction."""

    version: Version
    layout: Layout
    data: Data
    origin: Origin


class Inline(_ToNode, frozen=True):
    version: Version
    layout: Layout
    data: Data
    into: Into = NO_SLOT


class Failed(_ToNode, frozen=True):
    """What the node wanted or watched will not come by itself; the failure names the ref."""

    ref: Ref
    failure: Failure


class Drop(_ToNode, frozen=True):
    """The version is over: deleted, lost or replaced."""

    version: Version


class Eviction(enum.StrEnum):
    GRANTED = "granted"
    LAST_COPY = "last_copy"  # it stays until another copy exists
    IN_USE = "in_use"  # someone is pulling from it


class EvictAnswer(_ToNode, frozen=True):
    version: Version
    answer: Eviction


class Halt(_ToNode, frozen=True):
    """Stop the stream of this placement and report where it stands."""

    version: Version
    number: Number
    into: Into = NO_SLOT


class Ready(_ToNode, frozen=True):
    refs: Refs


class Deleted(_ToNode, frozen=True):
    call: Call


class Reduced(_ToNode, frozen=True):
    """The directory knows of the reduction and does the rest; or why it was refused."""

    call: Call
    failure: Failure | None = None


class Contributors(_ToNode, frozen=True):
    call: Call
    refs: Refs
    failure: Failure | None = None


class ObjectState(enum.StrEnum):
    """What a get of a ref would meet."""

    UNKNOWN = "unknown"  # it was never put, or it was lost: a get waits for a put
    COMING = "coming"  # it is being put, or reduced
    READY = "ready"
    FAILED = "failed"  # a reduction that cannot be carried out
    DELETED = "deleted"


class Description(Struct, frozen=True, array_like=True):
    """What the directory knows of a ref. Of many holders only some are named, and a long layout is left out."""

    ref: Ref
    state: ObjectState
    size: Bytes | None = None
    layout: Annotated[bytes, Meta(max_length=MAX_DESCRIBED_LAYOUT)] = b""
    inline: bool = False
    """The directory itself has the bytes."""
    copies: Number = 0
    holders: Annotated[tuple[Text, ...], Meta(max_length=MAX_DESCRIBED_HOLDERS)] = ()
    creator: Text | None = None
    """Where it was put, while that node is there."""
    age: Seconds | None = None
    """None if an earlier directory saw it begin."""


class Described(_ToNode, frozen=True):
    call: Call
    descriptions: Annotated[tuple[Description, ...], Meta(max_length=MAX_DESCRIBED)]


class Polled(_ToNode, frozen=True):
    """What a get of the ref would meet, unless its answer came already."""

    call: Call
    state: ObjectState


class MayLeave(_ToNode, frozen=True):
    """To a node that retires: no node needs its copies, except those that no other node can take."""

    left: Number


class Rejected(_ToNode, frozen=True):
    """A message that could not be handled; nothing was changed by it."""

    failure: Failure


class Unhandled(_ToNode, frozen=True):
    """The directory failed while it handled a request of this node, and starts again with what its nodes have. These
    calls, and those that wait for these refs, have failed."""

    failure: Failure
    calls: Annotated[tuple[Call, ...], Meta(max_length=_MAX_LIST)]
    refs: Refs


ToNode: TypeAlias = (
    Welcome
    | Fenced
    | Alive
    | PutAccepted
    | PutRefused
    | Place
    | Assemble
    | Cut
    | Inline
    | Failed
    | Drop
    | EvictAnswer
    | Halt
    | Ready
    | Deleted
    | Bind
    | CombineInline
    | Sealed
    | Over
    | Result
    | Reduced
    | Contributors
    | Described
    | Polled
    | MayLeave
    | Rejected
    | Unhandled
)


# --- what nodes tell each other -------------------------------------------------------------------------------


class _ToPeer(Struct, frozen=True, array_like=True, tag=True):
    pass


class StreamRequest(_ToPeer, frozen=True):
    """The receiver asks for everything from `offset` on; `rate` is what its placement was planned with."""

    stream: StreamId
    version: Version
    offset: Bytes
    granule: Annotated[int, Meta(ge=1)]
    rate: Rate
    for_slot: bool = False
    """What a slot or a target in stripes pulls was counted with it, and is not refused when streams run out."""
    rank: Rank = 0
    """That of its placement."""


class StreamStatus(_ToPeer, frozen=True):
    """From a sender with nothing to send: starved with all bytes below `at` sent, or the stream waits its turn."""

    stream: StreamId
    at: Bytes
    queued: bool


class StreamRefused(_ToPeer, frozen=True):
    stream: StreamId
    fault: StreamFault


class StreamCancel(_ToPeer, frozen=True):
    """From the receiver: send no more."""

    stream: StreamId


ToPeer: TypeAlias = StreamRequest | StreamStatus | StreamRefused | StreamCancel

M = TypeVar("M")

_encoder = msgspec.msgpack.Encoder()
_to_directory: msgspec.msgpack.Decoder[ToDirectory] = msgspec.msgpack.Decoder(ToDirectory)
_to_node: msgspec.msgpack.Decoder[ToNode] = msgspec.msgpack.Decoder(ToNode)
_to_peer: msgspec.msgpack.Decoder[ToPeer] = msgspec.msgpack.Decoder(ToPeer)


def encode(message: ToDirectory | ToNode | ToPeer) -> bytes:
    return _encoder.encode(message)


def decode_to_directory(frame: bytes | memoryview) -> ToDirectory:
    return _decode(_to_directory, frame)


def decode_to_node(frame: bytes | memoryview) -> ToNode:
    return _decode(_to_node, frame)


def decode_to_peer(frame: bytes | memoryview) -> ToPeer:
    return _decode(_to_peer, frame)


def _decode(decoder: msgspec.msgpack.Decoder[M], frame: bytes | memoryview) -> M:
    if len(frame) > MAX_FRAME:
        raise malformed(f"a frame of {len(frame)} bytes is over the limit of {MAX_FRAME}").exception()
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise malformed(str(error)).exception() from error


def malformed(detail: str) -> Failure:
    return Failure(
        FailureKind.INVALID,
        f"malformed message: {detail}",
        f"check that both sides run hoplite-ucx with protocol {PROTOCOL}",
    )
