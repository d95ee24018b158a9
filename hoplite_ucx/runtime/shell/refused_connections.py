"""Logs refused connections, where people look for them.

A peer that connects again and again must neither fill the log nor make the process wait for its reader: of one period
only the first few are logged, and then how many more there were.
"""

import logging
import time

from hoplite_ucx.protocol.errors import Failure
from hoplite_ucx.transports.errors import ConnectionLostError, HungUpError, TransportError, ViolationError

_log = logging.getLogger("hoplite")

_TOLD = 5
_PERIOD = 10.0


class _Refusals:
    def __init__(self) -> None:
        self._since = float("-inf")
        self._count = 0

    def tell(self, error: TransportError, now: float) -> None:
        if now - self._since >= _PERIOD:
            if self._count > _TOLD:
                _log.warning("%d more connections were refused", self._count - _TOLD)
            self._since, self._count = now, 0
        self._count += 1
        if self._count <= _TOLD:
            _log.warning("a connection was refused: %s", error)


_refusals = _Refusals()


def tell_refused(error: TransportError) -> None:
    """Log peers without the token, of another cluster or release, or that send garbage; not those that only connected,
    or died."""
    if not isinstance(error, HungUpError | ConnectionLostError):
        _refusals.tell(error, time.monotonic())


def tell_malformed(failure: Failure, address: str) -> None:
    """A peer that has proven the token sent an invalid frame."""
    tell_refused(ViolationError(failure.detail, address, failure.remedy))
