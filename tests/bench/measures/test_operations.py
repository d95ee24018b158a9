"""Live clusters on emulated hosts: right values, errors that are told, and nothing left behind."""

import json
import os
from collections.abc import Iterator

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from hoplite_ucx.bench.harness import contents
from hoplite_ucx.bench.harness.live_cluster import LiveCluster
from hoplite_ucx.bench.hosts.line_process import PeerError
from hoplite_ucx.bench.hosts.namespaces import Cluster
from hoplite_ucx.bench.measures import capacity
from hoplite_ucx.bench.measures.comparison import measure_beside
from hoplite_ucx.bench.measures.latency import measure_latencies
from hoplite_ucx.bench.measures.operations import ROUNDS, LiveRounds
from hoplite_ucx.cli import app
from tests.tools.waiting import eventually

pytestmark = pytest.mark.usefixtures("emulated_hosts")

RATE = 125e6
SIZE = (1 << 20) + 12


@pytest.fixture(scope="module")
def live() -> Iterator[LiveCluster]:
    with Cluster(hosts=3, rate=RATE) as cluster, LiveCluster(cluster.hosts, RATE) as running:
        yield running


def test_contents_differ_in_every_place_and_add_up() -> None:
    first, second, both = (np.empty(3 << 20, np.float32) for _ in range(3))
    contents.fill(first, [3])
    contents.fill(second, [8])
    contents.fill(both, [3, 8])
    assert np.array_equal(first + second, both)
    assert contents.matches(both, [8, 3])
    both[2_500_000] += 1
    assert not contents.matches(both, [3, 8])
    assert not contents.matches(np.roll(first, 1), [3])


@pytest.mark.parametrize("operation", ROUNDS)
def test_every_operation_is_right_twice(live: LiveCluster, operation: str) -> None:
    rounds = LiveRounds(live, SIZE)
    for _ in range(2):
        timed = ROUNDS[operation](rounds)
        assert timed.seconds > 0
        assert timed.processor > 0


def test_a_wrong_value_and_a_failed_call_are_told(live: LiveCluster) -> None:
    ref = live.new_ref()
    live.ask(0, "put", ref=ref, size=SIZE, seed=1)
    live.ask(1, "get", refs=[ref])
    with pytest.raises(PeerError, match="worker 1 on host 1: ValueError: a wrong value"):
        live.ask(1, "check", seeds=[[2]], size=SIZE)
    live.ask(0, "delete", refs=[ref])
    with pytest.raises(PeerError, match="worker 2 on host 2: ObjectDeletedError"):
        live.ask(2, "get", refs=[ref])
    assert ROUNDS["broadcast"](LiveRounds(live, SIZE)).seconds > 0


def test_processes_end_with_the_block_also_after_an_error() -> None:
    pids: list[int] = []

    def fail(cluster: Cluster) -> None:
        with LiveCluster(cluster.hosts, None) as running:
            pids.extend(running.pids.values())
            raise ZeroDivisionError

    with Cluster(hosts=2, rate=None) as cluster:
        with pytest.raises(ZeroDivisionError):
            fail(cluster)
        assert len(pids) == 5
        assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_ours_and_bare_are_measured_in_one_run() -> None:
    ours, bare = measure_beside([("reduce", SIZE)], [], hosts=2, rate=RATE, repeat=2).measured
    assert (ours.what, bare.what) == ("reduce", "bare reduce")
    assert len(ours.runs) == len(bare.runs) == 2
    assert ours.limit_seconds == bare.limit_seconds == pytest.approx(SIZE / (0.95 * RATE))
    with pytest.raises(PeerError, match="two or more hosts"):
        measure_beside([("reduce", SIZE)], [], hosts=1, rate=RATE, repeat=1)
    with pytest.raises(PeerError, match="whole float32 numbers"):
        measure_beside([("reduce", 7)], [], hosts=2, rate=RATE, repeat=1)


def test_small_objects_beside_an_echo() -> None:
    found = measure_latencies(hosts=2, size=1024, rate=RATE, repeat=1)
    assert found.echo.ratio == 1
    assert found.put.seconds + found.get.seconds == pytest.approx(found.put_get.seconds)
    assert found.gets_per_second > 0


def test_what_a_host_must_bear_on_a_small_scale() -> None:
    found = capacity.measure_one_host(workers=2, size=8 << 20, rate=RATE, repeat=1)
    assert 1 <= found.crossings < 1.2
    assert found.together >= 0
    inside, outside = capacity.measure_burner(hosts=2, size=SIZE, rate=RATE, repeat=1)
    assert inside.seconds > 0 < outside.seconds
    assert [each.what for each in capacity.measure_large(size=16 << 20, rate=RATE)] == ["broadcast", "reduce"]
    with pytest.raises(PeerError, match="MiB of memory"):
        capacity.measure_large(size=1 << 45, rate=RATE)


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", *arguments])


def test_the_commands_speak_to_people_and_to_programs() -> None:
    shown = bench("broadcast", "--hosts", "2", "--size", "1MiB", "--repeat", "1")
    assert shown.exit_code == 0, shown.stderr
    assert "broadcast of 1MiB between 2 hosts, 1gbit each" in shown.stdout
    assert "bare broadcast" in shown.stdout
    lines = bench(
        "gather", "--hosts", "2", "--size", "1MiB", "--repeat", "1", "--no-bare", "--json"
    ).stdout.splitlines()
    (figures,) = map(json.loads, lines)
    assert figures["what"] == "gather"
    assert figures["processor_seconds"] > 0
    grown = bench("small", "--objects", "100", "--json").stdout.splitlines()
    assert [json.loads(line)["process"] for line in grown][:3] == ["directory", "agent 0", "agent 1"]
    refused = bench("allreduce", "--hosts", "1")
    assert refused.exit_code == 1
    assert "two or more hosts" in refused.stderr


def test_deleted_objects_are_unmapped() -> None:
    """One made in place is never recycled; a received one gives way to the next object, where there is no more room."""
    size = 8 << 20

    def mapped(pid: int) -> int:
        with open(f"/proc/{pid}/maps") as maps:
            spans = [line.split()[0].split("-") for line in maps if "memfd:hoplite" in line]
        return sum(int(end, 16) - int(start, 16) for start, end in spans)

    with Cluster(hosts=2, rate=None) as cluster, LiveCluster(cluster.hosts, None, memory=(2 * size, size)) as running:
        ref, other = running.new_ref(), running.new_ref()
        running.ask(0, "create", ref=ref, size=size, seed=1)
        running.ask(1, "get", refs=[ref])
        running.ask(1, "check", seeds=[[1]], size=size)
        running.ask(0, "delete", refs=[ref])
        eventually(lambda: mapped(running.pids["agent 0"]) == 0)
        running.ask(1, "create", ref=other, size=size, seed=2)
        eventually(lambda: mapped(running.pids["agent 1"]) == size)
