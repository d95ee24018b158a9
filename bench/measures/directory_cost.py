"""What each kind of message costs the directory: the processor time of its process, fed by made-up nodes.

The made-up nodes are sessions of one program. They join a directory's process and play broadcasts and reduces as real
nodes would, without the bytes: one kind of message at a time, from all nodes at once, as a busy directory gets them.
What the process takes until it has nothing to do is divided among the messages. A message that it sends costs what a
`Drop` does, of which a delete sends many, and a `Bind` what it takes to lay a slot; the rest is for those it received.

The simulator charges these costs (`hoplite simulate --directory-cost`).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TypeVar

import uvloop

from hoplite_ucx.protocol import messages
from hoplite_ucx.protocol.ids import NO_SLOT, NodeId, Version, node_id
from hoplite_ucx.runtime.launch import processes
from hoplite_ucx.runtime.launch.cluster import directory_task
from hoplite_ucx.simulate.directory_costs import OTHERS, PROGRESS, DirectoryCosts
from hoplite_ucx.transports.descriptors import raise_descriptor_limit
from hoplite_ucx.transports.wire.handshake import Identity, Kind
from hoplite_ucx.transports.wire.session import Session, Together, connect

__all__ = ["SINGLY", "MeasuredCosts", "Play", "Spent", "measure_directory_cost"]

_SIZE = 64 << 20
_RATE = 125e6
_ROUND_TRIPS = (150e-6, 400e-6)
_LONG = {"HOPLITE_CLUSTER_HEARTBEAT": "60s", "HOPLITE_CLUSTER_SUSPICION": "600s", "HOPLITE_CLUSTER_LEASE": "3600s"}
"""Nodes that are made up send a heartbeat only when that is measured."""
_AT_REST = 0.03
_PATIENCE = 60.0
_BEATS = 4
SINGLY = "heartbeats one by one"

_Message = TypeVar("_Message")


@dataclass(frozen=True)
class MeasuredCosts:
    hosts: int
    rounds: int
    costs: DirectoryCosts

    def json_line(self) -> str:
        what = {"what": "directory's processor time", "hosts": self.hosts, "rounds": self.rounds}
        return json.dumps({**what, **self.costs.as_dict()})


def measure_directory_cost(*, hosts: int, rounds: int, advance: Callable[[], object] = lambda: None) -> MeasuredCosts:
    if hosts < 2:
        raise ValueError("a broadcast needs at least 2 hosts")
    raise_descriptor_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return MeasuredCosts(hosts, rounds, runner.run(_measure(hosts, rounds, advance)))


async def _measure(hosts: int, rounds: int, advance: Callable[[], object]) -> DirectoryCosts:
    token = secrets.token_hex(16).encode()
    process = processes.start("directory", tied_to_thread=False, variables=_LONG)
    try:
        processes.tell(process, directory_task(token))
        report = processes.await_ready("directory", process).report
        play = Play(process, [_Node(number + 1) for number in range(hosts)])
        for node in play.nodes:
            await node.connect(report["address"], token)
        await play.join(report["cluster"])
        for _ in range(rounds):
            await play.heartbeats()
            await play.single_heartbeats()
            await play.broadcast()
            await play.reduce()
            advance()
        return play.costs()
    finally:
        processes.abandon(process)


class _Node:
    """A session that says what it is told to, and keeps what it hears."""

    def __init__(self, identity: int) -> None:
        self.node: NodeId = node_id(identity)
        self._identity = identity
        self.heard: list[messages.ToNode] = []
        self._news = asyncio.Event()

    async def connect(self, address: str, token: bytes) -> None:
        def made(session: Session) -> None:
            session.on_frame = self._hear

        me = Identity(self._identity, token)
        self._session = await connect(address, me, Kind.CONTROL, made)

    def _hear(self, frame: bytes) -> None:
        if frame[:1] != b"\xc1":  # an introduction
            self.heard.append(messages.decode_to_node(frame))
            self._news.set()

    def say(self, message: messages.ToDirectory) -> None:
        self._news.clear()
        self._session.send(messages.encode(message))

    async def answer(self) -> None:
        async with asyncio.timeout(_PATIENCE):
            await self._news.wait()


_Said = Sequence[tuple[_Node, messages.ToDirectory]]


@dataclass
class Spent:
    seconds: float = 0.0
    received: int = 0
    sent: int = 0
    """Messages, in return for those that were received."""


@dataclass
class Play:
    """Made-up nodes and the directory that they are sessions of; `spent` is what its process took, by kinds."""

    process: subprocess.Popen[bytes]
    nodes: list[_Node]
    spent: dict[str, Spent] = field(default_factory=lambda: defaultdict(Spent))

    async def join(self, cluster: str) -> None:
        def hello(node: _Node) -> messages.Join:
            name = f"made-up-{node.node}"
            return messages.Join(messages.PROTOCOL, cluster, 0, node.node, name, f"{name}:1", _RATE, _RATE, 256, 256)

        await self._measure("Join", [(node, hello(node)) for node in self.nodes])

    async def heartbeats(self) -> None:
        for _ in range(_BEATS):
            await self._measure("Heartbeat", [(node, _beat()) for node in self.nodes])

    async def single_heartbeats(self) -> None:
        """Each comes when the one before is answered, so that it wakes the process."""
        spent, before = self.spent[SINGLY], self._processor_seconds()
        for node in self.nodes:
            node.say(_beat())
            await node.answer()
        spent.seconds += await self._at_rest() - before
        spent.received += len(self.nodes)

    async def broadcast(self) -> None:
        """One node puts an object, and all others get it."""
        source, others = self.nodes[0], self.nodes[1:]
        (version,) = await self._put([source])
        await self._measure("Want", [(node, messages.Want(version.ref)) for node in others])
        placed = self._heard(messages.Place, others)
        await self._report_progress([(node, place.version, NO_SLOT) for node, place in placed])
        await self._measure("Completed", [(node, messages.Completed(version)) for node in others])
        await self._delete([version.ref])

    async def reduce(self) -> None:
        """Every node puts an object, and one of them has all combined."""
        versions = await self._put(self.nodes)
        source_at = dict(zip(versions, self.nodes, strict=True))
        target = _new_ref()
        sources = tuple(version.ref for version in versions)
        wanted = messages.Reduce(1, target, sources, messages.Operation.SUM, len(sources))
        await self._measure("Reduce", [(self.nodes[0], wanted)])
        binds = self._heard(messages.Bind, self.nodes)
        bound = [
            (node, messages.Bound(b.version, b.number, tuple(p for p in b.parts if source_at.get(p) is not node)))
            for node, b in binds
        ]
        await self._measure("Bound", bound)
        placed = self._heard(messages.Place, self.nodes)
        await self._report_progress([(node, place.version, place.into) for node, place in placed])
        await self._measure("Consumed", [(n, messages.Consumed(place.version, place.into)) for n, place in placed])
        await self._measure("Completed", [(node, messages.Completed(bind.version)) for node, bind in binds])
        await self._delete([target, *sources])

    async def _put(self, nodes: Iterable[_Node]) -> list[Version]:
        puts: _Said = [(node, messages.Put(1, _new_ref(), _SIZE, b"")) for node in nodes]
        await self._measure("Put", puts)
        accepted = self._heard(messages.PutAccepted, self.nodes)
        await self._measure("Completed", [(node, messages.Completed(answer.version)) for node, answer in accepted])
        return [answer.version for _, answer in accepted]

    async def _report_progress(self, streams: Sequence[tuple[_Node, Version, bytes]]) -> None:
        await self._measure(
            PROGRESS,
            [(node, _beat(messages.Progress(version, _SIZE // 2, into))) for node, version, into in streams],
        )

    async def _delete(self, refs: list[bytes]) -> None:
        await self._measure("Delete", [(self.nodes[0], messages.Delete(1, tuple(refs)))])

    async def _measure(self, kind: str, said: _Said) -> None:
        spent = self.spent[kind]
        for node in self.nodes:
            node.heard.clear()
        before = self._processor_seconds()
        with Together():
            for node, message in said:
                node.say(message)
        spent.seconds += await self._at_rest() - before
        spent.received += len(said)
        spent.sent += sum(len(node.heard) for node in self.nodes)

    async def _at_rest(self) -> float:
        """The directory has done what it was told, and sleeps; its processor time then."""
        deadline = time.monotonic() + _PATIENCE
        spent, before = self._processor_seconds(), -1.0
        while spent != before or not self._sleeps():
            if time.monotonic() > deadline:
                raise TimeoutError("the directory does not come to rest")
            await asyncio.sleep(_AT_REST)
            spent, before = self._processor_seconds(), spent
        return spent

    def _sleeps(self) -> bool:
        """Else it may only be waiting for a processor."""
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"

    def _heard(self, kind: type[_Message], nodes: Iterable[_Node]) -> list[tuple[_Node, _Message]]:
        return [(node, message) for node in nodes for message in node.heard if isinstance(message, kind)]

    def _processor_seconds(self) -> float:
        """Of the directory's only thread that works, in nanoseconds: what `Popen` offers counts in hundredths."""
        return int(Path(f"/proc/{self.process.pid}/schedstat").read_text().split()[0]) / 1e9

    def costs(self) -> DirectoryCosts:
        deletes, reduces, singly = (self.spent.pop(kind) for kind in ("Delete", "Reduce", SINGLY))
        sent = deletes.seconds / deletes.sent
        received = {
            kind: max(0.0, spent.seconds - spent.sent * sent) / spent.received for kind, spent in self.spent.items()
        }
        beat = received["Heartbeat"]
        received[PROGRESS] = max(0.0, received[PROGRESS] - beat)
        received[OTHERS] = median(received.values())
        wake_up = max(0.0, singly.seconds / singly.received - beat - sent)
        return DirectoryCosts(received, {"Bind": reduces.seconds / reduces.sent, OTHERS: sent}, wake_up)


def _beat(*progress: messages.Progress) -> messages.Heartbeat:
    return messages.Heartbeat(progress, random.uniform(*_ROUND_TRIPS))


def _new_ref() -> bytes:
    return os.urandom(16)
