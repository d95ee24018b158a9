"""Links in tests: both ends of them are in one process, which a busy machine may hold up for longer than hosts are."""

import pytest

from hoplite_ucx.transports.tcp import receiving as tcp
from hoplite_ucx.transports.ucx import receiving as ucx
from tests.tools.waiting import HANG


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who connects waits until the other side is there."""
    for module, limits in {
        tcp: ("CONNECT_SECONDS", "HANDSHAKE_SECONDS"),
        ucx: ("CONNECT_SECONDS", "GREETING_SECONDS"),
    }.items():
        for limit in limits:
            monkeypatch.setattr(module, limit, HANG / 3)
