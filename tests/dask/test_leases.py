"""Who holds a lease of the host's agent: owners that come at the same time, and joins that fail."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hoplite_ucx.dask import leases
from hoplite_ucx.dask.leases import Lease, closed
from hoplite_ucx.dask.terms import Terms
from hoplite_ucx.errors import ClosedError
from tests.tools.waiting import HANG, eventually

TERMS = Terms("cluster", "127.0.0.1:1", "token")


class MadeUpCluster:
    def close(self) -> None:
        pass


@pytest.fixture
def keepers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[socket.socket]]:
    """The keeper's ends of the connections that leases were given."""
    theirs: list[socket.socket] = []

    def reach(_: Terms) -> tuple[socket.socket, str]:
        ours, other = socket.socketpair()
        theirs.append(other)
        return ours, "agent"

    monkeypatch.setattr(leases, "_reach_keeper", reach)
    monkeypatch.setattr(leases.hoplite, "connect", lambda *_, **__: MadeUpCluster())
    yield theirs
    for end in theirs:
        end.close()


def failing_once(monkeypatch: pytest.MonkeyPatch, fails: Any) -> None:
    """The first join does what `fails` does; the others what the keepers do."""
    reach = leases._reach_keeper
    attempts: list[int] = []

    def first_fails(terms: Terms) -> tuple[socket.socket, str]:
        attempts.append(1)
        if len(attempts) == 1:
            fails()
        return reach(terms)

    monkeypatch.setattr(leases, "_reach_keeper", first_fails)


@pytest.mark.usefixtures("keepers")
def test_an_owner_that_waits_for_anothers_join_joins_itself_if_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """It used to wait for half a minute, and never joined again."""
    lease = Lease(TERMS)

    def fails() -> None:
        eventually(lambda: len(lease._owners) == 2)
        raise closed("no agent", "start one")

    failing_once(monkeypatch, fails)
    failed: list[BaseException] = []

    def hold_first() -> None:
        try:
            lease.hold("first")
        except ClosedError as error:
            failed.append(error)

    first = threading.Thread(target=hold_first)
    first.start()
    eventually(lambda: lease._owners)
    lease.hold("second")
    first.join(HANG)
    assert len(failed) == 1
    assert lease.joined() is not None
    lease.release("second")
    assert lease.joined() is None


@pytest.mark.usefixtures("keepers")
def test_an_owner_that_could_not_join_may_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    failing_once(monkeypatch, lambda: (_ for _ in ()).throw(closed("no agent", "start one")))
    lease = Lease(TERMS)
    with pytest.raises(ClosedError, match="no agent"):
        lease.hold("owner")
    lease.hold("owner")
    assert lease.joined() is not None
    lease.release("owner")


def test_a_process_that_cannot_be_started_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_process(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(leases.subprocess, "Popen", no_process)
    with pytest.raises(ClosedError, match="temporarily unavailable"):
        Lease(TERMS).hold("owner")


def test_a_lost_agent_is_replaced_though_that_fails_at_first(
    keepers: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "_RETRY", 0.01)
    lease = Lease(TERMS)
    lease.hold("owner")
    old = lease.joined()
    failing_once(monkeypatch, lambda: (_ for _ in ()).throw(closed("no agent yet", "wait")))
    keepers[0].close()
    eventually(lambda: lease.joined() not in (None, old))
    lease.release("owner")


def test_a_keeper_is_asked_once_more_by_a_process_that_was_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, other = socket.socketpair()
    monkeypatch.setattr(leases, "JOIN_SECONDS", 0.0)
    monkeypatch.setattr(leases, "_ask_keeper", lambda *_: (ours, {"agent": "agent"}))
    with ours, other:
        assert leases._reach_keeper(TERMS) == (ours, "agent")


def test_a_keeper_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "JOIN_SECONDS", 0.0)
    monkeypatch.setattr(leases, "_ask_keeper", lambda *_: None)
    with pytest.raises(ClosedError, match="did not answer within"):
        leases._reach_keeper(TERMS)
