"""What the directory's process takes for what it does, by kinds of messages: as measured, or the same for all.

`hoplite bench directory` measures it. A message that is received costs its reading, its decoding, and what the machine
decides; one that is sent, its encoding and writing. What comes to a process that sleeps also wakes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hoplite_ucx.protocol.messages import (
    Bind,
    Bound,
    Completed,
    Consumed,
    Heartbeat,
    Place,
    ToDirectory,
    ToNode,
    Want,
)

OTHERS = "others"
"""Messages of kinds that are not listed, and what is no message: a lost session, a probe's answer, a timer."""
PROGRESS = "Progress"
"""What a heartbeat costs more for each stream that it reports."""


@dataclass(frozen=True, slots=True)
class DirectoryCosts:
    """In seconds. Kinds are the names of their classes."""

    received: Mapping[str, float] = field(default_factory=dict)
    sent: Mapping[str, float] = field(default_factory=dict)
    wake_up: float = 0.0

    def __bool__(self) -> bool:
        return any((*self.received.values(), *self.sent.values(), self.wake_up))

    def of_received(self, message: ToDirectory) -> float:
        cost = self._of(self.received, type(message))
        if isinstance(message, Heartbeat):
            cost += len(message.progress) * self.received.get(PROGRESS, 0.0)
        return cost

    def of_sent(self, message: ToNode) -> float:
        return self._of(self.sent, type(message))

    @property
    def of_others(self) -> float:
        return self.received.get(OTHERS, 0.0)

    @property
    def of_placement(self) -> float:
        """Of a node that asks, and is told where to get an object."""
        return self._of(self.received, Want) + self._of(self.sent, Place)

    @property
    def of_slot(self) -> float:
        """From its binding to its last byte."""
        received = sum(self._of(self.received, kind) for kind in (Bound, Consumed, Completed))
        return received + self._of(self.sent, Bind) + self._of(self.sent, Place)

    def _of(self, costs: Mapping[str, float], kind: type) -> float:
        cost = costs.get(kind.__name__)
        return costs.get(OTHERS, 0.0) if cost is None else cost

    def as_dict(self) -> dict[str, Any]:
        return {"received": dict(self.received), "sent": dict(self.sent), "wake_up": self.wake_up}


def costs_from(told: Mapping[str, Any]) -> DirectoryCosts:
    """As `as_dict` writes them. Raises a `ValueError`."""
    try:
        received, sent = ({str(kind): float(cost) for kind, cost in told[way].items()} for way in ("received", "sent"))
        costs = DirectoryCosts(received, sent, float(told["wake_up"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("these are no costs of a directory; `hoplite bench directory --json` writes them") from error
    if not all(0 <= cost < 1 for cost in (*received.values(), *sent.values(), costs.wake_up)):
        raise ValueError("a cost of a directory is a number of seconds from 0 to 1")
    return costs


def every_event(seconds: float) -> DirectoryCosts:
    """The same for everything that comes, and nothing for what is sent."""
    return DirectoryCosts({OTHERS: seconds})


FREE = DirectoryCosts()
MEASURED = DirectoryCosts(
    received={
        "Join": 37e-6,
        "Heartbeat": 4e-6,
        PROGRESS: 9e-6,
        "Put": 20e-6,
        "Want": 30e-6,
        "Bound": 49e-6,
        "Consumed": 18e-6,
        "Completed": 15e-6,
        OTHERS: 19e-6,
    },
    sent={"Bind": 45e-6, OTHERS: 17e-6},
    wake_up=7e-6,
)
"""The medians of three runs of `hoplite bench directory` on two cores of an AMD EPYC, 18 November 2026."""
