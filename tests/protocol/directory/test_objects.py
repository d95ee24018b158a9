"""The directory, event by event: what each message makes it say, and to whom. `check()` runs after every event."""

import msgspec
import pytest

from hoplite_ucx.protocol import Settings
from hoplite_ucx.protocol.directory import tombstones
from hoplite_ucx.protocol.directory.spread.broadcast import State
from hoplite_ucx.protocol.errors import FailureKind
from hoplite_ucx.protocol.events import Disconnect, FromNode, Probe, Probed, SessionLost, Tick
from hoplite_ucx.protocol.ids import next_life
from hoplite_ucx.protocol.invariants import check
from hoplite_ucx.protocol.messages import (
    Aborted,
    Alive,
    Completed,
    Copy,
    Declined,
    Delete,
    Deleted,
    Drop,
    Evict,
    EvictAnswer,
    Eviction,
    Failed,
    Fenced,
    Halt,
    Halted,
    Heartbeat,
    Inline,
    Leave,
    Partial,
    Place,
    Progress,
    Put,
    PutAccepted,
    PutRefused,
    Ready,
    Rejected,
    StreamFailed,
    StreamFault,
    Unwant,
    Unwatch,
    Want,
    Watch,
    Welcome,
)
from hoplite_ucx.protocol.settings import KIB, MIB
from tests.tools.machines import LARGE, RATE, DirectoryDriver, join, ref, version

R = ref(1)
V = version(1)


def broken(
    place: Place, watermark: int, fault: StreamFault = StreamFault.BROKEN, *, wanted: bool = True
) -> StreamFailed:
    return StreamFailed(place.version, place.number, watermark, place.sender, fault, wanted)


def chain_of_three() -> tuple[DirectoryDriver, list[Place]]:
    """A has it; B pulls from A, C from B, D from C."""
    d = DirectoryDriver("A", "B", "C", "D")
    d.put("A", 1)
    places = [d.want(name, 1) for name in "BCD"]
    assert d.senders(1) == {"B": "A", "C": "B", "D": "C"}
    return d, places


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


# --- inline -----------------------------------------------------------------------------------------------------


def test_small_objects_come_with_the_answer() -> None:
    d = DirectoryDriver("A", "B", "C")
    d.tell("C", Want(R))
    d.tell("A", Put(1, R, 3, b"layout", b"abc"))
    d.tell("B", Want(R))
    inline = Inline(V, b"layout", b"abc")
    assert d.heard("B") == d.heard("C") == [inline]
    assert d.broadcast(1).receivers == {}


def test_inline_bytes_outlive_the_node_that_put_them() -> None:
    d = DirectoryDriver("A", "B")
    d.tell("A", Put(1, R, 3, b"", b"abc"))
    d.handle(Probed(d["A"], accepted=False))
    d.tell("B", Want(R))
    assert d.heard_all(Inline, "B") == [Inline(V, b"", b"abc")]


def test_who_gives_up_an_inline_put_can_still_have_the_bytes() -> None:
    d = DirectoryDriver("A")
    d.tell("A", Want(R), Put(1, R, 3, b"", b"abc"), Aborted(V))
    assert d.heard_all(Inline, "A") == [Inline(V, b"", b"abc")]
    assert not d.broadcast(1).receivers


def test_inline_objects_are_bounded_in_total_and_stream_beyond_it() -> None:
    d = DirectoryDriver("A", "B", settings=Settings(inline_total=10))
    d.tell("A", *(Put(n, ref(n), 6, b"", b"sixsix") for n in (1, 2)))
    d.heard("A")
    d.tell("B", Want(ref(1)), Want(ref(2)))
    first, second = d.heard("B")
    assert isinstance(first, Inline)
    assert isinstance(second, Place)
    assert second.sender == d["A"]
    d.tell("A", Delete(3, (ref(1),)), Put(4, ref(4), 6, b"", b"sixsix"))
    d.heard("B")
    d.tell("B", Want(ref(4)))
    assert isinstance(d.heard("B")[0], Inline), "a deleted object gives its room back"


# --- get: trees -------------------------------------------------------------------------------------------------


def test_receivers_are_chained_behind_each_other() -> None:
    d, places = chain_of_three()
    assert [place.sender for place in places] == [d["A"], d["B"], d["C"]]
    assert [place.address for place in places] == [f"address{d[name]}" for name in "ABC"]
    numbers = [place.number for place in places]
    assert numbers == sorted(set(numbers))


def test_a_want_sent_twice_is_one() -> None:
    d = DirectoryDriver("A", "B")
    d.put("A", 1)
    d.want("B", 1)
    d.tell("B", Want(R))
    assert d.heard("B") == []


def test_completed_receivers_become_copies() -> None:
    d, _ = chain_of_three()
    d.tell("B", Completed(V))
    assert set(d.broadcast(1).copies) == {d["A"], d["B"]}
    assert d.senders(1) == {"C": "B", "D": "C"}
    assert d.directory.members[d["A"]].sending == 0


def test_unwant_lets_go_of_who_has_no_sender_only() -> None:
    d = DirectoryDriver("A", "B", "C")
    d.tell("B", Want(R), Unwant(R))
    assert not d.directory.records
    d.put("A", 1)
    d.want("C", 1)
    d.tell("C", Unwant(R))
    assert d.senders(1) == {"C": "A"}


# --- failures ---------------------------------------------------------------------------------------------------


def test_after_a_failure_a_receiver_resumes_at_its_watermark_behind_another() -> None:
    d, places = chain_of_three()
    d.tell("D", broken(places[2], 3 * MIB))
    [again] = d.heard_all(Place, "D")
    assert again.sender in (d["A"], d["B"]), "the sender that failed is shunned"
    assert again.number > places[2].number
    assert d.receiver("D", 1).watermark == 3 * MIB


def test_a_relay_is_placed_only_behind_a_root_that_is_not_itself() -> None:
    d, places = chain_of_three()
    d.tell("C", broken(places[1], 3 * MIB, StreamFault.ABSENT))
    [again] = d.heard_all(Place, "C")
    assert again.sender == d["A"], "D is behind C, and B was shunned"


def test_a_report_about_an_older_placement_is_nothing() -> None:
    d, places = chain_of_three()
    d.tell("D", broken(places[2], 3 * MIB))
    d.heard("D")
    before = d.senders(1)
    d.tell("D", broken(places[2], 4 * MIB), Halted(V, places[2].number, MIB, wanted=True))
    assert d.heard("D") == []
    assert d.senders(1) == before


def test_a_receiver_that_nobody_waits_for_any_more_is_let_go() -> None:
    d, places = chain_of_three()
    d.tell("D", broken(places[2], 3 * MIB, wanted=False))
    assert d.heard("D") == []
    assert d["D"] not in d.broadcast(1).receivers


def test_a_dead_relay_halts_what_hung_on_it_and_the_most_advanced_is_placed_first() -> None:
    d = DirectoryDriver("A", "B", "C", "D", settings=Settings(regroup=0.05))
    d.put("A", 1, size=4 * KIB)
    places = {name: d.want(name, 1) for name in "BCD"}
    assert set(d.senders(1).values()) == {"A"}, "small objects share a sender"
    d.tell("B", Completed(V))
    d.heard_all(Place)
    d.handle(Probed(d["A"], accepted=False))
    halts = {name: d.heard_all(Halt, name) for name in "CD"}
    assert halts == {name: [Halt(V, places[name].number)] for name in "CD"}
    d.tell("C", Halted(V, places["C"].number, 1000, wanted=True))
    assert d.heard_all(Place) == [], "D may be further: its report is waited for"
    d.tell("D", Halted(V, places["D"].number, 2000, wanted=True))
    [further], [behind] = d.heard_all(Place, "D"), d.heard_all(Place, "C")
    assert further.number < behind.number
    assert further.sender == d["B"]


def test_siblings_that_do_not_report_are_not_waited_for_long() -> None:
    d = DirectoryDriver("A", "B", "C", "D")
    d.put("A", 1, size=4 * KIB)
    places = {name: d.want(name, 1) for name in "BCD"}
    d.tell("B", Completed(V))
    d.handle(Probed(d["A"], accepted=False))
    d.heard_all(Halt)
    d.tell("C", Halted(V, places["C"].number, 1000, wanted=True))
    assert d.heard_all(Place, "C") == []
    wakeup = d.directory.wakeup()
    assert wakeup is not None
    d.now = wakeup
    d.handle(Tick())
    assert [place.sender for place in d.heard_all(Place, "C")] == [d["B"]]


def test_a_shunned_sender_is_tried_again_after_a_pause() -> None:
    d = DirectoryDriver("A", "B")
    d.put("A", 1)
    place = d.want("B", 1)
    pauses = []
    for _ in range(7):
        d.tell("B", broken(place, 5, StreamFault.BUSY))
        began = d.now
        while not (places := d.heard_all(Place, "B")):
            wakeup = d.directory.wakeup()
            assert wakeup is not None
            d.now = wakeup
            d.tell("A", Heartbeat())
            d.tell("B", Heartbeat())
            d.handle(Tick())
        [place] = places
        pauses.append(d.now - began)
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0])


# --- suspicion, death, loss -------------------------------------------------------------------------------------


def test_a_broken_stream_makes_the_sender_suspect_and_its_port_is_asked() -> None:
    d, places = chain_of_three()
    d.tell("C", broken(places[1], MIB))
    assert [e for e in d.effects if isinstance(e, Probe)] == [Probe(d["B"], f"address{d['B']}")]
    assert not d.directory.members[d["B"]].usable()
    d.handle(Probed(d["B"], accepted=None))
    assert not d.directory.members[d["B"]].usable(), "a port may outlive its process"
    d.tell("B", Heartbeat())
    assert d.directory.members[d["B"]].usable()


@pytest.mark.parametrize("fault", [StreamFault.ABSENT, StreamFault.BUSY])
def test_a_refusal_is_no_reason_for_suspicion(fault: StreamFault) -> None:
    d, places = chain_of_three()
    d.tell("C", broken(places[1], MIB, fault))
    assert d.directory.members[d["B"]].usable()


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


def test_silence_becomes_suspicion_and_then_death() -> None:
    d = DirectoryDriver("A", "B")
    d.put("A", 1)
    d.pass_time(0.70, beating=("B",))
    assert d.directory.members[d["A"]].usable()
    d.pass_time(0.40, beating=("B",))
    assert not d.directory.members[d["A"]].usable()
    d.pass_time(1.30, beating=("B",))
    assert d.directory.members.get(d["A"]) is None
    assert d.directory.members.get(d["B"]) is not None


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


def test_a_node_that_leaves_is_gone_at_once() -> None:
    d, places = chain_of_three()
    d.tell("B", Leave())
    assert any(isinstance(effect, Disconnect) and effect.node == d["B"] for effect in d.effects)
    assert d.heard_all(Halt, "C") == [Halt(V, places[1].number)]
    d.tell("C", Halted(V, places[1].number, MIB, wanted=True))
    assert [p.sender for p in d.heard_all(Place, "C")] == [d["A"]]


# --- fencing and coming back ------------------------------------------------------------------------------------


def test_the_dead_are_fenced_and_come_back_under_a_new_name() -> None:
    d = DirectoryDriver("A", "B")
    d.put("A", 1)
    d.put("B", 2)
    dead = d["A"]
    d.handle(Probed(dead, accepted=False))
    d.tell("A", Want(ref(2)))
    assert d.heard("A") == [Fenced(dead)]
    d.join("A")
    assert d.heard("A") == [Fenced(dead)]
    assert Disconnect(dead) in d.effects
    d.ids["A"] = next_life(dead)
    d.join("A", copies=(Copy(V, LARGE, b""),), wants=(ref(2),))
    welcome, drop, place = d.heard("A")
    assert isinstance(welcome, Welcome)
    assert drop == Drop(V), "what died with the old life is over"
    assert isinstance(place, Place)


def test_a_node_that_restarts_at_its_address_takes_the_place_of_the_old() -> None:
    d = DirectoryDriver("A", "B")
    d.put("A", 1)
    old = d["A"]
    d.ids["A"] = next_life(old)
    d.join("A", address=f"address{old}")
    assert d.directory.members.get(old) is None
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


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"protocol": 999}, FailureKind.INVALID),
        ({"cluster": "another"}, FailureKind.INVALID),
        ({"node": 12345}, FailureKind.INVALID),
    ],
)
def test_who_does_not_belong_here_is_rejected(changes: dict[str, object], kind: FailureKind) -> None:
    d = DirectoryDriver()
    d.tell("A", msgspec.structs.replace(join(d["A"]), **changes))
    [rejected] = d.heard("A")
    assert isinstance(rejected, Rejected)
    assert rejected.failure.kind is kind
    assert len(d.directory.members) == 0


# --- wait, evict, delete ----------------------------------------------------------------------------------------


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


def test_eviction_is_granted_for_a_secondary_copy() -> None:
    d = DirectoryDriver("A", "B")
    d.put("A", 1)
    d.want("B", 1)
    d.tell("B", Completed(V), Evict(V))
    assert d.heard("B") == [EvictAnswer(V, Eviction.GRANTED)]
    assert set(d.broadcast(1).copies) == {d["A"]}
    d.tell("A", Evict(V))
    assert d.heard_all(EvictAnswer, "A") == [EvictAnswer(V, Eviction.LAST_COPY)]


def test_the_original_may_go_when_another_copy_stays() -> None:
    d = DirectoryDriver("A", "B")
    d.put("A", 1)
    d.want("B", 1)
    d.tell("B", Completed(V))
    d.tell("A", Evict(V))
    assert d.heard_all(EvictAnswer, "A") == [EvictAnswer(V, Eviction.GRANTED)]


def test_the_last_usable_copy_is_kept() -> None:
    d = DirectoryDriver("A", "B")
    d.put("A", 1)
    d.want("B", 1)
    d.tell("B", Completed(V))
    d.handle(SessionLost(d["A"]))
    d.tell("B", Evict(V))
    assert d.heard_all(EvictAnswer, "B") == [EvictAnswer(V, Eviction.LAST_COPY)]


def test_a_copy_that_is_being_pulled_is_kept() -> None:
    d = DirectoryDriver("A", "B", "C")
    d.put("A", 1)
    d.want("B", 1)
    d.tell("B", Completed(V))
    d.heard("B")
    pulled = d.want("C", 1).sender
    name = "A" if pulled == d["A"] else "B"
    d.tell(name, Evict(V))
    assert d.heard_all(EvictAnswer, name) == [EvictAnswer(V, Eviction.IN_USE)]


def test_a_version_that_is_over_may_be_evicted() -> None:
    d = DirectoryDriver("A")
    d.tell("A", Evict(V))
    assert d.heard("A") == [EvictAnswer(V, Eviction.GRANTED)]


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


def test_a_tombstone_expires() -> None:
    d = DirectoryDriver("A", settings=Settings(tombstone=1.0))
    d.tell("A", Delete(5, (R,)))
    d.pass_time(0.9, beating=("A",))
    assert d.directory.table.is_deleted(R)
    assert R not in d.directory.records, "a tombstone is a name and nothing else"
    d.pass_time(0.2, beating=("A",))
    assert not d.directory.table.is_deleted(R)
    assert d.put("A", 1).counter == 1


def test_of_very_many_deleted_refs_the_oldest_are_forgotten_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tombstones, "_KEPT", 3)
    d = DirectoryDriver("A")
    d.tell("A", Delete(5, tuple(ref(number) for number in range(5))))
    assert [d.directory.table.is_deleted(ref(number)) for number in range(5)] == [False, False, True, True, True]
    assert not d.directory.records
    check(d.directory)


def test_deferred_puts_of_a_deleted_ref_are_refused() -> None:
    d, _ = chain_of_three()
    d.handle(Probed(d["A"], accepted=False))
    d.join("E")
    d.tell("E", Put(9, R, LARGE, b""))
    d.tell("B", Delete(1, (R,)))
    [refused] = d.heard_all(PutRefused, "E")
    assert refused.call == 9


# --- busy, declined, slow ---------------------------------------------------------------------------------------


def test_a_busy_sender_is_left_for_another() -> None:
    d, places = chain_of_three()
    d.tell("D", broken(places[2], 0, StreamFault.BUSY))
    [again] = d.heard_all(Place, "D")
    assert again.sender != places[2].sender


def test_a_receiver_without_memory_leaves_the_tree() -> None:
    d, places = chain_of_three()
    d.tell("C", Declined(V, places[1].number))
    assert d["C"] not in d.broadcast(1).receivers
    assert d.heard_all(Halt, "D") == [Halt(V, places[2].number)]
    d.tell("C", Declined(V, places[1].number))
    assert d.want("C", 1).number > places[2].number, "it may ask again"


def test_an_older_refusal_of_memory_does_not_count() -> None:
    d, places = chain_of_three()
    d.tell("C", Declined(V, places[1].number - 1))
    assert d["C"] in d.broadcast(1).receivers


def test_a_slow_receiver_makes_way_for_a_faster_one_and_is_placed_again() -> None:
    d = DirectoryDriver("A")
    d.join("S", up=RATE / 2, down=RATE / 2)
    d.join("F")
    d.put("A", 1)
    slow = d.want("S", 1)
    assert slow.sender == d["A"]
    fast = d.want("F", 1)
    assert fast.sender == d["A"]
    assert d.heard_all(Halt, "S") == [Halt(V, slow.number)]
    d.tell("S", Halted(V, slow.number, MIB, wanted=True))
    [again] = d.heard_all(Place, "S")
    assert again.sender == d["F"]
    assert d.receiver("S", 1).watermark == MIB


# --- heartbeats -------------------------------------------------------------------------------------------------


def test_heartbeats_are_answered_and_tell_how_far_streams_have_come() -> None:
    d, _ = chain_of_three()
    d.now = 0.1
    d.tell("B", Heartbeat((Progress(V, 8 * MIB), Progress(version(7), 1))))
    assert d.heard("B") == [Alive(members=4)]
    assert d.receiver("B", 1).watermark == 8 * MIB
    finish = 0.1 + (LARGE - 8 * MIB) / RATE
    assert d.broadcast(1).pool.locations[d["B"]].finish == pytest.approx(finish)
    d.tell("B", Heartbeat((Progress(V, LARGE * 2),)))
    assert d.receiver("B", 1).watermark <= LARGE


def test_the_story_of_an_object_names_what_happened() -> None:
    d, places = chain_of_three()
    d.tell("C", broken(places[1], MIB))
    story = " / ".join(text for _, text in d.directory.story(R))
    for words in ("n1 put", "n2 placed behind n1", "n3 lost its sender at 1048576: broken"):
        assert words in story


# --- streams that break -----------------------------------------------------------------------------------------


def broken_stream(fault: StreamFault = StreamFault.BROKEN) -> DirectoryDriver:
    """B was getting the object from A, and says how its stream ended."""
    d = DirectoryDriver("A", "B")
    d.put("A", 1)
    place = d.want("B", 1)
    effects = d.handle(FromNode(d["B"], StreamFailed(place.version, place.number, 5, place.sender, fault, wanted=True)))
    assert Probe(d["A"], d.directory.members[d["A"]].address) in effects
    return d


def test_who_answers_at_its_port_is_asked_to_send_again() -> None:
    """The link alone has broken. The next heartbeat of the sender is not waited for."""
    d = broken_stream()
    d.handle(Probed(d["A"], accepted=True))
    assert d.directory.members[d["A"]].usable()
    d.now += 0.05  # for so long it is shunned
    d.handle(Tick())
    assert [place.sender for place in d.heard_all(Place, "B")] == [d["A"]]


def test_silence_at_its_port_does_not_clear_who_broke_a_stream() -> None:
    """A process that was killed lets go of its port late: it is asked again, until it refuses."""
    d = broken_stream()
    for _ in range(3):
        d.handle(Probed(d["A"], accepted=None))
        assert d.directory.members[d["A"]].suspect
        assert d.heard_all(Place, "B") == []
        d.now += 0.03
        assert [type(effect) for effect in d.handle(Tick())] == [Probe]
    d.handle(Probed(d["A"], accepted=False))
    assert d.directory.members.get(d["A"]) is None
    assert [message.failure.kind for message in d.heard_all(Failed, "B")] == [FailureKind.LOST]


def test_its_own_word_clears_it() -> None:
    d = broken_stream()
    d.handle(Probed(d["A"], accepted=None))
    d.pass_time(0.1, beating=("A", "B"))
    assert not d.directory.members[d["A"]].suspect
    assert [place.sender for place in d.heard_all(Place, "B")] == [d["A"]]
    d.now += 1
    assert ("probe", d["A"]) not in d.directory.timers()


def test_it_is_not_asked_for_ever() -> None:
    d = broken_stream()
    d.handle(Probed(d["A"], accepted=None))
    probes = 0
    for _ in range(100):
        d.now += 0.03
        d.handle(FromNode(d["B"], Heartbeat()))
        for effect in d.handle(Tick()):
            if isinstance(effect, Probe):
                probes += 1
                d.handle(Probed(effect.node, accepted=None))
    assert 10 < probes < 60
    assert d.directory.members.get(d["A"]) is None, "its lease has run out"
    assert ("probe", d["A"]) not in d.directory.timers()


def test_an_answer_at_its_port_clears_who_was_slow() -> None:
    d = broken_stream(StreamFault.STALLED)
    d.handle(Probed(d["A"], accepted=True))
    assert not d.directory.members[d["A"]].suspect


def test_a_directory_that_hears_nobody_is_cut_off_itself() -> None:
    d = DirectoryDriver("A", "B", "C")
    d.put("A", 1)
    d.pass_time(10)
    assert [member.suspect for member in d.directory.members] == [True] * 3
    d.pass_time(1.0, beating=("B",))
    assert len(d.directory.members) == 3, "the others have the time to come back too"
    d.pass_time(2.0, beating=("B",))
    assert [member.node for member in d.directory.members] == [d["B"]]


def test_the_silence_of_the_only_host_is_its_own() -> None:
    d = DirectoryDriver("A")
    d.pass_time(3)
    assert len(d.directory.members) == 0


def test_who_waits_for_a_stream_that_another_object_has_lets_go_of_those_behind_it() -> None:
    """Else that object might wait for one of them in turn."""
    d = DirectoryDriver("A")
    d.join("B", streams_in=1)
    d.join("C")
    version_of_first = d.put("A", 1)
    d.put("A", 2)
    first = d.want("B", 1)
    assert d.want("C", 1).sender == d["B"]
    d.tell("B", StreamFailed(version_of_first, first.number, 0, d["A"], StreamFault.BUSY, wanted=True))
    d.want("B", 2)
    d.pass_time(1.5, beating=("A", "B", "C"))
    assert [halt.version for halt in d.heard_all(Halt, "C")] == [version_of_first]
