"""Which mappings and drafts of this process are gone, until the agent is known to have read it.

A call may need memory that its caller released just before. So a request carries every release that the agent may not
have read yet, on the request's own connection: another connection may be read later. A reply shows that the agent has
read everything sent before its request. Repeating a release is harmless, since every pin has its own number.

Nothing here takes a lock. Arrays die on any thread, also within these very lines, in a finalizer or a signal handler;
so shared state is changed and copied in single steps. The death of a mapping is recorded without running Python code: a
ctrl-C could end that code, and the release would be lost.
"""

import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType

from hoplite_ucx.runtime.local import worker_messages as wire

_NOTHING: Mapping[int, int] = MappingProxyType({})


class _Hold(weakref.ref[object]):
    """A mapping that exists, and its pin."""

    __slots__ = ("forks", "pin")
    pin: int
    forks: int


class Releases:
    def __init__(self) -> None:
        self._held: dict[int, _Hold] = {}
        self._gone: deque[_Hold] = deque()
        """Of mappings that died since somebody looked."""
        self.forks = 0
        """How often this process forked; a fork while memory is mapped gives it to the child, too."""
        self._unheard: dict[int, int] = {}
        """By pin, how often this process had forked when it was mapped."""
        self._told: Mapping[int, int] = _NOTHING

    def add(self, pin: int, forks: int) -> None:
        """Also of one that was added before: what is known of it stays."""
        self._unheard.setdefault(pin, forks)

    def hold(self, pin: int, forks: int, mapping: object) -> None:
        """It is released when the mapping dies. What had forked before it was mapped does not count."""
        hold = _Hold(mapping, self._gone.append)
        hold.pin, hold.forks = pin, forks
        self._held[pin] = hold

    def holds(self, pin: int) -> bool:
        return pin in self._held

    def unheard(self) -> Mapping[int, int]:
        """All releases that the agent may not have read."""
        if self._gone:
            self._add_gone()
        return self._unheard.copy() if self._unheard else _NOTHING

    def untold(self) -> Mapping[int, int]:
        """Of those, the ones not returned before. Only the background's thread asks this."""
        unheard, told = self.unheard(), self._told
        self._told = unheard
        return {pin: forks for pin, forks in unheard.items() if pin not in told}

    def _add_gone(self) -> None:
        """Another thread may do the same, and either may be interrupted: each is removed only after it is added."""
        for hold in list(self._gone):
            self.add(hold.pin, hold.forks)
            self._held.pop(hold.pin, None)
            with suppress(ValueError):
                self._gone.remove(hold)

    def heard(self, pins: Iterable[int]) -> None:
        for pin in pins:
            self._unheard.pop(pin, None)

    def message(self, pins: Mapping[int, int]) -> wire.Released:
        return wire.Released(tuple((pin, forks != self.forks) for pin, forks in pins.items()))
