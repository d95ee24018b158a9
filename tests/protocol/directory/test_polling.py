"""What the directory says to whoever asks once: what it knows now, and nothing is left behind."""

from hoplite_ucx.protocol.events import (
    CancelCall,
    ContributorsCall,
    FromNode,
    Probed,
    SessionLost,
)
from hoplite_ucx.protocol.messages import (
    Ask,
    Copy,
    Delete,
    ObjectState,
    Operation,
    Place,
    Poll,
    Polled,
    Put,
    Ready,
    Reduce,
    Unwant,
    Unwatch,
    Want,
    Watch,
)
from hoplite_ucx.protocol.settings import MIB
from tests.tools.machines import DirectoryDriver, NodeDriver, ref, version

R = ref(1)
V = version(1)
SIZE = 10 * MIB


def polled(d: DirectoryDriver, name: str, number: int | None) -> ObjectState:
    d.heard(name)
    d.tell(name, Poll(9, None if number is None else ref(number)))
    [answer] = d.heard_all(Polled, name)
    assert answer.call == 9
    return answer.state


def test_it_knows_what_is_there_and_what_is_on_its_way() -> None:
    d = DirectoryDriver("A", "B")
    assert polled(d, "B", 1) is ObjectState.UNKNOWN
    d.put("A", 1)
    assert polled(d, "B", 1) is ObjectState.READY
    d.put("A", 2, done=False)
    assert polled(d, "B", 2) is ObjectState.COMING
    d.tell("A", Reduce(5, ref(3), (ref(1), ref(4)), Operation.SUM, 2))
    assert polled(d, "B", 3) is ObjectState.COMING
    d.tell("A", Delete(6, (R,)))
    assert polled(d, "B", 1) is ObjectState.DELETED
    polled(d, "B", None)
    d.tell("A", Put(7, ref(5), 3, b"", b"abc", told=True))
    assert polled(d, "B", 5) is ObjectState.READY


def test_a_question_leaves_nothing_behind() -> None:
    d = DirectoryDriver("A")
    polled(d, "A", 1)
    d.tell("A", Want(R), Poll(9, R), Unwant(R))
    assert not d.directory.records


def test_what_was_asked_before_is_answered_before() -> None:
    d = DirectoryDriver("A", "B")
    d.put("A", 1)
    d.heard("B")
    d.tell("B", Want(R), Watch((ref(2), R)), Poll(9, R))
    assert [type(message) for message in d.heard("B")] == [Place, Ready, Polled]


def test_a_lost_object_is_absent() -> None:
    d = DirectoryDriver("A", "B")
    d.put("A", 1)
    d.handle(SessionLost(d["A"]))
    d.handle(Probed(d["A"], accepted=False))
    assert polled(d, "B", 1) is ObjectState.UNKNOWN


def test_who_polls_asks_no_more() -> None:
    """Else a user who polls for the contributors would leave a mark each time."""
    d = DirectoryDriver("A")
    d.tell("A", Reduce(5, ref(3), (ref(1), ref(4)), Operation.SUM, 2), Ask(9, ref(3)))
    assert polled(d, "A", 3) is ObjectState.COMING
    assert not d.directory.records[ref(3)].askers


def test_who_gives_up_asking_asks_no_more() -> None:
    d, n = DirectoryDriver("A"), NodeDriver()
    d.tell("A", Reduce(5, ref(3), (ref(1), ref(4)), Operation.SUM, 2))
    for message in n.sent(n.handle(ContributorsCall(9, ref(3), None)) + n.handle(CancelCall(9)), Ask | Poll):
        d.tell("A", message)
    assert not d.directory.records[ref(3)].askers
    assert n.directory(Polled(9, ObjectState.COMING)) == []


def test_what_is_deleted_is_told_together_with_what_is_ready() -> None:
    d = DirectoryDriver("A", "B")
    for number in (1, 2):
        d.put("A", number)
    d.tell("A", Delete(6, (ref(2),)))
    d.heard("B")
    d.tell("B", Watch((ref(2), ref(3), ref(1))))
    assert d.heard("B") == [Ready((ref(2), ref(1)))]
    d.tell("B", Unwatch((ref(3),)))
    assert set(d.directory.records) == {ref(1)}


def test_a_new_directory_answers_when_it_has_heard_everybody() -> None:
    d = DirectoryDriver(incarnation=2)
    d.directory.recover(0.0)
    d.join("B", incarnation=1, members=2)
    d.heard("B")
    d.tell("B", Poll(9, R))
    assert not d.heard_all(Polled, "B")
    d.join("A", incarnation=1, members=2, copies=(Copy(V, SIZE, b""),))
    assert d.heard_all(Polled, "B") == [Polled(9, ObjectState.READY)]


def test_who_asked_and_is_gone_is_not_answered() -> None:
    d = DirectoryDriver(incarnation=2)
    d.directory.recover(0.0)
    d.join("B", incarnation=1, members=2)
    d.tell("B", Poll(9, R))
    d.handle(SessionLost(d["B"]))
    d.pass_time(3.0)
    d.heard("B")
    d.handle(FromNode(d["B"], Poll(9, R)))
    assert not d.heard_all(Polled, "B")
