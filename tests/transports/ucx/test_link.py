"""How a UCX link that stands still is told from one that is slow."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from hoplite_ucx.transports.ucx.link import Link


class Quiet(Link):
    """A link without UCX, whose timers are rung by hand."""

    def __init__(self) -> None:
        self.timers: list[Callable[[], None]] = []
        self.engine: Any = SimpleNamespace(later=lambda _seconds, work: self.timers.append(work))
        self.broken = False
        self.why: list[str] = []

    name = "a peer"

    def break_off(self, error: Exception | None) -> None:
        self.broken = True
        self.why.append(str(error))

    heard = busy = hang_up = release = forget_requests = ended = None  # type: ignore[assignment]


def test_a_cancelled_stream_breaks_its_link_only_if_none_of_its_transfers_ends() -> None:
    link, stream, under_way = Quiet(), SimpleNamespace(closed=False), [4]
    link.give_up_later(stream, lambda: under_way[0])
    for left in (3, 1):
        under_way[0] = left
        link.timers.pop()()
        assert not link.broken, "it is slow, and gets on"
    link.timers.pop()()
    assert "stood still" in link.why[0]
    assert not link.timers


def test_a_stream_that_is_closed_meanwhile_breaks_nothing() -> None:
    link, stream = Quiet(), SimpleNamespace(closed=False)
    link.give_up_later(stream, lambda: 1)
    stream.closed = True
    link.timers.pop()()
    assert not link.broken
    assert not link.timers
