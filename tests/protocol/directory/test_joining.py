"""What a node announces in a new session is made to fit what is known of it."""

from hoplite_ucx.protocol.events import Probed, SessionLost
from hoplite_ucx.protocol.messages import (
    Halt,
    Halted,
    Partial,
    Place,
    Put,
    PutAccepted,
    Welcome,
)
from hoplite_ucx.protocol.settings import MIB
from tests.tools.machines import LARGE, DirectoryDriver, chain_of_three, ref, version

R = ref(1)
V = version(1)


def test_a_put_that_was_given_up_without_a_session_is_not_taken_up() -> None:
    d, places = chain_of_three()
    d.handle(Probed(d["A"], accepted=False))
    d.join("E")
    d.tell("E", Put(9, R, LARGE, b""))
    d.handle(SessionLost(d["E"]))
    d.join("E")
    for name, place in zip("BCD", places, strict=True):
        d.tell(name, Halted(V, place.number, MIB, wanted=True))
    assert d.heard_all(PutAccepted, "E") == []
    assert not d.directory.records


def test_a_new_session_of_the_same_node_changes_nothing_that_is_still_true() -> None:
    d, places = chain_of_three()
    d.handle(SessionLost(d["C"]))
    d.join("C", partials=(Partial(V, 8 * MIB, b"", 5 * MIB, places[1].number),), wants=())
    assert [type(m) for m in d.heard("C")] == [Welcome]
    assert d.senders(1) == {"B": "A", "C": "B", "D": "C"}


def test_a_new_session_tells_what_was_lost_with_the_old() -> None:
    d, places = chain_of_three()
    d.handle(SessionLost(d["C"]))
    d.join("C", partials=(Partial(V, 8 * MIB, b"", 5 * MIB, 0),))
    assert d.receiver("C", 1).watermark == 5 * MIB
    assert [p.sender for p in d.heard_all(Place, "C")] in ([d["A"]], [d["B"]])
    d.join("C")
    assert d["C"] not in d.broadcast(1).receivers
    assert d.heard_all(Halt, "D") == [Halt(V, places[2].number)]


def test_a_lost_halt_is_sent_again() -> None:
    d, places = chain_of_three()
    d.handle(Probed(d["B"], accepted=False))
    assert d.heard_all(Halt, "C") == [Halt(V, places[1].number)]
    d.handle(SessionLost(d["C"]))
    d.join("C", partials=(Partial(V, 8 * MIB, b"", MIB, places[1].number),))
    assert d.heard_all(Halt, "C") == [Halt(V, places[1].number)]


def test_an_inline_put_that_is_announced_again_keeps_its_copy() -> None:
    d = DirectoryDriver("A")
    put = Put(9, R, 3, b"", b"abc")
    d.tell("A", put)
    d.handle(SessionLost(d["A"]))
    d.join("A", puts=(put,))
    assert d.heard_all(PutAccepted, "A") == [PutAccepted(9, V, existing=False)] * 2
    assert set(d.broadcast(1).copies) == {d["A"]}
