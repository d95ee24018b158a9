"""What the parts of the directory share: settings, timers, stories, and the effects collected for the shell."""

import math
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from msgspec import Struct

from hoplite_ucx.protocol.cost import Costs
from hoplite_ucx.protocol.directory.measured_costs import Measuring
from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.protocol.events import DirectoryEffect, SendNode
from hoplite_ucx.protocol.ids import NodeId, label
from hoplite_ucx.protocol.messages import Rejected, ToNode
from hoplite_ucx.protocol.settings import Settings
from hoplite_ucx.protocol.story import Stories
from hoplite_ucx.protocol.timers import Timers

# Numbers of placements and slots go on rising over restarts: an incarnation is at least a millisecond.
_NUMBERS_PER_INCARNATION_BITS = 20
_INCIDENTS_KEPT = 100


Difference: TypeAlias = Callable[[bytes, bytes], str | None]
"""Why objects of two layouts cannot be combined, in words, or None if they can. The shell knows what layouts mean."""


def any_difference(one: bytes, other: bytes) -> str | None:
    """For a shell whose layouts mean nothing."""
    return None if one == other else "their layouts differ"


@dataclass(slots=True)
class Tally:
    """What became of nodes so far, for people. A successor counts on."""

    joins: int = 0
    suspicions: int = 0
    deaths: int = 0


class Incident(Struct, frozen=True, array_like=True):
    """Something went wrong: a node died, or an object failed. The latest are kept for people to read."""

    at: float
    what: str
    detail: str
    remedy: str
    ref: bytes | None = None
    node: NodeId | None = None


@dataclass(slots=True)
class Marks:
    """What has changed in an event, and is looked at before the event is over (see `settling`)."""

    records: dict[bytes, None] = field(default_factory=dict)
    reductions: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    """By target."""
    trees: dict[bytes, None] = field(default_factory=dict)
    """Refs with receivers that may find a sender now."""
    supply: bool = False
    """A node can send again: receivers of any object may find a sender."""


class World:
    def __init__(self, settings: Settings, incarnation: int, difference: Difference = any_difference) -> None:
        self.settings = settings
        self.difference = difference
        self.costs = Costs(settings)
        self.measuring = Measuring(self.costs)
        self.incarnation = incarnation
        self.recovering = False
        """The nodes of an earlier directory are being heard: until then nothing is lost, replaced or begun anew."""
        self.timers = Timers()
        self.stories = Stories("directory")
        self.tally = Tally()
        self.incidents: deque[Incident] = deque(maxlen=_INCIDENTS_KEPT)
        self.now = -math.inf
        self._effects: list[DirectoryEffect] = []
        self._number = incarnation << _NUMBERS_PER_INCARNATION_BITS
        self.marks = Marks()

    def emit(self, effect: DirectoryEffect) -> None:
        self._effects.append(effect)

    def send(self, node: NodeId, message: ToNode) -> None:
        self._effects.append(SendNode(node, message))

    def blame(self, node: NodeId, ref: bytes | None, detail: str) -> None:
        """An invalid message: it changes nothing, and its sender gets an error."""
        failure = Failure(FailureKind.INVALID, detail, "this is a bug in the node that sent it; report it", ref)
        self.send(node, Rejected(failure))

    def tell(self, ref: bytes, text: str, *details: object) -> None:
        self.stories.add(self.now, ref, text, *details)

    def failed(self, ref: bytes, failure: Failure) -> None:
        """An object is lost, or a reduction cannot be carried out."""
        self.incidents.append(Incident(self.now, failure.kind.value, failure.detail, failure.remedy, ref))

    def died(self, node: NodeId, why: str, ref: bytes | None) -> None:
        """A node is declared dead; it was involved with this object, perhaps among others."""
        remedy = "the others continue without it; see its own messages"
        self.incidents.append(Incident(self.now, "dead", f"{label(node)} is dead: {why}", remedy, ref, node))

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def mark(self, ref: bytes) -> None:
        """What is known of the ref has changed."""
        self.marks.records[ref] = None

    def take_effects(self) -> list[DirectoryEffect]:
        effects, self._effects = self._effects, []
        return effects
