"""What links cost, learned from transfers: samples that count, samples that do not, and what the model becomes."""

from statistics import median

from hoplite_ucx.protocol import Settings
from hoplite_ucx.protocol.cost import Costs
from hoplite_ucx.protocol.directory.measured_costs import Measuring
from hoplite_ucx.protocol.directory.sender_choice import Nic
from hoplite_ucx.protocol.directory.states import State
from hoplite_ucx.protocol.events import Tick
from hoplite_ucx.protocol.messages import Alive, Completed, Heartbeat, StreamFailed, StreamFault, Want
from tests.tools.machines import LARGE, RATE, DirectoryDriver, NodeDriver, ref

GRANULE = 1 << 20


def measuring() -> tuple[Measuring, Costs]:
    costs = Costs(Settings())
    return Measuring(costs), costs


def test_latency_is_half_the_median_of_the_quickest_round_trips() -> None:
    measured, costs = measuring()
    for node, seconds in enumerate((0.002, 0.004, 3.0)):
        measured.round_trip(node, seconds)
    assert costs.latency == 0.002
    measured.forget(2)
    measured.round_trip(0, 0.002)
    assert costs.latency == 0.0015


def test_the_median_follows_every_round_trip_that_changes() -> None:
    measured, costs = measuring()
    told: dict[int, float] = {}
    for step in range(300):
        node, seconds = step * 7 % 11, (step * 31 % 17 + 1) / 1000
        if step % 13 == 0:
            measured.forget(node)
            told.pop(node, None)
        measured.round_trip(node, seconds)
        told[node] = seconds
        assert costs.latency == median(told.values()) / 2


def test_a_hop_is_the_latency_a_granule_and_the_hand_over() -> None:
    measured, costs = measuring()
    rate = 100e6
    hop = costs.latency + 0.003 + GRANULE / rate
    for busy in (0.0, 0.0, 0.5, 0.7):
        assert costs.handover == Settings().handover, "a few hops prove nothing"
        measured.hop(hop + busy, GRANULE, rate)
    assert abs(costs.handover - 0.003) < 1e-9


def test_a_stopped_host_does_not_make_links_dear() -> None:
    measured, costs = measuring()
    for _ in range(40):
        measured.hop(10.0, GRANULE, 100e6)
        measured.round_trip(1, 10.0)
    assert costs.handover <= 0.02
    assert costs.latency <= 0.05


def test_a_rate_is_corrected_by_the_most_that_was_carried() -> None:
    measured, _ = measuring()
    sender, receiver = Nic(1e9, 1e9), Nic(1e9, 1e9)
    for seconds in (1.0, 2.0):
        measured.transfer(sender, receiver, 100_000_000, seconds)
        assert sender.up == receiver.down == 1e9
    measured.transfer(sender, receiver, 100_000_000, 4.0)
    assert sender.up == receiver.down == 1e8


def test_rates_do_not_tremble() -> None:
    measured, _ = measuring()
    sender, receiver = Nic(1e8, 1e8), Nic(1e8, 1e8)
    for seconds in (1.1, 1.2, 0.9, 1.1):
        measured.transfer(sender, receiver, 100_000_000, seconds)
    assert sender.up == receiver.down == 1e8


def test_the_slower_card_is_what_is_measured() -> None:
    measured, _ = measuring()
    sender, receiver = Nic(1e9, 1e9), Nic(1e8, 1e8)
    for _ in range(3):
        measured.transfer(sender, receiver, 100_000_000, 4.0)
    assert sender.up == 1e9
    assert receiver.down == 25e6


def test_short_transfers_say_nothing_of_rates() -> None:
    measured, costs = measuring()
    sender, receiver = Nic(1e9, 1e9), Nic(1e9, 1e9)
    for _ in range(5):
        measured.transfer(sender, receiver, 1000, 40 * (costs.latency + costs.handover))
    assert sender.up == 1e9


# --- what the machines make of it -------------------------------------------------------------------------------


def chain(d: DirectoryDriver, number: int, hop: float, duration: float) -> None:
    """A puts, B gets it from A, and C, which comes a moment later, from B."""
    d.put("A", number)
    version = d.broadcast(number).version
    for name in "BC":
        d.tell(name, Want(ref(number)))
        d.now += 1e-6
    assert d.receiver("C", number).sender == d["B"]
    d.now += duration
    d.tell("B", Completed(version))
    d.now += hop
    d.tell("C", Completed(version))


def test_chains_measure_hops_and_rates() -> None:
    d = DirectoryDriver("A", "B", "C")
    costs, nic = d.directory.world.costs, d.directory.members[d["A"]].nic
    for number in range(1, 6):
        chain(d, number, hop=0.015, duration=LARGE / (RATE / 4))
    granule = d.broadcast(1).pool.granule
    assert abs(costs.handover - (0.015 - costs.latency - granule / RATE)) < 0.004
    assert abs(nic.up - RATE / 4) < RATE / 100


def gather(d: DirectoryDriver, numbers: tuple[int, int], duration: float) -> None:
    """B and C put, and A gets both at the same time; each takes half of its card until the first has come."""
    versions = [d.put(name, number) for name, number in zip("BC", numbers, strict=True)]
    for number in numbers:
        d.tell("A", Want(ref(number)))
    d.now += duration
    for version in versions:
        d.tell("A", Completed(version))
        d.now += duration / 100


def test_a_stream_that_shared_a_card_is_no_measure() -> None:
    """Nor is the last of them, which has it to itself when it ends."""
    d = DirectoryDriver("A", "B", "C")
    for number in range(1, 20, 2):
        gather(d, (number, number + 1), duration=2 * LARGE / RATE)
    assert {d.directory.members[d[name]].nic.up for name in "BC"} == {RATE}
    assert d.directory.members[d["A"]].nic.down == RATE


def test_a_stream_that_began_in_the_middle_is_no_measure() -> None:
    d = DirectoryDriver("A", "B", "C")
    version = d.put("A", 1)
    d.want("C", 1)
    d.tell("C", Completed(version))
    first = d.want("B", 1)
    assert d.receiver("B", 1).begun is not None
    d.tell("B", StreamFailed(version, first.number, LARGE // 2, first.sender, StreamFault.BROKEN, wanted=True))
    d.pass_time(0.1, beating=("A", "B", "C"))
    assert d.receiver("B", 1).state is State.STREAMING
    assert d.receiver("B", 1).begun is None


def test_heartbeats_tell_the_round_trip() -> None:
    d = DirectoryDriver("A", "B")
    d.tell("A", Heartbeat((), 0.008))
    assert d.directory.world.costs.latency == 0.004


def test_a_node_tells_the_quickest_of_its_last_round_trips() -> None:
    n = NodeDriver()
    told = []
    busy = (0.3, 0.2, 0.1)  # all nodes joined at once, and the directory answered them one after the other
    for beat, seconds in enumerate((*busy, 0.010, 0.004, 0.006, 0.007, 0.008, 0.009, 0.0), start=1):
        n.now = beat * n.settings.heartbeat
        told += n.sent(n.handle(Tick()), Heartbeat)
        n.now += seconds
        n.directory(Alive())
    assert [round(heartbeat.round_trip, 6) for heartbeat in told] == [0.0] * 8 + [0.004] * 2
