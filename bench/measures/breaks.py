"""Breaks something during a transfer, and measures how long its getter goes without a byte, for every transport.

Host 3 gets an object that hosts 1 and 2 have; host 0 has the directory. When half of it has arrived, its sender is
killed, stopped or cut off, and the rest comes from the other host. Or only the connection that carries the bytes is
broken, while all processes live: then only host 1 has the object, so the rest must come from the same host, over
the transport that is left.

In a cluster with mixed links, host 0 asks for the sum of an object of each of four hosts, of which three use UCX among
themselves, and the busiest connection of UCX is broken in mid-object.

A position is looked up every few milliseconds, by a second worker of host 3: figures are not finer than that. Each
break has its own hosts, after an undisturbed object. Every byte is compared.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum

from hoplite_ucx.bench.harness.foreign_sockets import break_connection, busiest, connections
from hoplite_ucx.bench.harness.live_cluster import LiveCluster
from hoplite_ucx.bench.hosts.namespaces import Cluster
from hoplite_ucx.transports.wire.addresses import parse_address

__all__ = ["MIXED", "WAYS", "Break", "Outcome", "measure_breaks", "measure_mixed_reduce"]

Sample = tuple[float, int, str]
"""A moment, the position then, and from whom."""

MIXED = "mixed reduce"

_SECONDS = 60.0
_FLOW_SECONDS = 10.0
_FIRST, _SECOND, _GETTER, _WATCHER = range(1, 5)  # ranks of workers
_FLOWING = 1 << 20
"""This many bytes on a connection are not messages: an object is being sent."""


class Break(StrEnum):
    KILL = "kill"
    STOP = "stop"
    CUT = "cut"
    LINK = "link"


@dataclass(frozen=True)
class Way:
    """How links are made: their configuration, on hosts of their own or on one, and which breaks there are."""

    links: Mapping[str, str]
    one_host: bool = False
    breaks: tuple[Break, ...] = tuple(Break)

    @property
    def is_ucx(self) -> bool:
        return self.links["HOPLITE_LINKS_TRANSPORT"] == "ucx"


WAYS = {
    "tcp": Way({"HOPLITE_LINKS_TRANSPORT": "tcp"}),
    "ucx-tcp": Way({"HOPLITE_LINKS_TRANSPORT": "ucx", "HOPLITE_UCX_TLS": "tcp"}),
    # Shared memory has no network that could be cut, and no connection of its own.
    "ucx-posix": Way({"HOPLITE_LINKS_TRANSPORT": "ucx", "HOPLITE_UCX_TLS": "posix"}, True, (Break.KILL, Break.STOP)),
}


@dataclass(frozen=True)
class Outcome:
    """Seconds from the moment of the break, but for the last two, which are those of a whole get."""

    transport: str
    what: Break
    noticed: float | None
    """Until the stream of the broken sender was given up."""
    next_byte: float | None
    """Until the position rose again. A reduction has many positions, and neither of these."""
    seconds: float
    undisturbed: float
    goes_on_over: str
    """The transport of the link that carried the rest."""

    @property
    def cost(self) -> float:
        return self.seconds - self.undisturbed

    def json_line(self) -> str:
        return json.dumps({**asdict(self), "cost": self.cost})


def measure_breaks(
    transport: str, what: Break, *, size: int, rate: float, advance: Callable[[], object] = lambda: None
) -> Outcome:
    """One break, on hosts of its own."""
    way = WAYS[transport]
    with Cluster(1 if way.one_host else 4, None if way.one_host else rate) as cluster:
        hosts = cluster.hosts * 4 if way.one_host else cluster.hosts
        with LiveCluster(hosts, rate, memory=4 * size, workers=[0, 1, 2, 3, 3], links=way.links) as live:
            undisturbed, _ = _get(live, size, both=what is not Break.LINK, broken=lambda _: 0.0)
            advance()
            agents = {live.ask(rank, "agent")["node"]: rank for rank in (_FIRST, _SECOND)}
            ports = [parse_address(live.ask(rank, "agent")["address"])[1] for rank in live.ranks]

            def broken(sender: str) -> float:
                place = agents[sender]
                pid = live.pids[f"agent {place}"]
                moment = time.monotonic()
                match what:
                    case Break.KILL:
                        os.kill(pid, signal.SIGKILL)
                    case Break.STOP:
                        os.kill(pid, signal.SIGSTOP)
                    case Break.CUT:
                        cluster.cut(place)
                    case Break.LINK:
                        # UCX has connections of its own; ours, with the agents' ports, stay.
                        connection, _ = busiest([pid], except_ports=ports if way.is_ucx else ())
                        moment = time.monotonic()
                        break_connection(connection)
                return moment

            seconds, watched = _get(live, size, both=what is not Break.LINK, broken=broken)
            over = _transport_of(live, watched.samples[-1][2])
    return Outcome(transport, what, *_gap(watched), seconds, undisturbed, over)


def measure_mixed_reduce(*, size: int, rate: float, advance: Callable[[], object] = lambda: None) -> Outcome:
    """A reduction whose slots are joined by links of both kinds, one of which loses its connection."""
    # A chain of the four has both kinds of links, whatever its order: one host does not use UCX.
    ways = [WAYS[name].links for name in ("ucx-tcp", "ucx-tcp", "ucx-tcp", "tcp")]
    with Cluster(len(ways), rate) as cluster, LiveCluster(cluster.hosts, rate, memory=6 * size, links=ways) as live:
        pids = [live.pids[f"agent {rank}"] for rank in live.ranks]
        ports = [parse_address(live.ask(rank, "agent")["address"])[1] for rank in live.ranks]

        def undisturbed() -> None:
            pass

        def broken() -> None:
            before = [each for pid in pids for each in connections(pid)]
            deadline = time.monotonic() + _FLOW_SECONDS
            while time.monotonic() < deadline:
                with contextlib.suppress(LookupError):
                    connection, sent = busiest(pids, before, except_ports=ports)
                    if sent > _FLOWING:
                        break_connection(connection)
                        return
            raise TimeoutError("no object travelled over UCX")

        _reduce(live, size, undisturbed)  # links are opened
        usual = _reduce(live, size, undisturbed)
        advance()
        seconds = _reduce(live, size, broken)
        links = [link for rank in live.ranks for link in live.ask(rank, "agent")["links"] if link["bytes"]]
    used = {link["transport"] for link in links if link["side"] == "receiving"}
    return Outcome(MIXED, Break.LINK, None, None, seconds, usual, "+".join(sorted(used)))


def _reduce(live: LiveCluster, size: int, disturb: Callable[[], None]) -> float:
    refs, seeds = [live.new_ref() for _ in live.ranks], [rank + 1 for rank in live.ranks]
    for rank in live.ranks:
        live.ask(rank, "put", ref=refs[rank], size=size, seed=seeds[rank])
    target = live.new_ref()
    live.tell(0, "get", refs=[target], sources=refs)
    disturb()
    timed = live.answer(0)
    live.ask(0, "check", seeds=[seeds], size=size)
    live.ask(0, "delete", refs=[*refs, target])
    return float(timed["done"] - timed["began"])


@dataclass(frozen=True)
class _Watched:
    at: float
    """The moment of the break."""
    sender: str
    """Who sent until then."""
    samples: list[Sample]
    """Since half of it had come."""


def _get(live: LiveCluster, size: int, *, both: bool, broken: Callable[[str], float]) -> tuple[float, _Watched]:
    """Let host 3 get an object, and break something when half of it has come."""
    ref = live.new_ref()
    live.ask(_FIRST, "put", ref=ref, size=size, seed=7)
    if both:
        live.ask(_SECOND, "get", refs=[ref])
        live.ask(_SECOND, "check", seeds=[[7]], size=size)
    live.tell(_GETTER, "get", refs=[ref])
    half = live.ask(_WATCHER, "watch", ref=ref, seconds=_SECONDS, past=size // 2)
    sender = half[-1][2]
    moment = broken(sender)
    samples = [half[-1], *live.ask(_WATCHER, "watch", ref=ref, seconds=_SECONDS)]
    timed = live.answer(_GETTER)
    live.ask(_GETTER, "check", seeds=[[7]], size=size)
    return timed["done"] - timed["began"], _Watched(moment, sender, samples)


def _gap(watched: _Watched) -> tuple[float, float]:
    """When the broken stream was given up, and when the position rose again: the end of its longest standstill."""
    rises = _rises(watched.samples)
    longest = max(range(1, len(rises)), key=lambda index: rises[index] - rises[index - 1], default=0)
    gone = next((moment for moment, _, sender in watched.samples if sender != watched.sender), rises[longest])
    return max(min(gone, rises[longest]) - watched.at, 0.0), max(rises[longest] - watched.at, 0.0)


def _rises(samples: Iterable[Sample]) -> list[float]:
    moments: list[float] = []
    highest = -1
    for moment, position, _ in samples:
        if position > highest:
            moments.append(moment)
            highest = position
    return moments


def _transport_of(live: LiveCluster, sender: str) -> str:
    links = live.ask(_WATCHER, "agent")["links"]
    used = [link["transport"] for link in links if link["side"] == "receiving" and sender.startswith(link["peer"])]
    return "+".join(sorted(set(used)))
