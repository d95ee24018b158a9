"""Links in tests: both ends of them are in one process, which a busy machine may hold up for longer than hosts are."""

from collections.abc import Callable
from functools import partial

import pytest

from hoplite_ucx.transports import mixed_transport
from hoplite_ucx.transports.link_timers import HANDSHAKE_SECONDS
from hoplite_ucx.transports.tcp import transport as tcp_transport
from hoplite_ucx.transports.testing.conformance import Maker
from hoplite_ucx.transports.testing.conformance.faults import check_garbage, check_nobody_there
from hoplite_ucx.transports.ucx import receiving as ucx
from hoplite_ucx.transports.ucx import transport as ucx_transport
from hoplite_ucx.transports.wire import session
from tests.tools.waiting import HANG


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who connects waits until the other side is there; so do who listens and who serves."""
    monkeypatch.setattr(session, "HANDSHAKE_SECONDS", HANG / 3)
    monkeypatch.setattr(ucx, "GREETING_SECONDS", HANG / 3)
    make_timers(monkeypatch, connect=HANG / 3, handshake=HANG / 3)


def give_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests in which a sender gives up a stream, because its receiver never connects."""
    make_timers(monkeypatch, connect=0.05, handshake=0.05, unclaimed=0.05)


def make_timers(monkeypatch: pytest.MonkeyPatch, **seconds: float) -> None:
    """Transports that are made from now on have these, unless they are given others. What is not named here stays."""
    for module in (tcp_transport, ucx_transport, mixed_transport):
        monkeypatch.setattr(module, "LinkTimers", partial(module.LinkTimers, **seconds))


def run_check(monkeypatch: pytest.MonkeyPatch, check: Callable[[Maker], None], make: Maker) -> None:
    """A check of the conformance kit."""
    if check is check_nobody_there:
        give_up_soon(monkeypatch)
    if check is check_garbage:  # it waits until those that say nothing are dropped
        monkeypatch.setattr(session, "HANDSHAKE_SECONDS", HANDSHAKE_SECONDS)
    check(make)
