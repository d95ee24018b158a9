"""Machines that are wrong on purpose, each in one rule: chaos must catch every one of them.

A simulator that finds nothing proves something only if it can find faults. Each mutant leaves out one rule of the
protocol; the number of seeds until it is caught says how well that rule is tested.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import msgspec

from hoplite_ucx.protocol import Directory, NodeState
from hoplite_ucx.protocol.directory.members import Member
from hoplite_ucx.protocol.directory.records import Record, Reduction, Slot
from hoplite_ucx.protocol.directory.reduce.binding import Binder
from hoplite_ucx.protocol.directory.reduce.hosts import Hosts
from hoplite_ucx.protocol.directory.reduce.reduction import Reductions
from hoplite_ucx.protocol.directory.reduce.tree_builder import TreeBuilder
from hoplite_ucx.protocol.directory.retiring import Retiring
from hoplite_ucx.protocol.directory.spread.broadcast import Broadcast
from hoplite_ucx.protocol.events import NodeEffect
from hoplite_ucx.protocol.ids import CallId, NodeId, Version
from hoplite_ucx.protocol.messages import Declined, Eviction, ObjectState, Place, Polled, Result
from hoplite_ucx.protocol.node.calls import PendingPut
from hoplite_ucx.protocol.node.context import OpenPoll
from hoplite_ucx.protocol.node.incoming import Fetch, Incoming
from hoplite_ucx.protocol.node.memory import Holding, Input, Phase
from hoplite_ucx.protocol.node.succession import Remains
from hoplite_ucx.simulate.cluster import VirtualCluster
from hoplite_ucx.simulate.drawing import Ambush


class _NoFlush(Broadcast):
    """Declares a loss without waiting for what live receivers report."""

    def is_lost(self) -> bool:
        return not self.has_root()


class _NoCycleCheck(Broadcast):
    """Places a receiver behind its own descendants."""

    def _is_rooted(self, *_: NodeId) -> bool:
        return True


class _EvictsLastCopy(Broadcast):
    """Evicts a copy without checking whether there is another."""

    def evict(self, node: NodeId) -> Eviction:
        if node in self.copies and self.inline is None:
            self.remove(node)
        return Eviction.GRANTED


class _NoVersionCheck(NodeState):
    """Serves whatever it has of a ref, whichever version was asked for."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.serving.holding_for = self._any_version  # type: ignore[method-assign]

    def _any_version(self, version: Version) -> Holding | None:
        return next((h for v, h in self.memory.holdings.items() if v.ref == version.ref), None)


class _NoStarvedSignal(NodeState):
    """A sender without anything to send says nothing."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.serving.tell_idle = lambda *_, **__: None  # type: ignore[method-assign]


class _NoSeal(NodeState):
    """Takes a put for complete as soon as the directory has accepted it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        finish = self.calls._finish_put

        def finish_early(put: PendingPut) -> None:
            if put.accepted is not None and put.holding is not None:
                put.holding.writing = False
                put.holding.watermark = put.holding.size
            finish(put)

        self.calls._finish_put = finish_early  # type: ignore[method-assign]


class _RecyclesEarly(NodeState):
    """Frees a segment while a cancelled stream may still write to it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        release = self.memory.release

        def release_early(holding: Holding) -> None:
            receive, holding.receive = holding.receive, None
            release(holding)
            holding.receive = receive

        self.memory.release = release_early  # type: ignore[method-assign]


class _TakesTargetsForSealed(NodeState):
    """Gives out a reduction's result before it is decided."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        place = self.fetching.place
        self.fetching.place = lambda placement: place(msgspec.structs.replace(placement, sealed=True))  # type: ignore[method-assign]


class _NeverAsks(NodeState):
    """Takes an object it does not know for missing, without asking the directory."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)

        def answer_alone(call: CallId, poll: OpenPoll) -> None:
            self._context.polls[call] = poll
            self.calls.polled(Polled(call, ObjectState.UNKNOWN))

        self.calls._poll = answer_alone  # type: ignore[method-assign]


class _GoesOnAfterRaising(NodeState):
    """Raises in the middle of an event, and goes on as if nothing had been."""

    def successor(self, *_: object) -> tuple[Self, list[NodeEffect]]:
        return self, self._context.take_effects()


class _KeepsTheUnfinished(NodeState):
    """Takes what an earlier machine left for whole, whatever the shell has of it."""

    def successor(self, remains: Remains, now: float) -> tuple[Self, list[NodeEffect]]:
        for holding in self.memory.holdings.values():
            holding.phase = Phase.COMPLETE
        segments = {number: replace(segment, final=True) for number, segment in remains.segments.items()}
        return super().successor(replace(remains, segments=segments), now)


class _DirectoryGoesOnAfterRaising(Directory):
    """The same, of a directory: its nodes join it again."""

    def successor(self, *_: object) -> Self:
        return self


class _TwiceInTheTree(TreeBuilder):
    def add_group(self, reduction: Reduction, refs: list[bytes], node: NodeId, last: bool) -> list[Slot]:
        if last:
            refs = [*refs, next(iter(reduction.chosen))]
        return super().add_group(reduction, refs, node, last)


class _CountsTwice(Reductions):
    """Takes its first source once more with the last."""

    builder_type = _TwiceInTheTree


class _KeepsVersions(Reductions):
    """Replaces a source without renewing the slots above, whose bytes change."""

    def _renew(self, slot: Slot) -> None:
        self.binder.end_output(slot)


class _OneStripeAlone(TreeBuilder):
    def slots_with(self, reduction: Reduction, part: bytes) -> list[Slot]:
        return super().slots_with(reduction, part)[:1]


class _ReplacesInOneStripe(Reductions):
    """Takes another source in one stripe, and leaves the lost one in the others."""

    builder_type = _OneStripeAlone


class _BeyondTheLowest(Hosts):
    def lowest_needed(self, reduction: Reduction, slot: Slot) -> int:
        lowest = super().lowest_needed(reduction, slot)
        return min(lowest + lowest // 2, reduction.size)


class _NeverLower(Binder):
    def bind_lower(self, reduction: Reduction, slot: Slot) -> None:
        """Nor is that put right."""


class _BeginsTooFar(Reductions):
    """Lets a takeover of a slot begin beyond what its receivers have."""

    hosts_type = _BeyondTheLowest
    binder_type = _NeverLower


class _SealsEarly(Reductions):
    """Decides a result while a source of it may still become another version."""

    def _seal_if_decided(self, reduction: Reduction) -> None:
        root = reduction.root
        if root is not None and root.bound:
            self._seal(reduction)


class _CountsDeclined(Directory):
    """Goes on to count on the copy of a small result for which a node had no room."""

    def _on_declined(self, member: Member, declined: Declined) -> None:
        if declined.number:
            super()._on_declined(member, declined)


class _EvictsLastSmallCopy(Broadcast):
    """Evicts every copy of a small object, since the directory has its bytes."""

    def evict(self, node: NodeId) -> Eviction:
        if self.inline is not None:
            self.remove(node)
            return Eviction.GRANTED
        return super().evict(node)


class _KeepsTheUndecided(NodeState):
    """Gives out a small result that it combined, before the directory has taken it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        combined = self.reducing.combined_inline

        def combined_and_sealed(version: Version, data: bytes) -> None:
            combined(version, data)
            if (holding := self.memory.get(version)) is not None:
                holding.sealed = True

        self.reducing.combined_inline = combined_and_sealed  # type: ignore[method-assign]


class _ForgetsHowItCameAbout(NodeState):
    """Keeps a small result like the bytes of a put."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        keep = self.reducing.result

        def without_origin(result: Result) -> None:
            keep(result)
            if (holding := self.memory.get(result.version)) is not None:
                holding.origin = None

        self.reducing.result = without_origin  # type: ignore[method-assign]


class _CountsNoResults(Reductions):
    """Gives small results to nodes, and does not count their copies."""

    def hand_over(self, record: Record, member: Member) -> None:
        super().hand_over(record, member)
        if record.broadcast is not None and record.broadcast.inline is not None:
            record.broadcast.copies.pop(member.node, None)


class _LeavesAtOnce(Retiring):
    """Lets a node leave without asking what is lost with it."""

    def _must_stay(self, *_: object) -> bool:
        return False


class _TrustsLeavers(Broadcast):
    """Counts the copy of a node that is going to leave as a good one."""

    def has_good_copy(self, besides: NodeId) -> bool:
        return any(member.usable() for node, member in self.copies.items() if node != besides)


class _AsksOnce(NodeState):
    """Says that it retires in one session only."""

    def _join(self) -> None:
        retiring, self._retiring = self._retiring, False
        super()._join()
        self._retiring = retiring


class _StripesInARing(Broadcast):
    """Places a host that lost the sender of a stripe behind its own descendants in that stripe."""

    def _is_rooted(self, *nodes: NodeId) -> bool:
        return self.whole > self.size or super()._is_rooted(*nodes)


class _ResumesAtAnotherStripe(NodeState):
    """Resumes a stripe where the furthest of its object's stripes is."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        resume = self.receiving.open

        def resume_further(fetch: Fetch, placement: Place, sink: Holding | Input) -> Incoming:
            whole = sink.parent if isinstance(sink, Holding) else None
            if whole is not None and sink.watermark:
                beside = [h.watermark for h in self.memory.segments.values() if h.parent is whole]
                sink.watermark = min(sink.size - 1, max(beside))
            return resume(fetch, placement, sink)

        self.receiving.open = resume_further  # type: ignore[method-assign]


class _LeavesAHole(NodeState):
    """Takes an object for complete when all stripes that were placed are, though others never were."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        assembling, arrived = self.fetching.assembling, self.fetching.assembling.arrived

        def arrived_if_placed(target: bytes, stripe: bytes) -> None:
            left = assembling.assemblies[target].left
            fetches = {ref: self.fetching.fetches.of_store(ref) for ref in left if ref != stripe}
            if all(fetch is not None and fetch.placement is None for fetch in fetches.values()):
                for ref in fetches:
                    del left[ref]
            arrived(target, stripe)

        assembling.arrived = arrived_if_placed  # type: ignore[method-assign]


class _MixesVersions(NodeState):
    """Goes on with what it had of every stripe when an object was lost and the next one comes under its name."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        assembling, fetches = self.fetching.assembling, self.fetching.fetches
        end, begin = assembling.end, assembling.open
        kept: dict[bytes, tuple[Version, list[int]]] = {}

        def end_and_remember(target: bytes) -> None:
            if (assembly := assembling.assemblies.get(target)) is not None:
                windows = [self.memory.get(stripe.version) for stripe in assembly.message.stripes]
                kept[target] = (assembly.message.version, [w.watermark if w is not None else 0 for w in windows])
            end(target)

        def begin_further(fetch: Fetch) -> None:
            begin(fetch)
            version, watermarks = kept.pop(fetch.ref, (None, []))
            message = assembling.assemblies[fetch.ref].message
            for stripe, watermark in zip(message.stripes, watermarks, strict=False):
                piece = fetches.of_store(stripe.version.ref)
                if version != message.version and piece is not None and isinstance(piece.sink, Holding):
                    piece.sink.watermark = min(watermark, stripe.size - 1)

        assembling.end = end_and_remember  # type: ignore[method-assign]
        assembling.open = begin_further  # type: ignore[method-assign]


class _ForgetsReaders(NodeState):
    """Frees the window of a stripe that is over while another node still reads it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        release = self.memory.release

        def release_early(holding: Holding) -> None:
            serves = holding.serves
            if holding.piece:
                holding.serves = 0
            release(holding)
            holding.serves = serves

        self.memory.release = release_early  # type: ignore[method-assign]


def _with_retiring(retiring: type[Retiring]) -> type[VirtualCluster]:
    directory = type("MutantDirectory", (Directory,), {"retiring_type": retiring})
    return type("MutantCluster", (VirtualCluster,), {"directory_machine": directory})


def _with_reductions(reductions: type[Reductions]) -> type[VirtualCluster]:
    directory = type("MutantDirectory", (Directory,), {"reductions_type": reductions})
    return type("MutantCluster", (VirtualCluster,), {"directory_machine": directory})


def _with_broadcast(broadcast: type[Broadcast]) -> type[VirtualCluster]:
    directory = type("MutantDirectory", (Directory,), {"broadcast_type": broadcast})
    return type("MutantCluster", (VirtualCluster,), {"directory_machine": directory})


def _with_node(node: type[NodeState]) -> type[VirtualCluster]:
    return type("MutantCluster", (VirtualCluster,), {"node_machine": node})


def _with_directory(directory: type[Directory]) -> type[VirtualCluster]:
    return type("MutantCluster", (VirtualCluster,), {"directory_machine": directory})


@dataclass(frozen=True, slots=True)
class Mutant:
    """A rule left out, and the ambush that it takes to notice where the full mix would take thousands of seeds."""

    cluster: Callable[[], type[VirtualCluster]]
    focus: Ambush | None = None


MUTANTS: dict[str, Mutant] = {
    "no-flush": Mutant(lambda: _with_broadcast(_NoFlush)),
    "no-cycle-check": Mutant(lambda: _with_broadcast(_NoCycleCheck)),
    "evicts-last-copy": Mutant(lambda: _with_broadcast(_EvictsLastCopy)),
    "no-version-check": Mutant(lambda: _with_node(_NoVersionCheck), Ambush.SLOT),
    "no-starved-signal": Mutant(lambda: _with_node(_NoStarvedSignal)),
    "no-seal": Mutant(lambda: _with_node(_NoSeal)),
    "recycles-early": Mutant(lambda: _with_node(_RecyclesEarly), Ambush.TRANSFER),
    "gives-out-undecided": Mutant(lambda: _with_node(_TakesTargetsForSealed)),
    "never-asks": Mutant(lambda: _with_node(_NeverAsks)),
    "goes-on-after-raising": Mutant(lambda: _with_node(_GoesOnAfterRaising)),
    "keeps-the-unfinished": Mutant(lambda: _with_node(_KeepsTheUnfinished)),
    "directory-goes-on-after-raising": Mutant(lambda: _with_directory(_DirectoryGoesOnAfterRaising)),
    "counts-a-source-twice": Mutant(lambda: _with_reductions(_CountsTwice)),
    "keeps-versions": Mutant(lambda: _with_reductions(_KeepsVersions)),
    "seals-early": Mutant(lambda: _with_reductions(_SealsEarly)),
    "replaces-in-one-stripe": Mutant(lambda: _with_reductions(_ReplacesInOneStripe), Ambush.STRIPE),
    "begins-too-far": Mutant(lambda: _with_reductions(_BeginsTooFar), Ambush.SLOT),
    "counts-declined": Mutant(lambda: _with_directory(_CountsDeclined), Ambush.SMALL),
    "counts-no-results": Mutant(lambda: _with_reductions(_CountsNoResults), Ambush.SMALL),
    "keeps-the-undecided": Mutant(lambda: _with_node(_KeepsTheUndecided), Ambush.SMALL),
    "forgets-how-it-came-about": Mutant(lambda: _with_node(_ForgetsHowItCameAbout), Ambush.SMALL),
    "evicts-last-small-copy": Mutant(lambda: _with_broadcast(_EvictsLastSmallCopy), Ambush.SMALL),
    "leaves-at-once": Mutant(lambda: _with_retiring(_LeavesAtOnce), Ambush.LEAVING),
    "trusts-leavers": Mutant(lambda: _with_broadcast(_TrustsLeavers), Ambush.LEAVING),
    "retires-in-one-session": Mutant(lambda: _with_node(_AsksOnce), Ambush.LEAVING),
    "stripes-in-a-ring": Mutant(lambda: _with_broadcast(_StripesInARing), Ambush.CROWD),
    "resumes-at-another-stripe": Mutant(lambda: _with_node(_ResumesAtAnotherStripe), Ambush.CROWD),
    "leaves-a-hole": Mutant(lambda: _with_node(_LeavesAHole), Ambush.CROWD),
    "mixes-versions-of-stripes": Mutant(lambda: _with_node(_MixesVersions), Ambush.CROWD),
    "forgets-readers-of-stripes": Mutant(lambda: _with_node(_ForgetsReaders), Ambush.CROWD),
}
