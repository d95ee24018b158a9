"""Readable drivers for the two machines: named nodes, a clock moved by hand, `check()` after every event."""

from collections import deque
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar

from msgspec import Struct

from hoplite_ucx.protocol import Directory, NodeState, Settings
from hoplite_ucx.protocol.directory.spread.broadcast import Broadcast, Receiver
from hoplite_ucx.protocol.directory.states import State
from hoplite_ucx.protocol.events import (
    DirectoryConnected,
    DirectoryEffect,
    DirectoryEvent,
    FromDirectory,
    FromNode,
    FromPeer,
    NodeEffect,
    NodeEvent,
    SendDirectory,
    SendNode,
    SendPeer,
    Tick,
)
from hoplite_ucx.protocol.ids import NodeId, StreamId, Version, node_id
from hoplite_ucx.protocol.invariants import check
from hoplite_ucx.protocol.messages import (
    PROTOCOL,
    Alive,
    Completed,
    Heartbeat,
    Join,
    Place,
    Put,
    PutAccepted,
    Sealed,
    StreamFailed,
    StreamFault,
    ToDirectory,
    ToNode,
    ToPeer,
    Want,
    Welcome,
)
from hoplite_ucx.protocol.node import NodeProfile
from hoplite_ucx.protocol.settings import MIB
from hoplite_ucx.protocol.story import Stories

CLUSTER = "test"
RATE = 125e6  # 1 Gbit/s
LARGE = 64 * MIB

T = TypeVar("T")


def ref(number: int) -> bytes:
    return number.to_bytes(16, "big")


def version(number: int, counter: int = 1, incarnation: int = 1) -> Version:
    return Version(ref(number), incarnation, counter)


def join(node: NodeId, **changes: Any) -> Join:
    usual: dict[str, Any] = {
        "protocol": PROTOCOL,
        "cluster": CLUSTER,
        "incarnation": 0,
        "node": node,
        "host": f"host{node}",
        "address": f"address{node}",
        "up": RATE,
        "down": RATE,
        "streams_in": 256,
        "streams_out": 256,
    }
    return Join(**(usual | changes))


def sealed_in(messages: list[ToNode]) -> list[Version]:
    """The versions that a node was told are decided."""
    return [message.version for message in messages if isinstance(message, Sealed)]


class DirectoryDriver:
    """A directory with nodes A, B, C ...; what it sends is kept per node until a test takes it."""

    def __init__(self, *names: str, settings: Settings | None = None, incarnation: int = 1) -> None:
        self.directory = Directory(incarnation, CLUSTER, settings)
        self.now = 0.0
        self.ids: dict[str, NodeId] = {}
        self.checked = True  # after every event, which is for small clusters
        self.effects: list[DirectoryEffect] = []
        self._sent: dict[NodeId, list[ToNode]] = {}
        for name in names:
            self.join(name)
            self.heard(name)

    def __getitem__(self, name: str) -> NodeId:
        return self.ids.setdefault(name, node_id(len(self.ids) + 1))

    def handle(self, event: DirectoryEvent) -> list[DirectoryEffect]:
        self.effects = self.directory.handle(event, self.now)
        if self.checked:
            check(self.directory)
        for effect in self.effects:
            if isinstance(effect, SendNode):
                self._sent.setdefault(effect.node, []).append(effect.message)
        return self.effects

    def tell(self, name: str, *messages: ToDirectory) -> None:
        for message in messages:
            self.handle(FromNode(self[name], message))

    def join(self, name: str, **changes: Any) -> None:
        self.tell(name, join(self[name], **changes))

    def pass_time(self, seconds: float, *, beating: tuple[str, ...] = (), step: float = 0.05) -> None:
        """Let time pass; the nodes named go on talking."""
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now = min(self.now + step, end)
            for name in beating:
                self.tell(name, Heartbeat())
            self.handle(Tick())

    def heard(self, name: str) -> list[ToNode]:
        """What the node was sent since the last look."""
        return self._sent.pop(self[name], [])

    def heard_all(self, kind: type[T], *names: str) -> list[T]:
        """The messages of one kind that the nodes were sent; everything is taken."""
        return [m for name in names or tuple(self.ids) for m in self.heard(name) if isinstance(m, kind)]

    # --- whole steps -------------------------------------------------------------------------------------------

    def put(
        self, name: str, number: int, size: int = LARGE, *, done: bool = True, layout: bytes = b"layout"
    ) -> Version:
        self.tell(name, Put(number, ref(number), size, layout))
        [accepted] = self.heard_all(PutAccepted, name)
        if done:
            self.tell(name, Completed(accepted.version))
        return accepted.version

    def want(self, name: str, number: int) -> Place:
        """A want that is placed at once."""
        self.tell(name, Want(ref(number)))
        [place] = self.heard_all(Place, name)
        return place

    # --- what it knows -----------------------------------------------------------------------------------------

    def broadcast(self, number: int) -> Broadcast:
        broadcast = self.directory.records[ref(number)].broadcast
        assert broadcast is not None
        return broadcast

    def receiver(self, name: str, number: int) -> Receiver:
        return self.broadcast(number).receivers[self[name]]

    def senders(self, number: int) -> dict[str, str]:
        """Who streams from whom."""
        names = {node: name for name, node in self.ids.items()}
        return {
            names[node]: names[receiver.sender]
            for node, receiver in self.broadcast(number).receivers.items()
            if receiver.state is State.STREAMING and receiver.sender is not None
        }


class NodeDriver:
    """One node that has joined; a test plays its users, its peers, its streams and the directory."""

    def __init__(
        self,
        *,
        memory: int = 1 << 40,
        settings: Settings | None = None,
        joined: bool = True,
        streams_out: int = 256,
        up: float = RATE,
        node: NodeId | None = None,
        directory: str = "",
    ) -> None:
        self.settings = settings or Settings()
        self.profile = NodeProfile(
            host="here",
            address="here:1",
            up=up,
            down=RATE,
            cluster=CLUSTER,
            directory=directory,
            memory=memory,
            streams_out=streams_out,
        )
        self.state = NodeState(node_id(1) if node is None else node, self.profile, self.settings)
        self.now = 0.0
        self.positions: dict[StreamId | int, int] = {}
        self.combined: dict[int, int] = {}
        self.state.start(self.now)
        if joined:
            self.connect()

    def connect(self) -> Join:
        [hello] = self.sent(self.connect_effects(), Join)
        return hello

    def connect_effects(self) -> list[NodeEffect]:
        """A new session: what the node says in it first."""
        effects = self.handle(DirectoryConnected())
        self.directory(Welcome(1, CLUSTER, self.settings))
        return effects

    def handle(self, event: NodeEvent) -> list[NodeEffect]:
        effects = self.state.handle(event, self.now)
        check(self.state)
        return effects

    def directory(self, message: ToNode) -> list[NodeEffect]:
        return self.handle(FromDirectory(message))

    def peer(self, peer: NodeId, message: ToPeer) -> list[NodeEffect]:
        return self.handle(FromPeer(peer, message))

    def beat(self, count: int = 1) -> list[NodeEffect]:
        """Let heartbeats pass, with the positions that the test has set; the directory answers each."""
        effects = []
        for _ in range(count):
            self.now += self.settings.heartbeat
            effects += self.handle(Tick(dict(self.positions), dict(self.combined)))
            if self.state._context.joined:
                effects += self.directory(Alive())
        return effects

    @staticmethod
    def sent(effects: list[NodeEffect], kind: type[T]) -> list[T]:
        """The messages of one kind among the effects, to the directory or to peers."""
        messages = (e.message for e in effects if isinstance(e, SendDirectory | SendPeer))
        return [message for message in messages if isinstance(message, kind)]

    @staticmethod
    def only(effects: list[NodeEffect], kind: type[T]) -> T:
        """The one effect of this kind."""
        [effect] = [effect for effect in effects if isinstance(effect, kind)]
        return effect

    @staticmethod
    def none(effects: list[NodeEffect], *kinds: type) -> bool:
        return not any(isinstance(effect, kinds) for effect in effects)


# --- snapshots --------------------------------------------------------------------------------------------------

# What a refused message may change: the record of what happened, and of when someone was last heard.
_IGNORED = {"stories", "heard", "now", "_now", "refusal"}


def snapshot(machine: object) -> object:
    """A machine as plain data that can be compared: everything that could ever change what it does."""
    return _plain(machine, {})


def _plain(value: object, seen: dict[int, int]) -> object:
    if value is None or isinstance(value, bool | int | float | str | bytes | Enum):
        return value
    if isinstance(value, Stories) or callable(value):
        return None
    if isinstance(value, list | tuple | deque):
        return [_plain(item, seen) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((_plain(item, seen) for item in value), key=repr)
    if isinstance(value, Struct):
        return repr(value)
    if id(value) in seen:
        return f"<{seen[id(value)]}>"  # objects point at each other; each is told once
    seen[id(value)] = len(seen)
    if isinstance(value, dict):
        return [[_plain(key, seen), _plain(item, seen)] for key, item in value.items()]
    return [type(value).__name__, {name: _plain(item, seen) for name, item in _attributes(value)}]


def _attributes(value: object) -> Iterator[tuple[str, object]]:
    names = [field.name for field in fields(value)] if is_dataclass(value) else list(vars(value))
    for name in names:
        if name not in _IGNORED:
            yield name, getattr(value, name)


def broken(
    place: Place, watermark: int, fault: StreamFault = StreamFault.BROKEN, *, wanted: bool = True
) -> StreamFailed:
    return StreamFailed(place.version, place.number, watermark, place.sender, fault, wanted)


def chain_of_three() -> tuple[DirectoryDriver, list[Place]]:
    """A has it; B pulls from A, C from B, D from C."""
    d = DirectoryDriver("A", "B", "C", "D")
    d.put("A", 1)
    places = [d.want(name, 1) for name in "BCD"]
    assert d.senders(1) == {"B": "A", "C": "B", "D": "C"}
    return d, places
