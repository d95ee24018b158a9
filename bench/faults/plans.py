"""Cases from seeds: the operation, the fault, its victim and its moment.

A case is drawn from a campaign's seed and its own number and from nothing else, so that any case can be played alone.
Which machine is hit depends on the tree of that moment: a plan names a role, and an order of machines if several or
none have it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TypeVar

from hoplite_ucx.bench.faults.injecting import BRIEF, LONG, FaultKind
from hoplite_ucx.bench.faults.scenarios import Operation, Role, Scenario

__all__ = ["Plan", "draw"]

_OPERATIONS = {
    Operation.BROADCAST: 4,
    Operation.WRITTEN: 1,
    Operation.GATHER: 2,
    Operation.REDUCE: 5,
    Operation.ALLREDUCE: 3,
}
_KINDS = {
    FaultKind.KILL_HOST: 5,
    FaultKind.KILL_AGENT: 3,
    FaultKind.KILL_WORKER: 2,
    FaultKind.RESTART_AGENT: 2,
    FaultKind.STOP: 3,
    FaultKind.CUT: 2,
    FaultKind.CUT_IN: 2,
    FaultKind.CUT_OUT: 2,
    FaultKind.SLOW: 2,
    FaultKind.DIRECTORY: 3,
    FaultKind.CUT_DIRECTORY: 1,
    FaultKind.FULL: 2,
}
_TREE_ROLES = (Role.RELAY, Role.SOURCE, Role.RECEIVER)
_SLOT_ROLES = (Role.ROOT, Role.SLOT, Role.SOURCE, Role.REQUESTER, Role.RECEIVER)
_LONG_SHARE = 0.35
_MOST_SOURCES = 8

_T = TypeVar("_T")


@dataclass(frozen=True)
class Plan:
    """`moment` is a part of the time that the operation takes undisturbed. `order` decides whom a fault hits among
    those in the wanted role."""

    number: int
    scenario: Scenario
    kind: FaultKind
    seconds: float
    role: Role
    order: tuple[int, ...]
    moment: float


def draw(seed: int, number: int, machines: int, largest: int) -> Plan:
    """The case of that number, for so many machines and objects of a quarter of `largest` to all of it."""
    dice = random.Random(f"{seed}/{number}")
    operation = _weighted(dice, _OPERATIONS)
    size = dice.randrange(largest // 4, largest + 1) & ~63
    kind = _weighted(dice, _KINDS)
    role = dice.choice(_SLOT_ROLES if operation.reduces else _TREE_ROLES)
    order = tuple(dice.sample(range(machines), machines))
    return Plan(
        number, _scenario(dice, operation, size, machines), kind, _duration(dice, kind), role, order, dice.random()
    )


def _scenario(dice: random.Random, operation: Operation, size: int, machines: int) -> Scenario:
    everyone = list(range(machines))
    first = dice.randrange(machines)
    others = [rank for rank in everyone if rank != first]
    match operation:
        case Operation.BROADCAST | Operation.WRITTEN:
            return Scenario(operation, size, [first], others)
        case Operation.GATHER:
            return Scenario(operation, size, others, [first])
        case Operation.ALLREDUCE:
            count = machines if dice.random() < 0.7 else machines - 1
            return Scenario(operation, size, everyone, everyone, first, count)
    holders = everyone + ([dice.choice(everyone)] if machines < _MOST_SOURCES and dice.random() < 0.3 else [])
    if dice.random() < 0.3:
        holders.remove(first)  # the requester has none of its own
    count = dice.choice([len(holders), len(holders), len(holders) - 1, max(2, len(holders) // 2)])
    getters = [first] if dice.random() < 0.4 else [first, dice.choice(others)]
    return Scenario(operation, size, holders, getters, first, count)


def _duration(dice: random.Random, kind: FaultKind) -> float:
    match kind:
        case FaultKind.STOP | FaultKind.CUT | FaultKind.CUT_IN | FaultKind.CUT_OUT | FaultKind.CUT_DIRECTORY:
            return dice.uniform(*(LONG if dice.random() < _LONG_SHARE else BRIEF))
        case FaultKind.SLOW:
            return dice.uniform(*BRIEF)
        case FaultKind.DIRECTORY:
            return dice.uniform(0.0, 0.6)  # and then it has to load
        case FaultKind.RESTART_AGENT:
            return dice.uniform(0.0, 0.3)
    return 0.0


def _weighted(dice: random.Random, weights: dict[_T, int]) -> _T:
    return dice.choices(list(weights), list(weights.values()))[0]
