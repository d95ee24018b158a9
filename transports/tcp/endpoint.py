"""A node's TCP links with a port of their own, on a thread with its own event loop: for tests and measurements.

A node's runtime has one listener for sessions and links; this one takes links alone.
"""

import asyncio
import threading
from typing import Self

from hoplite_ucx.transports.errors import TransportError
from hoplite_ucx.transports.handshake import Identity
from hoplite_ucx.transports.interface import LinkLost
from hoplite_ucx.transports.session import Listener
from hoplite_ucx.transports.tcp.transport import TcpTransport

__all__ = ["TcpEndpoint"]


class TcpEndpoint:
    """Listens from its making until `close`."""

    def __init__(self, node: int, token: bytes = b"", host: str = "127.0.0.1", on_lost: LinkLost | None = None) -> None:
        self.node = node
        self.transport = TcpTransport(Identity(node, token), on_lost)
        self.refused: list[TransportError] = []
        self.address = ""
        self._identity = Identity(node, token)
        self._host = host
        self._listening = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._listen()), daemon=True)
        self._thread.start()
        if not self._listening.wait(5):
            raise TimeoutError(f"no port on {host}")

    async def _listen(self) -> None:
        listener = Listener(self._identity, {}, self.transport.adopt, on_refused=self.refused.append)
        self.address = await listener.start(self._host)
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._listening.set()
        await self._stop.wait()
        await listener.close()

    def close(self) -> bool:
        """True if every thread has ended."""
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(5)
        return self.transport.close() and not self._thread.is_alive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
