"""What the directory knows of refs, as plain data: a `Record` for each that a node is involved with, the `Reduction`
that makes it, if one does, and the `Slot` of that reduction whose output it is.

Nothing here decides anything. `table` holds the records and answers questions about them; `spread` and `reduce` change
them, and `settling` decides what follows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hoplite_ucx.protocol.directory.members import Member
from hoplite_ucx.protocol.directory.spread.broadcast import Broadcast
from hoplite_ucx.protocol.directory.states import REDUCTION_MOVES, SLOT_MOVES, ReductionState, SlotState
from hoplite_ucx.protocol.errors import Failure
from hoplite_ucx.protocol.ids import NodeId, Version
from hoplite_ucx.protocol.messages import Put, Reduce


@dataclass(slots=True, eq=False)
class Slot:
    ref: bytes
    parts: list[bytes]
    height: int
    prefers: NodeId
    parent: Slot | None = None
    version: Version | None = None
    host: Member | None = None
    number: int = 0
    state: SlotState = SlotState.VACANT
    start: int = 0
    """The first byte that the host combines."""
    available_from: int = 0
    """The first byte of the output that the host has or will have; it is 0 or `start`."""
    consumed: set[bytes] = field(default_factory=set)
    """Parts that the host does not need any more, or has itself."""
    unsure: set[bytes] = field(default_factory=set)
    """Of an adopted slot: parts that were not sealed as far as its host knows."""
    refused: dict[NodeId, float] = field(default_factory=dict)
    homeless_since: float | None = None
    cut: tuple[int, int] | None = None
    """Of a stripe: where it begins within the sources, and its size."""
    gathers: bool = False
    """The root of a striped target: its parts are the stripes, and its getters assemble them."""
    bound: bool = field(default=False, init=False)
    """Whether its output grows."""

    def move(self, state: SlotState) -> None:
        assert (self.state, state) in SLOT_MOVES, f"a slot: {self.state.value} does not become {state.value}"
        self.state = state
        self.bound = state is SlotState.BOUND or state is SlotState.GATHERING


@dataclass(slots=True, eq=False)
class Reduction:
    """One reduction, from its request to its seal: what it chose, and the tree, or trees, built for it."""

    record: Record
    """Of the target."""
    target: bytes = field(init=False)
    spec: Reduce
    requester: NodeId
    requesters: dict[NodeId, None] = field(default_factory=dict)
    """Nodes that remember that they asked for it."""
    ready: dict[bytes, None] = field(default_factory=dict)
    """Sources that are ready, in the order of becoming so."""
    seen: set[bytes] = field(default_factory=set)
    """Sources that were ready or deleted once: gone, they do not come by themselves."""
    chosen: dict[bytes, Version] = field(default_factory=dict)
    state: ReductionState = ReductionState.OPEN
    failure: Failure | None = None
    """Why it is not open."""
    slots: dict[bytes, Slot] = field(default_factory=dict)
    root: Slot | None = None
    terms: list[tuple[bytes, int]] = field(default_factory=list)
    """What is not in a slot above yet, as ref and height."""
    held: tuple[list[bytes], NodeId] | None = None
    """A getter's own sources: they go in last, at the root."""
    size: int = 0
    layout: bytes = b""
    degree: int = 1
    no_stripes: bool = False
    turn: int = 0
    """Its sequence number among striped reductions."""
    inline_version: Version | None = None
    """What is combined at once, since all sources are small."""
    inline_host: NodeId | None = None
    """The node that combines it; None if the directory does."""

    def __post_init__(self) -> None:
        self.target = self.record.ref

    def move(self, state: ReductionState) -> None:
        assert (self.state, state) in REDUCTION_MOVES, f"a reduction: {self.state.value} does not become {state.value}"
        self.state = state

    def is_bound(self) -> bool:
        """Whether the target grows: it may then be a part of another reduction. One that is gathered does not."""
        if self.root is None or self.root.gathers:
            return False
        return self.root.bound or self.record.has_copy()

    def uses(self, version: Version) -> bool:
        """Whether this is one of the chosen sources of a result that is not decided."""
        return self.chosen.get(version.ref) == version

    def tops(self) -> list[Slot]:
        """The slots that are in no other: the root, or as long as there is none, those that will go into it."""
        return [self.root] if self.root is not None else [self.slots[t] for t, _ in self.terms if t in self.slots]

    def below(self, slot: Slot) -> list[Slot]:
        """The slots that the slot is made of."""
        return [self.slots[part] for part in slot.parts if part in self.slots]

    def makers(self, root: Slot) -> list[Slot]:
        """The slots whose hosts make the target: its root, or the end of every stripe."""
        return [self.slots[ref] for ref in root.parts] if root.gathers else [root]

    def ring(self) -> list[NodeId]:
        """Where the sources of a striped target are, in the order of its chains."""
        nodes: list[NodeId] = []
        slot = self.slots.get(self.root.parts[0]) if self.root is not None and self.root.gathers else None
        while slot is not None:
            nodes.append(slot.prefers)
            slot = self.slots.get(slot.parts[-1])
        return nodes[::-1]


@dataclass(slots=True)
class Record:
    """One ref. `waiting` holds the nodes that want it and have no place in a tree: while it has no version, and the
    node that is putting it, whose own gets are answered when its put is complete."""

    ref: bytes
    broadcast: Broadcast | None = None
    waiting: dict[NodeId, Member] = field(default_factory=dict)
    watchers: dict[NodeId, Member] = field(default_factory=dict)
    put: tuple[NodeId, int] | None = None
    """Whose call made the current version, so that a put sent twice is known as one."""
    deferred: list[tuple[NodeId, Put]] = field(default_factory=list)
    """Puts that arrived while the version was not complete and could still fail."""
    deleted: bool = False
    nodes: dict[NodeId, Member] = field(default_factory=dict)
    """Every node that is involved with the ref; the other side of `Member.refs`."""
    reduction: Reduction | None = None
    """What makes the object, while it is not decided: it is the target, or the output of one of its slots."""
    slot: Slot | None = None
    consumers: dict[bytes, Reduction] = field(default_factory=dict)
    """Undecided reductions of which the ref is a source, by target."""
    spec: Reduce | None = None
    contributors: dict[bytes, Version] | None = None
    """What went into a target that is decided."""
    decided: Version | None = None
    """The version that a target became."""
    askers: dict[tuple[NodeId, int], None] = field(default_factory=dict)
    outlook: tuple[object, ...] = ()
    """As the reductions that it is a source of know it."""
    stripe_of: bytes | None = None
    """The decided target that some nodes still assemble from this."""

    def idle(self) -> bool:
        return not (
            self.broadcast
            or self.waiting
            or self.watchers
            or self.deferred
            or self.reduction
            or self.consumers
            or self.askers
        )

    def has_copy(self) -> bool:
        return self.broadcast is not None and bool(self.broadcast.copies)

    def is_stripe(self) -> bool:
        """A stripe has no waiting nodes: it is sent to the nodes that get the target, while that has this version of
        it."""
        return self.stripe_of is not None or (self.slot is not None and self.slot.cut is not None)

    def is_chosen(self) -> bool:
        """In whatever version, by a reduction that is not decided."""
        return any(self.ref in reduction.chosen for reduction in self.consumers.values())

    def pinned(self) -> bool:
        """Chosen, in this version, by a reduction that is not decided: a delete hides it, and frees it later."""
        version = self.broadcast.version if self.broadcast is not None else None
        return version is not None and any(reduction.uses(version) for reduction in self.consumers.values())

    def forget_calls(self, node: NodeId) -> None:
        """What the node has asked for, but not what it holds."""
        self.watchers.pop(node, None)
        self.waiting.pop(node, None)
        self.deferred = [(putter, put) for putter, put in self.deferred if putter != node]
        for asker in [asker for asker in self.askers if asker[0] == node]:
            del self.askers[asker]
