"""Nodes with few streams: who gets one, and that nobody keeps one which others wait for while it waits itself."""

from hoplite_ucx.protocol.directory.states import State
from hoplite_ucx.protocol.events import Probed, Tick
from hoplite_ucx.protocol.ids import Version
from hoplite_ucx.protocol.messages import Completed, Halt, Halted, Place, StreamFailed, StreamFault, Unwant, Want
from hoplite_ucx.protocol.settings import MIB
from tests.tools.machines import DirectoryDriver, ref, version
from tests.tools.successor import Successor, copy, partial

V = version(1)


def answer_halts(d: DirectoryDriver, of: Version, watermarks: dict[str, int]) -> dict[str, int]:
    """Everyone stops where it stands. Returns how often each was placed."""
    placed = dict.fromkeys(watermarks, 0)
    for name, watermark in watermarks.items():
        for message in d.heard(name):
            placed[name] += isinstance(message, Place)
            if isinstance(message, Halt):
                d.tell(name, Halted(of, message.number, watermark, wanted=True))
    return placed


def test_stream_limits_are_kept_and_who_waits_is_placed_when_one_ends() -> None:
    d = DirectoryDriver()
    d.join("A", streams_out=1)
    for name in "BC":
        d.join(name, streams_out=1)
    d.put("A", 1)
    d.put("A", 2)
    d.want("B", 1)
    d.tell("C", Want(ref(2)))
    assert d.heard_all(Place, "C") == []
    d.tell("B", Completed(V))
    assert [place.version.ref for place in d.heard_all(Place, "C")] == [ref(2)]


def test_a_sender_that_became_free_while_nobody_waited_is_found() -> None:
    d = DirectoryDriver("C")
    d.join("A", streams_out=1)
    d.join("B", streams_out=1)
    d.put("A", 1)
    d.put("A", 2)
    d.want("B", 1)
    d.tell("C", Want(ref(2)), Unwant(ref(2)))
    d.tell("B", Completed(V))
    assert d.want("C", 2).sender == d["A"]


# --- nobody keeps what others wait for ---------------------------------------------------------------------------


def busy_root(root: str, streams: int) -> DirectoryDriver:
    """A has 1, and its only stream goes to another object; another root has as many as are said."""
    d = DirectoryDriver("D")
    d.join("A", streams_out=1)
    d.join(root, streams_out=streams)
    d.put("A", 1)
    d.want(root, 1)
    d.tell(root, Completed(V))
    d.put("A", 2)
    d.want("D", 2)
    return d


def test_every_relay_that_waits_gives_back_its_streams() -> None:
    """Also one that comes after somebody without followers, for whom there is no sender either."""
    d = busy_root("X", streams=2)
    d.join("M", streams_out=0)
    d.join("Q", streams_out=1)
    d.join("S", streams_out=0)
    for name, sender in (("M", "X"), ("Q", "X"), ("S", "Q")):
        assert d.want(name, 1).sender == d[sender]
    d.handle(Probed(d["X"], accepted=False))
    answer_halts(d, V, {"M": 3 * MIB, "Q": 2 * MIB})
    d.pass_time(0.1)
    assert [halt.version for halt in d.heard_all(Halt, "S")] == [V]


def test_a_relay_whose_sender_fails_again_and_again_gives_back_its_streams() -> None:
    d = busy_root("Z", streams=1)
    d.join("Q", streams_out=1)
    d.join("S", streams_out=0)
    place = d.want("Q", 1)
    assert d.want("S", 1).sender == d["Q"]
    for failures in range(1, 4):
        assert place.sender == d["Z"]
        assert d.heard_all(Halt, "S") == [], "it may go on in a moment"
        d.tell("Q", StreamFailed(V, place.number, MIB, d["Z"], StreamFault.ABSENT, wanted=True))
        if failures < 3:
            d.pass_time(0.3)
            [place] = d.heard_all(Place, "Q")
    assert [halt.version for halt in d.heard_all(Halt, "S")] == [V]


def test_a_stream_that_runs_has_its_place_when_one_of_another_object_is_given_up() -> None:
    successor = Successor()
    successor.survive("A", copies=(copy(1), copy(2)), streams_out=1)
    successor.survive("N")
    place = successor.want("N", 2)
    successor.survive("R", partials=(partial(1, number=4, sender=successor["A"]),))
    successor.decide()
    assert successor.state("R", 1) is State.ADOPTED
    successor.tell("N", StreamFailed(place.version, place.number, 0, successor["A"], StreamFault.BUSY, wanted=False))
    assert successor.state("R", 1) is State.STREAMING


def test_relays_do_not_release_each_other_in_a_circle() -> None:
    """A chain whose root is busy with another object for a while: nobody joins those who hang on a relay that waits."""
    d = DirectoryDriver()
    for name in "RABCD":
        d.join(name, streams_in=1, streams_out=1)
    d.put("R", 1)
    d.put("R", 2)
    first, *_ = [d.want(name, 1) for name in "ABC"]
    assert d.senders(1) == {"A": "R", "B": "A", "C": "B"}
    watermarks = {"A": 5 * MIB, "B": 4 * MIB, "C": 3 * MIB}
    d.tell("A", StreamFailed(V, first.number, watermarks["A"], d["R"], StreamFault.ABSENT, wanted=True))
    d.want("D", 2)
    d.pass_time(0.1)
    placed = 0
    for _ in range(100):
        d.now += 0.001
        placed += sum(answer_halts(d, V, watermarks).values())
        d.handle(Tick())
    assert placed <= 3
