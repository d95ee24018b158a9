"""The agent's session with the directory: opened when the machine asks for it, and what comes on it.

Before an agent has a machine, it asks the directory which cluster this is and which settings it has. Later the session
may break, and the machine asks for another one; if another cluster's directory is there by then, the agent ends. So it
does after it has been without a session for as long as it was told to be patient.
"""

import asyncio
import logging
import signal
from collections.abc import Callable
from typing import Any

from hoplite_ucx.protocol.errors import HopliteError
from hoplite_ucx.protocol.events import (
    ConnectDirectory,
    DirectoryConnected,
    DirectoryLost,
    DisconnectDirectory,
    FromDirectory,
    NodeEvent,
    SendDirectory,
)
from hoplite_ucx.protocol.ids import NodeId, Version
from hoplite_ucx.protocol.messages import Drop, EvictAnswer, Leave, Welcome, decode_to_node, encode
from hoplite_ucx.protocol.settings import Settings
from hoplite_ucx.runtime.settings import cluster_settings
from hoplite_ucx.runtime.shell.directory_status import ask_status
from hoplite_ucx.runtime.shell.early_links import introduced
from hoplite_ucx.runtime.shell.wakeups import now
from hoplite_ucx.transports.errors import TransportError, WrongClusterError
from hoplite_ucx.transports.wire.handshake import Identity, Kind
from hoplite_ucx.transports.wire.session import Session, connect

_log = logging.getLogger("hoplite.agent")

_STATUS_SECONDS = 5.0


class DirectoryLink:
    def __init__(
        self,
        address: str,
        stranger: Identity,
        seconds: float,
        patience: float | None = None,
        *,
        dispatch: Callable[[NodeEvent], None],
        welcomed: Callable[[Settings], None],
        dropped: Callable[[Version], None],
        meet: Callable[[list[tuple[NodeId, str]]], None],
    ) -> None:
        """The stranger is this agent before it knows its cluster. `seconds` is for connecting, `patience` for being
        without a directory before the agent ends; None is for ever. `welcomed` is told the cluster's settings each time
        the node has joined, `dropped` the versions that are over or perhaps not kept here, and `meet` the nodes that
        the directory introduces."""
        self._address = address
        self._stranger = stranger
        self._seconds = seconds
        self._patience = patience
        self._dispatch = dispatch
        self._welcomed = welcomed
        self._dropped = dropped
        self._meet = meet
        self._me = stranger
        self._session: Session | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._alone = 0.0
        """Seconds without a session, of those in which this process was awake."""
        self._ticked = now()
        self.perform: dict[type, Callable[[Any], None]] = {
            ConnectDirectory: self._connect,
            DisconnectDirectory: lambda _: self._disconnect(),
            SendDirectory: self._send,
        }

    @property
    def connected(self) -> bool:
        return self._session is not None

    async def ask_cluster(self) -> str:
        """The id of the cluster whose directory is there, proven by the token."""
        found: list[Session] = []
        session = await connect(self._address, self._stranger, Kind.CONTROL, found.append, seconds=self._seconds)
        session.close()
        return session.peer.cluster.decode()

    async def ask_settings(self) -> Settings:
        """Those of the cluster."""
        return cluster_settings(await ask_status(self._address, self._stranger, _STATUS_SECONDS), self._address)

    def be(self, me: Identity) -> None:
        """From now on this agent is a node of its cluster."""
        self._me = me

    def drop(self) -> None:
        """The machine that asked for the session is gone."""
        if self._connecting is not None:
            self._connecting.cancel()
        self._disconnect()

    def tick(self, apart: float) -> None:
        """Called with every tick of the machine. They come at most `apart` seconds apart: when one comes later, this
        process itself was paused. Ends the agent once it has been alone for too long."""
        moment = now()
        passed, self._ticked = min(moment - self._ticked, apart), moment
        if self._patience is None or self.connected:
            return
        self._alone += passed
        if self._alone > self._patience:
            self._patience = None  # it is told once
            signal.raise_signal(signal.SIGTERM)  # a regular shutdown

    def leave(self) -> None:
        """On purpose, and for good."""
        if self._session is not None:
            self._session.send(encode(Leave()))
            self._session.close()
        if self._connecting is not None:
            self._connecting.cancel()

    def _connect(self, _: ConnectDirectory) -> None:
        self._connecting = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        def made(session: Session) -> None:
            self._session = session
            self._alone = 0.0
            session.on_frame = lambda frame: self._heard(session, frame)
            session.on_closed = lambda _: self._closed(session)
            self._dispatch(DirectoryConnected())

        try:
            await connect(self._address, self._me, Kind.CONTROL, made, seconds=self._seconds)
        except TransportError as error:
            if isinstance(error, WrongClusterError):
                await self._end_with_cluster()
            self._dispatch(DirectoryLost())

    async def _end_with_cluster(self) -> None:
        """Another cluster's directory is where ours was: no process will ask for our objects again. A refusal alone
        proves nothing, so the directory is asked which cluster it serves."""
        try:
            cluster = await self.ask_cluster()
        except TransportError:
            return
        ours = self._me.cluster.decode()
        if cluster != ours:
            _log.error(
                "the directory at %s now serves a new cluster, %s: cluster %s has ended, and so does this agent",
                self._address,
                cluster,
                ours,
            )
            signal.raise_signal(signal.SIGTERM)  # a regular shutdown

    def _heard(self, session: Session, frame: bytes) -> None:
        others = introduced(frame)
        if others is not None:
            self._meet(others)
            return
        try:
            message = decode_to_node(frame)
        except HopliteError as error:
            _log.warning("closed the session with the directory after an invalid message: %s", error)
            session.abort()
            return
        if self._session is session:
            if isinstance(message, Welcome):
                self._welcomed(message.settings)
            elif isinstance(message, Drop | EvictAnswer):  # of the end of what was evicted nobody tells this node
                self._dropped(message.version)
            self._dispatch(FromDirectory(message))

    def _closed(self, session: Session) -> None:
        if self._session is session:
            self._session = None
            self._dispatch(DirectoryLost())

    def _disconnect(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _send(self, effect: SendDirectory) -> None:
        if self._session is not None:
            self._session.send(encode(effect.message))
