"""Credits of a stream into a slot: the sender hears that it may go on long before it has used up what it was given."""

import threading

import numpy as np
import pytest

from hoplite_ucx.protocol.messages import Operation
from hoplite_ucx.runtime.agent.slots import RING, Combiner, Slot
from hoplite_ucx.runtime.objects import values
from hoplite_ucx.runtime.objects.kernels import Kernel
from hoplite_ucx.transports.interface import Priority, Stream
from hoplite_ucx.transports.tcp.frames import Record
from hoplite_ucx.transports.tcp.receiving import ReceivingLink
from hoplite_ucx.transports.testing.conformance.tools import wait_until
from hoplite_ucx.transports.testing.tcp_endpoint import TcpEndpoint
from tests.runtime.agent.test_slots import segment
from tests.tools.waiting import HANG

SIZE = 6 * RING
GRANULE = 1 << 20


def test_credits_come_when_half_of_the_ring_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The link sees how much its sender may still send whenever it is told that it may send more."""
    left: list[int] = []
    granted = [RING]
    send_record = ReceivingLink._send_record

    def watched(link: ReceivingLink, what: Record, channel: int, limit: int = 0, *stream: int) -> None:
        if what is Record.CREDIT:
            left.append(granted[-1] - link._core.streams[channel].received)
            granted.append(limit)
        send_record(link, what, channel, limit, *stream)

    monkeypatch.setattr(ReceivingLink, "_send_record", watched)
    own, next_own, other = (np.random.default_rng(seed).random(SIZE // 8) for seed in (1, 2, 3))
    output, combined, closed = segment(size=SIZE), threading.Event(), threading.Event()
    combiner = Combiner()
    kernel = Kernel(values.encode(own).layout, Operation.SUM)
    slot = Slot(combiner, output, kernel, [segment(own), segment(next_own), None], combined.set, pytest.fail)
    # From here on what arrives is combined where it arrives, however busy the machine is with other threads.
    wait_until(lambda: slot.stands_at(1) == SIZE, "the parts that are here are combined")
    with TcpEndpoint(1) as sender, TcpEndpoint(2) as receiver:
        stream = Stream((2, 1), 0, SIZE, GRANULE)
        sink = slot.sink(2)  # the second part would be received straight into the output
        receiver.transport.receive(1, sender.address, stream, sink, lambda *_: closed.set())
        sender.transport.serve(2, stream, segment(other), lambda: None, priority=Priority.OWN)
        assert combined.wait(HANG)
        assert closed.wait(HANG)
    combiner.close()
    assert np.array_equal(np.frombuffer(bytes(output.memory), np.float64), own + next_own + other)
    assert len(left) >= SIZE // RING
    assert granted[-1] == SIZE
    assert min(left) >= RING // 2 - GRANULE, left
