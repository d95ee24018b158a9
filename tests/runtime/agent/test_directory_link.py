"""When an agent that has lost its directory ends. The clock is ours; no session is ever made."""

import signal
from collections.abc import Iterator

import pytest

from hoplite_ucx.runtime.agent import directory_link
from hoplite_ucx.runtime.agent.directory_link import DirectoryLink
from hoplite_ucx.transports.wire.handshake import Identity


class Clock:
    def __init__(self) -> None:
        self.time = 100.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(directory_link, "now", lambda: clock.time)
    return clock


@pytest.fixture
def ended() -> Iterator[list[int]]:
    """The signals by which the agent was told to end."""
    signals: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    yield signals
    signal.signal(signal.SIGTERM, before)


def link(patience: float | None) -> DirectoryLink:
    return DirectoryLink(
        "127.0.0.1:1",
        Identity(1, b"token"),
        1.0,
        patience,
        dispatch=lambda _: None,
        welcomed=lambda _: None,
        dropped=lambda _: None,
        meet=lambda _: None,
    )


def tick(link: DirectoryLink, clock: Clock, times: int, apart: float) -> None:
    for _ in range(times):
        clock.time += apart
        link.tick(1.0)


def test_an_agent_ends_once_it_has_been_alone_for_too_long(clock: Clock, ended: list[int]) -> None:
    alone = link(patience=3.0)
    tick(alone, clock, 6, apart=0.5)
    assert ended == []
    tick(alone, clock, 6, apart=0.5)
    assert ended == [signal.SIGTERM]  # once


def test_a_pause_of_the_agent_itself_does_not_count(clock: Clock, ended: list[int]) -> None:
    """Stopped while it looked for its directory, an agent must first look again when it continues."""
    alone = link(patience=3.0)
    tick(alone, clock, 2, apart=60.0)
    assert ended == []


def test_an_agent_may_be_patient_for_ever(clock: Clock, ended: list[int]) -> None:
    tick(link(patience=None), clock, 1000, apart=1.0)
    assert ended == []
