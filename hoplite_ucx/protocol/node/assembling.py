"""Objects that come in stripes: one segment, filled through windows, each of which is an object that is got like any
other. If a node has all of an object that is cut for others, it serves the stripes as windows of its copy.

The node takes memory for the whole target before it accepts anything of it. Then every stripe has a *window*, a holding
that shares its piece of the segment: streams fill it, other nodes may pull from it, and all repairs are those of the
stripe. A stripe that is made on this node is copied into its window as it grows, and is not evicted while the assembly
runs: the directory counts on the node having it. When all windows are full, the target is complete; windows stay as
copies of their stripes until these are over.

If a stripe ends before that, so does the assembly: the node reports it like a failed stream of the target, and the
directory decides how to continue. No byte of the segment is used for another attempt.
"""

from dataclasses import dataclass, field
from typing import Protocol

from hoplite_ucx.protocol.events import Duplicate
from hoplite_ucx.protocol.ids import NO_SLOT, Version
from hoplite_ucx.protocol.messages import Assemble, Completed, Cut, Place, StreamFailed, StreamFault
from hoplite_ucx.protocol.node.context import Context
from hoplite_ucx.protocol.node.incoming import Fetch, Fetches
from hoplite_ucx.protocol.node.memory import Holding, Memory, Phase
from hoplite_ucx.protocol.node.serving import Serving


class Fetcher(Protocol):
    """What assembling needs from fetching, for the target and for its stripes."""

    def take(self, fetch: Fetch, placement: Place | Assemble) -> None: ...

    def note_placement(self, fetch: Fetch, placement: Place | Assemble) -> None: ...

    def open(self, fetch: Fetch) -> None: ...

    def assembled(self, fetch: Fetch) -> None: ...

    def let_go(self, fetch: Fetch) -> None: ...


@dataclass(slots=True, eq=False)
class Copying:
    """A stripe that is made here, on its way into its window."""

    ref: bytes
    window: Holding


@dataclass(slots=True, eq=False)
class Assembly:
    message: Assemble
    left: dict[bytes, None]
    """Stripes that are not complete here."""
    made: dict[bytes, Holding] = field(default_factory=dict)
    """Stripes that are made on this node."""
    copying: dict[int, Copying] = field(default_factory=dict)  # by the window's segment

    def has(self, version: Version) -> bool:
        return any(stripe.version == version for stripe in self.message.stripes)


class Assembling:
    def __init__(self, context: Context, memory: Memory, serving: Serving, fetches: Fetches, fetcher: Fetcher) -> None:
        self._context = context
        self._memory = memory
        self._serving = serving
        self._fetches = fetches
        self._fetcher = fetcher
        self.assemblies: dict[bytes, Assembly] = {}  # by target

    def copied_into(self, segment: int) -> list[bytes]:
        """The targets whose window this is, while a stripe is copied into it."""
        return [target for target, assembly in self.assemblies.items() if segment in assembly.copying]

    def made_for(self, segment: int) -> tuple[bytes, list[int]]:
        """The target that is assembled in a segment, and the segments of its stripes that are made here."""
        ref = self._memory.segments[segment].ref
        assembly = self.assemblies.get(ref)
        return ref, [made.segment for made in assembly.made.values()] if assembly is not None else []

    def assemble(self, message: Assemble) -> None:
        """The directory says what the target is assembled from; each stripe's placement follows."""
        ref = message.version.ref
        existing = self._memory.get(message.version)
        if existing is not None and existing.phase is Phase.COMPLETE:
            self._context.tell_directory(Completed(message.version))
            return
        if message.number <= self._fetches.newest_number(ref) or not self._makes_sense(message):
            return
        fetch = self._fetches.for_store(ref)
        old = self.assemblies.get(ref)
        if old is not None and fetch.sink is not None and old.message.stripes == message.stripes:
            old.message = message  # it goes on as it is
            self._fetcher.note_placement(fetch, message)
            return
        self._fetcher.let_go(fetch)
        assembly = self.assemblies[ref] = Assembly(message, {stripe.version.ref: None for stripe in message.stripes})
        for stripe in message.stripes:
            made = self._memory.get(stripe.version)
            if made is not None and made.phase in (Phase.REDUCING, Phase.COMPLETE):
                made.uses += 1
                assembly.made[stripe.version.ref] = made
            else:
                self._fetch_stripe(stripe.version.ref, ref)
        self._fetcher.take(fetch, message)

    def cut(self, message: Cut) -> None:
        """Others get stripes of an object that is complete here: each is a window of it."""
        whole = self._memory.get(message.version)
        if whole is None or whole.phase is not Phase.COMPLETE or whole.size != message.size:
            return
        if any(self._fetches.of_store(stripe.version.ref) is not None for stripe in message.stripes):
            return  # it is got as another object
        offset = 0
        for stripe in message.stripes:
            if self._memory.get(stripe.version) is None:
                window = self._memory.window(whole, offset, stripe.size, Phase.COMPLETE, stripe.version.ref)
                window.watermark = stripe.size
                window.sealed = True
                self._memory.name(window, stripe.version)
                self._serving.arrived(window)
            offset += stripe.size

    def open(self, fetch: Fetch) -> None:
        """There is memory: every stripe gets its window."""
        assembly, whole = self.assemblies[fetch.ref], fetch.sink
        assert isinstance(whole, Holding)
        offset = 0
        for stripe in assembly.message.stripes:
            version = stripe.version
            made = assembly.made.get(version.ref)
            window = self._memory.window(whole, offset, stripe.size, Phase.RECEIVING, version.ref)
            offset += stripe.size
            if made is not None:
                assembly.copying[window.segment] = Copying(version.ref, window)
                self._context.emit(Duplicate(window.segment, made.segment))
            else:
                self._memory.name(window, version)
                self._fetches[version.ref, NO_SLOT].sink = window
                self._serving.arrived(window)
        for ref in list(assembly.left):
            self._open_if_placed(ref)

    def copied(self, segment: int) -> None:
        """A stripe that was made here is in its window, which has no other use."""
        for target, assembly in list(self.assemblies.items()):
            if (copying := assembly.copying.pop(segment, None)) is not None:
                self._memory.doom(copying.window)
                self.arrived(target, copying.ref)

    def arrived(self, target: bytes, stripe: bytes) -> None:
        assembly = self.assemblies[target]
        del assembly.left[stripe]
        if not assembly.left:
            del self.assemblies[target]
            self._fetcher.assembled(self._fetches[target, NO_SLOT])
            self._release_made(assembly)

    def dropped(self, version: Version) -> None:
        """The version is over; if it was a stripe, so is the target assembled from it."""
        for target, assembly in list(self.assemblies.items()):
            if assembly.has(version):
                self.fail(target)

    def fail(self, target: bytes) -> None:
        """It cannot be assembled like this. The directory knows another way, or soon will."""
        message = self.assemblies[target].message
        fetch = self._fetches.for_store(target)
        self._fetcher.let_go(fetch)
        fetch.placement = None
        wanted = bool(fetch.getters)
        if not wanted:
            del self._fetches[target, NO_SLOT]
        self._context.tell(target, "{} cannot be put together", message.version)
        self._context.tell_directory(
            StreamFailed(message.version, message.number, 0, self._context.node, StreamFault.ABSENT, wanted)
        )

    def end(self, target: bytes) -> None:
        """Nothing fills the target any more: its windows end, and the streams into them."""
        assembly = self.assemblies.pop(target, None)
        if assembly is None:
            return
        for copying in assembly.copying.values():
            self._memory.doom(copying.window)
        self._release_made(assembly)
        for stripe in assembly.message.stripes:
            self._forget_stripe(stripe.version.ref, target)
            window = self._memory.get(stripe.version)
            if window is not None and window.parent is not None and window.parent.ref == target:
                self._serving.gone(window)
                self._memory.doom(window)

    def _fetch_stripe(self, ref: bytes, whole: bytes) -> None:
        """A stripe will be placed; bytes got under its ref before are useless."""
        if (old := self._fetches.of_store(ref)) is not None:
            self._fetcher.let_go(old)
        self._fetches[ref, NO_SLOT] = Fetch(ref, whole=whole)

    def _forget_stripe(self, ref: bytes, whole: bytes) -> None:
        fetch = self._fetches.of_store(ref)
        if fetch is not None and fetch.whole == whole:
            del self._fetches[ref, NO_SLOT]
            self._fetcher.let_go(fetch)

    def _open_if_placed(self, ref: bytes) -> None:
        fetch = self._fetches.of_store(ref)
        if fetch is not None and fetch.placement is not None:
            self._fetcher.open(fetch)

    def _release_made(self, assembly: Assembly) -> None:
        for made in assembly.made.values():
            made.uses -= 1
        for made in assembly.made.values():
            self._memory.release(made)

    def _makes_sense(self, message: Assemble) -> bool:
        """Stripes are disjoint pieces of the one target, and fill it."""
        refs = {message.version.ref, *(stripe.version.ref for stripe in message.stripes)}
        if len(refs) <= len(message.stripes) or sum(stripe.size for stripe in message.stripes) != message.size:
            return False
        if self._fetches.is_stripe(message.version.ref) or self._memory.is_made(message.version):
            return False
        for stripe in message.stripes:
            made = self._memory.get(stripe.version)
            if made is not None and (made.phase is Phase.PRODUCING or made.size != stripe.size):
                return False
            if not self._fetches.may_be_stripe(stripe.version.ref, message.version.ref):
                return False
        return True
