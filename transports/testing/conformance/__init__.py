"""What every transport must do, as checks that take a factory of endpoints: run each of `CHECKS` against it."""

from collections.abc import Callable

from hoplite_ucx.transports.testing.conformance import faults, streams
from hoplite_ucx.transports.testing.conformance.tools import Endpoint, Maker

__all__ = ["CHECKS", "Endpoint", "Maker"]

CHECKS: tuple[Callable[[Maker], None], ...] = (*streams.CHECKS, *faults.CHECKS)
