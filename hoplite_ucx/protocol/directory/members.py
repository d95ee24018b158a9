"""The nodes of the cluster, and how suspicion becomes death.

A node is suspect when its session broke, a peer lost it, or it has been silent for the suspicion time. Suspect nodes
are not asked to send, but keep everything. A node is dead when its port refuses a connection, its lease has run out, or
another node has joined from its address. The dead are fenced: the directory ignores them until they come back under a
new name.

Only the node itself can clear its suspicion: with a message, or with an answer at its port. If only a link broke, that
takes a round trip. A killed process says nothing, and takes a while to close its port: if a stream of a node has
broken, the port is asked again and again.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from hoplite_ucx.protocol.directory.sender_choice import Nic
from hoplite_ucx.protocol.directory.world import World
from hoplite_ucx.protocol.events import Disconnect, Probe
from hoplite_ucx.protocol.ids import NodeId, generation_of, identity_of
from hoplite_ucx.protocol.messages import Join

_FENCES_KEPT = 100_000
_ASSUMED_BANDWIDTH = 125e6  # bytes a second, 1 Gbit/s


@dataclass(slots=True)
class Member:
    node: NodeId
    address: str
    host: str
    nic: Nic
    streams_in: int
    streams_out: int
    heard: float
    connected: bool = True
    suspect: bool = False
    probing: bool = False
    broke: float | None = None
    """When a peer last lost a stream of it."""
    retiring: bool = False
    """It is going to leave: its copies do not count as good ones."""
    receiving: int = 0
    sending: int = 0
    refs: dict[bytes, None] = field(default_factory=dict)
    """Every object this node is involved with: a copy, a stream, a want, a watch."""

    def usable(self) -> bool:
        return self.connected and not self.suspect


class Members:
    def __init__(self, world: World) -> None:
        self._world = world
        self._members: dict[NodeId, Member] = {}
        self._by_address: dict[str, Member] = {}
        self._nics: dict[str, tuple[Nic, int]] = {}  # one account per host, shared by its nodes
        self._fenced: OrderedDict[int, int] = OrderedDict()  # identity → highest dead generation

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members.values()))

    def get(self, node: NodeId) -> Member | None:
        return self._members.get(node)

    def __getitem__(self, node: NodeId) -> Member:
        return self._members[node]

    def bandwidth(self) -> float:
        """What a typical host can send: the median, so that one odd NIC does not shape every tree. Without any node a
        value must be assumed: small sources are in the directory, and may be chosen all the same."""
        rates = sorted(nic.up for nic, _ in self._nics.values())
        return rates[len(rates) // 2] if rates else _ASSUMED_BANDWIDTH

    def is_fenced(self, node: NodeId) -> bool:
        return generation_of(node) <= self._fenced.get(identity_of(node), -1)

    def predecessor(self, join: Join) -> Member | None:
        """The member that a joining node replaces: the earlier node at its address cannot exist any more."""
        member = self._by_address.get(join.address)
        return member if member is not None and member.node != join.node else None

    def join(self, hello: Join, now: float) -> Member:
        member = self._members.get(hello.node)
        if member is None:
            nic, users = self._nics.get(hello.host, (Nic(hello.up, hello.down), 0))
            self._nics[hello.host] = (nic, users + 1)
            member = Member(hello.node, hello.address, hello.host, nic, hello.streams_in, hello.streams_out, heard=now)
            self._members[hello.node] = self._by_address[hello.address] = member
            self._world.tally.joins += 1
        member.connected = True
        self.heard(member, now)
        return member

    def heard(self, member: Member, now: float) -> None:
        member.heard = now
        if member.suspect and member.connected:
            member.suspect = False
            self._world.marks.supply = True

    def suspect(self, member: Member, *, broke: bool = False) -> None:
        """Ask its port; a refusal is the quickest proof of death."""
        self._world.tally.suspicions += not member.suspect
        member.suspect = True
        if broke:
            member.broke = self._world.now
        if not member.probing:
            member.probing = True
            self._world.emit(Probe(member.node, member.address))

    def ask_again(self, node: NodeId) -> None:
        """It has not sent a message since a stream of it broke."""
        member = self._members.get(node)
        if member is not None and member.suspect:
            self.suspect(member)

    def session_lost(self, member: Member) -> None:
        member.connected = False
        self.suspect(member)

    def probed(self, member: Member, accepted: bool | None, now: float) -> bool:
        """Whether the probe proved the node dead."""
        member.probing = False
        if accepted is False:
            return True
        suspicion = self._world.settings.suspicion
        if accepted and member.connected and now - member.heard < suspicion:
            member.suspect = False
            self._world.marks.supply = True
        elif member.broke is not None and now - member.broke < suspicion:  # after that it is silent, and asked for that
            self._world.timers.set(("probe", member.node), now + self._world.settings.probe_again)
        return False

    def sweep(self, now: float, late: float) -> list[Member]:
        """Suspect the silent members; those whose lease has run out are returned, to be declared dead. Our own pause
        (`late`) does not count as their silence. If no member at all is heard, we are cut off ourselves: they are
        suspect, and none of them is declared dead for it."""
        expired = []
        settings = self._world.settings
        for member in self._members.values():
            member.heard += late
        if len(self._nics) > 1 and all(now - m.heard >= settings.suspicion for m in self._members.values()):
            for member in self._members.values():
                member.heard = now - settings.suspicion
        for member in self._members.values():
            silence = now - member.heard
            if silence >= settings.lease:
                expired.append(member)
            elif silence >= settings.suspicion:
                self.suspect(member)
        return expired

    def remove(self, member: Member) -> None:
        """It is dead or has left, and is fenced."""
        del self._members[member.node]
        self._world.measuring.forget(member.node)
        self._world.timers.cancel(("probe", member.node))
        identity = identity_of(member.node)
        if self._by_address.get(member.address) is member:
            del self._by_address[member.address]
        nic, users = self._nics[member.host]
        if users > 1:
            self._nics[member.host] = (nic, users - 1)
        else:
            del self._nics[member.host]
        self._fenced[identity] = max(generation_of(member.node), self._fenced.get(identity, -1))
        while len(self._fenced) > _FENCES_KEPT:
            self._fenced.popitem(last=False)
        self._world.emit(Disconnect(member.node))
