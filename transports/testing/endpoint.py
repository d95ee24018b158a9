"""A node's links with their own port, on a thread with its own event loop: for tests and measurements.

A node's runtime has one listener for sessions and links; this one accepts only links, over the transport that it is
given. Each transport has an endpoint class beside this module.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Generic, Self, TypeVar

from hoplite_ucx.transports.errors import TransportError
from hoplite_ucx.transports.interface import Transport
from hoplite_ucx.transports.wire.handshake import Identity
from hoplite_ucx.transports.wire.session import Listener

__all__ = ["LOOPBACK", "ListeningEndpoint"]

LOOPBACK = "127.0.0.1"
# Long for a busy machine, and shorter than the kernel waits for a peer that is stopped.
_SECONDS = 20.0


_T = TypeVar("_T", bound=Transport)


class ListeningEndpoint(Generic[_T]):
    """Listens from its making until `close`, and hands links to its transport."""

    def __init__(self, me: Identity, transport: _T, host: str = LOOPBACK) -> None:
        self.node = me.node
        self.transport = transport
        self.refused: list[TransportError] = []
        self.address = ""
        self._me = me
        self._host = host
        self._listening = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._listen()), daemon=True)
        self._thread.start()
        if not self._listening.wait(_SECONDS):
            raise TimeoutError(f"no port on {host}")

    async def _listen(self) -> None:
        listener = Listener(self._me, {}, self.transport.adopt, on_refused=self.refused.append)
        self.address = await listener.start(self._host)
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._listening.set()
        await self._stop.wait()
        await listener.close()

    def close(self) -> bool:
        """True if every thread has ended."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_SECONDS)
        return self.transport.close(_SECONDS) and not self._thread.is_alive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
