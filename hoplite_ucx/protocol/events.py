"""What a shell and its machine tell each other: events in, effects out. None of this travels.

A machine is driven by `effects = machine.handle(event, now)`; the shell performs the effects in order. When
`machine.wakeup()` comes, the shell sends a `Tick` with the position of everything that runs, so that no event
is needed per chunk.
"""

from collections import deque
from typing import TypeAlias

import msgspec
from msgspec import Struct

from hoplite_ucx.protocol.errors import Failure
from hoplite_ucx.protocol.ids import REF_BYTES, CallId, NodeId, StreamId, Version
from hoplite_ucx.protocol.messages import Description, Operation, StreamFault, ToDirectory, ToNode, ToPeer


class _Local(Struct, frozen=True):
    pass


# --- events of the directory ----------------------------------------------------------------------------------


class FromNode(_Local, frozen=True):
    """A message from a node's current session; of an older session the shell delivers nothing more."""

    node: NodeId
    message: ToDirectory


class SessionLost(_Local, frozen=True):
    """The node's current session ended; never said of a session that another one has replaced."""

    node: NodeId


class Probed(_Local, frozen=True):
    """The answer to `Probe`: the node itself answered at its port, the port refused, or (None) neither."""

    node: NodeId
    accepted: bool | None


class Tick(_Local, frozen=True):
    """Time has come. A node's shell adds how far everything has come: streams and puts, by stream or call, and what
    slots have combined, by segment."""

    positions: dict[StreamId | CallId, int] = msgspec.field(default_factory=dict)
    combined: dict[int, int] = msgspec.field(default_factory=dict)


class CombinedBytes(_Local, frozen=True):
    """The result of `CombineBytes`."""

    version: Version
    data: bytes


class CombineFailed(_Local, frozen=True):
    """What a `Combine` (by its segment) or a `CombineBytes` (by its version) asked for is not defined for such objects:
    nothing was combined, and the segment's watermark stays where it was."""

    what: int | Version
    failure: Failure


DirectoryEvent: TypeAlias = FromNode | SessionLost | Probed | CombinedBytes | CombineFailed | Tick


Failing: TypeAlias = "DirectoryEvent | NodeEvent | DirectoryEffect | NodeEffect"
"""Events during which a machine may raise, and effects that may not be performed."""


def refs_in(event: Failing) -> list[bytes]:
    """The objects that an event or an effect is about, in the order in which it names them."""
    found: dict[bytes, None] = {}
    pending: deque[object] = deque([event])
    while pending:
        thing = pending.popleft()
        if isinstance(thing, bytes) and len(thing) == REF_BYTES:
            found[thing] = None
        elif isinstance(thing, Struct):
            pending += [getattr(thing, name) for name in thing.__struct_fields__]
        elif isinstance(thing, tuple):
            pending += thing
    return list(found)


# --- effects of the directory ---------------------------------------------------------------------------------


class SendNode(_Local, frozen=True):
    """`patient`: it is not urgent, and may go with the next message, but not after it."""

    node: NodeId
    message: ToNode
    patient: bool = False


class Probe(_Local, frozen=True):
    node: NodeId
    address: str


class Disconnect(_Local, frozen=True):
    """Close the node's session after what was sent before."""

    node: NodeId


class CombineBytes(_Local, frozen=True):
    """Combine small objects; `CombinedBytes` or `CombineFailed` follows. Nodes and the directory ask for it."""

    version: Version
    layout: bytes
    op: Operation
    parts: tuple[bytes, ...]
    divisor: int = 0


DirectoryEffect: TypeAlias = SendNode | Probe | Disconnect | CombineBytes


# --- events of a node: its users ------------------------------------------------------------------------------


class PutCall(_Local, frozen=True):
    """A user begins to put; `data` has the bytes of an object below the inline limit. `fresh`: its ref was made for
    this put, so no other put or delete of it can exist."""

    call: CallId
    ref: bytes
    size: int
    layout: bytes
    data: bytes | None
    deadline: float | None
    fresh: bool = False


class PutFinished(_Local, frozen=True):
    call: CallId


class GetCall(_Local, frozen=True):
    """`once`: the directory is asked whether the object is there now. If it is, it is fetched until the deadline; if it
    is not, the call fails: a get that asks once does not wait for a producer."""

    call: CallId
    ref: bytes
    deadline: float | None
    once: bool = False


class WaitCall(_Local, frozen=True):
    call: CallId
    refs: tuple[bytes, ...]
    count: int
    deadline: float | None


class DeleteCall(_Local, frozen=True):
    call: CallId
    refs: tuple[bytes, ...]
    deadline: float | None


class ReduceCall(_Local, frozen=True):
    call: CallId
    target: bytes
    sources: tuple[bytes, ...]
    op: Operation
    count: int
    deadline: float | None
    everywhere: bool = False


class ContributorsCall(_Local, frozen=True):
    call: CallId
    ref: bytes
    deadline: float | None


class DescribeCall(_Local, frozen=True):
    call: CallId
    refs: tuple[bytes, ...]
    deadline: float | None


UserCall: TypeAlias = PutCall | GetCall | WaitCall | DeleteCall | ReduceCall | ContributorsCall | DescribeCall
"""Calls that a user waits for."""


class CancelCall(_Local, frozen=True):
    """The caller is gone or gave up: it reads no answer. A put that was not finished is aborted."""

    call: CallId


class Unpin(_Local, frozen=True):
    """The memory that a get returned is not used any more."""

    call: CallId


# --- events of a node: its connections and streams ------------------------------------------------------------


class DirectoryConnected(_Local, frozen=True):
    pass


class DirectoryLost(_Local, frozen=True):
    pass


class FromDirectory(_Local, frozen=True):
    message: ToNode


class FromPeer(_Local, frozen=True):
    peer: NodeId
    message: ToPeer


class PeerLost(_Local, frozen=True):
    """The session with a peer ended, or could not be made. It comes before anything of a later session with it."""

    peer: NodeId


class ReceiveClosed(_Local, frozen=True):
    """A receiving stream is over: all below `watermark` is final, and nothing will be written any more.

    `fault` is None if the last byte has come or the stream was cancelled.
    """

    stream: StreamId
    watermark: int
    fault: StreamFault | None


class Combined(_Local, frozen=True):
    """Every part of a slot has been combined: its segment is complete."""

    segment: int


class ServeClosed(_Local, frozen=True):
    """A sending stream is over and reads its segment no more."""

    stream: StreamId


class RetireWanted(_Local, frozen=True):
    """This node is to leave on purpose: `Retired` follows when nothing is lost with it. How long to wait for that is
    the shell's to decide; it may leave at any time."""


NodeEvent: TypeAlias = (
    PutCall
    | PutFinished
    | GetCall
    | WaitCall
    | DeleteCall
    | CancelCall
    | Unpin
    | DirectoryConnected
    | DirectoryLost
    | FromDirectory
    | FromPeer
    | PeerLost
    | ReceiveClosed
    | ServeClosed
    | Combined
    | CombinedBytes
    | CombineFailed
    | ReduceCall
    | ContributorsCall
    | DescribeCall
    | RetireWanted
    | Tick
)


# --- effects of a node ----------------------------------------------------------------------------------------


class ConnectDirectory(_Local, frozen=True):
    """Open a session with the directory; `DirectoryConnected` or `DirectoryLost` follows."""


class DisconnectDirectory(_Local, frozen=True):
    """Close the session; no event follows."""


class SendDirectory(_Local, frozen=True):
    message: ToDirectory


class SendPeer(_Local, frozen=True):
    peer: NodeId
    message: ToPeer


class Allocate(_Local, frozen=True):
    segment: int
    size: int


class Window(_Local, frozen=True):
    """A segment that is a piece of another: it shares those bytes and has a watermark of its own, which begins as far
    as the other is final. A segment that was filled through windows is final when all of them are."""

    segment: int
    of: int
    offset: int
    size: int


class Duplicate(_Local, frozen=True):
    """Fill a segment with the bytes of another one of this node, as far as that has come, without combining anything;
    `Combined` follows the last byte."""

    segment: int
    of: int


class Fill(_Local, frozen=True):
    """Write the bytes of a small object into its segment."""

    segment: int
    data: bytes


class Free(_Local, frozen=True):
    segment: int


class Combine(_Local, frozen=True):
    """Fill a segment from `start` on by combining parts, in order and as far as each has come: segments of this node,
    or (None) what streams into that part. Part i is combined only as far as part i-1 was; `Combined` follows the last
    byte. If the operation is undefined, `CombineFailed` is the next event, and what streams in is dropped."""

    segment: int
    size: int
    layout: bytes
    op: Operation
    parts: tuple[int | None, ...]
    start: int = 0
    offset: int = 0
    """Where the segment's first byte lies in the object that the layout describes: a stripe is a piece of it."""
    divisor: int = 0
    """What every part has gone into is divided by it before the watermark rises, unless it is 0."""


class Supply(_Local, frozen=True):
    """Combine these bytes, all of a small object, as a part of the slot that fills the segment."""

    segment: int
    part: int
    data: bytes


class Receive(_Local, frozen=True):
    """Make ready to receive a stream into a segment, or into a part of the slot that fills it, over a session to
    `address` (made if there is none)."""

    stream: StreamId
    segment: int
    sender: NodeId
    address: str
    version: Version
    offset: int
    size: int
    granule: int
    part: int | None = None


class CancelReceive(_Local, frozen=True):
    """`ReceiveClosed` follows within bounded time."""

    stream: StreamId


class Serve(_Local, frozen=True):
    """Send a segment from `offset` to its end, as far as its watermark has come. Of the streams of a link, those with
    a rank go by it, the lowest first."""

    stream: StreamId
    segment: int
    offset: int
    size: int
    granule: int
    rank: int = 0


class CancelServe(_Local, frozen=True):
    """`ServeClosed` follows within bounded time."""

    stream: StreamId


class PutReady(_Local, frozen=True):
    """There is memory: the user may fill the segment."""

    call: CallId
    segment: int


class PutDone(_Local, frozen=True):
    """For a small object under a fresh ref this comes before the directory has assigned its version."""

    call: CallId
    version: Version | None
    existing: bool


class Got(_Local, frozen=True):
    """A get's value: a pinned segment, or the bytes themselves."""

    call: CallId
    version: Version
    layout: bytes
    size: int
    segment: int | None
    data: bytes | None


class Waited(_Local, frozen=True):
    call: CallId
    ready: tuple[bytes, ...]
    rest: tuple[bytes, ...]


class DeleteDone(_Local, frozen=True):
    call: CallId


class ReduceDone(_Local, frozen=True):
    call: CallId


class ContributorsAre(_Local, frozen=True):
    call: CallId
    refs: tuple[bytes, ...]


class DescriptionsAre(_Local, frozen=True):
    call: CallId
    descriptions: tuple[Description, ...]


class CallFailed(_Local, frozen=True):
    call: CallId
    failure: Failure


class Retired(_Local, frozen=True):
    """Nothing is lost if this node leaves now, but for so many objects that no other node could take."""

    left: int


Answer: TypeAlias = PutDone | Got | Waited | DeleteDone | ReduceDone | ContributorsAre | DescriptionsAre | CallFailed
"""What ends a call."""

NodeEffect: TypeAlias = (
    Retired
    | ConnectDirectory
    | DisconnectDirectory
    | SendDirectory
    | SendPeer
    | Allocate
    | Window
    | Duplicate
    | Fill
    | Free
    | Receive
    | CancelReceive
    | Serve
    | CancelServe
    | Combine
    | CombineBytes
    | Supply
    | PutReady
    | Answer
)
