"""The slots of a reduction: how chosen sources are laid into a tree, or into one for every stripe.

A *term* is a source or the output of a slot; an arriving source becomes the head of a slot that takes the last terms of
equal height as its other parts, or a term of its own. So every slot's parts are older than itself, neighbours in time
are neighbours in the tree, each slot can start at once, and the last arrival is the root. With degree 1 it is a chain.

A target that everybody gets may be laid in *stripes* (see `stripes`): each has a chain of slots of its own, made of the
same sources, and the root gathers them.

Here is the shape only: who runs a slot is for `hosts` and `binding`, which sources are chosen for `reduction`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hoplite_ucx.protocol.cost import choose_degree, choose_stripes
from hoplite_ucx.protocol.directory.members import Member
from hoplite_ucx.protocol.directory.reduce import stripes
from hoplite_ucx.protocol.ids import REF_BYTES, NodeId, Version
from hoplite_ucx.protocol.messages import Reduce

if TYPE_CHECKING:
    from hoplite_ucx.protocol.directory.objects import Objects, Record


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
    lacking: set[bytes] | None = None
    """Taken by the host, and not bound: the parts that it does not have."""
    bound: bool = False
    start: int = 0
    """The first byte that the host combines."""
    lacks: int = 0
    """The host has nothing below this; it is 0 or `start`."""
    consumed: set[bytes] = field(default_factory=set)
    """Parts that the host does not need any more, or has itself."""
    unsure: set[bytes] = field(default_factory=set)
    """Of an adopted slot: parts that were not sealed as far as its host knows."""
    refused: dict[NodeId, float] = field(default_factory=dict)
    homeless_since: float | None = None
    cut: tuple[int, int] | None = None
    """Of a stripe: where it begins within the sources, and its size."""
    gathers: bool = False
    """The root of a striped target: its parts are the stripes, and whoever gets it puts them together."""


class Slots:
    """The tree, or trees, of one reduction."""

    def __init__(self, objects: Objects, record: Record, spec: Reduce, requester: NodeId) -> None:
        self._objects = objects
        self._world = objects.world
        self._requester = requester
        self.record = record
        self.spec = spec
        self.chosen: dict[bytes, Version] = {}
        self.slots: dict[bytes, Slot] = {}
        self.root: Slot | None = None
        self._terms: list[tuple[bytes, int]] = []  # ref, height
        self._held: tuple[list[bytes], NodeId] | None = None  # a getter's own sources: they go in last, at the root
        self._size = 0
        self._layout = b""
        self._degree = 1
        self._no_stripes = not spec.everywhere
        self.turn = 0
        """Laid in stripes: as the how manyth."""

    def _take_form(self, size: int, layout: bytes) -> None:
        self._size, self._layout = size, layout
        bandwidth = self._objects.members.bandwidth()
        self._degree = choose_degree(size, self.spec.count, bandwidth, self._world.costs)

    def _slots_with(self, part: bytes) -> list[Slot]:
        """The slot that the part goes into; of a source, one in each stripe."""
        return [slot for slot in self.slots.values() if part in slot.parts]

    def _home_of(self, ref: bytes) -> NodeId:
        return self._objects.home_of(ref)

    # --- one tree ------------------------------------------------------------------------------------------------

    def _add_groups(self, batch: dict[NodeId, list[bytes]]) -> None:
        for index, (node, refs) in enumerate(batch.items()):
            last = len(self.chosen) == self.spec.count and index == len(batch) - 1
            self._add_group(refs, node, last)

    def _add_group(self, refs: list[bytes], node: NodeId, last: bool) -> None:
        """A getter's own sources are kept for the root: elsewhere its network card would have to take in both what its
        slot combines and the result. If everybody gets it, that is so for whoever comes last, and nothing is kept."""
        gets = node == self._requester or node in self.record.waiting
        if gets and not last and self._held is None and not self.spec.everywhere:
            self._held = (refs, node)
            return
        if last and self._held is not None:
            (held, at), self._held = self._held, None
            self._add_term(refs, node, last=False)
            refs, node = held, at
        self._add_term(refs, node, last)

    def _add_term(self, refs: list[bytes], node: NodeId, last: bool) -> None:
        if last:
            taken, self._terms = self._terms, []
        elif len(self._terms) >= self._degree and len({height for _, height in self._terms[-self._degree :]}) == 1:
            taken, self._terms = self._terms[-self._degree :], self._terms[: -self._degree]
        elif len(refs) == 1:
            self._terms.append((refs[0], 0))
            return
        else:
            taken = []
        height = 1 + max((height for _, height in taken), default=0)
        ref = self.record.ref if last else self._slot_ref()
        slot = self._add_slot(Slot(ref, [*refs, *(term for term, _ in taken)], height, node))
        if last:
            self.root = slot
        else:
            self._terms.append((ref, height))

    def _add_slot(self, slot: Slot) -> Slot:
        for part in slot.parts:
            if part in self.slots:
                self.slots[part].parent = slot
        self.slots[slot.ref] = slot
        self._objects.record(slot.ref).slot = slot
        return slot

    def _split(self, root: Slot) -> None:
        """The root's parts go into a new slot, and that alone into the root: the same bytes, so the same version."""
        self._world.tell(self.record.ref, "its parts are combined for a getter that has a part of it")
        below = Slot(self._slot_ref(), root.parts, root.height, root.prefers, parent=root)
        root.parts, root.height = [below.ref], root.height + 1
        self._add_slot(below)

    def _slot_ref(self) -> bytes:
        name = self.record.ref + self._world.next_number().to_bytes(8, "big")
        return hashlib.blake2b(name, digest_size=REF_BYTES).digest()

    # --- stripes -------------------------------------------------------------------------------------------------

    def _choose_stripes(self) -> int:
        """More than one if it pays, and all sources are there: complete, decided, and not so small that they live
        here."""
        if self._no_stripes or not all(
            self._objects.has_copy(ref)
            and not self._objects.is_undecided(ref)
            and self._objects.inline_of(ref, version) is None
            for ref, version in self.chosen.items()
        ):
            return 1
        bandwidth = self._objects.members.bandwidth()
        return choose_stripes(self._size, self.spec.count, bandwidth, self._world.settings)

    def _lay_stripes(self, ring: list[tuple[bytes, NodeId]], count: int) -> None:
        """A chain for every stripe, each along the same ring; their ends are spread over it."""
        self.turn = self._objects.next_turn()
        root = self._add_slot(Slot(self.record.ref, [], 0, ring[0][1], gathers=True))
        for index, cut in enumerate(stripes.cuts(self._size, count)):
            last = index * len(ring) // count
            below: Slot | None = None
            for source, node in ring[last + 1 :] + ring[: last + 1]:
                parts, height = ([source, below.ref], below.height + 1) if below is not None else ([source], 1)
                slot = self._add_slot(Slot(self._slot_ref(), parts, height, node, cut=cut))
                if below is not None:
                    below.parent = slot
                below = slot
            assert below is not None
            below.parent = root
            root.parts.append(below.ref)
        self.root = root
        self._world.tell(self.record.ref, "laid in {} stripes", len(root.parts))

    def ring(self) -> list[NodeId]:
        """Where the sources of a striped target are, in the order of its chains."""
        nodes: list[NodeId] = []
        slot = self.slots.get(self.root.parts[0]) if self.root is not None and self.root.gathers else None
        while slot is not None:
            nodes.append(slot.prefers)
            slot = self.slots.get(slot.parts[-1])
        return nodes[::-1]
