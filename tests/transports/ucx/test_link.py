"""Cancelled streams on links that are slow or stand still: UCX over tcp, whose transfers end when the test says so."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pytest

from hoplite_ucx.transports.interface import Fault
from hoplite_ucx.transports.testing.conformance.tools import Receiving, Serving, filled, next_key, wait_until
from hoplite_ucx.transports.testing.ucx_endpoint import UcxEndpoint
from hoplite_ucx.transports.ucx import standstill
from hoplite_ucx.transports.ucx.engine import Engine
from hoplite_ucx.transports.ucx.worker import Worker
from tests.tools.waiting import HANG

pytestmark = pytest.mark.skipif(find_spec("ucxx") is None, reason="no UCX: pip install 'hoplite-ucx[ucx]'")

MIB = 1 << 20
SIZE = 32 * MIB
LONG = 0.75
"""Three times what a cancelled stream was once given."""


class Held:
    """A transfer that does not end before it may."""

    def __init__(self, request: Any, may_end: threading.Event) -> None:
        self._request = request
        self._may_end = may_end

    @property
    def completed(self) -> bool:
        return self._may_end.is_set() and self._request.completed

    def check_error(self) -> None:
        self._request.check_error()


@pytest.fixture
def may_end(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Transfers of streams end only while it is set."""
    event = threading.Event()
    event.set()

    def hold(post: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: Held(post(*arguments), event)

    monkeypatch.setattr(Worker, "send", hold(Worker.send))
    monkeypatch.setattr(Worker, "receive", hold(Worker.receive))
    return event


@contextmanager
def in_mid_transfer(may_end: threading.Event) -> Iterator[tuple[UcxEndpoint, Serving, Receiving, list[Exception]]]:
    """A stream of which transfers are in UCX, at both ends, and none ends; and why links were lost."""
    lost: list[Exception] = []

    def note(_peer: int, _side: object, why: Exception) -> None:
        lost.append(why)

    with UcxEndpoint(1, on_lost=note) as a, UcxEndpoint(2, on_lost=note) as b:
        try:
            may_end.clear()
            key = next_key()
            outgoing = Serving(a, 2, key, filled(1, SIZE), SIZE, granule=MIB)
            incoming = Receiving(b, 1, a.address, key, SIZE, granule=MIB)
            wait_until(lambda: outgoing.position > 0, "something is sent")
            yield a, outgoing, incoming, lost
            if not lost:
                key = next_key()
                Serving(a, 2, key, filled(2, MIB), MIB)
                Receiving(b, 1, a.address, key, MIB).complete(2)
                assert not lost, "the link was broken"
        finally:
            may_end.set()


def timer(engine: Engine, seconds: float) -> threading.Event:
    """Set by the engine, after all that it does before that time."""
    rang = threading.Event()
    engine.call(lambda: engine.later(seconds, rang.set))
    return rang


@pytest.mark.parametrize("end", ["the receiver", "the sender"])
def test_a_slow_link_survives_a_cancelled_stream(
    monkeypatch: pytest.MonkeyPatch, may_end: threading.Event, end: str
) -> None:
    """However long its transfers take, as long as the peer answers."""
    monkeypatch.setattr(standstill, "_SILENT", (HANG, HANG))  # a busy machine may hold up either thread
    monkeypatch.setattr(standstill, "_FIRST", HANG)
    with in_mid_transfer(may_end) as (a, outgoing, incoming, lost):
        (incoming if end == "the receiver" else outgoing).cancel()
        assert timer(a.transport.start(), LONG).wait(HANG)
        assert not lost
        assert not incoming.closes
        assert not outgoing.closes, "UCX still uses its memory"
        may_end.set()
        outgoing.wait()
        incoming.cancel()
        assert incoming.wait()[1] is None


@pytest.mark.parametrize("end", ["the receiver", "the sender"])
def test_a_link_that_stands_still_is_broken_though_the_peer_answers(
    monkeypatch: pytest.MonkeyPatch, may_end: threading.Event, end: str
) -> None:
    monkeypatch.setattr(standstill, "_SILENT", (HANG, HANG))
    monkeypatch.setattr(standstill, "_STILL", (0.2, 0.2))
    with in_mid_transfer(may_end) as (_, outgoing, incoming, lost):
        (incoming if end == "the receiver" else outgoing).cancel()
        outgoing.wait()
        assert incoming.wait()[1] is (None if end == "the receiver" else Fault.BROKEN)
        assert any("nothing moved for 0.2 s" in str(why) for why in lost)
