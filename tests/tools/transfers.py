"""A node with one object that comes, is held, or is asked for: what its peers and the directory say."""

from hoplite_ucx.protocol.events import (
    GetCall,
    PutCall,
    PutFinished,
    PutReady,
    Receive,
    ReceiveClosed,
    Unpin,
)
from hoplite_ucx.protocol.ids import NodeId, StreamId, Version, node_id
from hoplite_ucx.protocol.messages import (
    Bind,
    Operation,
    Place,
    PutAccepted,
    StreamRequest,
)
from hoplite_ucx.protocol.settings import GIB, MIB
from tests.tools.machines import RATE, NodeDriver, ref, version

R = ref(1)
V = version(1)
SIZE = 10 * MIB
SENDER = node_id(7)
OTHER = node_id(8)
RECEIVER = node_id(9)


def place(number: int = 1, *, of: Version = V, size: int = SIZE, sender: int = SENDER) -> Place:
    return Place(of, number, size, b"layout", sender, f"address{sender}", MIB, RATE)


def request(
    number: int, *, of: Version = V, offset: int = 0, rate: float = RATE, receiver: NodeId = RECEIVER
) -> StreamRequest:
    return StreamRequest(StreamId(receiver, number), of, offset, MIB, rate)


def holding_one(n: NodeDriver, number: int = 1, size: int = SIZE) -> int:
    """Put an object; its segment."""
    call = 1000 + number
    segment = n.only(n.handle(PutCall(call, ref(number), size, b"layout", None, None)), PutReady).segment
    n.directory(PutAccepted(call, version(number), existing=False))
    n.handle(PutFinished(call))
    return segment


def receiving(n: NodeDriver, call: int = 1, number: int = 1) -> Receive:
    """A get that was placed: the stream that it opened."""
    n.handle(GetCall(call, R, None))
    return n.only(n.directory(place(number)), Receive)


def cached(n: NodeDriver, number: int, size: int, at: float) -> None:
    """A copy that came over the network and was let go of."""
    n.now = at
    call = 100 + number
    n.handle(GetCall(call, ref(number), None))
    receive = n.only(n.directory(place(number, of=version(number), size=size)), Receive)
    n.handle(ReceiveClosed(receive.stream, size, None))
    n.handle(Unpin(call))


FIRST, SECOND = node_id(8), node_id(9)


def fed_slot(memory: int = GIB) -> tuple[NodeDriver, Receive, Receive]:
    """A slot of two parts, both from elsewhere."""
    n = NodeDriver(memory=memory)
    slot, parts = version(1), (version(2), version(3))
    n.directory(Bind(slot, 1, 8 * MIB, b"", Operation.SUM, parts, slot.ref))
    streams = []
    for number, (part, sender) in enumerate(zip(parts, (FIRST, SECOND), strict=True), 2):
        place = Place(part, number, 8 * MIB, b"", sender, "there:1", MIB, RATE, into=slot.ref)
        streams.append(n.only(n.directory(place), Receive))
    first, second = streams
    return n, first, second
