"""Sessions with other nodes. A receiver opens one to its sender, and the sender answers on it.

So two nodes that pull from each other have two sessions, and neither has to yield when both are opened at the same
moment. A message to a peer without a session is silently lost; the loss of a session is reported once, before anything
of the next one.
"""

import asyncio
from collections.abc import Callable

from hoplite_ucx.protocol.errors import HopliteError
from hoplite_ucx.protocol.events import FromPeer, NodeEvent, PeerLost
from hoplite_ucx.protocol.ids import NodeId, identity_of, node_id
from hoplite_ucx.protocol.messages import StreamCancel, StreamRequest, ToPeer, decode_to_peer, encode
from hoplite_ucx.runtime.shell.refused_connections import tell_malformed, tell_refused
from hoplite_ucx.transports.errors import TransportError, ViolationError
from hoplite_ucx.transports.wire.handshake import Identity, Kind
from hoplite_ucx.transports.wire.session import Session, connect


class _Outgoing:
    """A session that this node opens: frames wait in order until it is open."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.waiting: list[bytes] = []
        self.task: asyncio.Task[None] | None = None


class PeerSessions:
    def __init__(self, me: Identity, dispatch: Callable[[NodeEvent], None], seconds: float) -> None:
        """`seconds` is how long connecting may take."""
        self._me = me
        self._seconds = seconds
        self._dispatch = dispatch
        self._outgoing: dict[int, _Outgoing] = {}
        self._incoming: dict[int, Session] = {}

    def ensure(self, peer: NodeId, address: str) -> None:
        """Open a session to a sender unless there is one."""
        identity = identity_of(peer)
        if identity not in self._outgoing:
            outgoing = self._outgoing[identity] = _Outgoing()
            outgoing.task = asyncio.get_running_loop().create_task(self._open(outgoing, identity, address))

    def send(self, peer: NodeId, message: ToPeer) -> None:
        identity = identity_of(peer)
        if isinstance(message, StreamRequest | StreamCancel):  # what receivers say
            outgoing = self._outgoing.get(identity)
            if outgoing is not None and outgoing.session is None:
                outgoing.waiting.append(encode(message))
                return
            session = outgoing.session if outgoing is not None else None
        else:
            session = self._incoming.get(identity)
        if session is not None:
            session.send(encode(message))

    def accept(self, session: Session) -> None:
        """A receiver has opened a session to this node."""
        identity = session.peer.node
        old = self._incoming.pop(identity, None)
        if old is not None:
            old.close()
            self._dispatch(PeerLost(node_id(identity)))
        self._incoming[identity] = session
        session.on_frame = lambda frame: self._on_frame(session, identity, frame)

        def on_closed(error: TransportError | None) -> None:
            if isinstance(error, ViolationError):
                tell_refused(error)
            if self._incoming.get(identity) is session:
                del self._incoming[identity]
                self._dispatch(PeerLost(node_id(identity)))

        session.on_closed = on_closed

    def close(self) -> None:
        outgoing, self._outgoing = self._outgoing, {}
        incoming, self._incoming = self._incoming, {}
        for entry in outgoing.values():
            if entry.task is not None:
                entry.task.cancel()
            if entry.session is not None:
                entry.session.close()
        for session in incoming.values():
            session.close()

    async def _open(self, outgoing: _Outgoing, identity: int, address: str) -> None:
        def made(session: Session) -> None:
            outgoing.session = session
            session.on_frame = lambda frame: self._on_frame(session, identity, frame)
            session.on_closed = lambda _: self._lost(outgoing, identity)
            for frame in outgoing.waiting:
                session.send(frame)
            outgoing.waiting.clear()

        try:
            await connect(address, self._me, Kind.PEER, made, expect=identity, seconds=self._seconds)
        except (TransportError, ValueError):
            self._lost(outgoing, identity)

    def _lost(self, outgoing: _Outgoing, identity: int) -> None:
        if self._outgoing.get(identity) is outgoing:
            del self._outgoing[identity]
            self._dispatch(PeerLost(node_id(identity)))

    def _on_frame(self, session: Session, identity: int, frame: bytes) -> None:
        try:
            message = decode_to_peer(frame)
        except HopliteError as error:
            tell_malformed(error.failure, session.peer.address)
            session.abort()
            return
        self._dispatch(FromPeer(node_id(identity), message))
