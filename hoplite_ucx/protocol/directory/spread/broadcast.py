"""The tree of one version: which nodes have it, who receives it from whom, and what happens when one of them fails.

`states` has the states of a receiver, and the moves between them.

Rules kept here:
- A receiver that others depend on is placed only behind a location whose ancestry ends at a root (a complete copy
  or the producer) without passing through itself, so there are no cycles.
- After a failure the receivers that lost the same sender are gathered briefly and placed most advanced first.
- The version is lost only when no root is left *and* every live receiver has reported: one of them might have
  completed without our knowing.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from hoplite_ucx.protocol.cost import CROWD_PATIENCE, choose_cut, choose_granule
from hoplite_ucx.protocol.directory.members import Member, Members
from hoplite_ucx.protocol.directory.sender_choice import Nic, Plan, SenderPool
from hoplite_ucx.protocol.directory.states import RECEIVER_MOVES, State
from hoplite_ucx.protocol.directory.world import World
from hoplite_ucx.protocol.ids import NO_SLOT, NodeId, ReceiverKey, Version, label, receiver_key
from hoplite_ucx.protocol.messages import (
    Assemble,
    Drop,
    Eviction,
    Halt,
    Inline,
    Origin,
    Partial,
    Place,
    StreamFault,
    Stripe,
)

# After this many failures in a row, a relay does not keep streams that others could use while it waits for the sender.
_HOPELESS = 3


@dataclass(slots=True)
class Shunned:
    """A sender that failed this receiver: not tried again before `until`, for longer after each failure."""

    until: float
    failures: int


@dataclass(slots=True)
class Receiver:
    key: ReceiverKey
    member: Member
    into: bytes
    order: int
    state: State = State.WAITING
    watermark: int = 0
    number: int = 0
    sender: NodeId | None = None
    begun: float | None = None
    """When it was placed, if its stream is one for all of the bytes."""
    changes: tuple[int, int] = (0, 0)
    """Of its sender's card and its own, when its stream began (see `Nic`)."""
    behind: NodeId | None = None
    """The sender behind which it is placed first, if possible."""
    adopted_from: tuple[NodeId, float] | None = None
    """Of an adopted one: its sender, and the rate that its stream was planned with."""
    shunned: dict[NodeId, Shunned] = field(default_factory=dict)

    def is_fresh(self) -> bool:
        """Whether it is for a store, and waits for its first byte."""
        return not (self.into or self.watermark)

    def follows(self, node: NodeId) -> bool:
        """Whether an adopted one pulls from the node."""
        return self.adopted_from is not None and self.adopted_from[0] == node


class Broadcast:
    def __init__(
        self,
        world: World,
        members: Members,
        version: Version,
        size: int,
        layout: bytes,
        bandwidth: float,
        inline: bytes | None = None,
    ) -> None:
        self._world = world
        self._marks = world.marks
        self._members = members
        self.version = version
        self.size = size
        self.layout = layout
        self.inline = inline
        self.began = world.now
        self.aborted = False
        self.sealed = True
        """Whether its bytes may be given to users: a put's always, a reduction's once it is decided."""
        self.counted = True
        """Whether its streams count in the limits of nodes. Those of slots and of stripes were taken with what they are
        for: else it could hold what others wait for while it waits for a stream."""
        self.stripes: tuple[Stripe, ...] = ()
        """What the object can be put together from, while that can be had."""
        self.cut = False
        """Whether it was cut into these when it was complete: nodes put it together although others have all of it."""
        self.whole = size
        """Of a stripe, the size of all: while a granule of one is on its way, the others fill the links."""
        self.rank = 0
        """Of a slot of a stripe: that of its streams from the slot's host, where its bytes have come through as many
        hosts as the slot is high."""
        self.company: frozenset[NodeId] = frozenset()
        self.company_until = -math.inf
        """Of a striped target: who will probably ask for it, and until when they are waited for."""
        self.crowd_until = -math.inf
        """Nodes have asked for it at about the same time: until then others are waited for, so as to be placed with
        them."""
        self._early_since = math.inf  # who was placed whole since then belongs to the crowd
        self._asked_at = -math.inf
        self._crowd_patience = (0, 0.0)  # with so many members, and how long it is
        self.origin: Origin | None = None
        """Of a decided target: how it came about."""
        self.copies: dict[NodeId, Member] = {}
        self.producer: NodeId | None = None
        self.start = 0
        """The producer has nothing below this. Only a slot's that was taken over, see `hosts`."""
        self.receivers: dict[ReceiverKey, Receiver] = {}
        self._waiting: dict[ReceiverKey, Receiver] = {}
        self._adopted: dict[ReceiverKey, Receiver] = {}
        self._severed: dict[NodeId, None] = {}  # relays that lost their sender while they had receivers
        self._expected: set[ReceiverKey] = set()  # siblings whose reports a repair waits for
        self._regroup_until = -math.inf
        self._no_senders = False  # no node can send to a receiver whose stream counts, until something changes
        self._orders = 0
        self._bandwidth = bandwidth
        self._granule_for = 0  # so many members, when it was chosen

    @cached_property
    def pool(self) -> SenderPool:
        """The possible senders. An object that comes with the directory's answer is never streamed, and needs none."""
        return SenderPool(self.version.ref, self._choose_granule(), self._world.costs)

    # --- what is known -----------------------------------------------------------------------------------------

    def has_root(self) -> bool:
        return bool(self.copies or self.stripes) or self.producer is not None or self.inline is not None

    def complete(self) -> bool:
        """Whether a get can be answered with it."""
        return self.sealed and (bool(self.copies) or self.inline is not None)

    def nodes(self) -> list[NodeId]:
        producer = [] if self.producer is None else [self.producer]
        return list(dict.fromkeys([*self.copies, *producer, *(r.member.node for r in self.receivers.values())]))

    def waits(self) -> bool:
        """Whether a receiver has no sender, or has one that is not in the accounts."""
        return bool(self._waiting or self._adopted)

    def waiting_stores(self) -> dict[NodeId, Member]:
        """Nodes that want the object for themselves and have no sender."""
        return {receiver.member.node: receiver.member for receiver in self._waiting.values() if not receiver.into}

    def counts(self, key: ReceiverKey) -> bool:
        return self.counted and not isinstance(key, tuple)

    def getters(self) -> list[NodeId]:
        """Nodes that are getting the object for themselves, in whatever way."""
        return [key for key in self.receivers if not isinstance(key, tuple)]

    def is_assembling(self, node: NodeId) -> bool:
        return node in self.receivers and self.receivers[node].state is State.ASSEMBLING

    def has_assemblers(self) -> bool:
        return any(receiver.state is State.ASSEMBLING for receiver in self.receivers.values())

    def is_lost(self) -> bool:
        """No root, and no node left that could turn out to be one."""
        return not self.has_root() and len(self._waiting) == len(self.receivers)

    def lowest(self) -> int:
        """The watermark that every receiver has reached. It is certain: watermarks only rise."""
        return min((receiver.watermark for receiver in self.receivers.values()), default=0)

    def needs_lower_bytes(self) -> bool:
        """Whether a receiver needs bytes that the producer does not make, and no other node has."""
        return (
            self.producer is not None
            and not self.copies
            and any(receiver.watermark < self.start for receiver in self._waiting.values())
        )

    # --- locations come and go ---------------------------------------------------------------------------------

    def produce(self, member: Member, start: int = 0) -> None:
        """The node has begun to put the version, or to combine it from `start` on: a root, though not complete."""
        self.producer = member.node
        self.start = start
        self._changed(sends_more=True)
        self.pool.add(member.node, member.nic, self._world.now + self.size / self._world.settings.put_rate, 0)

    def add_copy(self, member: Member) -> None:
        """The node has every byte, however it came by them."""
        node = member.node
        if node in self.copies:
            return
        if node == self.producer:
            self.producer = None
        elif node in self.receivers:
            self._measure(self.receivers[node])
            self._detach(self._forget_receiver(node))
        if self.inline is None:
            if node in self.pool.locations:
                self.pool.set_finish(node, self._world.now)
            else:
                self.pool.add(node, member.nic, self._world.now, 0)
        self.copies[node] = member
        self._changed(sends_more=True)
        self._world.tell(self.version.ref, "{} is complete at {}", self.version, label(node))

    def _measure(self, receiver: Receiver) -> None:
        """The receiver is complete: the time of its stream shows what its link costs."""
        sender = receiver.sender
        if receiver.begun is None or sender not in self.copies or receiver.state is not State.STREAMING:
            return
        ref, now, nic, above = self.version.ref, self._world.now, receiver.member.nic, self.pool.locations[sender]
        if nic.receiving != {ref: 1} or above.nic.sending != {ref: 1} or receiver.changes != _changes(above.nic, nic):
            return  # others have their share of it, or had
        if above.finish <= receiver.begun:
            self._world.measuring.transfer(above.nic, nic, self.size, now - receiver.begun)
        elif above.depth:
            self._world.measuring.hop(now - above.finish, self.pool.granule, min(above.nic.up, nic.down))

    def remove(self, key: ReceiverKey) -> None:
        """The node, or its slot, neither has nor gets the version any more: its receivers are halted and placed
        again."""
        if key in self.copies:
            del self.copies[key]
        elif key == self.producer:
            self.producer = None
        elif key in self.receivers:
            self._detach(self._forget_receiver(key))
        else:
            return
        self._changed()
        if not isinstance(key, tuple):  # a slot has none to forward
            self._drop_location(key)
            self._halt_if_rootless()

    def keys_of(self, node: NodeId) -> list[ReceiverKey]:
        return [key for key, receiver in self.receivers.items() if receiver.member.node == node]

    def forget_node(self, node: NodeId) -> None:
        """The node is gone, with its copy and with its slots."""
        for key in (node, *self.keys_of(node)):
            self.remove(key)

    def has_good_copy(self, besides: NodeId) -> bool:
        """Whether there is another complete copy, at a node that can be used and stays."""
        return any(member.usable() and not member.retiring for node, member in self.copies.items() if node != besides)

    def evict(self, node: NodeId) -> Eviction:
        """Remove the node's copy if another good one stays and no receiver pulls from this one."""
        if node not in self.copies:
            return Eviction.IN_USE
        if not self.sealed or not self.has_good_copy(besides=node):
            return Eviction.LAST_COPY
        if self.inline is None and self._children(node):
            return Eviction.IN_USE
        del self.copies[node]
        self._drop_location(node)
        self._changed()
        return Eviction.GRANTED

    def drop_everywhere(self) -> None:
        """The version is over. The hosts' accounts are settled, and every node that has a byte of it is told to drop
        it."""
        for node in self.nodes():
            self._world.send(node, Drop(self.version))
        for key in list(self.receivers):
            self._detach(self._forget_receiver(key))
        if self.inline is None:
            for node in list(self.pool.locations):
                self.pool.remove(node)
        self.copies.clear()
        self.producer = None

    # --- receivers ---------------------------------------------------------------------------------------------

    def give(self, member: Member, into: bytes = NO_SLOT) -> None:
        """Send the bytes with the answer."""
        assert self.inline is not None
        self._world.send(member.node, Inline(self.version, self.layout, self.inline, into))

    def want(self, member: Member, watermark: int = 0, into: bytes = NO_SLOT, *, behind: NodeId | None = None) -> None:
        key = receiver_key(member.node, into)
        waits = not (into or watermark) and self.gathers()
        joins_crowd = waits and bool(self._waiting)
        if not joins_crowd:  # else nothing is decided before all of them are there
            self._marks.trees[self.version.ref] = None
        if key in self.receivers:
            return
        self._orders += 1
        receiver = Receiver(key, member, into, self._orders, watermark=watermark, behind=behind)
        if not into:
            self._note_crowd()
        if into or not self._waiting:
            # Its stream does not count, so that busy senders can serve it; or nobody waited when one became free.
            self._no_senders = False
        self.receivers[key] = self._waiting[key] = receiver
        if into:  # it may need what no node makes
            self._changed()

    def unwant(self, node: NodeId) -> None:
        """Only a receiver without a sender is removed: a running stream may feed others, and ends by itself."""
        if node in self._waiting:
            self.remove(node)

    def readmit(self, member: Member, partial: Partial, *, survivor: bool) -> None:
        """A node that came back says what it is receiving; if that agrees with our state, the stream runs on. Streams
        of survivors of an earlier directory run on too."""
        key = receiver_key(member.node, partial.into)
        receiver = self.receivers.get(key)
        if receiver is None:
            if not partial.into:
                self.remove(member.node)  # it says itself that it is not complete
            self.want(member, partial.watermark, partial.into)
            if survivor and partial.number and not partial.piece:
                self._adopt(self.receivers[key], partial)
        elif receiver.state is not State.WAITING and receiver.number == partial.number:
            if receiver.state is State.HALTING:  # the first may have been lost
                self._world.send(member.node, Halt(self.version, partial.number, partial.into))
        else:
            self._to_waiting(receiver, partial.watermark)

    def _adopt(self, receiver: Receiver, partial: Partial) -> None:
        self._move(receiver, State.ADOPTED)
        receiver.number = partial.number
        receiver.adopted_from = (partial.sender, partial.rate)

    def link_adopted(self) -> None:
        """Take streams that ran before us into the accounts, from the roots down: a stream is accepted only when its
        sender's bytes are known to come from a root, so that no cycle is taken for a tree."""
        linked = bool(self._adopted)
        while linked:
            linked = False
            for receiver in list(self._adopted.values()):
                assert receiver.adopted_from is not None
                sender, rate = receiver.adopted_from
                if self._is_linkable(receiver, sender) and self._has_room(receiver, sender):
                    finish = self._world.now + (self.size - receiver.watermark) / rate
                    self._begin_stream(receiver, Plan(sender, rate, finish))
                    linked = True

    def _is_linkable(self, receiver: Receiver, sender: NodeId) -> bool:
        above = self.receivers.get(sender)
        if sender not in self.pool.locations or (above is not None and above.state is not State.STREAMING):
            return False
        return bool(receiver.into) or receiver.member.node != sender

    def _has_room(self, receiver: Receiver, sender: NodeId) -> bool:
        taker, giver = receiver.member, self._members[sender]
        return bool(receiver.into) or (taker.receiving < taker.streams_in and giver.sending < giver.streams_out)

    def halt_adopted(self) -> None:
        """Their senders did not come: they are placed again. Streams that only have no place in the accounts run on:
        their sender refuses receivers that were placed instead, and then there is a place."""
        for receiver in [receiver for receiver in self._adopted.values() if not self._comes_from_root(receiver)]:
            self._halt(receiver)

    def _comes_from_root(self, receiver: Receiver) -> bool:
        """Whether an adopted stream would be valid, if those above it were."""
        passed: set[ReceiverKey] = set()
        while receiver.adopted_from is not None and receiver.key not in passed:
            passed.add(receiver.key)
            sender, _ = receiver.adopted_from
            above = self.receivers.get(sender)
            if above is None or above.state is not State.ADOPTED:
                return self._is_linkable(receiver, sender)
            receiver = above
        return False

    def advanced(self, key: ReceiverKey, watermark: int) -> None:
        receiver = self.receivers.get(key)
        if receiver is None or receiver.state is not State.STREAMING or receiver.sender is None:
            return
        receiver.watermark = max(receiver.watermark, min(watermark, self.size))
        child = self.pool.locations[receiver.sender].children[key]
        finish = self._world.now + (self.size - receiver.watermark) / child.rate
        if not isinstance(key, tuple):
            self.pool.set_finish(key, finish)
        self.pool.revise(receiver.sender, key, finish)

    def told_to_drop(self, node: NodeId) -> None:
        """The node's bytes are gone when it reads the message; it still wants the object."""
        if node in self._waiting:
            self._waiting[node].watermark = 0

    def failed(self, key: ReceiverKey, number: int, watermark: int, fault: StreamFault, wanted: bool) -> None:
        receiver = self.receivers.get(key)
        if receiver is None or receiver.number != number or receiver.state is State.WAITING:
            return  # it was placed again meanwhile
        sender = receiver.sender
        if sender is not None and receiver.state is State.STREAMING:
            self._shun(receiver, sender)
            if fault in (StreamFault.BROKEN, StreamFault.STALLED):
                self._write_off(sender)
            if fault is StreamFault.BROKEN:
                self._expect_siblings(sender, key)
        node = label(receiver.member.node)
        self._world.tell(self.version.ref, "{} lost its sender at {}: {}", node, watermark, fault.value)
        self._reported(receiver, watermark, wanted)

    def halted(self, key: ReceiverKey, number: int, watermark: int, wanted: bool) -> None:
        """An earlier directory may have halted it, so the stream may be one that was adopted as running."""
        receiver = self.receivers.get(key)
        if receiver is not None and receiver.number == number and receiver.state is not State.WAITING:
            self._reported(receiver, watermark, wanted)

    def _reported(self, receiver: Receiver, watermark: int, wanted: bool) -> None:
        self._to_waiting(receiver, watermark)
        if not wanted:
            self.remove(receiver.key)

    # --- placing -----------------------------------------------------------------------------------------------

    def _changed(self, *, sends_more: bool = False) -> None:
        """Every change to the tree marks its ref; one that may let a node send also ends the memory that none can."""
        self._marks.records[self.version.ref] = None
        if sends_more:
            self._no_senders = False

    def look_for_senders(self) -> None:
        """Something outside the tree has changed: receivers that found no sender may find one now."""
        self._no_senders = False
        self._marks.trees[self.version.ref] = None

    def place(self) -> None:
        """Give every waiting receiver a sender, as far as there are senders."""
        self.link_adopted()  # running streams come before possible ones
        if self._no_senders or not self.has_root() or (self.stripes and not self.copies):
            return
        now = self._world.now
        if self.inline is None and len(self._members) != self._granule_for:
            self.pool.granule = self._choose_granule()
        regrouping = bool(self._expected) and now < self._regroup_until
        apart = self.cut or self.gathers()
        for receiver in sorted(self._waiting.values(), key=self._turn):
            member = receiver.member
            if apart and receiver.is_fresh():
                continue  # it gets stripes, or waits for others
            counted = self.counts(receiver.key)
            full = counted and member.receiving >= member.streams_in
            held_up = regrouping and bool(receiver.watermark)
            if full or (counted and self._no_senders):
                if full or not (held_up or self._may_try_again(receiver)):
                    self._release_followers(receiver)
                continue
            if held_up or not member.connected:
                continue
            if self.inline is not None:
                self._forget_receiver(receiver.key)
                self.give(member, receiver.into)
                continue
            plan = self.choose_sender(receiver)
            if plan is None:
                if not (receiver.shunned or receiver.into or self._followers(member.node)):
                    self._no_senders = True
                elif counted and not self._may_try_again(receiver):
                    self._release_followers(
                        receiver
                    )  # all possible senders are busy, perhaps with receivers that wait for it
                continue
            if plan.displaces is not None:
                self._halt(self.receivers[plan.displaces])
            self._stream(receiver, plan)
        self._wake_for_waiting(regrouping)

    def _release_followers(self, receiver: Receiver) -> None:
        """It waits for a stream that another object uses: if its own receivers kept their streams meanwhile, that
        object might in turn wait for them. They are placed again."""
        if not receiver.into:
            for key in self._followers(receiver.member.node):
                self._halt(self.receivers[key])

    def _may_try_again(self, receiver: Receiver) -> bool:
        """Whether a node can send to it that failed it a moment ago, but not again and again."""
        now = self._world.now
        return any(sender.until > now and sender.failures < _HOPELESS for sender in receiver.shunned.values())

    def _turn(self, receiver: Receiver) -> tuple[int, int, int]:
        """The most advanced come first, and then those whose network cards have nothing else to send, since they are
        the better relays; receivers of stripes come in the order of the ring."""
        others = len(receiver.member.nic.sending) if self.counted else 0
        return -receiver.watermark, others, receiver.order

    def assemble(self, crowd: Iterable[Receiver] = ()) -> list[Member]:
        """Let the waiting nodes assemble it from its stripes: all of them while no node has all of it, and if it was
        cut, those without any bytes and the rest of the crowd. Returns the nodes that begin: each must be sent the
        stripes. They begin together if possible: a node that is missing when a ring or a tree is built is attached
        later, and a link then carries more than the others."""
        if not self.stripes or (self.copies and not self.cut):
            return []
        now = self._world.now
        if now < self.company_until and any(self._is_awaited(node) for node in self.company):
            self._world.timers.set_if_absent(("place", self.version.ref), self.company_until)
            return []
        if self.gathers():
            return []
        early = [receiver for receiver in crowd if receiver.state is State.STREAMING] if self.cut else []
        chosen = [
            receiver
            for receiver in sorted([*self._waiting.values(), *early], key=lambda receiver: receiver.order)
            if not (receiver.into or (self.copies and receiver.watermark and receiver.state is State.WAITING))
            and receiver.member.connected
        ]
        # Those that stream come first: one behind a node that waits would be halted with it.
        for receiver in sorted(chosen, key=lambda receiver: receiver.state is State.WAITING):
            self._assemble(receiver)
        return [receiver.member for receiver in chosen]

    def _assemble(self, receiver: Receiver) -> None:
        node = receiver.member.node
        self._detach(receiver)
        self._drop_location(node)
        self._move(receiver, State.ASSEMBLING)
        receiver.watermark = 0
        receiver.begun = None
        receiver.number = self._world.next_number()
        self._world.tell(self.version.ref, "{} puts it together", label(node))
        form = (self.size, self.layout, self.stripes)
        self._world.send(node, Assemble(self.version, receiver.number, *form, self.sealed, self.origin))

    # --- crowds ------------------------------------------------------------------------------------------------

    def may_be_cut(self) -> bool:
        """Whether it could be sent in stripes: all of it is there, or it is cut already. One that is being made grows
        from its beginning."""
        whole = self.inline is None and self.whole == self.size and self.sealed and not self._world.recovering
        return whole and (self.cut or (bool(self.copies) and not self.stripes))

    def _note_crowd(self) -> None:
        """A node asks. If another did so a moment ago, there is a crowd, and more may come. The first is placed at
        once: most come alone."""
        now, patience = self._world.now, self._patience_for_crowds()
        if self.crowd_until == -math.inf and now - self._asked_at < patience:
            self.crowd_until = now + patience
            self._early_since = now - patience
        self._asked_at = now

    def gathers(self) -> bool:
        """Whether nodes that ask wait for others."""
        return self._world.now < self.crowd_until

    def _patience_for_crowds(self) -> float:
        """How long a node waits for company; 0 if stripes would not pay even if all members came."""
        members = len(self._members)
        if not self.may_be_cut():
            return 0.0
        if self._crowd_patience[0] != members:
            pays = choose_cut(self.size, members - 1, self._bandwidth, self._world.costs) > 1
            patience = min(CROWD_PATIENCE * self.size / self._bandwidth, self._world.settings.regroup)
            self._crowd_patience = (members, patience if pays else 0.0)
        return self._crowd_patience[1]

    def crowd(self) -> list[Receiver]:
        """The nodes that asked for it together, when others need not be waited for any more. Those that have just been
        placed belong to them: they asked first. Each crowd is returned once."""
        if self.crowd_until == -math.inf or self.gathers():
            return []
        self.crowd_until = -math.inf
        return [
            receiver
            for receiver in self.receivers.values()
            if receiver.member.connected
            and (
                (receiver.state is State.WAITING and receiver.is_fresh())
                or (receiver.state is State.STREAMING and self._could_start_over(receiver))
            )
        ]

    def _could_start_over(self, receiver: Receiver) -> bool:
        began = receiver.begun is not None and receiver.begun >= self._early_since
        return began and not receiver.into and not self._children(receiver.member.node)

    def holders(self) -> list[Member]:
        """Nodes that have all of it and whose cards are free to send its stripes, once streams that have just begun
        start over."""
        return [
            member
            for node, member in self.copies.items()
            if member.usable() and all(self._could_start_over(self.receivers[child]) for child in self._children(node))
        ]

    def _is_awaited(self, node: NodeId) -> bool:
        member = self._members.get(node)
        return member is not None and member.usable() and node not in self.receivers

    def choose_sender(self, receiver: Receiver) -> Plan | None:
        node = receiver.member.node
        shunned = receiver.shunned
        now = self._world.now
        slot = bool(receiver.into)
        # Behind a receiver of a relay without a sender, it would be released together with that receiver.
        must_be_rooted = not slot and (bool(self._children(node)) or self._has_severed())

        def acceptable(sender: NodeId) -> bool:
            member = self._members[sender]
            above = self.receivers.get(sender)
            if above is not None and (slot or above.state is not State.STREAMING):
                return False  # a slot's part must never wait for a free stream: no relays
            if not slot and (sender == node or (self.counted and member.sending >= member.streams_out)):
                return False
            if not member.usable() or (sender == self.producer and receiver.watermark < self.start):
                return False
            if sender in shunned and now < shunned[sender].until:
                return False
            return not must_be_rooted or self._is_rooted(sender, node)

        behind, receiver.behind = receiver.behind, None
        remaining = self.size - receiver.watermark
        if behind is not None and behind in self.pool.locations and acceptable(behind):
            return self.pool.plan(behind, receiver.member.nic, remaining, now)
        return self.pool.choose(receiver.member.nic, remaining, now, acceptable)

    def _choose_granule(self) -> int:
        """The tree may grow to span the cluster as it is now; a granule for that depth costs shallow trees nothing, and
        a host sends every granule of a stripe several times. Nor does a granule for a single hop cost the stripes of a
        ring anything: their links are full, not their pipelines."""
        self._granule_for = len(self._members)
        depth = 1 if self.rank and self.whole > self.size else len(self._members) - 1
        return choose_granule(self.whole, depth, self._bandwidth, self._world.settings)

    def _begin_stream(self, receiver: Receiver, plan: Plan) -> None:
        member, sender = receiver.member, self._members[plan.sender]
        self._move(receiver, State.STREAMING)
        receiver.sender = plan.sender
        if self.counts(receiver.key):
            member.receiving += 1
            sender.sending += 1
        self.pool.occupy(plan, receiver.key, member.nic)
        receiver.changes = _changes(sender.nic, member.nic)
        if not receiver.into:  # a slot combines the bytes and has none to forward
            self._expect_location(member, plan)
        self._world.tell(
            self.version.ref, "{} placed behind {} at {}", label(member.node), label(plan.sender), receiver.watermark
        )

    def _stream(self, receiver: Receiver, plan: Plan) -> None:
        member, sender = receiver.member, self._members[plan.sender]
        receiver.number = self._world.next_number()
        receiver.begun = self._world.now if not receiver.watermark else None
        self._begin_stream(receiver, plan)
        self._world.send(
            member.node,
            Place(
                self.version,
                receiver.number,
                self.size,
                self.layout,
                plan.sender,
                sender.address,
                self.pool.granule,
                plan.rate,
                self.sealed,
                self.origin,
                receiver.into,
                self.rank + self.pool.locations[plan.sender].depth if self.rank else 0,
                piece=self.whole > self.size and not self.rank,
            ),
        )

    def _expect_location(self, member: Member, plan: Plan) -> None:
        """A receiver is a location from the start: the next one may be chained behind it."""
        if member.node in self.pool.locations:
            self.pool.set_finish(member.node, plan.finish)
        else:
            depth = self.pool.locations[plan.sender].depth + 1
            self.pool.add(member.node, member.nic, plan.finish, depth)

    def _halt(self, receiver: Receiver) -> None:
        self._detach(receiver)
        self._move(receiver, State.HALTING)
        self._world.send(receiver.member.node, Halt(self.version, receiver.number, receiver.into))

    def _halt_if_rootless(self) -> None:
        if self.has_root():
            return
        for receiver in list(self.receivers.values()):
            if receiver.state is State.STREAMING:
                self._halt(receiver)
        if not self._world.recovering:  # else that is decided when all have come
            self.halt_adopted()

    def _to_waiting(self, receiver: Receiver, watermark: int) -> None:
        self._detach(receiver)
        if receiver.state is not State.WAITING:
            self._move(receiver, State.WAITING)
        receiver.watermark = watermark
        self._changed(sends_more=True)
        self._expected.discard(receiver.key)

    def _move(self, receiver: Receiver, state: State) -> None:
        before = receiver.state
        assert (before, state) in RECEIVER_MOVES, f"a receiver: {before.value} does not become {state.value}"
        self._unlist(receiver)
        receiver.state = state
        if state is State.WAITING:
            self._waiting[receiver.key] = receiver
        elif state is State.ADOPTED:
            self._adopted[receiver.key] = receiver

    def _unlist(self, receiver: Receiver) -> None:
        if receiver.state is State.WAITING:
            del self._waiting[receiver.key]
        elif receiver.state is State.ADOPTED:
            del self._adopted[receiver.key]

    def _detach(self, receiver: Receiver) -> None:
        """Settle the accounts of a receiver's stream, if it has one."""
        if receiver.sender is None:
            return
        member, sender = receiver.member, self._members[receiver.sender]
        if not receiver.into and self._children(member.node):
            self._severed[member.node] = None
        self.pool.release(sender.node, receiver.key)
        receiver.sender = None
        if not self.counts(receiver.key):
            return
        if member.receiving >= member.streams_in or sender.sending >= sender.streams_out:
            self._marks.supply = True  # the stream that ends makes room for one of another object
        member.receiving -= 1
        sender.sending -= 1

    def _forget_receiver(self, key: ReceiverKey) -> Receiver:
        receiver = self.receivers.pop(key)
        self._unlist(receiver)
        self._expected.discard(key)
        return receiver

    def _drop_location(self, node: NodeId) -> None:
        """A node that is not a location any more leaves the pool; its children must find another sender."""
        if self.inline is not None or node not in self.pool.locations:
            return
        for child in list(self._children(node)):
            self._halt(self.receivers[child])
            self._expect(child)
        self.pool.remove(node)

    def _children(self, node: NodeId) -> list[ReceiverKey]:
        location = self.pool.locations.get(node)
        return list(location.children) if location is not None else []

    def _followers(self, node: NodeId) -> list[ReceiverKey]:
        """All receivers that pull from the node, in the accounts or not yet."""
        adopted = [key for key, receiver in self._adopted.items() if receiver.follows(node)]
        return self._children(node) + adopted

    def _has_severed(self) -> bool:
        """Whether a relay without a sender has receivers. No receiver joins those, so they become fewer. Such relays
        are recorded when they lose their sender: to find them among all receivers would cost every placement a walk."""
        for node in list(self._severed):
            relay = self.receivers.get(node)
            if relay is None or relay.state is State.STREAMING or not self._children(node):
                del self._severed[node]
        return bool(self._severed)

    def _is_rooted(self, node: NodeId, receiver: NodeId) -> bool:
        """Whether the bytes at `node` come from a root without passing through `receiver`."""
        while node in self.receivers:
            above = self.receivers[node]
            if node == receiver or above.state is not State.STREAMING or above.sender is None:
                return False
            node = above.sender
        return True

    def _shun(self, receiver: Receiver, sender: NodeId) -> None:
        failures = receiver.shunned[sender].failures + 1 if sender in receiver.shunned else 1
        settings = self._world.settings
        pause = min(settings.first_cooldown * 2 ** (failures - 1), settings.cooldown)
        receiver.shunned[sender] = Shunned(self._world.now + pause, failures)

    def _write_off(self, node: NodeId) -> None:
        """The node is probably gone, and with it the stream it receives: its sender has room for the node's receivers.
        If the node lives, its next heartbeat corrects the account."""
        receiver = self.receivers.get(node)
        if receiver is not None and receiver.sender is not None:
            self.pool.revise(receiver.sender, node, self._world.now)

    def _expect_siblings(self, sender: NodeId, reporter: ReceiverKey) -> None:
        for child in self._children(sender):
            if child != reporter:
                self._expect(child)

    def _expect(self, key: ReceiverKey) -> None:
        """A report is on its way; receivers that lost the same sender wait for it a moment, so as to be placed in
        order."""
        self._expected.add(key)
        self._regroup_until = self._world.now + self._world.settings.regroup

    def _wake_for_waiting(self, regrouping: bool) -> None:
        """Look again when the regrouping ends or a shunned sender may be tried again."""
        times = [self._regroup_until] if regrouping else []
        times += [s.until for r in self._waiting.values() for s in r.shunned.values() if s.until > self._world.now]
        if times:
            self._world.timers.set(("place", self.version.ref), min(times))


def _changes(sender: Nic, receiver: Nic) -> tuple[int, int]:
    return sender.sending_changes, receiver.receiving_changes
