"""Streams that come in: when one stalls, and when it does not."""

import pytest

from hoplite_ucx.protocol.events import (
    CancelReceive,
    ReceiveClosed,
)
from hoplite_ucx.protocol.messages import (
    Heartbeat,
    Progress,
    StreamFailed,
    StreamFault,
    StreamStatus,
)
from hoplite_ucx.protocol.settings import MIB
from tests.tools.machines import NodeDriver
from tests.tools.transfers import SENDER, V, receiving


def test_silence_is_a_stall() -> None:
    n = NodeDriver()
    receive = receiving(n)
    assert n.none(n.beat(2), CancelReceive)
    assert CancelReceive(receive.stream) in n.beat(1)
    [failed] = n.sent(n.handle(ReceiveClosed(receive.stream, 0, None)), StreamFailed)
    assert failed.fault is StreamFault.STALLED


def test_progress_is_a_sign_of_life_and_is_reported() -> None:
    n = NodeDriver()
    receive = receiving(n)
    for step in range(1, 9):
        n.positions[receive.stream] = step * MIB
        assert n.sent(n.beat(), Heartbeat) == [Heartbeat((Progress(V, step * MIB),))]
    assert n.state.memory.holdings[V].watermark == 8 * MIB


@pytest.mark.parametrize("queued", [True, False])
def test_a_sender_that_says_it_has_nothing_to_send_is_no_stall(queued: bool) -> None:
    n = NodeDriver()
    receive = receiving(n)
    n.positions[receive.stream] = MIB
    n.beat()
    for _ in range(10):
        n.peer(SENDER, StreamStatus(receive.stream, MIB, queued))
        assert n.none(n.beat(), CancelReceive)


def test_starved_beyond_what_has_arrived_is_a_stall() -> None:
    """It sent more than has come: that is no hunger, that is a backlog that does not move."""
    n = NodeDriver()
    receive = receiving(n)
    n.positions[receive.stream] = MIB
    n.beat()
    cancelled = []
    for _ in range(4):
        n.peer(SENDER, StreamStatus(receive.stream, 2 * MIB, queued=False))
        cancelled += [e for e in n.beat() if isinstance(e, CancelReceive)]
    assert cancelled == [CancelReceive(receive.stream)]
