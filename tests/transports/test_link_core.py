"""Whose turn it is on a link, and what a peer may ask for: decisions alone, no sockets."""

from typing import Any

import pytest

from hoplite_ucx.transports import link_core
from hoplite_ucx.transports.errors import ViolationError
from hoplite_ucx.transports.interface import Fault, Priority, Stream
from hoplite_ucx.transports.link_core import Demand, Incoming, Outgoing, ReceivingCore, SendingCore
from hoplite_ucx.transports.link_timers import LinkTimers

PATIENCE = 10.0


class Memory:
    """A source and a sink."""

    def __init__(self, watermark: int = 0) -> None:
        self._watermark = watermark
        self.subscribed: list[object] = []

    def watermark(self) -> int:
        return self._watermark

    def end(self) -> int:
        return self._watermark

    def unsubscribe(self, risen: object) -> None:
        self.subscribed.append(risen)


def stream(number: int) -> Stream:
    return Stream((2, number), 0, 100, 10)


def served(number: int, priority: Priority = Priority.OWN, rank: int = 0) -> Outgoing[Demand]:
    return Outgoing(stream(number), Memory(), lambda: None, priority, rank)


@pytest.fixture
def core() -> SendingCore[Demand, Outgoing[Demand]]:
    return SendingCore("2", LinkTimers(patience=PATIENCE))


def opened(core: SendingCore[Demand, Any], outgoing: Outgoing[Demand]) -> Outgoing[Demand]:
    core.open(Demand(outgoing.key, outgoing.key[1]), outgoing)
    return outgoing


def in_line(core: SendingCore[Demand, Any], *streams: Outgoing[Demand], now: float = 0.0) -> None:
    for each in streams:
        assert core.enqueue(opened(core, each) if each.demand is None else each, now)


def turns(core: SendingCore[Demand, Any], count: int, now: float = 0.0) -> list[int]:
    """The streams that send next, each of which then waits again."""
    taken = []
    for _ in range(count):
        each = core.next(now)
        assert each is not None
        taken.append(each.key[1])
        core.enqueue(each, now)
    return taken


# --- turns -------------------------------------------------------------------------------------------------------


def test_streams_of_one_priority_take_turns(core: SendingCore[Demand, Any]) -> None:
    in_line(core, served(1), served(2), served(3))
    assert turns(core, 6) == [1, 2, 3, 1, 2, 3]


def test_relayed_bytes_go_first(core: SendingCore[Demand, Any]) -> None:
    in_line(core, served(1), served(2, Priority.RELAYED), served(3))
    assert turns(core, 3) == [2, 2, 2]


def test_the_lowest_rank_takes_the_turns_of_ranked_streams_alone(core: SendingCore[Demand, Any]) -> None:
    in_line(core, served(1, rank=2), served(2), served(3, rank=1))
    assert sorted(turns(core, 6)) == [2, 2, 3, 3, 3, 3], "one that has no rank keeps its third of the turns"


def test_a_rank_counts_within_its_priority(core: SendingCore[Demand, Any]) -> None:
    in_line(core, served(1, rank=1), served(2, Priority.RELAYED, rank=5))
    assert turns(core, 2) == [2, 2]


def test_a_stream_that_waited_long_goes_first(core: SendingCore[Demand, Any]) -> None:
    in_line(core, served(1))
    in_line(core, served(2, Priority.RELAYED), now=1.0)
    assert turns(core, 1, now=PATIENCE - 0.5) == [2]
    assert turns(core, 1, now=PATIENCE) == [1]
    assert turns(core, 2, now=PATIENCE + 0.1) == [2, 2]


def test_a_stream_waits_once_and_only_if_it_can_send(core: SendingCore[Demand, Any]) -> None:
    first = served(1)
    assert not core.enqueue(first, 0.0), "nobody has opened it"
    in_line(core, first)
    assert not core.enqueue(first, 0.0)
    assert core.waiting
    core.remove(first)
    assert core.next(0.0) is None
    assert not core.enqueue(first, 0.0)


# --- what a receiver asks for ------------------------------------------------------------------------------------


@pytest.mark.parametrize("served_first", [True, False])
def test_a_stream_is_opened_and_served_in_any_order(core: SendingCore[Demand, Any], served_first: bool) -> None:
    outgoing, demand = served(1), Demand((2, 1), 7)
    core.open(demand, outgoing if served_first else None)
    assert core.demand(7) is demand, "it takes credit either way"
    assert core.serve(outgoing) is not served_first
    assert outgoing.demand is demand
    assert core.streams == {7: outgoing}


def test_what_must_not_be_opened(core: SendingCore[Demand, Any]) -> None:
    outgoing = served(1)
    core.open(Demand((2, 1), 1), outgoing)
    core.open(Demand((2, 2), 2), None)
    for demand, of in [
        (Demand((2, 3), 0), None),
        (Demand((2, 3), 1), None),
        (Demand((2, 3), 2), None),
        (Demand((2, 2), 3), None),
        (Demand((2, 1), 3), outgoing),
    ]:
        with pytest.raises(ViolationError, match="opened twice"):
            core.open(demand, of)
    assert list(core.streams) == [1], "nothing has changed"
    assert core.demand(3) is None


def test_streams_that_nobody_serves_are_bounded(
    core: SendingCore[Demand, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_core, "MAX_UNSERVED", 2)
    core.open(Demand((2, 1), 1), None)
    core.open(Demand((2, 2), 2), None)
    with pytest.raises(ViolationError, match="more than 2 streams"):
        core.open(Demand((2, 3), 3), None)
    assert core.withdraw(1)
    assert not core.withdraw(1)
    core.open(Demand((2, 1), 3), None)


def test_a_stream_that_is_over_takes_no_credit(core: SendingCore[Demand, Any]) -> None:
    outgoing = opened(core, served(1))
    outgoing.over = True
    assert core.demand(1) is None
    assert core.streams, "it is closed with its last transfer"


def test_the_end_of_a_connection_leaves_nothing(core: SendingCore[Demand, Any]) -> None:
    outgoing = served(1)
    in_line(core, outgoing)
    core.open(Demand((2, 2), 2), None)
    assert core.end() == [outgoing]
    assert not core.waiting
    core.open(Demand((2, 2), 1), None)


# --- the receiving end -------------------------------------------------------------------------------------------


def test_channels_are_never_used_twice() -> None:
    core: ReceivingCore[Incoming] = ReceivingCore("1")
    first, second = (Incoming(stream(number), Memory(), lambda *_: None) for number in (1, 2))
    core.add(first)
    del core.streams[first.channel]
    core.add(second)
    assert core.find(first.channel) is None, "its last bytes may be on their way"
    assert core.find(second.channel) is second
    for never in (0, second.channel + 1):
        with pytest.raises(ViolationError, match="never opened"):
            core.find(never)


@pytest.mark.parametrize(("watermark", "fault"), [(99, Fault.BROKEN), (100, None)])
def test_a_stream_that_is_complete_closes_without_a_fault(watermark: int, fault: Fault | None) -> None:
    closed: list[tuple[int, Fault | None]] = []
    incoming = Incoming(stream(1), Memory(watermark), lambda *how: closed.append(how))
    incoming.close(Fault.BROKEN)
    assert closed == [(watermark, fault)]
