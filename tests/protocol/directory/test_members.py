"""Who is there: how suspicion becomes death, who is fenced, and what clears a node."""

import pytest

from hoplite_ucx.protocol.errors import FailureKind
from hoplite_ucx.protocol.events import Disconnect, FromNode, Probe, Probed, Tick
from hoplite_ucx.protocol.ids import next_life
from hoplite_ucx.protocol.messages import (
    Copy,
    Drop,
    Failed,
    Fenced,
    Halt,
    Halted,
    Heartbeat,
    Leave,
    Place,
    StreamFailed,
    StreamFault,
    Want,
    Welcome,
)
from hoplite_ucx.protocol.settings import MIB
from tests.tools.machines import LARGE, DirectoryDriver, broken, chain_of_three, ref, version

V = version(1)

# --- suspicion and death ----------------------------------------------------------------------------------------


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
