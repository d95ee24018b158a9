"""The head actor: where the processes of a job meet the process that started hoplite, its *owner*.

Ray's workers can call actors, but not a driver. So workers ask the head for what only the owner can make: the agent
actor of a node, and release tokens. The owner waits for such wishes and fulfils them. The head keeps nothing that
cannot be made again: Ray restarts it, it says so in its first wishes, and the owner tells it everything.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hoplite_ucx.ray.terms import Terms

TOKENS = 256
"""So many are in stock, when nobody takes any."""
LOOK_SECONDS = 5.0
"""The owner's question is answered after so long, also if there are no wishes."""
WISH_SECONDS = 20.0
"""How long a worker's call waits for the owner. Whoever calls asks again."""


Taker: TypeAlias = tuple[str, int]
"""The Ray node and the number of a process."""
Published: TypeAlias = tuple[int, list[Any]]
"""The newest version of what was published under a name: its number, and its Ray ref, alone in a list."""


@dataclass(frozen=True, slots=True)
class Supply:
    """What the owner tells the head."""

    terms: Terms
    agents: dict[str, Any]
    """The agent actor of each node that has one."""
    failed: dict[str, str] = field(default_factory=dict)
    """Why a node has none, though somebody asked."""
    tokens: list[tuple[bytes, Any]] = field(default_factory=list)
    """New ones: the name of an object, and the Ray ref whose last reference ends the object's life."""
    published: dict[str, Published] = field(default_factory=dict)
    """For a head that knows nothing."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the head wants from the owner."""

    everything: bool
    """It knows nothing: it was just started."""
    nodes: list[str] = field(default_factory=list)
    """These need an agent."""
    tokens: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    """What workers counted since the last time."""
    published: dict[str, Published] = field(default_factory=dict)
    """What is new: the owner keeps it for the next head."""


class Head:
    """An async actor. Every wait in it is bounded."""

    def __init__(self) -> None:
        self._terms: Terms | None = None
        self._agents: dict[str, Any] = {}
        self._failed: dict[str, str] = {}
        self._tokens: deque[tuple[bytes, Any]] = deque()
        self._takers: dict[bytes, Taker] = {}
        """Who took a name whose object lives."""
        self._nodes: set[str] = set()
        """For which an agent was asked for, and the owner was not told yet."""
        self._counts: Counter[str] = Counter()
        self._published: dict[str, Published] = {}
        self._kept: dict[str, int] = {}
        """The newest version under each name that the owner has, too."""
        self._ending = False
        self._changed = asyncio.Condition()

    # --- for the owner -----------------------------------------------------------------------------------------

    async def supply(self, supply: Supply) -> None:
        async with self._changed:
            if self._terms is None:
                self._published = dict(supply.published)
                self._kept = {name: version for name, (version, _) in supply.published.items()}
            self._terms = supply.terms
            self._agents = supply.agents
            self._failed.update(supply.failed)
            self._tokens.extend(supply.tokens)
            self._changed.notify_all()

    async def wishes(self) -> Wishes:
        """Waits for some, for a while."""
        await self._until(self._has_wishes, LOOK_SECONDS)
        nodes, self._nodes = list(self._nodes), set()
        counts, self._counts = self._counts, Counter()
        published = {name: self._published[name] for name in self._unkept()}
        return Wishes(self._terms is None, nodes, max(0, TOKENS - len(self._tokens)), counts, published)

    async def kept(self, versions: dict[str, int]) -> None:
        """The owner has these versions."""
        async with self._changed:
            self._kept.update(versions)
            self._changed.notify_all()

    def _has_wishes(self) -> bool:
        few = len(self._tokens) < TOKENS // 2
        return self._ending or self._terms is None or bool(self._nodes) or few or bool(self._unkept())

    def _unkept(self) -> list[str]:
        """Names under which was published what the owner does not have yet."""
        return [name for name, (version, _) in self._published.items() if version > self._kept.get(name, 0)]

    async def forget(self, names: list[bytes]) -> dict[bytes, Taker]:
        """These names have ended: who took them, as far as this head knows."""
        return {name: self._takers.pop(name) for name in names if name in self._takers}

    async def end(self) -> None:
        """The owner does not wait for wishes any more."""
        async with self._changed:
            self._ending = True
            self._changed.notify_all()

    # --- for everybody -----------------------------------------------------------------------------------------

    async def terms(self) -> Terms | None:
        await self._until(lambda: self._terms is not None, WISH_SECONDS)
        return self._terms

    async def agent_of(self, node: str, instead_of: Any = None) -> tuple[Any, str | None]:
        """The agent actor of a node, or why there is none. `instead_of` is one that the caller knows to be dead."""
        async with self._changed:
            known = self._agents.get(node)
            if known is not None and known == instead_of:
                del self._agents[node]
            self._failed.pop(node, None)  # it is tried again
            if node not in self._agents:
                self._nodes.add(node)
                self._changed.notify_all()
        await self._until(lambda: node in self._agents or node in self._failed, WISH_SECONDS)
        agent = self._agents.get(node)
        if agent is not None:
            return agent, None
        return None, self._failed.get(node, "it is not started yet, or the driver does not answer")

    async def take(self, count: int, taker: Taker) -> list[tuple[bytes, Any]]:
        """Up to so many tokens; none, if the owner does not answer."""
        await self._until(lambda: bool(self._tokens), WISH_SECONDS)
        async with self._changed:
            taken = [self._tokens.popleft() for _ in range(min(count, len(self._tokens)))]
            self._takers.update((name, taker) for name, _ in taken)
            self._changed.notify_all()
        return taken

    async def publish(self, name: str, refs: list[Any]) -> int | None:
        """The number of this version; None if the owner does not answer, who may know of earlier ones. Without a ref,
        what was published is withdrawn.

        Receivers get it at once. The publisher hears of it when the owner has it, too, or after a while: what this head
        alone knew would be lost with it.
        """
        await self._until(lambda: self._terms is not None, WISH_SECONDS)
        if self._terms is None:
            return None
        async with self._changed:
            version = self._published.get(name, (0, []))[0] + 1
            self._published[name] = (version, refs)
            self._changed.notify_all()
        await self._until(lambda: self._kept.get(name, 0) >= version, WISH_SECONDS)
        return version

    async def newest(self, name: str, newer_than: int, seconds: float) -> Published | None:
        """None, if there is none in time."""

        def is_there() -> bool:
            version, refs = self._published.get(name, (0, []))
            return version > newer_than and bool(refs)

        await self._until(is_there, min(seconds, WISH_SECONDS))
        return self._published[name] if is_there() else None

    async def count(self, counts: Counter[str]) -> None:
        """What a worker counted: the owner adds it up."""
        self._counts.update(counts)

    async def pid(self) -> int:
        return os.getpid()

    async def _until(self, holds: Callable[[], bool], seconds: float) -> None:
        async with self._changed:
            try:
                await asyncio.wait_for(self._changed.wait_for(holds), seconds)
            except TimeoutError:
                return
