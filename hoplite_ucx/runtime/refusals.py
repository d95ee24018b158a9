"""What is said, where people look for it, of connections that were turned away."""

import logging

from hoplite_ucx.transports.errors import TransportError, WrongClusterError, WrongTokenError, WrongVersionError

_log = logging.getLogger("hoplite")


def tell_refused(error: TransportError) -> None:
    """Whoever lacks the token, or is of another cluster or release, should be found; whoever only knocked need not."""
    if isinstance(error, WrongTokenError | WrongClusterError | WrongVersionError):
        _log.warning("a connection was refused: %s", error)
