"""What is said, where people look for it, of connections that were turned away."""

import logging

from hoplite_ucx.transports.errors import HandshakeError, TransportError, WrongPeerError

_log = logging.getLogger("hoplite")


def tell_refused(error: TransportError) -> None:
    """Whoever lacks the token, or is of another cluster or release, should be found; whoever only knocked need not."""
    if (
        type(error) is not HandshakeError
        and isinstance(error, HandshakeError)
        and not isinstance(error, WrongPeerError)
    ):
        _log.warning("a connection was refused: %s", error)
