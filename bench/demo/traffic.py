"""Who receives from whom, and how much: the tree of an act, told from the byte counters of the agents' links.

Counters come now and then from every host. A link that broke is gone from them, and one that was made anew begins at 0.
"""

from collections.abc import Iterable

_RECENT = 0.25
"""A host pulls from those that brought bytes in the last seconds before its newest ones."""


class Traffic:
    def __init__(self, nodes: dict[str, int]) -> None:
        self._nodes = nodes
        self._counters: dict[int, dict[str, int]] = {}
        self.received: dict[tuple[int, int], int] = {}
        """By receiver and sender, since the first counters of the receiver, or since `begin_anew`."""
        self._grew_at: dict[tuple[int, int], float] = {}
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
                self.received[pair] = self.received.get(pair, 0) + grown
                self._grew_at[pair] = at
        return new

    def begin_anew(self, receiver: int) -> None:
        """What this host had so far was for nothing."""
        for pair in [pair for pair in self.received if pair[0] == receiver]:
            del self.received[pair]

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

    def fraction(self, receiver: int, size: int) -> float:
        """How much of what a host has begun to receive is there; from several senders it gets an object each."""
        senders = [sender for host, sender in self.received if host == receiver]
        total = sum(self.received[receiver, sender] for sender in senders)
        return min(1.0, total / (max(1, len(senders)) * size))

    def total(self, receiver: int) -> int:
        return sum(count for (host, _), count in self.received.items() if host == receiver)
