"""How long a rise of a source takes to reach the receiver: one whose wake-up is lost waits for seconds."""

import statistics
import time
from collections.abc import Callable

import pytest

from hoplite_ucx.transports.testing.conformance.tools import Receiving, Serving, filled, next_key
from hoplite_ucx.transports.ucx.engine import Engine
from hoplite_ucx.transports.ucx.worker import Worker
from tests.rdma.inside.endpoints import RcEndpoint

SIZE = 1_000_000
RISES = (1, 70_000, 131_072, 131_073, 262_144, 300_000, 393_216, SIZE)
STALL_SECONDS = 2.0
"""Ten times what a rise takes here, and a tenth of what one without its wake-up does."""


def seconds_of_rises(count: int) -> list[float]:
    """A rise that takes longer than a stall is counted as that, and helped on."""
    taken: list[float] = []
    with RcEndpoint(1) as a, RcEndpoint(2) as b:
        for _ in range(1 + -(-count // len(RISES))):
            key, source = next_key(), filled(1, SIZE, watermark=0)
            Serving(a, 2, key, source, SIZE, granule=64 << 10)
            incoming = Receiving(b, 1, a.address, key, SIZE, granule=64 << 10)
            for rise in RISES:
                began = time.monotonic()
                source.rise(rise)
                while incoming.memory.watermark() < rise:
                    time.sleep(0.0005)
                    if time.monotonic() - began > STALL_SECONDS:
                        _wake(a.transport.start())
                        _wake(b.transport.start())
                        time.sleep(0.1)
                taken.append(time.monotonic() - began)
    return taken[len(RISES) : len(RISES) + count]  # the first connects


def _wake(engine: Engine) -> None:
    def work() -> None:
        for worker in engine._workers.values():
            worker.awake = True

    engine.call(work)


def figures(taken: list[float], record: Callable[[str, object], None]) -> list[float]:
    record("rises", len(taken))
    record("median_ms", round(statistics.median(taken) * 1e3, 1))
    record("longest_ms", round(max(taken) * 1e3))
    record("above_half_a_second", sum(seconds > 0.5 for seconds in taken))
    return [seconds for seconds in taken if seconds > STALL_SECONDS]


@pytest.mark.parametrize(
    "count", [pytest.param(100, marks=pytest.mark.tier("quick")), pytest.param(600, marks=pytest.mark.tier("default"))]
)
def test_no_rise_waits_for_a_wake_up(count: int, record_property: Callable[[str, object], None]) -> None:
    assert figures(seconds_of_rises(count), record_property) == []


@pytest.mark.tier("default")
def test_without_the_look_after_arming_rises_wait(
    monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    """What the test above is worth: of 600 rises, dozens lose their wake-up when UCX is believed."""

    def believe(worker: Worker) -> bool:
        worker.awake = not worker._worker.arm()
        return not worker.awake

    monkeypatch.setattr(Worker, "arm", believe)
    stalls = figures(seconds_of_rises(600), record_property)
    record_property("stalls", len(stalls))
    assert stalls
