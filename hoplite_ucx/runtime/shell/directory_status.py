"""How a process with the token asks the directory for its status: one frame, in a session that never joins."""

import asyncio
from typing import Any

import msgspec

from hoplite_ucx.transports.errors import TransportError
from hoplite_ucx.transports.wire.handshake import Identity, Kind
from hoplite_ucx.transports.wire.session import Session, connect

STATUS = b"\xc1status"
"""No message of the protocol begins with this byte."""


async def ask_status(address: str, me: Identity, seconds: float) -> dict[str, Any]:
    """Raises a `TransportError` if it is not there, and a `TimeoutError` if it does not answer."""
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def made(session: Session) -> None:
        session.on_frame = lambda frame: None if answer.done() else answer.set_result(frame)

        def on_closed(error: TransportError | None) -> None:
            if error is not None and not answer.done():
                answer.set_exception(error)

        session.on_closed = on_closed

    session = await connect(address, me, Kind.CONTROL, made)
    try:
        session.send(STATUS)
        async with asyncio.timeout(seconds):
            return msgspec.msgpack.decode(await answer, type=dict[str, Any])
    finally:
        session.abort()
