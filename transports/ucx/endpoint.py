"""A node's links with a port of their own, on a thread with its own event loop: for tests and measurements."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Generic, Self, TypeVar

from hoplite_ucx.transports.errors import TransportError
from hoplite_ucx.transports.handshake import Identity
from hoplite_ucx.transports.interface import LinkLost, Transport
from hoplite_ucx.transports.session import Listener
from hoplite_ucx.transports.ucx.settings import UcxSettings
from hoplite_ucx.transports.ucx.transport import UcxTransport

__all__ = ["ListeningEndpoint", "UcxEndpoint"]

_T = TypeVar("_T", bound=Transport)


class ListeningEndpoint(Generic[_T]):
    """Listens from its making until `close`, and hands links to its transport."""

    def __init__(self, me: Identity, transport: _T, adopt: Callable[..., None], host: str) -> None:
        self.node = me.node
        self.transport = transport
        self.refused: list[TransportError] = []
        self.address = ""
        self._me = me
        self._adopt = adopt
        self._host = host
        self._listening = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._listen()), daemon=True)
        self._thread.start()
        if not self._listening.wait(5):
            raise TimeoutError(f"no port on {host}")

    async def _listen(self) -> None:
        listener = Listener(self._me, {}, self._adopt, on_refused=self.refused.append)
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
        self._thread.join(5)
        return self.transport.close() and not self._thread.is_alive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class UcxEndpoint(ListeningEndpoint[UcxTransport]):
    """Over UCX's own TCP, unless told otherwise."""

    settings = UcxSettings()

    def __init__(self, node: int, token: bytes = b"", host: str = "127.0.0.1", on_lost: LinkLost | None = None) -> None:
        me = Identity(node, token)
        transport = UcxTransport(me, on_lost, self.settings)
        super().__init__(me, transport, transport.adopt, host)


class SharedMemoryEndpoint(UcxEndpoint):
    """Over UCX's shared memory, between processes of one host."""

    settings = UcxSettings(tls=("posix",))
