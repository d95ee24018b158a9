"""Live clusters over RDMA: chosen by itself, right, and replaced by TCP when it breaks in the middle of an object."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rdma.inside.hosts import HOPLITE, Host, Running, cluster, networks, sh
from tests.tools.waiting import HANG, eventually

pytestmark = pytest.mark.tier("live")

MIB = 1 << 20
SIZE = 24 * MIB


def exchange(running: Running, number: int, size: int = 4 * MIB) -> None:
    """Everybody puts an array; the sum of all and the array of the first are got everywhere."""
    names = [f"part {number} {index}" for index in range(len(running.workers))]
    for seed, (worker, name) in enumerate(zip(running.workers, names, strict=True)):
        assert worker.ask("put_numbers", name=name, seed=seed, size=size)
    assert running.workers[0].ask("put", name=f"one {number}", seed=77, size=size)
    assert running.workers[0].ask("reduce", names=names, into=f"sum {number}")
    for worker in running.workers:
        worker.tell("get_sum", name=f"sum {number}", seeds=list(range(len(names))), size=size)
    assert all(worker.hear() for worker in running.workers)
    for worker in running.workers[1:]:
        worker.tell("get", name=f"one {number}", seed=77, size=size)
    assert all(worker.hear()["right"] for worker in running.workers[1:])


def test_three_agents_choose_rdma_by_themselves(record_property: Callable[[str, object], None]) -> None:
    """Broadcast, reduce and allreduce: all that is received comes over rc lanes, as UCX names them."""
    with cluster(1, 1, 1) as running:
        for number in range(2):
            exchange(running, number)
        lanes = {lane for host in running.hosts for lane in host.lanes()}
        record_property("lanes", " ".join(sorted(lanes)))
        assert {f"rc_verbs/rx{host.number}1:1" for host in running.hosts} & lanes
        received = [link for host in running.hosts for link in host.links() if link["side"] == "receiving"]
        assert {link["transport"] for link in received if link["bytes"] > MIB} == {"ucx"}


def test_a_host_without_rdma_is_reached_over_tcp() -> None:
    with cluster(1, 1, 0) as running:
        exchange(running, 0)
        addresses = {host.address: host for host in running.hosts}
        assert len(addresses) == 3
        transports = {link["transport"] for link in running.hosts[2].links() if link["bytes"]}
        assert transports == {"tcp"}


def test_two_rails(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """Both devices of each host carry their half. UCX by itself uses one: it takes the other for unreachable, though
    there is a route to its network."""
    path = tmp_path / "hoplite.toml"
    path.write_text('[ucx]\noptions = { IB_ROCE_REACHABILITY_MODE = "all" }\n')
    with cluster(2, 2, HOPLITE_CONFIG=str(path)) as running:
        before = [running.hosts[1].packets(rail) for rail in (1, 2)]
        assert running.workers[0].ask("put", name="one", seed=1, size=SIZE)
        assert running.workers[1].ask("get", name="one", seed=1, size=SIZE)["right"]
        lanes = running.hosts[1].lanes()
        carried = [running.hosts[1].packets(rail) - count for rail, count in zip((1, 2), before, strict=True)]
        record_property("lanes", " ".join(sorted(lanes)))
        record_property("packets", " and ".join(map(str, carried)))
        assert {"rc_verbs/rx21:1", "rc_verbs/rx22:1"} <= lanes, running.hosts[1].links()
        assert min(carried) > max(carried) / 2


# ssh for hosts in namespaces: takes ssh's options and does without them.
SSH = """#!/bin/sh
while true; do
    case "$1" in -T) shift ;; -o | -p) shift 2 ;; *) break ;; esac
done
host="$1"
shift
exec ip netns exec "$host" sh -c "$*"
"""


def test_the_links_of_a_host_list_are_measured(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """`hoplite bench fabric`, end to end: each way, the lanes it really had, perftest, and a configuration."""
    ssh, listed = tmp_path / "ssh", tmp_path / "hosts"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    with networks(2, 2) as hosts:
        lines = [
            f"{host.name} address={host.address} devices={host.devices()} python={sys.executable}" for host in hosts
        ]
        listed.write_text("\n".join(lines))
        command = [HOPLITE, "bench", "fabric", "--hosts-file", str(listed), "--ssh", str(ssh), "--json"]
        sizes = ["--size", "4MiB", "--repeat", "2", "--memory", "100MiB"]
        done = subprocess.run([*command, *sizes], capture_output=True, text=True, timeout=HANG * 8, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert list(report["ways"]) == ["tcp", "ucx over tcp", "rdma, 1 rail", "rdma, 2 rails"], report["not_run"]
    for name, found in report["ways"].items():
        record_property(name, {op: round(each["seconds"], 3) for op, each in found["operations"].items()})
    assert "rc_verbs/rx11:1" in report["ways"]["rdma, 1 rail"]["lanes"]
    assert all(lane.startswith("tcp/") for lane in report["ways"]["ucx over tcp"]["lanes"])
    assert report["perftest"]["rx11:1 rx21:1"]["bytes_per_second"] > 0, report["perftest"]
    record_property(
        "perftest", {rail: round(each["bytes_per_second"] / 1e6) for rail, each in report["perftest"].items()}
    )
    record_property("advised", report["advised"])
    assert report["configuration"].startswith("[links]") or report["configuration"].startswith("# on h1")


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_a_sender_that_dies_or_stops(how: str, record_property: Callable[[str, object], None]) -> None:
    """A third host has a copy: the rest comes from there."""
    with cluster(1, 1, 1) as running:
        holder, getter, other = running.workers[1], running.workers[0], running.workers[2]
        assert holder.ask("put", name="one", seed=1, size=SIZE)
        assert other.ask("get", name="one", seed=1, size=SIZE)["right"]
        getter.tell("watched_get", name="one", seed=1, size=SIZE, tell_at=SIZE // 4)
        assert getter.hear()["at"] >= SIZE // 4
        agent = running.agent(1)
        os.kill(agent, signal.Signals[how])
        done = getter.hear()
        record_property("longest_gap_seconds", done["longest_gap_seconds"])
        assert done["right"]
        if how == "SIGSTOP":
            os.kill(agent, signal.SIGKILL)


def drop(host: Host) -> None:
    sh(f"tc -n {host.name} qdisc add dev {host.link(1)} root netem loss 100%")


def stop_dropping(host: Host) -> None:
    sh(f"tc -n {host.name} qdisc del dev {host.link(1)} root")


BREAKS: dict[str, tuple[Callable[[Running], None], Callable[[Running], None]]] = {
    "the receiver's port goes down": (
        lambda running: sh(f"ip -n h2 link set {running.hosts[1].link(1)} down"),
        lambda running: sh(f"ip -n h2 link set {running.hosts[1].link(1)} up"),
    ),
    "the sender's port goes down": (
        lambda running: sh(f"ip -n h1 link set {running.hosts[0].link(1)} down"),
        lambda running: sh(f"ip -n h1 link set {running.hosts[0].link(1)} up"),
    ),
    "packets are dropped": (
        lambda running: [drop(host) for host in running.hosts] and None,
        lambda running: [stop_dropping(host) for host in running.hosts] and None,
    ),
    "the switch is down": (
        lambda _running: sh("ip link set net1 down"),
        lambda _running: sh("ip link set net1 up"),
    ),
}


@pytest.mark.parametrize("how", list(BREAKS))
def test_rdma_that_breaks_in_mid_object(how: str, record_property: Callable[[str, object], None]) -> None:
    """The object is completed over TCP; after the cooldown RDMA comes back. (`auto` might stay with a TCP that it has
    measured meanwhile, and found faster than software RDMA.)"""
    with cluster(1, 1, HOPLITE_LINKS_COOLDOWN="3", HOPLITE_LINKS_TRANSPORT="rdma") as running:
        holder, getter = running.workers
        assert holder.ask("put", name="small", seed=7, size=MIB)
        assert getter.ask("get", name="small", seed=7, size=MIB)["right"]
        assert "rc_verbs/rx21:1" in running.hosts[1].lanes(), running.hosts[1].links()
        assert holder.ask("put", name="one", seed=1, size=SIZE)
        getter.tell("watched_get", name="one", seed=1, size=SIZE, tell_at=SIZE // 4)
        assert getter.hear()["at"] < SIZE, "it was over before it could be broken"
        BREAKS[how][0](running)
        done = getter.hear()
        record_property("longest_gap_seconds", done["longest_gap_seconds"])
        assert done["right"]
        used = {link["transport"] for link in running.hosts[1].links() if link["side"] == "receiving" and link["bytes"]}
        assert "tcp" in used
        BREAKS[how][1](running)
        comes_back(running)


def comes_back(running: Running) -> None:
    """Small objects, until one comes over RDMA again."""
    holder, getter = running.workers[:2]
    number = iter(range(10_000))

    def back() -> bool:
        name = f"again {next(number)}"
        assert holder.ask("put", name=name, seed=2, size=MIB)
        assert getter.ask("get", name=name, seed=2, size=MIB)["right"]
        return "rc_verbs/rx21:1" in running.hosts[1].lanes()

    try:
        eventually(back)
    except AssertionError:
        raise AssertionError(f"RDMA did not come back: {running.hosts[1].links()}") from None


def test_auto_returns_to_rdma_when_its_network_is_well_again() -> None:
    """The TCP network is the slower one here, as it is where there are cards; else `auto` would stay with it."""
    with cluster(1, 1, HOPLITE_LINKS_COOLDOWN="3") as running:
        holder, getter = running.workers
        for host in running.hosts:
            sh(f"tc -n {host.name} qdisc add dev {host.name}t root netem rate 80mbit")
        for number in range(3):
            assert holder.ask("put", name=f"before {number}", seed=7, size=8 * MIB)
            assert getter.ask("get", name=f"before {number}", seed=7, size=8 * MIB)["right"]
        assert "rc_verbs/rx21:1" in running.hosts[1].lanes(), running.hosts[1].links()
        BREAKS["packets are dropped"][0](running)
        assert holder.ask("put", name="one", seed=1, size=8 * MIB)
        assert getter.ask("get", name="one", seed=1, size=8 * MIB)["right"]
        used = {link["transport"] for link in running.hosts[1].links() if link["side"] == "receiving" and link["bytes"]}
        assert "tcp" in used
        BREAKS["packets are dropped"][1](running)
        comes_back(running)
