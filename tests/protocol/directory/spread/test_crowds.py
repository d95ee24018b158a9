"""Objects that are cut for a crowd, event by event. The nodes are played by the tests.

S has the object. Settings make a crowd of two, and two stripes, so that few hosts are enough.
"""

from hoplite_ucx.protocol import Settings
from hoplite_ucx.protocol.cost import Costs, choose_cut
from hoplite_ucx.protocol.directory.states import State
from hoplite_ucx.protocol.events import Probed, SessionLost, Tick
from hoplite_ucx.protocol.ids import Version
from hoplite_ucx.protocol.messages import (
    Assemble,
    Completed,
    Copy,
    Cut,
    Delete,
    Drop,
    Evict,
    EvictAnswer,
    Eviction,
    Failed,
    Halt,
    Halted,
    Place,
    StreamFailed,
    StreamFault,
    Stripe,
    Want,
)
from hoplite_ucx.protocol.settings import MIB
from tests.tools.machines import LARGE, DirectoryDriver, ref

SMALL = Settings(crowd=2, stripes=2, depth_cost=0)
CROWD = ("a", "b", "c", "d")
PATIENCE = 0.01 * LARGE / 125e6


class Crowd(DirectoryDriver):
    def __init__(self, *crowd: str, settings: Settings = SMALL) -> None:
        super().__init__("S", *CROWD, "e", settings=settings)
        self.version = self.put("S", 1)
        self.heard("S")
        for name in crowd:
            self.tell(name, Want(ref(1)))

    def gather(self) -> list[Stripe]:
        """The crowd is complete: what the object is cut into."""
        self.now += PATIENCE
        self.handle(Tick())
        return list(self.broadcast(1).stripes)

    def senders_of(self, stripe: Stripe) -> dict[str, str]:
        names = {node: name for name, node in self.ids.items()}
        receivers = self.directory.table.live_tree(stripe.version.ref).receivers.values()
        return {names[r.member.node]: names[r.sender] for r in receivers if r.sender is not None}

    def complete(self, name: str) -> None:
        stripes = self.broadcast(1).stripes
        self.tell(name, *(Completed(stripe.version) for stripe in stripes), Completed(self.version))


# --- when ---------------------------------------------------------------------------------------------------------


def test_small_clusters_are_as_they_were() -> None:
    costs = Costs(Settings())
    assert {choose_cut(LARGE, crowd, 125e6, costs) for crowd in range(2, 24)} == {1}


def test_large_crowds_get_stripes_if_hops_cost_more_than_the_setting_says() -> None:
    costs = Costs(Settings())
    assert [choose_cut(LARGE, crowd, 125e6, costs) for crowd in (64, 255, 999)] == [8, 8, 8]
    assert choose_cut(4096 * MIB, 64, 125e6, costs) == 1  # a transfer of 34 s hides the hops
    assert choose_cut(LARGE, 999, 125e6, Costs(Settings(stripes=1))) == 1
    assert choose_cut(64, 999, 125e6, Costs(SMALL)) == 1


def test_the_first_is_placed_at_once_and_starts_over_with_the_others() -> None:
    d = Crowd("a")
    assert [place.sender for place in d.heard_all(Place, "a")] == [d["S"]]
    for name in ("b", "c"):
        d.tell(name, Want(ref(1)))
        assert d.heard(name) == []
    stripes = d.gather()
    assert [len(d.heard_all(Assemble, name)) for name in ("a", "b", "c")] == [1, 1, 1]
    assert [cut.stripes for cut in d.heard_all(Cut, "S")] == [tuple(stripes)]
    assert d.senders(1) == {}


def test_who_comes_alone_does_not_wait() -> None:
    d = Crowd("a")
    d.heard("a")
    d.now += 2 * PATIENCE
    assert d.want("b", 1).sender == d["a"]


def test_a_crowd_that_is_too_small_is_placed_as_ever() -> None:
    d = Crowd("a", "b", settings=Settings(crowd=3, stripes=2, depth_cost=0))
    assert d.gather() == []
    assert d.senders(1) == {"a": "S", "b": "a"}


def test_nothing_is_cut_while_its_holders_send_to_others() -> None:
    """Their streams would be slowed down."""
    d = Crowd("a")
    d.now += 3 * PATIENCE
    d.tell("b", Want(ref(1)))
    d.now += PATIENCE / 2
    d.tell("c", Want(ref(1)))
    assert d.gather() == []
    assert set(d.senders(1)) == {"a", "b", "c"}


def test_an_object_that_is_being_put_is_not_cut() -> None:
    d = DirectoryDriver("S", *CROWD, settings=SMALL)
    d.put("S", 1, done=False)
    for name in CROWD:
        d.want(name, 1)
    d.now += PATIENCE
    d.handle(Tick())
    assert d.broadcast(1).stripes == ()


# --- how ----------------------------------------------------------------------------------------------------------


def test_each_host_sends_one_stripe() -> None:
    d = Crowd(*CROWD)
    first, second = (d.senders_of(stripe) for stripe in d.gather())
    assert set(first) == set(second) == set(CROWD)
    assert set(first.values()) & set(second.values()) == {"S"}
    places = [m for m in d.heard("b") if isinstance(m, Place)]
    assert [place.rate for place in places] == [125e6 / 2, 125e6 / 2]


def test_a_later_crowd_is_placed_in_the_same_trees() -> None:
    d = Crowd("a", "b")
    stripes = d.gather()
    d.heard_all(Place)
    d.now += 3 * PATIENCE
    d.tell("c", Want(ref(1)))
    assert len(d.heard_all(Place, "c")) == 2
    for name in ("d", "e"):
        d.tell(name, Want(ref(1)))
    assert d.heard("d") == d.heard("e") == []
    assert d.gather() == stripes
    assert all(set(d.senders_of(stripe)) == {*CROWD, "e"} for stripe in stripes)


def test_slow_hosts_send_nothing() -> None:
    d = DirectoryDriver("S", *CROWD, settings=SMALL)
    d.join("slow", up=125e6 / 4, down=125e6 / 4)
    d.put("S", 1)
    for name in ("slow", *CROWD):
        d.tell(name, Want(ref(1)))
    d.now += PATIENCE
    d.handle(Tick())
    for stripe in d.broadcast(1).stripes:
        tree = d.directory.table.live_tree(stripe.version.ref)
        assert d["slow"] in tree.receivers
        assert d["slow"] not in {receiver.sender for receiver in tree.receivers.values()}


def test_who_comes_later_is_not_placed_behind_a_slow_host() -> None:
    d = DirectoryDriver("S", *CROWD, settings=SMALL)
    d.join("slow", up=125e6 / 4, down=125e6 / 4)
    d.put("S", 1)
    for name in ("slow", "a"):
        d.tell(name, Want(ref(1)))
    d.now += PATIENCE
    d.handle(Tick())
    for name in ("b", "c", "d"):
        d.now += 3 * PATIENCE
        d.heard(name)
        d.tell(name, Want(ref(1)))
        senders = {place.sender for place in d.heard_all(Place, name)}
        assert senders
        assert d["slow"] not in senders


def test_the_stripes_end_with_the_last_assembler() -> None:
    d = Crowd("a", "b")
    stripes = d.gather()
    d.complete("a")
    d.heard_all(Drop)
    d.complete("b")
    assert d.broadcast(1).stripes == ()
    assert not d.broadcast(1).cut
    dropped = {drop.version for drop in d.heard_all(Drop, "S")}
    assert dropped == {stripe.version for stripe in stripes}
    assert set(d.directory.records) == {ref(1)}


# --- repair -------------------------------------------------------------------------------------------------------


def test_an_orphan_resumes_its_stripe_alone() -> None:
    d = Crowd(*CROWD)
    first, second = d.gather()
    child, parent = next((c, p) for c, p in d.senders_of(first).items() if p != "S")
    others = d.senders_of(second)
    d.heard(child)
    number = d.directory.table.live_tree(first.version.ref).receivers[d[child]].number
    d.tell(child, StreamFailed(first.version, number, 1000, d[parent], StreamFault.BROKEN, wanted=True))
    d.now += d.directory.settings.regroup
    d.handle(Tick())
    [place] = d.heard_all(Place, child)
    assert place.version == first.version
    assert place.sender != d[parent]
    assert d.senders_of(second)[child] == others[child]
    assert d.directory.table.live_tree(first.version.ref).receivers[d[child]].watermark == 1000


def test_a_holder_that_comes_back_without_its_windows_gets_them_again() -> None:
    d = Crowd("a", "b")
    stripes = d.gather()
    d.heard("S")
    d.handle(SessionLost(d["S"]))
    d.join("S", copies=(Copy(d.version, LARGE, b"layout"),))
    for name in ("a", "b"):
        for halt in d.heard_all(Halt, name):
            d.tell(name, Halted(halt.version, halt.number, 5, wanted=True))
    assert [cut.stripes for cut in d.heard_all(Cut, "S")][-1] == tuple(stripes)
    assert all("S" in d.senders_of(stripe).values() for stripe in stripes)


def test_without_a_holder_the_object_is_lost_when_all_have_reported() -> None:
    d = Crowd("a", "b")
    d.gather()
    numbers = {name: d.receiver(name, 1).number for name in ("a", "b")}
    d.heard_all(Place)
    d.handle(SessionLost(d["S"]))
    d.handle(Probed(d["S"], False))
    for name in ("a", "b"):
        for halt in d.heard_all(Halt, name):
            d.tell(name, Halted(halt.version, halt.number, 5, wanted=True))
    assert d.heard_all(Failed) == []
    for name, number in numbers.items():
        d.tell(name, StreamFailed(d.version, number, 0, d[name], StreamFault.ABSENT, wanted=True))
    assert len(d.heard_all(Failed, "a")) == 1
    assert d.directory.records.get(ref(1)) is None


def test_who_has_all_of_it_is_a_root_of_every_stripe() -> None:
    d = Crowd("a", "b")
    stripes = d.gather()
    d.complete("a")
    d.handle(SessionLost(d["S"]))
    d.handle(Probed(d["S"], False))
    for halt in d.heard_all(Halt, "b"):
        d.tell("b", Halted(halt.version, halt.number, 5, wanted=True))
    assert all(d.senders_of(stripe) == {"b": "a"} for stripe in stripes)


def test_a_copy_whose_windows_are_used_is_not_evicted() -> None:
    d = Crowd("a", "b")
    d.gather()
    d.complete("a")
    d.heard("S")
    d.tell("S", Evict(d.version))
    assert [answer.answer for answer in d.heard_all(EvictAnswer, "S")] == [Eviction.IN_USE]


def test_what_is_deleted_ends_with_its_stripes() -> None:
    d = Crowd("a", "b")
    stripes = d.gather()
    d.heard_all(Drop)
    d.tell("e", Delete(9, (ref(1),)))
    for name in ("S", "a", "b"):
        dropped = {drop.version for drop in d.heard_all(Drop, name)}
        assert dropped == {d.version, *(stripe.version for stripe in stripes)}


def test_an_early_one_whose_bytes_have_come_is_not_asked_again() -> None:
    """Its report of the last byte, and the request to start over, cross."""
    d = Crowd("a", "b")
    d.gather()
    assert d.receiver("a", 1).state is State.ASSEMBLING
    d.tell("a", Completed(d.version))
    assert d["a"] in d.broadcast(1).copies


def test_an_early_one_whose_bytes_have_come_serves_the_stripes() -> None:
    """Others were placed behind it; it ignores that it should get them."""
    d = Crowd("a", "b")
    stripes = d.gather()
    d.tell("a", Completed(d.version))
    assert [cut.stripes for cut in d.heard_all(Cut, "a")] == [tuple(stripes)]
    assert all(d["a"] in d.directory.table.live_tree(stripe.version.ref).copies for stripe in stripes)


def test_an_early_one_behind_a_node_that_lost_its_sender_belongs_to_the_crowd() -> None:
    d = Crowd("a", "b", settings=Settings(crowd=4, stripes=2, depth_cost=0))
    d.now += 0.9 * PATIENCE
    d.tell("c", Want(ref(1)))
    d.now += 0.2 * PATIENCE
    d.handle(Tick())
    assert d.senders(1) == {"a": "S", "b": "a", "c": "b"}
    for name in ("d", "e"):
        d.tell(name, Want(ref(1)))
    number = d.receiver("b", 1).number
    d.tell("b", StreamFailed(d.version, number, 0, d["a"], StreamFault.BUSY, wanted=True))
    d.tell("a", Completed(d.version))
    stripes = d.gather()
    assert len(stripes) == 2
    assert all(set(d.senders_of(stripe)) == {"b", "c", "d", "e"} for stripe in stripes)


def test_a_crowd_does_not_wait_for_a_late_wake_up() -> None:
    """A busy directory reads other requests first: the next of them ends the wait."""
    d = Crowd("a", "b")
    d.now += 1.5 * PATIENCE
    d.tell("c", Want(ref(1)))
    assert [len(d.heard_all(Assemble, name)) for name in ("a", "b", "c")] == [1, 1, 1]


def test_stripes_end_if_a_later_version_takes_the_place_of_theirs() -> None:
    """Two nodes that survived earlier directories come late, the one with the later version last."""
    d = DirectoryDriver("a", "b", settings=SMALL, incarnation=3)
    early, late = Version(ref(1), 1, 1), Version(ref(1), 2, 1)
    d.join("S", incarnation=1, copies=(Copy(early, LARGE, b"layout"),))
    for name in ("a", "b"):
        d.tell(name, Want(ref(1)))
    d.now += PATIENCE
    d.handle(Tick())
    stripes = d.broadcast(1).stripes
    assert len(stripes) == 2
    d.heard_all(Drop)
    d.join("T", incarnation=2, copies=(Copy(late, LARGE, b"layout"),))
    assert d.broadcast(1).version == late
    dropped = {drop.version for drop in d.heard_all(Drop, "S")}
    assert dropped == {early, *(stripe.version for stripe in stripes)}
    assert set(d.directory.records) == {ref(1)}
