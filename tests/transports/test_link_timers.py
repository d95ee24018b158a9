"""What links wait for, and for how long beside each other."""

import threading
import time
from importlib.util import find_spec
from types import ModuleType

import pytest

from hoplite_ucx.transports.link_timers import LinkTimers
from hoplite_ucx.transports.tcp import receiving as tcp
from hoplite_ucx.transports.testing.conformance import Maker
from hoplite_ucx.transports.testing.conformance.tools import Receiving, Serving, endpoints, filled, next_key
from hoplite_ucx.transports.testing.tcp_endpoint import TcpEndpoint
from hoplite_ucx.transports.testing.ucx_endpoint import UcxEndpoint
from hoplite_ucx.transports.ucx import receiving as ucx
from tests.tools.links import make_timers
from tests.tools.waiting import HANG

NEEDS_UCX = pytest.mark.skipif(find_spec("ucxx") is None, reason="no UCX: pip install 'hoplite-ucx[ucx]'")
SIZE = 10_000


@pytest.mark.parametrize(
    ("make", "receiving"),
    [(TcpEndpoint, tcp), pytest.param(UcxEndpoint, ucx, marks=NEEDS_UCX)],
    ids=["tcp", "ucx"],
)
def test_a_sender_does_not_give_up_while_its_receiver_may_still_be_connecting(
    monkeypatch: pytest.MonkeyPatch, make: Maker, receiving: ModuleType
) -> None:
    """The receiver would wait for a stream that is not served any more, and nothing would tell it."""
    make_timers(monkeypatch, unclaimed=0.05)
    tune, served = receiving.tune, threading.Event()

    def late(sock: object) -> None:
        """Called before the connection is made. A sender that waits only for `unclaimed` gives up meanwhile."""
        served.wait(HANG)
        time.sleep(0.5)
        tune(sock)

    monkeypatch.setattr(receiving, "tune", late)
    with endpoints(make, 1, 2) as (a, b):
        key = next_key()
        incoming = Receiving(b, a.node, a.address, key, SIZE)
        outgoing = Serving(a, b.node, key, filled(1, SIZE), SIZE)
        served.set()
        incoming.complete(1)
        outgoing.wait()


def test_a_stream_is_served_for_longer_than_connecting_may_take() -> None:
    timers = LinkTimers(connect=9.0)
    assert timers.grace > timers.connect + 2 * timers.handshake
