"""The operations that are disturbed: which machine has what, which gets it, and the role of each in the middle.

A scenario says which calls are made. Objects have seeds that are different powers of two (see `worker.Worker.check`),
so that any sum tells what it is made of.
"""

from __future__ import annotations

import enum
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hoplite_ucx.bench.faults.fault_cluster import FaultCluster
from hoplite_ucx.bench.faults.worker_proxy import Answer, Peer
from hoplite_ucx.bench.harness.timing import limit_seconds
from hoplite_ucx.bench.hosts.line_process import PeerError

__all__ = ["Call", "Operation", "Role", "Scenario", "Source", "identity", "roles"]

CALL_SECONDS = 30.0
"""What a get is given: far more than any fault lasts."""


class Operation(enum.StrEnum):
    BROADCAST = "broadcast"
    WRITTEN = "written broadcast"
    """A broadcast of an object that is still being written."""
    GATHER = "gather"
    REDUCE = "reduce"
    ALLREDUCE = "allreduce"

    @property
    def reduces(self) -> bool:
        return self in (Operation.REDUCE, Operation.ALLREDUCE)


class Role(enum.StrEnum):
    """What a machine is for the operation at some moment."""

    SOURCE = "source"
    """It has an object that others need, and makes nothing of it."""
    RELAY = "relay"
    """It receives what another machine receives from it."""
    RECEIVER = "receiver"
    SLOT = "slot"
    """It combines, and others pull what comes of it."""
    ROOT = "root"
    """It makes the result."""
    REQUESTER = "requester"
    IDLE = "idle"


@dataclass(frozen=True)
class Source:
    ref: str
    rank: int
    seed: int


@dataclass
class Call:
    """A get under way, and in the end what came of it."""

    rank: int
    refs: list[str]
    peer: Peer
    ticket: int
    answer: Answer = field(default_factory=Answer)


@dataclass
class Scenario:
    """`holders` are the ranks that have a source each; `getters` those who get what comes of them. Of a broadcast there
    is one holder. `count` sources are reduced, asked for by `requester`."""

    operation: Operation
    size: int
    holders: Sequence[int]
    getters: Sequence[int]
    requester: int = 0
    count: int = 0

    def __post_init__(self) -> None:
        self.sources = [Source(secrets.token_hex(16), rank, 1 << place) for place, rank in enumerate(self.holders)]
        self.target = secrets.token_hex(16) if self.operation.reduces else None
        self.filler = secrets.token_hex(16)
        self.asked: tuple[Peer, int] | None = None
        self.written: tuple[Peer, int] | None = None

    @property
    def results(self) -> list[str]:
        """What every getter gets."""
        return [self.target] if self.target is not None else [source.ref for source in self.sources]

    @property
    def refs(self) -> list[str]:
        return [source.ref for source in self.sources] + ([self.target] if self.target is not None else [])

    def expected_seconds(self, machines: int, rate: float) -> float:
        """About how long it takes undisturbed."""
        name = "broadcast" if self.operation is Operation.WRITTEN else self.operation.value
        hosts = len(self.sources) + 1 if self.operation is Operation.GATHER else machines
        return limit_seconds(name, hosts, self.size, rate) * 1.1 + 0.03

    def prepare(self, cluster: FaultCluster) -> None:
        """Everything that comes before the clock starts."""
        if self.operation is Operation.WRITTEN:
            return
        puts = []
        for source in self.sources:
            peer = cluster.machines[source.rank].peer
            puts.append((peer, peer.tell("put", ref=source.ref, size=self.size, seed=source.seed)))
        deadline = time.monotonic() + CALL_SECONDS
        for peer, ticket in puts:
            answer = peer.answer(ticket, deadline)
            if answer.done is None:
                raise PeerError(f"a put before the fault failed: {answer}")

    def begin(self, cluster: FaultCluster, at: float) -> list[Call]:
        """Tell every worker what to do at that moment."""
        if self.operation is Operation.WRITTEN:
            (source,) = self.sources
            peer = cluster.machines[source.rank].peer
            seconds = self.expected_seconds(len(cluster.machines), cluster.rate)
            step = {"ref": source.ref, "size": self.size, "seed": source.seed, "seconds": seconds, "at": at}
            self.written = (peer, peer.tell("write", **step))
        if self.target is not None:
            self.ask(cluster, at)
        return [self.get(cluster, rank, at) for rank in self.getters]

    def ask(self, cluster: FaultCluster, at: float = 0.0) -> tuple[Peer, int]:
        """Have the requester ask for the reduction."""
        peer = cluster.machines[self.requester].peer
        everywhere = self.operation is Operation.ALLREDUCE
        step = {"sources": [s.ref for s in self.sources], "count": self.count, "everywhere": everywhere}
        self.asked = (peer, peer.tell("reduce", ref=self.target, at=at, **step))
        return self.asked

    def get(self, cluster: FaultCluster, rank: int, at: float = 0.0) -> Call:
        peer = cluster.machines[rank].peer
        return Call(rank, self.results, peer, peer.tell("get", refs=self.results, at=at, timeout=CALL_SECONDS))


def identity(node: str) -> str:
    """A node's name without the number of its life: who was fenced comes back with the next one."""
    return node.partition(".")[0]


def roles(scenario: Scenario, looks: dict[int, dict[str, Any]], nodes: dict[str, int]) -> dict[int, Role]:
    """The role of every machine, from one look at all agents. `nodes` are the ranks by the identities of the agents."""
    pulled_from = {nodes.get(identity(stream["sender"])) for look in looks.values() for stream in look["streams"]}
    found = {}
    for rank, look in looks.items():
        phases = look["phases"]
        combining = {ref for ref, phase in phases.items() if phase == "reducing"}
        receiving = [stream for stream in look["streams"] if not stream["into"]]
        if scenario.target is not None and scenario.target in combining:
            found[rank] = Role.ROOT
        elif combining:
            found[rank] = Role.SLOT
        elif receiving and rank in pulled_from:
            found[rank] = Role.RELAY
        elif rank in pulled_from:
            found[rank] = Role.SOURCE
        elif scenario.target is not None and rank == scenario.requester:
            found[rank] = Role.REQUESTER
        else:
            found[rank] = Role.RECEIVER if receiving else Role.IDLE
    return found
