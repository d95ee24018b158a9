"""The slots of a reduction: builds chosen sources into a tree, or into one tree per stripe.

A *term* is a source or the output of a slot. An arriving source becomes the head of a slot that takes the last terms of
equal height as its other parts, or becomes a term itself. So every slot's parts are older than itself, neighbours in
time are neighbours in the tree, each slot can start at once, and the last arrival is the root. With degree 1 it is a
chain.

A target that all hosts get may be built in *stripes* (see `stripes`): each stripe has its own chain of slots, made of
the same sources, and the root gathers them.

This module decides only the shape, and changes nothing but the slots, terms and root of a reduction; what it adds is
returned. `hosts` and `binding` decide which node runs a slot, `reduction` which sources are chosen.
"""

import hashlib
from collections.abc import Callable

from hoplite_ucx.protocol.directory.records import Reduction, Slot
from hoplite_ucx.protocol.directory.spread import stripes
from hoplite_ucx.protocol.ids import REF_BYTES, NodeId


class TreeBuilder:
    def __init__(self, next_number: Callable[[], int]) -> None:
        """Slots are named by numbers that are not used twice."""
        self._next_number = next_number

    def slots_with(self, reduction: Reduction, part: bytes) -> list[Slot]:
        """The slot that the part goes into; of a source, one in each stripe."""
        return [slot for slot in reduction.slots.values() if part in slot.parts]

    # --- one tree ------------------------------------------------------------------------------------------------

    def add_groups(self, reduction: Reduction, batch: dict[NodeId, list[bytes]]) -> list[Slot]:
        added: list[Slot] = []
        for index, (node, refs) in enumerate(batch.items()):
            last = len(reduction.chosen) == reduction.spec.count and index == len(batch) - 1
            added += self.add_group(reduction, refs, node, last)
        return added

    def add_group(self, reduction: Reduction, refs: list[bytes], node: NodeId, last: bool) -> list[Slot]:
        """A getter's own sources are kept for the root: elsewhere its network card would have to receive both the parts
        of its slot and the result. If every host gets the result, that holds for the last one anyway, and nothing is
        kept."""
        gets = node == reduction.requester or node in reduction.record.waiting
        if gets and not last and reduction.held is None and not reduction.spec.everywhere:
            reduction.held = (refs, node)
            return []
        added: list[Slot] = []
        if last and reduction.held is not None:
            (held, at), reduction.held = reduction.held, None
            added = self._add_term(reduction, refs, node, last=False)
            refs, node = held, at
        return added + self._add_term(reduction, refs, node, last)

    def _add_term(self, reduction: Reduction, refs: list[bytes], node: NodeId, last: bool) -> list[Slot]:
        terms, degree = reduction.terms, reduction.degree
        if last:
            taken, reduction.terms = terms, []
        elif len(terms) >= degree and len({height for _, height in terms[-degree:]}) == 1:
            taken, reduction.terms = terms[-degree:], terms[:-degree]
        elif len(refs) == 1:
            reduction.terms.append((refs[0], 0))
            return []
        else:
            taken = []
        height = 1 + max((height for _, height in taken), default=0)
        ref = reduction.target if last else self._slot_ref(reduction)
        slot = self._add_slot(reduction, Slot(ref, [*refs, *(term for term, _ in taken)], height, node))
        if last:
            reduction.root = slot
        else:
            reduction.terms.append((ref, height))
        return [slot]

    def _add_slot(self, reduction: Reduction, slot: Slot) -> Slot:
        for part in slot.parts:
            if part in reduction.slots:
                reduction.slots[part].parent = slot
        reduction.slots[slot.ref] = slot
        return slot

    def split(self, reduction: Reduction, root: Slot) -> list[Slot]:
        """The root's parts go into a new slot, and that alone into the root: the same bytes, so the same version."""
        below = Slot(self._slot_ref(reduction), root.parts, root.height, root.prefers, parent=root)
        root.parts, root.height = [below.ref], root.height + 1
        return [self._add_slot(reduction, below)]

    def _slot_ref(self, reduction: Reduction) -> bytes:
        name = reduction.target + self._next_number().to_bytes(8, "big")
        return hashlib.blake2b(name, digest_size=REF_BYTES).digest()

    # --- stripes -------------------------------------------------------------------------------------------------

    def build_stripes(self, reduction: Reduction, ring: list[tuple[bytes, NodeId]], count: int) -> list[Slot]:
        """A chain for every stripe, each along the same ring; their ends are spread over it."""
        root = self._add_slot(reduction, Slot(reduction.target, [], 0, ring[0][1], gathers=True))
        for index, cut in enumerate(stripes.cuts(reduction.size, count)):
            last = index * len(ring) // count
            below: Slot | None = None
            for source, node in ring[last + 1 :] + ring[: last + 1]:
                parts, height = ([source, below.ref], below.height + 1) if below is not None else ([source], 1)
                slot = self._add_slot(reduction, Slot(self._slot_ref(reduction), parts, height, node, cut=cut))
                if below is not None:
                    below.parent = slot
                below = slot
            assert below is not None
            below.parent = root
            root.parts.append(below.ref)
        reduction.root = root
        return list(reduction.slots.values())
