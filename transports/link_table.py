"""Which links a node has over one transport, and the callback when one is lost: the same for every transport.

Between two nodes there are at most two links, one each way. A link leaves the table when it has ended, unless another
one has taken its place; what it carried is remembered as a sum. `lock` guards the tables, for transports whose links
are made on any thread; a link's own lock may be taken under it, never the reverse.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Generic, Protocol, TypeVar

from hoplite_ucx.transports.interface import LinkLost, LinkStatus, Side

__all__ = ["LinkTables"]


class _Link(Protocol):
    @property
    def peer(self) -> int: ...

    def status(self) -> LinkStatus: ...


_Receiving = TypeVar("_Receiving", bound=_Link)
_Sending = TypeVar("_Sending", bound=_Link)
_Any = TypeVar("_Any", bound=_Link)


class LinkTables(Generic[_Receiving, _Sending]):
    def __init__(self, on_link_lost: LinkLost | None) -> None:
        self._on_link_lost = on_link_lost
        self.lock = threading.Lock()
        self.receiving: dict[int, _Receiving] = {}
        self.sending: dict[int, _Sending] = {}
        self._ended = dict.fromkeys(Side, 0)
        """What links carried that are not in the tables any more, in bytes."""

    def all(self) -> list[_Receiving | _Sending]:
        return [*list(self.receiving.values()), *list(self.sending.values())]

    def statuses(self) -> list[LinkStatus]:
        return [link.status() for link in self.all()]

    def carried(self) -> dict[Side, int]:
        """The bytes of all links so far, of those that have ended too. It never falls."""
        with self.lock:
            carried = dict(self._ended)
            for status in self.statuses():
                carried[status.side] += status.bytes
        return carried

    def add_receiving(self, link: _Receiving) -> None:
        """Under the lock, like `add_sending`."""
        self._remember(self.receiving.get(link.peer))
        self.receiving[link.peer] = link

    def add_sending(self, link: _Sending) -> None:
        self._remember(self.sending.get(link.peer))
        self.sending[link.peer] = link

    def receiving_ended(self, link: _Receiving) -> None:
        self._forget(self.receiving, link)

    def sending_ended(self, link: _Sending) -> None:
        self._forget(self.sending, link)

    def lost(self, peer: int, side: Side, error: Exception) -> None:
        if self._on_link_lost is not None:
            self._on_link_lost(peer, side, error)

    def when_lost(self, peer: int, side: Side) -> Callable[[Exception], None]:
        """What a link calls when it is lost."""
        return partial(self.lost, peer, side)

    def _forget(self, links: dict[int, _Any], link: _Any) -> None:
        with self.lock:
            if links.get(link.peer) is link:
                del links[link.peer]
                self._remember(link)

    def _remember(self, leaving: _Link | None) -> None:
        if leaving is not None:
            status = leaving.status()
            self._ended[status.side] += status.bytes
