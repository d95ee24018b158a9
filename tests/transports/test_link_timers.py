"""What links wait for, and for how long beside each other."""

import threading
import time
from importlib.util import find_spec
from types import ModuleType

import pytest

from hoplite_ucx.transports.link_timers import LinkTimers
from hoplite_ucx.transports.tcp import receiving as tcp
from hoplite_ucx.transports.tcp import sending as tcp_sending
from hoplite_ucx.transports.testing.conformance import Maker
from hoplite_ucx.transports.testing.conformance.tools import Receiving, Serving, endpoints, filled, next_key
from hoplite_ucx.transports.testing.tcp_endpoint import TcpEndpoint
from hoplite_ucx.transports.testing.ucx_endpoint import UcxEndpoint
from hoplite_ucx.transports.ucx import receiving as ucx
from hoplite_ucx.transports.ucx import transport as ucx_transport
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


class PausedOnce:
    """A clock, and the grace of links by it. Right after a sender has begun to wait, its process is paused for long."""

    def __init__(self) -> None:
        self.forward = 0.0
        self.waits_again = threading.Event()

    def monotonic(self) -> float:
        return time.monotonic() + self.forward

    def grace(self, _: LinkTimers) -> float:
        if not self.forward:
            self.forward = 100.0
            return 0.1
        self.waits_again.set()
        return HANG


@pytest.mark.parametrize(
    ("make", "sending", "receiving"),
    [(TcpEndpoint, tcp_sending, tcp), pytest.param(UcxEndpoint, ucx_transport, ucx, marks=NEEDS_UCX)],
    ids=["tcp", "ucx"],
)
def test_a_sender_that_was_paused_itself_waits_for_its_receiver_again(
    monkeypatch: pytest.MonkeyPatch, make: Maker, sending: ModuleType, receiving: ModuleType
) -> None:
    """Nobody could connect meanwhile. Receivers that do so when it continues would wait for a stream that is over."""
    clock, tune = PausedOnce(), receiving.tune

    def late(sock: object) -> None:
        clock.waits_again.wait(HANG)
        tune(sock)

    monkeypatch.setattr(sending, "time", clock)
    monkeypatch.setattr(receiving, "tune", late)
    monkeypatch.setattr(LinkTimers, "grace", property(clock.grace))
    with endpoints(make, 1, 2) as (a, b):
        key = next_key()
        outgoing = Serving(a, b.node, key, filled(1, SIZE), SIZE)
        incoming = Receiving(b, a.node, a.address, key, SIZE)
        incoming.complete(1)
        outgoing.wait()


def test_a_stream_is_served_for_longer_than_connecting_may_take() -> None:
    timers = LinkTimers(connect=9.0)
    assert timers.grace > timers.connect + 2 * timers.handshake
