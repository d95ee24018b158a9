"""The rules that all peers keep, on their side: what they are asked for, when a round begins, and what they tell.

A peer is given its cells (an operation, a size, how many rounds and for how long) on the command line and tells a line
of JSON for each step on standard output: `{"versions": …}` when all its hosts are there; for every round `{"at": …}`
when everything is in place and the moment to begin is set, and `{"seconds": …}` when it is over and every value was
compared; `{"rounds": …}` when a cell has had its rounds. Moments are on the monotonic clock, which all processes of a
machine share.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Protocol

import numpy as np

from hoplite_ucx.bench.harness.contents import Array, fill, matches
from hoplite_ucx.bench.harness.json_lines import say

__all__ = [
    "NOTICE",
    "SPACING",
    "Cell",
    "Ranks",
    "calls_of",
    "check",
    "lead",
    "plan_of",
    "run_ranks",
    "seeds_of",
    "sleep_until",
]

NOTICE = 0.03
"""From setting the moment to begin until it comes: all of them must be waiting for it."""

SPACING = 0.1
"""How far the objects of `arrivals` lie apart."""

_CALLS = 50
_FEW_CALLS = 3
_TRIPS_BYTES = 64 << 20


@dataclass(frozen=True)
class Cell:
    """As many rounds, but once there were `least` of them, none begins that late after the first."""

    operation: str
    size: int
    rounds: int
    least: int = 2
    seconds: float = 60.0
    spacing: float = 0.0
    """How far apart the hosts come, in order of their ranks; then time runs from the first of them."""

    def goes_on(self, done: int, spent: float) -> bool:
        return done < self.least or (done < self.rounds and spent < self.seconds)


def calls_of(size: int) -> int:
    """How many round trips a round of `rtt` has; it takes as long as the median of them. Large objects take few."""
    return max(_FEW_CALLS, min(_CALLS, _TRIPS_BYTES // size))


def plan_of(cells: Sequence[Cell]) -> str:
    return json.dumps([astuple(cell) for cell in cells])


def _planned() -> list[Cell]:
    return [Cell(*each) for each in json.loads(sys.argv[1])]


def sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


def seeds_of(number: int, count: int) -> list[int]:
    """What the objects of a round are made from: no round has what another one left behind."""
    return [(number * count + rank) % 100 + 1 for rank in range(count)]


def check(array: Array, seeds: Sequence[int]) -> None:
    if not matches(array, seeds):
        raise ValueError(f"a wrong value: the sum of the objects of the seeds {seeds} was expected")


# --- peers that one program leads -------------------------------------------------------------------------------


def lead(run: Callable[[str, int, int], float], versions: dict[str, str]) -> None:
    """All cells; `run` is one round of an operation and a size with its number, tells its moment, and takes seconds."""
    say(versions=versions)
    for cell in _planned():
        if cell.spacing:
            raise ValueError(f"{cell.operation} of hosts that come one by one is not written for this peer")
        began, number = time.monotonic(), 0
        while cell.goes_on(number, time.monotonic() - began):
            say(seconds=run(cell.operation, cell.size, number))
            number += 1
        say(rounds=number)


# --- peers that are a program on every host ---------------------------------------------------------------------


class Ranks(Protocol):
    """A library whose users run the same program everywhere. What a call leaves is in the array it returns."""

    rank: int
    count: int

    def latest(self, moment: float) -> float:
        """The largest of what all give."""

    def broadcast(self, array: Array) -> Array: ...
    def reduce(self, mine: Array, result: Array) -> Array: ...
    def allreduce(self, mine: Array, result: Array) -> Array: ...
    def gather(self, mine: Array, parts: Array | None) -> None: ...
    def there_and_back(self, array: Array) -> None: ...


def run_ranks(peer: Ranks, versions: dict[str, str]) -> None:
    """All cells, on one rank. Buffers are there before the clock runs, as such programs have them."""
    peer.latest(0.0)
    if peer.rank == 0:
        say(versions=versions)
    for cell in _planned():
        mine, result = np.zeros(cell.size // 4, np.float32), np.zeros(cell.size // 4, np.float32)
        gathers = cell.operation == "gather" and peer.rank == 0
        parts = np.zeros((peer.count, cell.size // 4), np.float32) if gathers else None
        began, number = time.monotonic(), 0
        # All go by what rank 0 says.
        while peer.latest(float(peer.rank == 0 and cell.goes_on(number, time.monotonic() - began))):
            _round(peer, cell, seeds_of(number, peer.count), mine, result, parts)
            number += 1
        if peer.rank == 0:
            say(rounds=number)


def _round(peer: Ranks, cell: Cell, seeds: list[int], mine: Array, result: Array, parts: Array | None) -> None:
    operation = cell.operation
    fill(mine, [seeds[peer.rank]])
    result.fill(0)
    # Twice: nobody is still busy with its object when the moment is set.
    peer.latest(0.0)
    at = peer.latest(time.monotonic() + NOTICE if peer.rank == 0 else 0.0)
    if peer.rank == 0:
        say(at=at)
    if operation == "arrivals":
        sleep_until(at + SPACING * peer.rank)
    else:
        sleep_until(at + cell.spacing * peer.rank)
    took = None
    if operation == "broadcast":
        result = peer.broadcast(mine)
    elif operation == "allreduce":
        result = peer.allreduce(mine, result)
    elif operation == "gather":
        peer.gather(mine, parts)
    elif operation == "rtt":
        took = [_timed_trip(peer, mine) for _ in range(calls_of(cell.size))]
    else:
        result = peer.reduce(mine, result)
    done = time.monotonic()
    # Of a reduce or a gather, only rank 0 has a result to wait for.
    end = peer.latest(done if peer.rank == 0 or operation in ("broadcast", "allreduce") else 0.0)
    _check(peer, operation, seeds, result, parts)
    peer.latest(0.0)
    if peer.rank == 0:
        begin = at + SPACING * (peer.count - 1) if operation == "arrivals" else at
        say(seconds=end - begin if took is None else float(np.median(took)))


def _timed_trip(peer: Ranks, array: Array) -> float:
    began = time.monotonic()
    peer.there_and_back(array)
    return time.monotonic() - began


def _check(peer: Ranks, operation: str, seeds: list[int], result: Array, parts: Array | None) -> None:
    if operation == "broadcast":
        check(result, seeds[:1])
    elif operation == "allreduce" or (operation in ("reduce", "arrivals") and peer.rank == 0):
        check(result, seeds)
    if parts is not None:
        for part, seed in zip(parts, seeds, strict=True):
            check(part, [seed])
