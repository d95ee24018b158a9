"""The life of objects, event by event: puts, losses, waits and deletes. Invariants are checked after every event."""

import pytest

from hoplite_ucx.protocol import Settings
from hoplite_ucx.protocol.directory.states import State
from hoplite_ucx.protocol.errors import FailureKind
from hoplite_ucx.protocol.events import Probed, SessionLost
from hoplite_ucx.protocol.messages import (
    Aborted,
    Completed,
    Copy,
    Delete,
    Deleted,
    Drop,
    Failed,
    Halt,
    Halted,
    Place,
    Put,
    PutAccepted,
    PutRefused,
    Ready,
    Unwatch,
    Want,
    Watch,
)
from hoplite_ucx.protocol.settings import KIB, MIB
from tests.tools.machines import LARGE, DirectoryDriver, broken, chain_of_three, ref, version

R = ref(1)
V = version(1)

# --- put --------------------------------------------------------------------------------------------------------


def test_a_put_is_given_a_version() -> None:
    d = DirectoryDriver("A")
    d.tell("A", Put(7, R, LARGE, b"layout"))
    assert d.heard("A") == [PutAccepted(7, V, existing=False)]
    d.tell("A", Completed(V))
    assert d.heard("A") == []
    assert set(d.broadcast(1).copies) == {d["A"]}


def test_put_again_is_a_no_op_while_a_copy_lives() -> None:
    d = DirectoryDriver("A", "B")
    d.put("A", 1)
    d.tell("B", Put(8, R, 5, b"other"))
    assert d.heard("B") == [PutAccepted(8, V, existing=True)]
    assert d.broadcast(1).size == LARGE


def test_put_again_is_a_no_op_while_the_only_copy_is_suspect() -> None:
    d = DirectoryDriver("A", "B")
    d.put("A", 1)
    d.handle(SessionLost(d["A"]))
    d.tell("B", Put(8, R, 5, b""))
    assert d.heard("B") == [PutAccepted(8, V, existing=True)]


def test_the_same_put_sent_twice_is_known_as_one() -> None:
    d = DirectoryDriver("A")
    d.tell("A", Put(7, R, LARGE, b""), Put(7, R, LARGE, b""))
    assert d.heard("A") == [PutAccepted(7, V, existing=False)] * 2


def test_put_after_a_loss_begins_a_new_version() -> None:
    d = DirectoryDriver("A", "B")
    d.put("A", 1)
    d.handle(Probed(d["A"], accepted=False))
    assert R not in d.directory.records
    d.tell("B", Put(8, R, LARGE, b""))
    assert d.heard("B") == [PutAccepted(8, version(1, 2), existing=False)]


def test_who_waits_is_placed_when_the_put_begins() -> None:
    d = DirectoryDriver("A", "B")
    d.tell("B", Want(R))
    assert d.heard("B") == []
    d.tell("A", Put(1, R, LARGE, b"layout"))
    [place] = d.heard_all(Place, "B")
    assert (place.version, place.sender, place.size, place.layout) == (V, d["A"], LARGE, b"layout")


def test_the_putter_does_not_pull_what_it_waited_for() -> None:
    for data in (None, bytes(5)):
        d = DirectoryDriver("A")
        d.tell("A", Want(R), Put(1, R, 5, b"", data))
        if data is None:
            d.tell("A", Completed(V))
        assert not d.heard_all(Place, "A")
        assert set(d.broadcast(1).copies) == {d["A"]}


@pytest.mark.parametrize(
    ("put", "kind"),
    [
        (Put(1, R, Settings().max_object + 1, b""), FailureKind.INVALID),
        (Put(1, R, 4, b"", b"five!"), FailureKind.INVALID),
        (Put(1, R, 64 * KIB, b"", bytes(64 * KIB)), FailureKind.INVALID),
    ],
    ids=["too large", "bytes of another size", "inline over the limit"],
)
def test_a_put_that_cannot_be_is_refused(put: Put, kind: FailureKind) -> None:
    d = DirectoryDriver("A")
    d.tell("A", put)
    [refused] = d.heard("A")
    assert isinstance(refused, PutRefused)
    assert (refused.call, refused.failure.kind, refused.failure.ref) == (1, kind, R)
    assert not d.directory.records


def test_an_aborted_put_fails_who_waited_for_it() -> None:
    d = DirectoryDriver("A", "B")
    d.put("A", 1, done=False)
    place = d.want("B", 1)
    d.tell("A", Aborted(V))
    assert d.heard("B") == [Halt(V, place.number)]
    d.tell("B", Halted(V, place.number, 5 * MIB, wanted=True))
    failed, drop = d.heard("B")
    assert isinstance(failed, Failed)
    assert failed.failure.kind is FailureKind.ABORTED
    assert drop == Drop(V)


# --- loss -------------------------------------------------------------------------------------------------------


def test_nothing_is_declared_lost_on_suspicion() -> None:
    d = DirectoryDriver("A", "B")
    d.put("A", 1)
    place = d.want("B", 1)
    d.handle(SessionLost(d["A"]))
    d.tell("B", broken(place, MIB))
    assert d.heard("B") == []
    assert d.receiver("B", 1).state is State.WAITING
    d.join("A", copies=(Copy(V, LARGE, b"layout"),))
    d.pass_time(0.1, beating=("A", "B"))
    assert [p.sender for p in d.heard_all(Place, "B")] == [d["A"]]


def test_a_loss_is_declared_only_after_every_live_receiver_has_reported() -> None:
    d, places = chain_of_three()
    d.handle(Probed(d["A"], accepted=False))
    assert [d.heard_all(Halt, name) for name in "BCD"] == [[Halt(V, p.number)] for p in places]
    d.tell("B", Halted(V, places[0].number, 9 * MIB, wanted=True))
    d.tell("C", Halted(V, places[1].number, 5 * MIB, wanted=True))
    assert d.heard_all(Failed) == []
    d.tell("D", Halted(V, places[2].number, 1 * MIB, wanted=True))
    for name in "BCD":
        failed, drop = d.heard(name)
        assert isinstance(failed, Failed)
        assert (failed.ref, failed.failure.kind) == (R, FailureKind.LOST)
        assert drop == Drop(V)
    assert not d.directory.records


def test_a_receiver_that_turns_out_complete_saves_the_version() -> None:
    d, places = chain_of_three()
    d.handle(Probed(d["A"], accepted=False))
    d.heard_all(Halt)
    for name, place in zip("CD", places[1:], strict=True):
        d.tell(name, Halted(V, place.number, MIB, wanted=True))
    d.tell("B", Completed(V))
    assert {p.sender for p in d.heard_all(Place)} <= {d["B"], d["C"], d["D"]}
    assert set(d.senders(1)) == {"C", "D"}
    assert d.heard_all(Failed) == []


def test_a_put_during_a_flush_waits_for_its_outcome() -> None:
    for survives in (True, False):
        d, places = chain_of_three()
        d.handle(Probed(d["A"], accepted=False))
        d.join("E")
        d.tell("E", Put(9, R, LARGE, b""))
        assert d.heard_all(PutAccepted, "E") == []
        for name, place in zip("CD", places[1:], strict=True):
            d.tell(name, Halted(V, place.number, MIB, wanted=True))
        d.tell("B", Completed(V) if survives else Halted(V, places[0].number, MIB, wanted=True))
        expected = PutAccepted(9, V if survives else version(1, 2), existing=survives)
        assert d.heard_all(PutAccepted, "E") == [expected]


def test_a_put_that_is_announced_again_during_a_flush_is_accepted_once() -> None:
    d, places = chain_of_three()
    d.handle(Probed(d["A"], accepted=False))
    put = Put(9, R, 3, b"", b"abc")
    d.join("E")
    d.tell("E", put)
    d.handle(SessionLost(d["E"]))
    d.join("E", puts=(put,))
    for name, place in zip("BCD", places, strict=True):
        d.tell(name, Halted(V, place.number, MIB, wanted=True))
    assert d.heard_all(PutAccepted, "E") == [PutAccepted(9, version(1, 2), existing=False)]


# --- wait and delete --------------------------------------------------------------------------------------------


def test_watchers_are_told_when_a_complete_copy_exists() -> None:
    d = DirectoryDriver("A", "B")
    d.put("A", 2)
    d.tell("B", Watch((R, ref(2))))
    assert d.heard("B") == [Ready((ref(2),))]
    begun = d.put("A", 1, done=False)
    assert d.heard("B") == []
    d.tell("A", Completed(begun))
    assert d.heard("B") == [Ready((R,))]


def test_who_stopped_watching_is_not_told() -> None:
    d = DirectoryDriver("A", "B")
    d.tell("B", Watch((R,)), Unwatch((R,)))
    assert not d.directory.records
    d.put("A", 1)
    assert d.heard("B") == []


def test_delete_ends_everything_and_leaves_a_tombstone() -> None:
    d, _ = chain_of_three()
    d.tell("D", Watch((R,)))
    d.heard("D")
    d.tell("A", Delete(5, (R, ref(9))))
    assert d.heard("A")[-2:] == [Drop(V), Deleted(5)]
    for name in "BCD":
        failed, drop = d.heard(name)
        assert isinstance(failed, Failed)
        assert failed.failure.kind is FailureKind.DELETED
        assert drop == Drop(V)
    assert all(not m.nic.sending and not m.nic.receiving for m in d.directory.members)


def test_what_is_said_of_a_deleted_ref() -> None:
    d = DirectoryDriver("A", "B")
    d.put("A", 1)
    d.tell("A", Delete(5, (R,)))
    d.heard("A")
    d.tell("B", Want(R), Watch((R,)), Put(6, R, 5, b""), Completed(V), Delete(7, (R,)))
    want, watch, put, completed, deleted = d.heard("B")
    assert isinstance(want, Failed)
    assert watch == Ready((R,)), "a get would answer at once"
    assert want.failure.kind is FailureKind.DELETED
    assert isinstance(put, PutRefused)
    assert put.failure.kind is FailureKind.DELETED
    assert completed == Drop(V)
    assert deleted == Deleted(7), "deleting twice is no error"


def test_deferred_puts_of_a_deleted_ref_are_refused() -> None:
    d, _ = chain_of_three()
    d.handle(Probed(d["A"], accepted=False))
    d.join("E")
    d.tell("E", Put(9, R, LARGE, b""))
    d.tell("B", Delete(1, (R,)))
    [refused] = d.heard_all(PutRefused, "E")
    assert refused.call == 9
