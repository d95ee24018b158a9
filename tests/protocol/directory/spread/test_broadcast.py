"""The tree of a version, event by event: who is placed behind whom, and what happens when one of them fails."""

import pytest

from hoplite_ucx.protocol import Settings
from hoplite_ucx.protocol.events import Probed, SessionLost, Tick
from hoplite_ucx.protocol.messages import (
    Completed,
    Declined,
    Evict,
    EvictAnswer,
    Eviction,
    Halt,
    Halted,
    Heartbeat,
    Place,
    StreamFailed,
    StreamFault,
    Unwant,
    Want,
)
from hoplite_ucx.protocol.settings import KIB, MIB
from tests.tools.machines import RATE, DirectoryDriver, broken, chain_of_three, ref, version

R = ref(1)
V = version(1)

# --- placing ----------------------------------------------------------------------------------------------------


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


# --- evicting ---------------------------------------------------------------------------------------------------


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


# --- several objects --------------------------------------------------------------------------------------------


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
