"""What streams show of a link: from when to when they count, and which of them."""

import pytest

from hoplite_ucx.transports.buffers import Memory, MemorySink
from hoplite_ucx.transports.link_measures import LEAST, Estimate, Rates, Timed

SIZE = 4 * LEAST


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def timed(*arrivals: tuple[float, int], offset: int = 0) -> tuple[int, float, float]:
    """The sample of a stream whose bytes arrived so long after the request."""
    clock = Clock()
    sink = Timed(MemorySink(Memory(bytearray(16)), 16), offset, clock)
    for after, end in arrivals:
        clock.now = 100.0 + after
        sink.arrived(end)
    return sink.sample()


def test_rates_count_from_the_first_arrival() -> None:
    assert timed((0.5, 1000), (0.6, 3000), (1.5, 9000)) == (8000, 1.0, 0.5)
    assert timed((0.5, 6000), (1.5, 14000), offset=5000) == (8000, 1.0, 0.5)


def test_what_came_at_once_counts_from_the_request() -> None:
    assert timed((0.5, 9000)) == (9000, 0.5, 0.5)
    assert timed((0.5, 8000), (0.6, 9000)) == (9000, pytest.approx(0.6), 0.5)
    assert timed() == (0, 0.0, -100.0), "nothing came: too short for a sample"


def test_the_highest_rate_and_the_shortest_delay_of_the_last_few() -> None:
    supposed = Estimate(1.0, 1.0)
    rates = Rates(lambda *_: supposed)
    assert rates.estimate(1, None, False) is supposed
    rates.add(1, None, False, 0, 0.0, -100.0)
    rates.add(1, None, False, LEAST - 1, 1e-9, 1e-9)
    assert rates.estimate(1, None, False) is supposed
    for seconds, delay in ((1.0, 0.2), (0.5, 0.3), (2.0, 0.1)):
        rates.add(1, None, False, SIZE, seconds, delay)
    assert rates.estimate(1, None, False) == Estimate(SIZE / 0.5, 0.1, 3)
    assert rates.estimate(2, None, False) is supposed
    for _ in range(8):
        rates.add(1, None, False, SIZE, 4.0, 0.5)
    assert rates.estimate(1, None, False) == Estimate(SIZE / 4.0, 0.5, 8), "what is long ago no longer counts"
    assert rates.estimate(1, None, True) is supposed, "streams into GPUs are measured by themselves"
