"""Who receives from whom, and how much: the tree of an act, derived from the agents' reports of links and streams.

The tree comes from the links' byte counters, which miss nothing between two reports. A link that broke is gone from
them, and a new one begins at 0. The streams say how far a host is: their positions are those of bytes that are final,
or combined. A stream that is gone has delivered everything, unless its sender died.
"""

from collections.abc import Iterable
from typing import Any

_RECENT = 0.25
"""A host pulls from those that brought bytes in the last seconds before its newest ones."""


class Traffic:
    def __init__(self, nodes: dict[str, int]) -> None:
        self._nodes = nodes
        self._counters: dict[int, dict[str, int]] = {}
        self._grew_at: dict[tuple[int, int], float] = {}
        """By receiver and sender: when the last growth was seen."""
        self._streams: dict[int, dict[tuple[str, str], tuple[int, int, int]]] = {}
        """By receiver, and by what comes and which slot it is for: the sender, the position and the size."""
        self._dead: set[int] = set()

    def knows(self, receiver: int) -> bool:
        return receiver in self._counters

    def note(self, receiver: int, counters: dict[str, int], at: float) -> list[int]:
        """Take a host's counters; returns the senders that brought something for the first time."""
        before = self._counters.get(receiver)
        self._counters[receiver] = counters
        if before is None:
            return []
        new = []
        for name, count in counters.items():
            earlier = before.get(name, 0)
            grown = count - earlier if count >= earlier else count
            sender = self._nodes.get(name)
            if grown and sender is not None and sender not in self._dead:
                pair = (receiver, sender)
                if pair not in self._grew_at:
                    new.append(sender)
                self._grew_at[pair] = at
        return new

    def note_streams(self, receiver: int, streams: Iterable[dict[str, Any]]) -> None:
        known = self._streams.setdefault(receiver, {})
        now = {
            (stream["ref"], stream["into"]): (self._nodes[stream["sender"]], stream["position"], stream["size"])
            for stream in streams
            if stream["sender"] in self._nodes
        }
        for key, (sender, _, size) in list(known.items()):
            known[key] = (sender, size, size)
        known |= now
        for key in [key for key, (sender, _, _) in known.items() if sender in self._dead]:
            del known[key]

    def begin_anew(self, receiver: int) -> None:
        """This host's bytes so far do not count any more."""
        self._streams.pop(receiver, None)

    def forget(self, dead: int) -> None:
        """Nobody pulls from a host that is gone, nor does it; what it still had on the wire does not count."""
        self._dead.add(dead)
        for pair in [pair for pair in self._grew_at if dead in pair]:
            del self._grew_at[pair]

    def senders(self, receiver: int) -> list[int]:
        grew = {sender: at for (host, sender), at in self._grew_at.items() if host == receiver}
        newest = max(grew.values(), default=0.0)
        return sorted(sender for sender, at in grew.items() if at >= newest - _RECENT)

    def edges(self, receivers: Iterable[int]) -> list[tuple[int, int]]:
        """The tree now, as pairs of sender and receiver."""
        return [(sender, receiver) for receiver in receivers for sender in self.senders(receiver)]

    def fraction(self, receiver: int) -> float | None:
        """How much of what a host has begun to receive is there; None before it begins."""
        streams = self._streams.get(receiver, {}).values()
        total = sum(size for _, _, size in streams)
        return sum(position for _, position, _ in streams) / total if total else None

    def taken(self, sender: int, receiver: int) -> float:
        """How much of what one host sends is where it goes at the other."""
        streams = self._streams.get(receiver, {}).values()
        return max((position / size for source, position, size in streams if source == sender), default=0.0)
