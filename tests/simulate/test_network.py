"""The virtual network: fair shares, exact completions, faults, and the order of messages."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import count
from math import inf, nan
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoplite_ucx.simulate.clock import Clock
from hoplite_ucx.simulate.network import Endpoint, Flow, Network, Reason

RATE = 1000.0
LATENCY = 0.1


def approx(value: object) -> Any:
    """Typed so that it may stand inside a tuple that is compared."""
    return pytest.approx(value)


def make(hosts: int = 3, **settings: float) -> tuple[Clock, Network]:
    clock = Clock()
    network = Network(clock, LATENCY, **settings)  # type: ignore[arg-type]
    for host in range(hosts):
        network.add_host(host, RATE, RATE)
    return clock, network


def pushes(clock: Clock, flow: Flow, *sizes: float) -> list[float]:
    """Push these sizes; the list fills with the times at which they have left."""
    times: list[float] = []
    for size in sizes:
        flow.push(size, lambda: times.append(clock.now))
    return times


# Fair shares


class Cluster(NamedTuple):
    nics: list[tuple[int, int]]
    flows: list[tuple[int, int, float]]


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    nics = draw(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=2, max_size=5))
    host = st.integers(0, len(nics) - 1)
    caps = st.one_of(st.just(inf), st.integers(1, 40).map(float))
    flow = st.tuples(host, host, caps).filter(lambda flow: flow[0] != flow[1])
    return Cluster(nics, draw(st.lists(flow, min_size=1, max_size=8)))


def build(cluster: Cluster) -> tuple[Clock, Network, list[Flow]]:
    clock, network = make(hosts=0)
    for name, (up, down) in enumerate(cluster.nics):
        network.add_host(name, up, down)
    return clock, network, [network.open_flow(*flow) for flow in cluster.flows]


def water_filling(cluster: Cluster, active: list[int]) -> dict[int, Fraction]:
    """Raise all rates together in exact arithmetic; freeze whoever meets a full port or the cap."""
    limits: list[tuple[Fraction, list[int]]] = []
    for host, (up, down) in enumerate(cluster.nics):
        limits.append((Fraction(up), [i for i in active if cluster.flows[i][0] == host]))
        limits.append((Fraction(down), [i for i in active if cluster.flows[i][1] == host]))
    limits += [(Fraction(cluster.flows[i][2]), [i]) for i in active if cluster.flows[i][2] < inf]
    rates, rising = dict.fromkeys(active, Fraction(0)), set(active)
    while rising:
        rise = min(
            (limit - sum(rates[i] for i in users)) / len(rising & set(users))
            for limit, users in limits
            if rising & set(users)
        )
        for i in rising:
            rates[i] += rise
        for limit, users in limits:
            if sum(rates[i] for i in users) == limit:
                rising -= set(users)
    return rates


@given(clusters(), st.data())
def test_rates_are_max_min_fair_while_flows_come_and_go(cluster: Cluster, data: st.DataObject) -> None:
    _, _, flows = build(cluster)
    active: dict[int, None] = {}
    for i in data.draw(st.permutations(range(len(flows)))):
        flows[i].push(1e9, lambda: None)
        active[i] = None
        if data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(sorted(active)))
            flows[gone].close()
            del active[gone]
        expected = water_filling(cluster, list(active))
        assert {i: flows[i].rate for i in active} == approx({i: float(rate) for i, rate in expected.items()})


@given(clusters(), st.data())
def test_no_nic_sends_or_receives_more_than_it_can(cluster: Cluster, data: st.DataObject) -> None:
    clock, _, flows = build(cluster)
    starts = data.draw(st.lists(st.floats(0, 5), min_size=len(flows), max_size=len(flows)))
    sizes = data.draw(st.lists(st.integers(0, 100), min_size=len(flows), max_size=len(flows)))
    done: list[int] = []
    for i, (flow, start, size) in enumerate(zip(flows, starts, sizes, strict=True)):
        for _ in range(3):
            clock.at(start, flow.push, size, done.append, i)
    then, before = 0.0, [0.0] * len(flows)
    while clock.step():
        now, after = clock.now, [flow.sent for flow in flows]
        up, down = defaultdict[int, float](float), defaultdict[int, float](float)
        for (source, target, _), old, new in zip(cluster.flows, before, after, strict=True):
            assert new >= old - 1e-9
            up[source] += new - old
            down[target] += new - old
        for host, (most_up, most_down) in enumerate(cluster.nics):
            assert up[host] <= most_up * (now - then) + 1e-6
            assert down[host] <= most_down * (now - then) + 1e-6
        then, before = now, after
    assert sorted(done) == sorted([*range(len(flows))] * 3)
    assert [flow.sent for flow in flows] == approx([3 * size for size in sizes])
    assert not any(flow.backlog or flow.rate for flow in flows)


def test_two_flows_share_and_the_longer_one_takes_over() -> None:
    clock, network = make()
    short = pushes(clock, network.open_flow(0, 1), 500)
    long = pushes(clock, network.open_flow(0, 2), 1500)
    clock.run()
    assert (short, long) == (approx([1.0]), approx([2.0]))


def test_a_capped_flow_leaves_the_rest_to_the_other() -> None:
    _, network = make()
    capped, free = network.open_flow(0, 1, cap=100), network.open_flow(0, 2)
    for flow in (capped, free):
        flow.push(1000, lambda: None)
    assert (capped.rate, free.rate) == (100, 900)


def test_directions_of_a_nic_are_independent() -> None:
    _, network = make()
    flows = [network.open_flow(0, 1), network.open_flow(1, 0)]
    for flow in flows:
        flow.push(1000, lambda: None)
    assert [flow.rate for flow in flows] == [RATE, RATE]


def test_flows_within_a_host_use_memory_and_no_nic() -> None:
    clock, network = make(memory_rate=5000.0)
    network.isolate(0)
    times = [pushes(clock, network.open_flow(0, 0), 5000) for _ in range(2)]
    clock.run()
    assert times == [[1.0], [1.0]]
    assert network.latency(0, 0) == 10e-6


def test_a_nic_that_changes_takes_its_flows_along() -> None:
    clock, network = make()
    times = pushes(clock, network.open_flow(0, 1), 1000)
    clock.at(0.5, network.set_rate, 1, RATE, 250.0)
    clock.at(1.5, network.set_rate, 1, RATE, 0.0)
    clock.at(9.5, network.set_rate, 1, RATE, 500.0)
    clock.run()
    assert times == approx([10.0])


# Pushes


def test_pushes_leave_in_order_and_zero_bytes_keep_their_place() -> None:
    clock, network = make()
    flow, seen = network.open_flow(0, 1), list[tuple[float, str]]()
    for name, size in [("a", 0), ("b", 100), ("c", 0), ("d", 0), ("e", 200)]:
        flow.push(size, lambda name: seen.append((clock.now, name)), name)
    assert seen == []
    clock.run()
    assert [name for _, name in seen] == ["a", "b", "c", "d", "e"]
    assert [when for when, _ in seen] == approx([0, 0.1, 0.1, 0.1, 0.3])


def test_a_chain_of_three_hops_is_pipelined() -> None:
    clock, network = make(hosts=4)
    flows = [network.open_flow(hop, hop + 1) for hop in range(3)]
    arrivals: list[tuple[int, float]] = []

    def sent(hop: int) -> None:
        clock.after(flows[hop].latency, arrived, hop)

    def arrived(hop: int) -> None:
        arrivals.append((hop, clock.now))
        if hop + 1 < len(flows):
            flows[hop + 1].push(100, sent, hop + 1)

    for _ in range(4):
        flows[0].push(100, sent, 0)
    clock.run()
    for hop in range(3):
        expected = [(hop + 1) * (0.1 + LATENCY) + 0.1 * chunk for chunk in range(4)]
        assert [when for at, when in arrivals if at == hop] == approx(expected)


def test_a_flow_that_flaps_shares_only_while_it_is_active() -> None:
    clock, network = make()
    steady = pushes(clock, network.open_flow(0, 1), 2000)
    flapping, times = network.open_flow(0, 2), list[float]()
    for start in (0.0, 1.0, 1.5):
        clock.at(start, flapping.push, 100, lambda: times.append(clock.now))
    clock.run()
    assert times == approx([0.2, 1.2, 1.7])
    assert steady == approx([2.3])


def test_a_push_from_on_sent_keeps_the_share_of_a_busy_nic() -> None:
    clock, network = make()
    other = pushes(clock, network.open_flow(0, 1), 1000)
    flow, times = network.open_flow(0, 2), list[float]()

    def again() -> None:
        times.append(clock.now)
        if len(times) < 5:
            flow.push(100, again)

    flow.push(100, again)
    clock.run()
    assert times == approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert other == approx([1.5])


def test_the_senders_overhead_occupies_the_flow_and_no_nic() -> None:
    clock, network = make(sender_overhead=0.5)
    times = pushes(clock, network.open_flow(0, 1), 1000, 1000)
    clock.run(until=1.0)
    other = network.open_flow(0, 2)
    late = pushes(clock, other, 500)
    clock.run()
    # From 1.5 to 2.0 the first flow prepares its second push, and the other has the NIC for itself.
    assert times == approx([1.5, 3.0])
    assert late == approx([2.0])


def test_closing_drops_the_queue_and_frees_the_share() -> None:
    clock, network = make()
    closed = network.open_flow(0, 1)
    dropped = pushes(clock, closed, 1000, 1000)
    other = pushes(clock, network.open_flow(0, 2), 1000)
    clock.at(1.0, closed.close)
    clock.run()
    assert dropped == []
    assert other == approx([1.5])
    assert (closed.sent, closed.backlog, closed.rate) == (approx(500), 0, 0)
    closed.close()
    with pytest.raises(RuntimeError, match="closed"):
        closed.push(1, lambda: None)


def test_a_flow_may_close_itself_when_something_was_sent() -> None:
    clock, network = make(sender_overhead=0.5)
    flow = network.open_flow(0, 1)
    flow.push(100, flow.close)
    later = pushes(clock, flow, 100)
    clock.run()
    assert (later, flow.sent, clock.pending) == ([], 100, 0)


@pytest.mark.parametrize("nbytes", [-1, nan, inf])
def test_sizes_that_make_no_sense_are_refused(nbytes: float) -> None:
    _, network = make()
    flow = network.open_flow(0, 1)
    with pytest.raises(ValueError, match="cannot push"):
        flow.push(nbytes, lambda: None)
    assert flow.backlog == 0


def test_settings_that_make_no_sense_are_refused() -> None:
    clock, network = make()
    for wrong in (
        lambda: network.add_host(0, RATE, RATE),
        lambda: network.add_host(9, inf, RATE),
        lambda: network.set_rate(0, RATE, -1),
        lambda: network.set_latency(0, 1, nan),
        lambda: network.cut(0, 0),
        lambda: network.open_flow(0, 1, cap=nan),
        lambda: Network(clock, -1),
    ):
        with pytest.raises(ValueError, match=r"exists|must be|cannot"):
            wrong()


# Cuts


def test_a_cut_in_the_middle_of_a_push_delays_it_by_exactly_the_cut() -> None:
    clock, network = make()
    times = pushes(clock, network.open_flow(0, 1), 1000, 500)
    clock.at(0.25, network.cut, 0, 1)
    clock.at(3.25, network.heal, 0, 1)
    clock.run()
    assert times == approx([4.0, 4.5])


def test_a_stalled_flow_takes_no_share_and_the_way_back_is_open() -> None:
    clock, network = make()
    stalled, other, back = network.open_flow(0, 1), network.open_flow(0, 2), network.open_flow(1, 0)
    network.cut(0, 1)
    for flow in (stalled, other, back):
        flow.push(1000, lambda: None)
    assert [flow.rate for flow in (stalled, other, back)] == [0, RATE, RATE]
    network.heal(0, 1)
    assert [flow.rate for flow in (stalled, other, back)] == [RATE / 2, RATE / 2, RATE]
    clock.run()


def test_a_link_that_is_cut_while_its_flow_is_idle_holds_the_next_push() -> None:
    clock, network = make()
    flow = network.open_flow(0, 1)
    flow.push(1000, lambda: None)
    clock.run()
    network.cut(0, 1)
    times = pushes(clock, flow, 1000, 0)
    clock.run(until=5.0)
    assert times == []
    network.heal(0, 1)
    clock.run()
    assert times == approx([6.0, 6.0])


def test_isolation_covers_hosts_added_later_and_adds_to_cuts() -> None:
    _, network = make()
    network.cut(0, 1)
    network.isolate(0)
    network.add_host("late", RATE, RATE)
    assert not network.is_open("late", 0)
    assert not network.is_open(0, "late")
    assert network.is_open("late", 1)
    assert network.is_open(0, 0)
    network.heal(0, 1)
    assert not network.is_open(0, 1)
    network.cut(0, 1)
    network.restore(0)
    assert not network.is_open(0, 1)
    assert network.is_open(1, 0)
    assert network.is_open("late", 0)


def test_an_isolated_hosts_flows_stall_both_ways_and_go_on_afterwards() -> None:
    clock, network = make()
    out, into = pushes(clock, network.open_flow(0, 1), 1000), pushes(clock, network.open_flow(2, 0), 1000)
    clock.at(0.5, network.isolate, 0)
    clock.at(2.5, network.restore, 0)
    clock.run()
    assert (out, into) == (approx([3.0]), approx([3.0]))


# Connections


class Log:
    """Hears one endpoint, and notes what came when."""

    def __init__(self, clock: Clock, endpoint: Endpoint) -> None:
        self.heard: list[tuple[float, object]] = []
        self.closed: list[tuple[float, Reason]] = []
        endpoint.attach(
            lambda message: self.heard.append((clock.now, message)),
            lambda reason: self.closed.append((clock.now, reason)),
        )

    @property
    def messages(self) -> list[object]:
        return [message for _, message in self.heard]


def connect(clock: Clock, network: Network, a: int = 0, b: int = 1) -> tuple[Endpoint, Endpoint, Log, Log]:
    left, right = network.connect(a, b)
    return left, right, Log(clock, left), Log(clock, right)


def send_all(endpoint: Endpoint, *messages: object) -> None:
    for message in messages:
        endpoint.send(message)


def test_messages_arrive_after_the_latency_of_their_direction() -> None:
    clock, network = make()
    network.set_latency(1, 0, 0.3)
    left, right, at_left, at_right = connect(clock, network)
    left.send("there")
    right.send("back")
    assert (at_left.heard, at_right.heard) == ([], [])
    clock.run()
    assert at_right.heard == [(LATENCY, "there")]
    assert at_left.heard == [(0.3, "back")]
    assert (left.host, right.host, left.peer) == (0, 1, right)


def test_a_connection_keeps_its_order_when_the_latency_falls_and_others_overtake_it() -> None:
    clock, network = make()
    network.set_latency(0, 1, 1.0)
    first, _, _, at_first = connect(clock, network)
    second, _, _, at_second = connect(clock, network)
    first.send("slow")
    network.set_latency(0, 1, 0.2)
    first.send("fast")
    second.send("overtakes")
    clock.run()
    assert at_first.heard == [(1.0, "slow"), (1.0, "fast")]
    assert at_second.heard == [(0.2, "overtakes")]


@given(st.lists(st.tuples(st.floats(0, 2), st.floats(0, 1))))
def test_jitter_reorders_connections_but_never_one_connection(sends: list[tuple[float, float]]) -> None:
    clock = Clock()
    delays = iter([delay for _, delay in sorted(sends)])
    network = Network(clock, LATENCY, jitter=lambda: next(delays))
    network.add_host(0, RATE, RATE)
    network.add_host(1, RATE, RATE)
    left, _, _, at_right = connect(clock, network)
    for i, (when, _) in enumerate(sorted(sends)):
        clock.at(when, left.send, i)
    clock.run()
    assert at_right.messages == list(range(len(sends)))
    arrivals = [when for when, _ in at_right.heard]
    assert all(arrival >= when + LATENCY for arrival, (when, _) in zip(arrivals, sorted(sends), strict=True))


def test_a_cut_holds_what_is_under_way_and_what_follows_until_the_heal() -> None:
    clock, network = make()
    left, right, at_left, at_right = connect(clock, network)
    left.send("under way")
    clock.at(0.05, network.cut, 0, 1)
    clock.at(1.0, left.send, "into the cut")
    clock.at(1.0, right.send, "other way")
    clock.at(3.0, network.heal, 0, 1)
    clock.at(3.0, left.send, "after")
    clock.run()
    assert at_left.heard == [(approx(1.0 + LATENCY), "other way")]
    assert at_right.heard == [(approx(3.0 + LATENCY), m) for m in ("under way", "into the cut", "after")]


def test_a_graceful_close_comes_after_the_messages() -> None:
    clock, network = make()
    left, right, at_left, at_right = connect(clock, network)
    right.send("to a closed end")
    send_all(left, 1, 2)
    left.close(reset=False)
    send_all(left, 3)
    right.send("not known yet")
    clock.run()
    assert at_right.messages == [1, 2]
    assert at_right.closed == [(LATENCY, "closed")]
    assert (at_left.heard, at_left.closed) == ([], [])
    assert left.closed
    assert right.closed


def test_a_reset_loses_what_is_under_way_and_keeps_what_has_arrived() -> None:
    clock, network = make()
    left, right, at_left, at_right = connect(clock, network)
    left.send("arrived")
    clock.at(0.15, left.send, "lost")
    clock.at(0.15, right.send, "to the dead")
    clock.at(0.2, left.close)
    clock.run()
    assert at_right.messages == ["arrived"]
    assert at_right.closed == [(approx(0.2 + LATENCY), "reset")]
    assert (at_left.heard, at_left.closed) == ([], [])


def test_a_reset_under_a_cut_loses_what_was_held_and_is_known_after_the_heal() -> None:
    clock, network = make()
    left, _, _, at_right = connect(clock, network)
    network.cut(0, 1)
    left.send("held")
    clock.at(1.0, left.close)
    clock.at(5.0, network.heal, 0, 1)
    clock.run(until=4.9)
    assert (at_right.heard, at_right.closed) == ([], [])
    clock.run()
    assert (at_right.heard, at_right.closed) == ([], [(approx(5.0 + LATENCY), "reset")])


def test_of_a_dead_host_nothing_is_ever_heard() -> None:
    clock, network = make()
    left, right, _, at_right = connect(clock, network)
    left.send("last words")
    network.isolate(0)
    left.close()
    right.send("hello?")
    clock.run()
    assert (at_right.heard, at_right.closed, right.closed) == ([], [], False)


def test_both_ends_may_close_at_once_and_nobody_is_told() -> None:
    clock, network = make()
    left, right, at_left, at_right = connect(clock, network)
    left.close()
    right.close(reset=False)
    left.close(reset=False)
    clock.run()
    assert (at_left.closed, at_right.closed, clock.pending) == ([], [], 0)


def test_a_stopped_process_finds_everything_in_order_when_it_goes_on() -> None:
    clock, network = make()
    left, right, _, at_right = connect(clock, network)
    send_all(left, 1)
    clock.run()
    right.pause()
    send_all(left, 2, 3)
    clock.run(until=1.0)
    send_all(left, 4)
    left.close(reset=False)
    clock.run(until=2.0)
    assert at_right.messages == [1]
    right.resume()
    assert at_right.messages == [1]
    clock.run()
    assert at_right.messages == [1, 2, 3, 4]
    assert at_right.closed == [(2.0, "closed")]


def test_what_arrives_in_the_instant_of_the_resume_stays_behind() -> None:
    clock, network = make()
    left, right, _, at_right = connect(clock, network)
    right.pause()
    clock.at(0.0, left.send, 1)
    clock.at(1.0, left.send, 2)
    clock.at(1.0 + LATENCY, right.resume)
    clock.run()
    assert at_right.heard == [(1.0 + LATENCY, 1), (1.0 + LATENCY, 2)]


def test_a_process_stopped_by_a_message_does_not_get_the_next() -> None:
    clock, network = make()
    left, right = network.connect(0, 1)
    heard: list[object] = []

    def stop(message: object) -> None:
        heard.append(message)
        right.pause()

    send_all(left, 1, 2, 3)
    clock.run()
    right.attach(stop, heard.append)
    clock.run()
    assert heard == [1]
    right.resume()
    clock.run()
    assert heard == [1, 2]


def test_a_process_killed_while_stopped_hears_nothing_more() -> None:
    clock, network = make()
    left, right, at_left, at_right = connect(clock, network)
    right.pause()
    send_all(left, 1, 2)
    clock.run()
    right.close()
    right.resume()
    clock.run()
    assert at_right.heard == []
    assert [reason for _, reason in at_left.closed] == ["reset"]


def test_messages_wait_for_whoever_attaches_late() -> None:
    clock, network = make()
    left, right = network.connect(0, 1)
    send_all(left, 1, 2)
    left.close(reset=False)
    clock.run()
    late = Log(clock, right)
    assert late.heard == []
    clock.run()
    assert (late.messages, [reason for _, reason in late.closed]) == ([1, 2], ["closed"])


# The whole


def busy_run() -> list[tuple[float, str]]:
    """Flows, messages and faults in one run, with delays that follow a pattern."""
    clock = Clock()
    sequence: Iterator[int] = count()
    network = Network(clock, LATENCY, jitter=lambda: next(sequence) * 7 % 11 / 100)
    trace: list[tuple[float, str]] = []
    for host in range(6):
        network.add_host(host, RATE + host, RATE - host)

    def note(what: str) -> Callable[..., None]:
        return lambda *rest: trace.append((clock.now, f"{what} {rest}"))

    for i in range(40):
        source, target = i % 6, (i * 5 + 1) % 6
        flow = network.open_flow(source, target, cap=inf if i % 3 else 300)
        left, right = network.connect(source, target)
        left.attach(note(f"left {i}"), note(f"left {i} closed"))
        right.attach(note(f"right {i}"), note(f"right {i} closed"))
        for k in range(5):
            clock.at(i / 9 + k / 5, flow.push, 10 * (i + k), note(f"sent {i}.{k}"))
            clock.at(i / 9 + k / 5, left.send, k)
        clock.at(i / 9 + 2, right.close)
    for host in range(5):
        clock.at(host / 2, network.isolate, host)
        clock.at(host / 2 + 1, network.restore, host)
        clock.at(host, network.cut, host, host + 1)
        clock.at(host + 3, network.heal, host, host + 1)
    clock.run()
    return trace


def test_the_same_calls_give_the_same_run() -> None:
    trace = busy_run()
    assert len(trace) > 300
    assert busy_run() == trace


def test_a_chain_of_64_hosts_costs_little_per_chunk() -> None:
    """The inner loop of large simulations: 131,072 pushes, each set off by the one a host before it."""
    hosts, chunks, size, rate, hand_over = 64, 2048, 32768, 125e6, 250e-6
    clock = Clock()
    network = Network(clock, 100e-6)
    for host in range(hosts + 1):
        network.add_host(host, rate, rate)
    flows = [network.open_flow(host, host + 1) for host in range(hosts)]

    def push(hop: int) -> None:
        flows[hop].push(size, sent, hop)

    def sent(hop: int) -> None:
        if hop + 1 < hosts:
            clock.after(hand_over, push, hop + 1)

    for _ in range(chunks):
        push(0)
    started = time.process_time()
    clock.run()
    assert time.process_time() - started < 3.0
    assert clock.now == approx(chunks * size / rate + (hosts - 1) * (size / rate + hand_over))
    assert all(flow.sent == chunks * size for flow in flows)
