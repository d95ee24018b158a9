"""A node that is to leave on purpose: it says so in every session, and its shell hears when nothing is lost with it."""

from hoplite_ucx.protocol.events import DirectoryLost, Retired, RetireWanted
from hoplite_ucx.protocol.messages import MayLeave, Retire
from hoplite_ucx.protocol.node.succession import Remains
from tests.tools.machines import NodeDriver


def test_it_says_so_once_in_every_session() -> None:
    n = NodeDriver()
    assert n.sent(n.handle(RetireWanted()), Retire) == [Retire()]
    assert not n.sent(n.handle(RetireWanted()), Retire)
    n.handle(DirectoryLost())
    assert n.sent(n.connect_effects(), Retire) == [Retire()]


def test_without_a_session_it_says_so_in_the_next() -> None:
    n = NodeDriver(joined=False)
    assert not n.sent(n.handle(RetireWanted()), Retire)
    assert n.sent(n.connect_effects(), Retire) == [Retire()]


def test_the_shell_hears_when_it_may_leave() -> None:
    n = NodeDriver()
    assert n.none(n.directory(MayLeave(0)), Retired)
    n.handle(RetireWanted())
    assert n.only(n.directory(MayLeave(3)), Retired) == Retired(3)


def test_a_successor_retires_too() -> None:
    n = NodeDriver()
    n.handle(RetireWanted())
    n.state, _ = n.state.successor(Remains({}, {}, {}, frozenset()), n.now)
    assert n.sent(n.connect_effects(), Retire) == [Retire()]
