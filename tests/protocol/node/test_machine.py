"""A node and its session with the directory: announcing, coming back, settings and fencing."""

import pytest

from hoplite_ucx.protocol import Settings
from hoplite_ucx.protocol.errors import FailureKind
from hoplite_ucx.protocol.events import (
    CallFailed,
    ConnectDirectory,
    DeleteCall,
    DirectoryConnected,
    DirectoryLost,
    DisconnectDirectory,
    GetCall,
    Got,
    NodeEffect,
    PutCall,
    Receive,
    ReceiveClosed,
    SendDirectory,
    Tick,
    WaitCall,
)
from hoplite_ucx.protocol.ids import next_life
from hoplite_ucx.protocol.messages import (
    Copy,
    Delete,
    Fenced,
    Join,
    Put,
    PutAccepted,
    Welcome,
)
from hoplite_ucx.protocol.settings import MIB
from tests.tools.machines import CLUSTER, NodeDriver, ref, version
from tests.tools.transfers import OTHER, SIZE, R, V, holding_one, place, receiving


def test_everything_is_announced_when_the_session_is_new() -> None:
    n = NodeDriver()
    holding_one(n, 3)
    n.handle(GetCall(1, ref(1), None))
    n.only(n.directory(place(7)), Receive)
    n.handle(GetCall(2, ref(2), None))
    n.handle(PutCall(3, ref(4), SIZE, b"", None, None))
    n.directory(PutAccepted(3, version(4), existing=False))
    n.handle(PutCall(4, ref(5), SIZE, b"l", None, None))
    n.handle(WaitCall(5, (ref(6),), 1, None))
    n.handle(DeleteCall(6, (ref(7),), None))
    n.handle(DirectoryLost())
    hello = n.connect()
    assert hello.copies == (Copy(version(3), SIZE, b"layout"),)
    (partial,) = hello.partials
    assert (partial.version, partial.size, partial.watermark, partial.number) == (V, SIZE, 0, 7)
    assert hello.wants == (ref(2),)
    assert hello.producing == (Copy(version(4), SIZE, b""),)
    assert hello.puts == (Put(4, ref(5), SIZE, b"l", None),)
    assert hello.watches == (ref(6),)
    assert hello.deletes == (Delete(6, (ref(7),)),)


def test_reconnecting_backs_off() -> None:
    n = NodeDriver()
    pauses = []
    for _ in range(9):
        n.handle(DirectoryLost())
        began = n.now
        effects: list[NodeEffect] = []
        while not any(isinstance(effect, ConnectDirectory) for effect in effects):
            wakeup = n.state.wakeup()
            assert wakeup is not None
            n.now = wakeup
            effects = n.handle(Tick())
        pauses.append(n.now - began)
    assert pauses == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5, 0.5, 0.5])


def test_a_silent_directory_is_left() -> None:
    n = NodeDriver()
    effects: list[NodeEffect] = []
    for _ in range(9):
        n.now += n.settings.heartbeat
        effects += n.handle(Tick())
    assert effects.count(DisconnectDirectory()) == 1


def test_streams_run_on_without_the_directory() -> None:
    n = NodeDriver()
    receive = receiving(n)
    assert n.handle(DirectoryLost()) == []
    assert n.only(n.handle(ReceiveClosed(receive.stream, SIZE, None)), Got).call == 1
    assert n.connect().copies == (Copy(V, SIZE, b"layout"),)


@pytest.mark.parametrize("welcome", [Welcome(1, "another", Settings()), Welcome(0, CLUSTER, Settings())])
def test_a_foreign_or_older_directory_is_refused(welcome: Welcome) -> None:
    n = NodeDriver()
    assert DisconnectDirectory() in n.directory(welcome)
    assert n.state.refusal is not None
    assert n.state.refusal.kind is FailureKind.STALE


def test_the_directorys_settings_are_taken_over() -> None:
    n = NodeDriver()
    n.directory(Welcome(1, CLUSTER, Settings(inline_limit=5)))
    [failed] = n.handle(PutCall(5, R, 6, b"", b"sixsix", None))
    assert isinstance(failed, CallFailed)


def test_a_fenced_node_comes_back_under_a_new_name_with_what_it_has() -> None:
    n = NodeDriver()
    holding_one(n, 3)
    receive = receiving(n, number=7)
    n.positions[receive.stream] = 2 * MIB
    n.beat()
    old = n.state.node
    effects = n.directory(Fenced(old))
    assert DisconnectDirectory() in effects
    assert n.state.node == next_life(old)
    n.handle(ReceiveClosed(receive.stream, 3 * MIB, None))
    hello = n.only([e for e in n.handle(DirectoryConnected()) if isinstance(e, SendDirectory)], SendDirectory).message
    assert isinstance(hello, Join)
    assert hello.node == next_life(old)
    (partial,) = hello.partials
    assert (partial.version, partial.watermark, partial.number) == (V, 3 * MIB, 0)
    assert hello.copies == (Copy(version(3), SIZE, b"layout"),)
    again = n.only(n.directory(place(1, sender=OTHER)), Receive)
    assert again.offset == 3 * MIB
    assert again.stream.receiver == next_life(old)


def test_fencing_another_life_changes_nothing() -> None:
    n = NodeDriver()
    assert n.directory(Fenced(next_life(n.state.node))) == []
