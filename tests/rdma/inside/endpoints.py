"""Endpoints whose links go over RDMA, in processes of a guest: there each step of a start takes seconds, in software.

Every process of the tests that has such links imports this, so that each is as patient as the other end of its links.
"""

from functools import partial

from hoplite_ucx.transports.link_timers import LinkTimers
from hoplite_ucx.transports.testing.ucx_endpoint import UcxEndpoint
from hoplite_ucx.transports.ucx import engine, receiving
from hoplite_ucx.transports.ucx import transport as ucx_transport
from hoplite_ucx.transports.ucx.settings import UcxSettings
from hoplite_ucx.transports.wire import session

__all__ = ["RcEndpoint"]

_TIMES = 10


class RcEndpoint(UcxEndpoint):
    settings = UcxSettings(tls=("rc",))


def _be_patient() -> None:
    """Starting UCX, connecting, and handshakes may take so many times as long as elsewhere."""
    engine._START_SECONDS *= _TIMES
    receiving.GREETING_SECONDS *= _TIMES
    session.HANDSHAKE_SECONDS *= _TIMES
    usual = LinkTimers()
    patient = partial(LinkTimers, connect=_TIMES * usual.connect, handshake=_TIMES * usual.handshake)
    ucx_transport.LinkTimers = patient  # type: ignore[assignment, misc]


_be_patient()
