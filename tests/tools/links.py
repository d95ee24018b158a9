"""Links in tests: both ends of them are in one process, which a busy machine may hold up for longer than hosts are."""

from functools import partial

import pytest

from hoplite_ucx.transports import mixed_transport
from hoplite_ucx.transports.link_timers import LinkTimers
from hoplite_ucx.transports.tcp import receiving as tcp
from hoplite_ucx.transports.tcp import transport as tcp_transport
from hoplite_ucx.transports.ucx import receiving as ucx
from hoplite_ucx.transports.ucx import transport as ucx_transport
from tests.tools.waiting import HANG


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who connects waits until the other side is there."""
    monkeypatch.setattr(tcp, "HANDSHAKE_SECONDS", HANG / 3)
    monkeypatch.setattr(ucx, "GREETING_SECONDS", HANG / 3)
    make_timers(monkeypatch, connect=HANG / 3)


def make_timers(monkeypatch: pytest.MonkeyPatch, **seconds: float) -> None:
    """Transports that are made from now on have these, unless they are given others."""
    for module in (tcp_transport, ucx_transport, mixed_transport):
        monkeypatch.setattr(module, "LinkTimers", partial(LinkTimers, **seconds))
