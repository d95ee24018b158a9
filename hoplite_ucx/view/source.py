"""Asks the directory and the agents, while somebody looks, and puts their answers into the picture.

The directory is asked again as soon as it has answered; it answers when something has happened, at most ten times a
second. Each agent is asked four times a second while something moves, else once a second. Nothing is asked when nobody
looks. A process that does not answer is asked again later; the others are not kept waiting.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from typing import Any

import msgspec

from hoplite_ucx.protocol.watching import Looked
from hoplite_ucx.runtime.shell.looks import AgentLook, DirectoryLook, asking
from hoplite_ucx.runtime.shell.wakeups import now
from hoplite_ucx.transports.errors import TransportError
from hoplite_ucx.transports.wire.handshake import Identity, Kind
from hoplite_ucx.transports.wire.session import Session, connect
from hoplite_ucx.transports.wire.tls import Tls
from hoplite_ucx.view.picture import Picture

_log = logging.getLogger("hoplite.view")

_ANSWER = 5.0
_AGAIN = 1.0
"""Seconds before a process that did not answer is asked again."""
_MOVING = 0.25
_RESTING = 1.0
_SLOW = 1.0
"""Seconds between questions about what changes slowly."""
_DESCRIBED = 1.0
_OVERLAP = 0.5
"""Streams that ended this long before the last answer are told again: they may have ended while it was made."""

_looked = msgspec.msgpack.Decoder(Looked)


class Conversation:
    """A session in which one question at a time is asked."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._answer: asyncio.Future[bytes] | None = None
        session.on_frame = self._heard
        session.on_closed = self._closed

    @classmethod
    async def begin(cls, address: str, me: Identity) -> Conversation:
        found: list[Conversation] = []
        await connect(address, me, Kind.VIEWER, lambda session: found.append(cls(session)))
        return found[0]

    @property
    def cluster(self) -> str:
        return self._session.peer.cluster.decode()

    async def ask(self, question: DirectoryLook | AgentLook) -> bytes:
        """Raises a `TransportError` if the session ends, and a `TimeoutError` if there is no answer."""
        if not self._session.open:
            raise TransportError("the session has ended", self._session.peer.address, "ask again")
        self._answer = asyncio.get_running_loop().create_future()
        self._session.send(asking(question))
        async with asyncio.timeout(_ANSWER):
            return await self._answer

    def close(self) -> None:
        self._session.abort()

    def _heard(self, frame: bytes) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(frame)

    def _closed(self, error: TransportError | None) -> None:
        if self._answer is not None and not self._answer.done():
            peer = self._session.peer.address
            self._answer.set_exception(error or TransportError("the session was closed", peer, "ask again"))


class Source:
    def __init__(self, address: str, token: bytes, picture: Picture, tls: Tls | None = None) -> None:
        self._address = address
        self._picture = picture
        self._me = Identity(int.from_bytes(os.urandom(7)), token, tls=tls)
        self._running: asyncio.Task[None] | None = None
        self._agents: dict[str, asyncio.Task[None]] = {}
        self._moving = asyncio.Event()
        self._ahead: deque[float] = deque(maxlen=64)
        self._described = float("-inf")

    async def find(self) -> str:
        """The id of the cluster. Raises a `TransportError` if the directory is not there, or has another token."""
        conversation = await Conversation.begin(self._address, self._me)
        conversation.close()
        return conversation.cluster

    def start(self) -> None:
        """Somebody looks."""
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Nobody does."""
        self._cancel()

    async def close(self) -> None:
        """Returns when all sessions are closed."""
        await asyncio.gather(*self._cancel(), return_exceptions=True)
        await asyncio.sleep(0)  # in which the loop closes them

    def _cancel(self) -> list[asyncio.Task[None]]:
        tasks = [*([] if self._running is None else [self._running]), *self._agents.values()]
        self._running = None
        self._agents.clear()
        for task in tasks:
            task.cancel()
        return tasks

    async def _run(self) -> None:
        while True:
            try:
                conversation = await Conversation.begin(self._address, self._me)
                try:
                    await self._ask_directory(conversation)
                finally:
                    conversation.close()
            except (TransportError, TimeoutError):
                self._picture.directory_lost()
            except Exception:  # whatever is wrong with one answer, the view goes on with the next
                _log.exception("the directory's answer could not be understood")
                self._picture.directory_lost()
            await asyncio.sleep(_AGAIN)

    async def _ask_directory(self, conversation: Conversation) -> None:
        question = DirectoryLook()
        while True:
            looked = _looked.decode(await conversation.ask(question))
            self._ahead.append(looked.now - now())
            self._picture.looked(looked)
            self._care_for_agents(conversation.cluster)
            if self._picture.running():
                self._moving.set()
            else:
                self._moving.clear()
            describe, stories = self._picture.questions()
            if now() - self._described < _DESCRIBED:
                describe = []
            elif describe:
                self._described = now()
            question = DirectoryLook(looked.incarnation, looked.number, tuple(describe), tuple(stories))

    def _care_for_agents(self, cluster: str) -> None:
        hosts = self._picture.hosts()
        for node in [node for node in self._agents if node not in hosts]:
            self._agents.pop(node).cancel()
        for node, address in hosts.items():
            if node not in self._agents:
                task = self._ask_agent(node, address, cluster)
                self._agents[node] = asyncio.get_running_loop().create_task(task)

    async def _ask_agent(self, node: str, address: str, cluster: str) -> None:
        me = Identity(self._me.node, self._me.token, cluster.encode(), tls=self._me.tls)
        while True:
            try:
                conversation = await Conversation.begin(address, me)
                try:
                    await self._ask_on(node, conversation)
                finally:
                    conversation.close()
            except (TransportError, TimeoutError, ValueError):
                self._picture.silent(node)
            except Exception:
                _log.exception("the answer of agent %s could not be understood", node)
                self._picture.silent(node)
            await asyncio.sleep(_AGAIN)

    async def _ask_on(self, node: str, conversation: Conversation) -> None:
        since, slow, named = 0.0, float("-inf"), 0
        clock = Clock()
        while True:
            began = now()
            everything = began - slow >= _SLOW
            raw = await conversation.ask(AgentLook(since, everything, named))
            report: dict[str, Any] = msgspec.msgpack.decode(raw)
            clock.note(began, now(), report["now"])
            if everything:
                slow = began
            since, named = report["now"] - _OVERLAP, report["named"]
            self._picture.reported(node, report, clock.offset + max(self._ahead, default=0.0), clock.delay)
            await asyncio.sleep(_MOVING - (now() - began))
            if not self._moving.is_set():
                try:
                    async with asyncio.timeout(_RESTING - _MOVING):
                        await self._moving.wait()
                except TimeoutError:
                    pass


class Clock:
    """How far this process's clock is ahead of another's: by the exchange that took the shortest time."""

    def __init__(self) -> None:
        self.offset = 0.0
        self.delay = float("inf")

    def note(self, asked: float, heard: float, theirs: float) -> None:
        delay = (heard - asked) / 2
        if delay < self.delay:
            offset = (asked + heard) / 2 - theirs
            self.delay = delay
            # Clocks that agree as far as can be measured are most likely one.
            self.offset = 0.0 if abs(offset) <= delay else offset
