"""When a link's thread looks for the next message."""

import pytest

from hoplite_ucx.transports.ucx.pace import Pace

PIECE = 128 << 10
RATE = 125e6  # 1 Gbit/s: a piece takes a millisecond
EACH = PIECE / RATE


def paced(*late: float, rate: float = RATE, count: int = 9) -> tuple[Pace, float]:
    """A link on which so many pieces came in time, but for the last ones, which were seen late. And when the next one
    will be there."""
    pace = Pace()
    each = PIECE / rate
    delays = [0.0] * (count - len(late)) + list(late)
    for number, delay in enumerate(delays):
        pace.came(10.0 + number * each + delay, (number + 1) * PIECE)
    return pace, 10.0 + count * each


def test_most_of_the_time_a_message_takes_is_waited_for() -> None:
    pace, then = paced()
    assert pace.due(PIECE) == pytest.approx(then - EACH / 4)


def test_who_was_late_does_not_wait_longer() -> None:
    """Most of the next message is there when the last one is seen."""
    pace, then = paced(0.6 * EACH)
    assert pace.due(PIECE) == 0.0, "too little is left to wait for"
    pace, then = paced(EACH / 4)
    assert then - 0.3 * EACH < pace.due(PIECE) < then


def test_nothing_is_waited_for_while_nothing_is_known() -> None:
    pace, _ = paced(count=8)
    assert pace.due(PIECE) == 0.0
    pace, then = paced()
    for number in range(7):  # after a pause
        pace.came(then + 0.03 + number * EACH, (10 + number) * PIECE)
        assert pace.due(PIECE) == 0.0


def test_nothing_is_waited_for_on_a_fast_link() -> None:
    pace, _ = paced(rate=20 * RATE)
    for length in (PIECE, 8 * PIECE, 128 * PIECE):
        assert pace.due(length) == 0.0, "so much does not wait in the kernel"


def test_small_messages_are_not_waited_for() -> None:
    pace, _ = paced(rate=RATE / 10)
    assert pace.due(32 << 10) == 0.0


def test_no_wait_is_long() -> None:
    pace, then = paced(rate=RATE / 10)
    last = then - 10 * EACH
    assert pace.due(PIECE) == pytest.approx(last + 0.002)
    pace, then = paced()
    assert pace.due(64 * PIECE) <= then - EACH + 0.0021


def test_messages_without_bytes_do_no_harm() -> None:
    pace = Pace()
    for number in range(12):
        pace.came(10.0 + number / 1000, 0)
    assert pace.due(PIECE) <= 10.011 + 0.002
