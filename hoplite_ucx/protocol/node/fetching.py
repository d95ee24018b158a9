"""Every object this node is getting, one stream at a time, resumed where it is.

A `Fetch` lives from the first want to the last byte. Placements come from the directory and the newest wins; a stream
that was replaced is closed before the next one opens, because until then it may still write. The node reports a stream
that ended early with its watermark, and the directory answers with another sender. A target that comes in stripes has a
fetch without a stream, and one for each stripe (see `assembling`).
"""

from msgspec.structs import replace

from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.protocol.events import CallFailed, Got, ReceiveClosed, Supply
from hoplite_ucx.protocol.ids import NO_SLOT, CallId, Version, label
from hoplite_ucx.protocol.messages import (
    Assemble,
    Completed,
    Consumed,
    Declined,
    Halt,
    Halted,
    Inline,
    ObjectState,
    Partial,
    Place,
    Sealed,
    StreamFailed,
    StreamFault,
    Unwant,
    Want,
)
from hoplite_ucx.protocol.node.assembling import Assembling
from hoplite_ucx.protocol.node.context import Context
from hoplite_ucx.protocol.node.incoming import Fetch, Fetches, Incoming
from hoplite_ucx.protocol.node.memory import Holding, Input, Memory, Phase, Request
from hoplite_ucx.protocol.node.receiving import Receiving
from hoplite_ucx.protocol.node.serving import Serving

_WITHOUT_IT = {
    ObjectState.UNKNOWN: "no node has it: it was not put yet, or it was lost with its node",
    ObjectState.FAILED: "its reduction has failed",
    ObjectState.DELETED: "it was deleted",
}


class Fetching:
    def __init__(self, context: Context, memory: Memory, serving: Serving, receiving: Receiving) -> None:
        self._context = context
        self._memory = memory
        self._serving = serving
        self._receiving = receiving
        self.fetches = Fetches()
        self.assembling = Assembling(context, memory, serving, self.fetches, self)
        self._hungry: dict[bytes, None] = {}  # refs of fetches that wait for memory, and perhaps some that did
        self.getters: dict[CallId, bytes] = {}  # the ref that each get waits for

    # --- from users --------------------------------------------------------------------------------------------

    def get(self, ref: bytes, call: CallId) -> None:
        fetch = self.fetches.of_store(ref)
        if fetch is None:
            fetch = self.fetches[ref, NO_SLOT] = Fetch(ref)
            self._context.tell_directory(Want(ref))
        fetch.getters[call] = None
        self.getters[call] = ref

    def give_up(self, call: CallId) -> None:
        ref = self.getters.pop(call)
        fetch = self.fetches[ref, NO_SLOT]
        del fetch.getters[call]
        if not fetch.getters and fetch.placement is None and fetch.incoming is None and not self._awaits_seal(fetch):
            self._abandon(fetch)
            self._context.tell_directory(Unwant(ref))

    def put_here(self, holding: Holding) -> None:
        """A wanted object has been put on this node."""
        fetch = self._take_fetch(holding.ref)
        if fetch is not None:
            self._forget_request(fetch)
            self._drop_partial(fetch)
            for call in self._take_getters(fetch):
                self._memory.give_out(holding, call)

    def is_receiving(self, ref: bytes) -> bool:
        """Bytes are arriving, whatever the directory says."""
        fetch, assembly = self.fetches.of_store(ref), self.assembling.assemblies.get(ref)
        if assembly is not None:
            return bool(assembly.copying) or any(map(self.is_receiving, assembly.left))
        return fetch is not None and fetch.incoming is not None

    def awaiting(self, ref: bytes) -> list[CallId]:
        """The gets of an object, or of the target assembled from it."""
        fetch = self.fetches.of_store(ref)
        if fetch is None:
            return []
        return list(fetch.getters) if fetch.whole is None else self.awaiting(fetch.whole)

    def ask_again(self, ref: bytes) -> None:
        """A get of it would be answered now. If it waits for memory, the directory does not know of it."""
        fetch = self.fetches.of_store(ref)
        if fetch is not None and fetch.hungry_for is not None:
            self._context.tell_directory(Want(ref))

    def state_of(self, ref: bytes, known: ObjectState | None) -> str:
        """What a get without a value was waiting for; `known` is the directory's state of the object."""
        fetch = self.fetches.of_store(ref)
        if (fetch is None or fetch.sink is None) and known in _WITHOUT_IT:
            return _WITHOUT_IT[known]
        if fetch is not None and (fetch.hungry_for is not None or fetch.request is not None):
            return "the store has no room for it"
        if fetch is None or fetch.sink is None:
            coming = known is ObjectState.COMING
            return "it is still being put or reduced" if coming else "it exists, but none of its bytes have arrived"
        if self._awaits_seal(fetch):
            return "all its bytes have arrived, but its reduction is not sealed yet"
        received = f"{fetch.sink.watermark} of {fetch.sink.size} bytes have arrived"
        if fetch.placement is None:
            return f"{received}, and no node can send the rest now"
        if isinstance(fetch.placement, Assemble):
            return f"it is assembled from {len(fetch.placement.stripes)} stripes, and some have not arrived"
        sender = label(fetch.placement.sender)
        grows = ", where it is still being put or reduced" if known is ObjectState.COMING else ""
        return f"{received}, the rest comes from {sender}{grows}"

    # --- from the directory ------------------------------------------------------------------------------------

    def place(self, placement: Place) -> None:
        version = placement.version
        if placement.into:
            fetch = self.fetches.get((version.ref, placement.into))
            if fetch is not None and isinstance(fetch.sink, Input) and fetch.sink.version == version:
                self.take(fetch, placement)
            return  # else the slot is over, and the directory knows
        existing = self._memory.get(version)
        if existing is not None and existing.phase is Phase.COMPLETE:
            self._context.tell_directory(Completed(version))
            return
        if self._memory.is_made(version):
            return  # a node is not sent what it makes itself
        if placement.piece and not self.fetches.is_stripe(version.ref):
            return  # what it is of is complete or given up here, and that report is on its way
        if placement.number <= self.fetches.newest_number(version.ref):
            return
        getting = self.fetches.for_store(version.ref)
        if (getting.sink is not None and getting.sink.version != version) or getting.ref in self.assembling.assemblies:
            self.let_go(getting)
        self.take(getting, placement)

    def take(self, fetch: Fetch, placement: Place | Assemble) -> None:
        """The newest placement wins; the stream of an older one is closed first."""
        if placement.number <= fetch.number:
            return
        self._forget_request(fetch)
        self.note_placement(fetch, placement)
        if fetch.incoming is not None:
            self._receiving.close(fetch.incoming)
        elif fetch.sink is not None:
            self.open(fetch)
        elif fetch.whole is None:  # else the memory is the target's, and was asked for
            self._reserve(fetch, placement)

    def note_placement(self, fetch: Fetch, placement: Place | Assemble) -> None:
        fetch.number = placement.number
        fetch.placement = placement
        fetch.version = placement.version
        if placement.sealed:
            self._note_seal(fetch, Sealed(placement.version, placement.origin))
        if isinstance(fetch.sink, Input):
            fetch.sink.sealed = placement.sealed
        fetch.halt = None
        fetch.hungry_for = None

    def halt(self, halt: Halt) -> None:
        fetch = self.fetches.get((halt.version.ref, halt.into))
        placement = fetch.placement if fetch is not None else None
        if fetch is None or placement is None or placement.number != halt.number:
            return  # it failed or completed, and that report is on its way
        fetch.halt = halt.number
        if fetch.incoming is not None:
            self._receiving.close(fetch.incoming)
        else:
            self._report_halt(fetch)

    def inline(self, inline: Inline) -> None:
        if inline.into:
            self._supply(inline)
            return
        fetch = self._take_fetch(inline.version.ref)
        if fetch is None:
            return
        self._forget_request(fetch)
        self._drop_partial(fetch)
        for call in self._take_getters(fetch):
            self._context.answer(Got(call, inline.version, inline.layout, len(inline.data), None, inline.data))

    def _supply(self, inline: Inline) -> None:
        """A part of a slot that is small enough to come with the message."""
        fetch = self.fetches.get((inline.version.ref, inline.into))
        if fetch is None or fetch.incoming is not None or not isinstance(fetch.sink, Input):
            return
        sink = fetch.sink
        if sink.version == inline.version and sink.size == len(inline.data):
            self._context.emit(Supply(sink.segment, sink.part, inline.data))
            sink.watermark = sink.size
            sink.sealed = True  # only what is decided is kept with the directory
            self._complete(fetch, sink)

    def failed(self, ref: bytes, failure: Failure) -> None:
        fetch = self._take_fetch(ref)
        if fetch is None:
            return
        self._forget_request(fetch)
        for call in self._take_getters(fetch):
            self._context.answer(CallFailed(call, failure))
        self._drop_partial(fetch)

    def dropped(self, version: Version) -> None:
        """The version is over. Gets that still wait for the ref want the next one; slots are told what they need."""
        self.assembling.dropped(version)
        fetch = self.fetches.of_store(version.ref)
        if fetch is None or fetch.version != version:
            return
        self._forget_request(fetch)
        self._drop_partial(fetch)
        fetch.placement = fetch.halt = fetch.version = None
        if fetch.getters:
            self._context.tell_directory(Want(version.ref))
        else:
            del self.fetches[version.ref, NO_SLOT]

    def sealed(self, seal: Sealed) -> None:
        """The version is decided: a complete copy may be given out, now or when the last byte arrives."""
        version = seal.version
        fetch = self.fetches.of_store(version.ref)
        holding = self._memory.get(version)
        if fetch is not None:
            self._note_seal(fetch, seal)
        if holding is None:
            return
        holding.sealed = True
        holding.origin = seal.origin
        if fetch is not None and holding.phase is Phase.COMPLETE and fetch.sink in (holding, None):
            del self.fetches[version.ref, NO_SLOT]
            self._forget_request(fetch)
            for call in self._take_getters(fetch):
                self._memory.give_out(holding, call)
        self._memory.release(holding)

    def _note_seal(self, fetch: Fetch, seal: Sealed) -> None:
        """There may be no memory for it yet: then the seal waits with the fetch."""
        fetch.sealed = seal
        if isinstance(fetch.sink, Holding) and fetch.sink.version == seal.version:
            fetch.sink.sealed = True
            fetch.sink.origin = seal.origin

    # --- slots -------------------------------------------------------------------------------------------------

    def feed(self, sink: Input, into: bytes) -> None:
        """A slot needs a part that this node does not have: its placement will come."""
        self.fetches[sink.version.ref, into] = Fetch(sink.version.ref, into, sink=sink)

    def received_of(self, version: Version) -> Holding | None:
        """The bytes of a version that no node sends to us at the moment."""
        fetch = self.fetches.of_store(version.ref)
        sink = fetch.sink if fetch is not None and fetch.placement is None and fetch.incoming is None else None
        return sink if isinstance(sink, Holding) and sink.version == version else None

    def hand_over(self, version: Version) -> None:
        """This node is to make the rest of what it was getting: the received bytes belong to the slot now."""
        self.fetches[version.ref, NO_SLOT].sink = None
        self.make_instead(version)

    def make_instead(self, version: Version) -> None:
        """This node is to make what it was getting: its gets will find it here."""
        fetch = self.fetches.of_store(version.ref)
        if fetch is not None and fetch.whole is not None:
            self.assembling.fail(fetch.whole)
        elif fetch is not None:
            self._forget_request(fetch)
            self._drop_partial(fetch)
            fetch.placement = fetch.halt = fetch.hungry_for = fetch.version = None
            if not fetch.getters:
                del self.fetches[version.ref, NO_SLOT]

    def missing_for(self, into: bytes) -> tuple[Version, ...]:
        return tuple(
            fetch.sink.version
            for fetch in self.fetches.values()
            if fetch.into == into and isinstance(fetch.sink, Input)
        )

    def stop_feeding(self, into: bytes) -> None:
        for key, fetch in list(self.fetches.items()):
            if fetch.into == into and into:
                del self.fetches[key]
                if fetch.incoming is not None:
                    self._receiving.close(fetch.incoming)

    def closed(self, event: ReceiveClosed) -> None:
        incoming = self._receiving.closed(event)
        if incoming is None:
            return
        fetch, sink = incoming.fetch, incoming.sink
        if sink.doomed or (fetch.into and self.fetches.get((fetch.ref, fetch.into)) is not fetch):
            self._memory.release(sink.owner)  # it, or the slot that it fed, was over before its stream was
            return
        fetch.incoming = None
        if sink.watermark == sink.size:
            self._complete(fetch, sink)
            return
        if fetch.halt is not None:
            self._report_halt(fetch)
        elif fetch.placement is not None and fetch.placement is not incoming.placement:
            self.open(fetch)
        elif fetch.placement is not None:
            self._report_failure(fetch, incoming, incoming.fault or event.fault or StreamFault.BROKEN)

    # --- the session -------------------------------------------------------------------------------------------

    def new_life(self) -> None:
        """The directory has forgotten us: objects that we were receiving are placed again, from where they are."""
        for target in list(self.assembling.assemblies):
            self.let_go(self.fetches[target, NO_SLOT])
        for fetch in list(self.fetches.values()):
            self._forget_request(fetch)
            fetch.placement = fetch.halt = None
            fetch.number = 0
            if fetch.incoming is not None:
                self._receiving.close(fetch.incoming)

    def announce(self) -> tuple[tuple[Partial, ...], tuple[bytes, ...]]:
        partials, wants = [], []
        for fetch in list(self.fetches.values()):
            if self._awaits_seal(fetch) or (fetch.whole is not None and fetch.sink is None):
                continue  # announced as a copy, or with the target
            if fetch.sink is not None and fetch.sink.version is not None:
                partials.append(_partial(fetch, fetch.sink, fetch.sink.version))
            elif fetch.getters and fetch.hungry_for is None:
                # An answer that was on its way is lost, and with it whatever it asked for.
                self._forget_request(fetch)
                fetch.placement = fetch.version = None
                wants.append(fetch.ref)
            elif not fetch.getters:
                self._forget_request(fetch)
                del self.fetches[fetch.ref, NO_SLOT]
        return tuple(partials), tuple(wants)

    # --- room --------------------------------------------------------------------------------------------------

    def review_hungry(self) -> None:
        """After memory has changed: ask again, or fail if there will be no room."""
        for ref in list(self._hungry):
            fetch = self.fetches.of_store(ref)
            if fetch is not None and fetch.hungry_for is not None:
                self._feed(fetch, fetch.hungry_for)
            else:
                del self._hungry[ref]

    def _reserve(self, fetch: Fetch, placement: Place | Assemble) -> None:
        fetch.request = Request(
            placement.size,
            patient=False,
            granted=lambda: self._granted(fetch, placement),
            denied=lambda: self._denied(fetch, placement),
        )
        self._memory.request(fetch.request)

    def _granted(self, fetch: Fetch, placement: Place | Assemble) -> None:
        fetch.request = fetch.wanted_at = None
        holding = self._memory.allocate(fetch.ref, placement.size, placement.layout, Phase.RECEIVING)
        seal = fetch.sealed
        holding.sealed = seal is not None and seal.version == placement.version
        holding.origin = seal.origin if seal is not None and holding.sealed else None
        fetch.sink = holding
        self._memory.name(holding, placement.version)
        self._serving.arrived(holding)
        self.open(fetch)

    def _denied(self, fetch: Fetch, placement: Place | Assemble) -> None:
        fetch.request = None
        self.assembling.end(fetch.ref)
        fetch.placement = fetch.version = None
        fetch.hungry_for = placement.size
        if fetch.wanted_at is None or self._memory.is_long_ago(fetch.wanted_at):
            fetch.hungry_since = self._memory.beats  # else it is still the same hunger
        self._hungry[fetch.ref] = None
        self._context.tell_directory(Declined(placement.version, placement.number))
        self._feed(fetch, placement.size)

    def _feed(self, fetch: Fetch, size: int) -> None:
        if not fetch.getters:
            del self.fetches[fetch.ref, NO_SLOT]
        elif self._memory.could_fit(size):
            fetch.hungry_for = None
            fetch.wanted_at = self._memory.beats
            self._context.tell_directory(Want(fetch.ref))
        elif not self._memory.could_come(size, fetch.hungry_since):
            self.failed(fetch.ref, store_full(fetch.ref, size, self._memory))

    # --- inside ------------------------------------------------------------------------------------------------

    def open(self, fetch: Fetch) -> None:
        placement, sink = fetch.placement, fetch.sink
        assert placement is not None
        assert sink is not None
        if isinstance(placement, Assemble):
            self.assembling.open(fetch)
            return
        if sink.watermark == sink.size:
            self._complete(fetch, sink)
            return
        fetch.incoming = self._receiving.open(fetch, placement, sink)

    def _complete(self, fetch: Fetch, sink: Holding | Input) -> None:
        if isinstance(sink, Input):
            del self.fetches[fetch.ref, fetch.into]
            self._context.tell_directory(Consumed(sink.version, fetch.into))
            self._memory.review()  # those who waited for what was in motion wait for less now
        else:
            self._complete_copy(fetch, sink)

    def _complete_copy(self, fetch: Fetch, holding: Holding) -> None:
        holding.phase = Phase.COMPLETE
        holding.used_at = self._context.now
        assert holding.version is not None
        self._context.tell(fetch.ref, "{} is complete", holding.version)
        self._context.tell_directory(Completed(holding.version))
        fetch.placement = fetch.halt = None
        if holding.sealed or not fetch.getters:
            del self.fetches[fetch.ref, NO_SLOT]
        if holding.sealed:
            for call in self._take_getters(fetch):
                self._memory.give_out(holding, call)
        self._memory.release(holding)
        if fetch.whole is not None:
            self.assembling.arrived(fetch.whole, fetch.ref)

    def _report_halt(self, fetch: Fetch) -> None:
        placement, fetch.placement, fetch.halt = fetch.placement, None, None
        assert placement is not None
        self._forget_request(fetch)
        watermark = fetch.sink.watermark if fetch.sink is not None else 0
        wanted = fetch.wanted()
        self._context.tell_directory(Halted(placement.version, placement.number, watermark, wanted, fetch.into))
        if not wanted:
            self._abandon(fetch)

    def _report_failure(self, fetch: Fetch, incoming: Incoming, fault: StreamFault) -> None:
        placement, fetch.placement = incoming.placement, None
        self._context.tell(fetch.ref, "{} from {}: {}", placement.version, label(placement.sender), fault.value)
        wanted = fetch.wanted()
        self._context.tell_directory(
            StreamFailed(
                placement.version,
                placement.number,
                incoming.sink.watermark,
                placement.sender,
                fault,
                wanted,
                fetch.into,
            )
        )
        if not wanted:
            self._abandon(fetch)

    def _abandon(self, fetch: Fetch) -> None:
        """No call waits for it and nothing runs: drop it, with the received bytes."""
        del self.fetches[fetch.ref, NO_SLOT]
        self._drop_partial(fetch)

    def _drop_partial(self, fetch: Fetch) -> None:
        """Drop an object that was being received."""
        self.assembling.end(fetch.ref)
        sink, fetch.sink = fetch.sink, None
        if fetch.incoming is not None:
            self._receiving.close(fetch.incoming)
            fetch.incoming = None
        if isinstance(sink, Holding):
            self._serving.gone(sink)
            self._memory.doom(sink)

    # --- for targets in stripes --------------------------------------------------------------------------------

    def assembled(self, fetch: Fetch) -> None:
        """The last stripe of a target is in."""
        assert isinstance(fetch.sink, Holding)
        fetch.sink.watermark = fetch.sink.size
        self._complete_copy(fetch, fetch.sink)

    def let_go(self, fetch: Fetch) -> None:
        self._forget_request(fetch)
        self._drop_partial(fetch)

    # --- small things ------------------------------------------------------------------------------------------

    def _take_fetch(self, ref: bytes) -> Fetch | None:
        """Its fetch ends; for a stripe, so does the target assembled from it."""
        fetch = self.fetches.of_store(ref)
        if fetch is not None and fetch.whole is not None:
            self.assembling.fail(fetch.whole)
        return self.fetches.pop((ref, NO_SLOT), None)

    def _awaits_seal(self, fetch: Fetch) -> bool:
        return isinstance(fetch.sink, Holding) and fetch.sink.phase is Phase.COMPLETE

    def _take_getters(self, fetch: Fetch) -> list[CallId]:
        calls, fetch.getters = list(fetch.getters), {}
        for call in calls:
            del self.getters[call]
        return calls

    def _forget_request(self, fetch: Fetch) -> None:
        if fetch.request is not None:
            self._memory.withdraw(fetch.request)
            fetch.request = None
            self.assembling.end(fetch.ref)  # which had no memory yet


def _partial(fetch: Fetch, sink: Holding | Input, version: Version) -> Partial:
    placement = fetch.placement
    sealed = sink.sealed if isinstance(sink, Holding) else placement is not None and placement.sealed
    origin = sink.origin if isinstance(sink, Holding) else placement.origin if placement is not None else None
    partial = Partial(
        version,
        sink.size,
        sink.owner.layout,
        sink.watermark,
        number=placement.number if placement is not None else 0,
        sealed=sealed,
        origin=origin,
        into=fetch.into,
        piece=fetch.whole is not None or isinstance(placement, Assemble),
    )
    if not isinstance(placement, Place):
        return partial
    return replace(partial, sender=placement.sender, rate=placement.rate)


def store_full(ref: bytes, size: int, memory: Memory) -> Failure:
    largest = ", ".join(f"{h.ref.hex()[:8]} ({h.size} bytes)" for h in memory.largest())
    return Failure(
        FailureKind.STORE_FULL,
        f"{size} bytes do not fit: {memory.used} of {memory.limit} are in use, the largest by {largest or 'nothing'}",
        "delete objects, drop arrays that came from get, or raise the store's limit",
        ref,
    )
