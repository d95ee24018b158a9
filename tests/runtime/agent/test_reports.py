"""What other threads report to the agent's loop: in order, and with one call for several."""

import asyncio
from collections.abc import Callable

import pytest

from hoplite_ucx.protocol.events import Combined, NodeEvent, ReceiveClosed, ServeClosed
from hoplite_ucx.protocol.ids import StreamId, node_id
from hoplite_ucx.runtime.agent.agent import Agent, AgentProfile
from tests.tools.waiting import HANG

STREAM = StreamId(node_id(5), 1)
MANY = 50


class Loop:
    """Keeps what it is to call."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def call_soon_threadsafe(self, call: Callable[[], None]) -> None:
        self.calls.append(call)


@pytest.fixture
def handled(monkeypatch: pytest.MonkeyPatch) -> list[NodeEvent]:
    events: list[NodeEvent] = []
    monkeypatch.setattr(Agent, "dispatch", lambda _, event: events.append(event))
    return events


def make(loop: Loop) -> Agent:
    agent = Agent(AgentProfile(directory="", token=b"", memory=1 << 20, rate=1e9))
    agent._loop = loop  # type: ignore[assignment]
    return agent


def test_ends_that_come_in_a_row_call_the_loop_once(handled: list[NodeEvent]) -> None:
    loop = Loop()
    agent = make(loop)
    ends: list[NodeEvent] = [ServeClosed(STREAM), ReceiveClosed(STREAM, 7, None), Combined(3)]
    for end in ends:
        agent._dispatch_soon(end)
    (call,) = loop.calls
    call()
    assert handled == ends


def test_a_report_during_the_call_is_handled_and_a_later_one_calls_again(
    handled: list[NodeEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop()
    agent = make(loop)

    def dispatch(agent: Agent, event: NodeEvent) -> None:
        handled.append(event)
        if event == Combined(1):
            agent._dispatch_soon(Combined(2))

    monkeypatch.setattr(Agent, "dispatch", dispatch)
    agent._dispatch_soon(Combined(1))
    for call in loop.calls:  # the second finds nothing left
        call()
    assert handled == [Combined(1), Combined(2)]
    loop.calls.clear()
    agent._dispatch_soon(Combined(3))
    assert len(loop.calls) == 1


def test_reports_that_follow_from_reports_leave_the_loop_time_for_others(
    handled: list[NodeEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop()
    agent = make(loop)

    def dispatch(agent: Agent, event: NodeEvent) -> None:
        handled.append(event)
        if len(handled) < MANY:
            agent._dispatch_soon(event)

    monkeypatch.setattr(Agent, "dispatch", dispatch)
    agent._dispatch_soon(Combined(1))
    loop.calls.pop()()
    assert len(handled) == 1
    while loop.calls:
        (call,) = loop.calls
        loop.calls.clear()
        call()
    assert len(handled) == MANY


def test_a_report_that_fails_does_not_hold_up_the_next(
    handled: list[NodeEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop()
    agent = make(loop)

    def dispatch(_: Agent, event: NodeEvent) -> None:
        if event == Combined(1):
            raise ZeroDivisionError
        handled.append(event)

    monkeypatch.setattr(Agent, "dispatch", dispatch)
    for number in (1, 2):
        agent._dispatch_soon(Combined(number))
    with pytest.raises(ZeroDivisionError):
        loop.calls.pop()()
    (call,) = loop.calls
    call()
    assert handled == [Combined(2)]


def test_reports_of_many_threads_are_all_handled(handled: list[NodeEvent]) -> None:
    async def scenario() -> None:
        agent = make(Loop())
        agent._loop = asyncio.get_running_loop()

        def report(first: int) -> None:
            for number in range(first, first + 500):
                agent._dispatch_soon(Combined(number))

        async with asyncio.timeout(HANG):
            await asyncio.gather(*(asyncio.to_thread(report, first) for first in range(0, 2000, 500)))
            while len(handled) < 2000:
                await asyncio.sleep(0)

    asyncio.run(scenario())
    assert sorted(event.segment for event in handled if isinstance(event, Combined)) == list(range(2000))
