"""Objects between real processes on loopback: bytes compared, in every size that goes another way."""

import threading
import time

import numpy as np
import pytest

from hoplite_ucx.errors import (
    GetTimeoutError,
    InvalidRequestError,
    ObjectDeletedError,
    StoreFullError,
)
from hoplite_ucx.protocol.messages import Operation
from hoplite_ucx.runtime.objects import values
from hoplite_ucx.runtime.settings import SMALL
from hoplite_ucx.runtime.worker.refs import new_ref
from tests.tools.live import Live, live_cluster
from tests.tools.waiting import HANG, eventually

SIZES = [0, 1, 1000, 32 << 10, (32 << 10) + 1, SMALL, SMALL + 1, 3_000_001, 20 << 20]


def random_bytes(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


@pytest.mark.parametrize("size", SIZES)
def test_put_here_get_there(live: Live, size: int) -> None:
    data = random_bytes(size)
    ref = live.hosts[0].put(data)
    for host in live.hosts:
        assert np.array_equal(host.get(ref), data)
    live.hosts[0].delete(ref)


@pytest.mark.parametrize("size", SIZES)
def test_reduce(live: Live, size: int) -> None:
    count = size // 8
    arrays = [np.random.default_rng(seed).integers(0, 1000, count) for seed in range(3)]
    refs = [host.put(array) for host, array in zip(live.hosts, arrays, strict=True)]
    target = live.hosts[1].reduce(refs)
    expected = sum(arrays)
    for host in live.hosts:
        assert np.array_equal(host.get(target), expected)
    assert set(live.hosts[2].contributors(target)) == set(refs)
    live.hosts[0].delete(*refs, target)


def test_a_get_waits_for_its_put(live: Live) -> None:
    ref = new_ref()
    data = random_bytes(2 << 20)
    getter = live.hosts[0]
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(np.array_equal(getter.get(ref), data)))
    thread.start()
    eventually(lambda: getter.status()["calls"])
    live.hosts[2].put(data, ref)
    thread.join(HANG)
    assert results == [True]


def test_everybody_gets_at_once(live: Live) -> None:
    data = random_bytes(16 << 20)
    ref = new_ref()
    results: list[object] = []

    def get(host: int) -> None:
        results.append(np.array_equal(live.hosts[host].get(ref), data))

    threads = [threading.Thread(target=get, args=(index % 3,)) for index in range(9)]
    for thread in threads:
        thread.start()
    eventually(lambda: all(host.status()["calls"] == 3 for host in live.hosts))
    live.hosts[0].put(data, ref)
    for thread in threads:
        thread.join(HANG)
    assert results == [True] * 9


def test_a_reduce_of_the_first_that_are_ready(live: Live) -> None:
    refs = [new_ref() for _ in range(4)]
    target = live.hosts[0].reduce(refs, count=2)
    arrays = [np.full(1 << 18, float(index)) for index in range(4)]
    live.hosts[1].put(arrays[3], refs[3])
    live.hosts[2].put(arrays[1], refs[1])
    assert np.array_equal(live.hosts[0].get(target), arrays[3] + arrays[1])
    assert set(live.hosts[0].contributors(target)) == {refs[3], refs[1]}


def test_several_sources_of_one_host_and_chained_reductions(live: Live) -> None:
    arrays = [np.full(100_000, float(index)) for index in range(6)]
    refs = [live.hosts[index % 2].put(array) for index, array in enumerate(arrays)]
    first = live.hosts[0].reduce(refs[:3], Operation.MAX)
    second = live.hosts[1].reduce([first, *refs[3:]], Operation.SUM)
    assert np.array_equal(live.hosts[2].get(second), np.full(100_000, 2.0 + 3 + 4 + 5))


@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("size", [100, 2 << 20])
def test_a_mean_is_a_mean_for_everybody(live: Live, size: int, everywhere: bool) -> None:
    """Inline, in a chain and in stripes; for getters who know nothing of it, and as a source of others."""
    arrays = [np.random.default_rng(seed).random(size) for seed in range(4)]
    refs = [host.put(array) for host, array in zip(live.hosts, arrays, strict=False)]
    mean = live.hosts[0].reduce(refs, Operation.MEAN, everywhere=everywhere)
    more = live.hosts[1].put(arrays[3])
    outer = live.hosts[2].reduce([mean, more], Operation.MEAN)
    expected = sum(arrays[:3]) / 3
    for host in live.hosts:
        np.testing.assert_allclose(host.get(mean), expected, rtol=1e-12)
    np.testing.assert_allclose(live.hosts[0].get(outer), (expected + arrays[3]) / 2, rtol=1e-12)


@pytest.mark.parametrize("size", [100, 1 << 20])
def test_means_of_integers_are_refused(live: Live, size: int) -> None:
    refs = [host.put(np.ones(size, "i4")) for host in live.hosts]
    with pytest.raises(InvalidRequestError, match="the mean of int32"):
        live.hosts[1].get(live.hosts[0].reduce(refs, Operation.MEAN))


def test_trees_reduce_leaf_by_leaf(live: Live) -> None:
    trees = [
        {"w": np.full((300, 401), float(index)), "b": [np.arange(7, dtype="i4") * index, np.array(1.5)]}
        for index in range(3)
    ]
    refs = [host.put(tree) for host, tree in zip(live.hosts, trees, strict=True)]
    result = live.hosts[0].get(live.hosts[0].reduce(refs))
    assert np.array_equal(result["w"], np.full((300, 401), 3.0))
    assert np.array_equal(result["b"][0], np.arange(7) * 3)
    assert result["b"][1] == 4.5


def test_a_mismatch_names_it(live: Live) -> None:
    other_order = np.zeros((1 << 9, 1 << 9), order="F")
    for other, says in ((np.zeros(1 << 17), r"float64\[512, 512\] and float64\[131072\]"), (other_order, "Fortran")):
        refs = [live.hosts[0].put(np.zeros((1 << 9, 1 << 9)))]
        target = live.hosts[0].reduce([*refs, later := new_ref()])
        live.hosts[0].wait(refs)
        live.hosts[1].put(other, later)
        with pytest.raises(InvalidRequestError, match=says) as caught:
            live.hosts[0].get(target)
        assert caught.value.ref == target


@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("size", [10, 2 << 20])
def test_what_cannot_be_combined_gives_nobody_bytes(live: Live, size: int, everywhere: bool) -> None:
    refs = [host.put(np.ones(size)) for host in live.hosts]
    target = new_ref()
    used = [host.status()["memory"]["used"] for host in live.hosts]
    live.hosts[0].reduce(refs, Operation.XOR, ref=target, everywhere=everywhere)
    for host in live.hosts:
        with pytest.raises(InvalidRequestError, match="xor is not defined for float64") as caught:
            host.get(target)
        assert caught.value.ref == target
    assert live.hosts[1].wait([target])[0] == [target]
    assert [host.status()["memory"]["used"] for host in live.hosts] == used
    live.hosts[0].delete(target, *refs)


def test_streams_are_listed_while_they_are_open(live: Live) -> None:
    """The sender is a draft that does not grow: its first half comes, and then nothing."""
    draft_ref = new_ref()
    source, idle, getter = live.hosts
    layout = values.encode(np.ones(1 << 20)).layout
    draft = source.client.begin_put(draft_ref.binary, 8 << 20, layout, HANG)
    draft.memory[: 4 << 20] = bytes(4 << 20)
    draft.advance(4 << 20)
    thread = threading.Thread(target=getter.get, args=(draft_ref,))
    thread.start()
    try:
        eventually(lambda: [stream["position"] for stream in getter.status()["streams"]] == [4 << 20])
        (stream,) = getter.status()["streams"]
        assert stream.pop("number") > 0  # of its placement
        assert stream == {
            "ref": draft_ref.hex(),
            "into": "",
            "sender": f"n{source.agent.report['agent']}",
            "position": 4 << 20,
            "size": 8 << 20,
        }
    finally:
        draft.memory[4 << 20 :] = bytes(4 << 20)
        draft.finish()
        thread.join(HANG)
    eventually(lambda: not getter.status()["streams"])
    assert not idle.status()["streams"]
    idle.delete(draft_ref)


def test_wait_and_delete(live: Live) -> None:
    host = live.hosts[0]
    refs = [new_ref() for _ in range(3)]
    live.hosts[1].put("there", refs[1])
    ready, rest = host.wait(refs)
    assert ready == [refs[1]]
    assert rest == [refs[0], refs[2]]
    assert host.get(refs[1]) == "there"  # from now on the agent knows by itself that this one is ready
    ready, rest = host.wait(refs, 3, timeout=0.2)
    assert len(ready) == 1
    host.delete(refs[1])
    with pytest.raises(ObjectDeletedError):
        live.hosts[2].get(refs[1])


def test_time_limits(live: Live) -> None:
    ref = new_ref()
    started = time.monotonic()
    with pytest.raises(GetTimeoutError, match=ref.hex()[:8]):
        live.hosts[0].get(ref, timeout=0.3)
    assert 0.3 <= time.monotonic() - started < HANG
    with pytest.raises(TimeoutError):
        live.hosts[0].get(ref, timeout=0)


def test_arrays_outlive_their_object(live: Live) -> None:
    data = random_bytes(5 << 20)
    host = live.hosts[1]
    ref = live.hosts[0].put(data)
    array = host.get(ref)
    host.delete(ref)
    for seed in range(5):  # what would be recycled if it were not in use
        other = host.put(random_bytes(5 << 20, seed + 1))
        host.get(other)
        host.delete(other)
    assert np.array_equal(array, data)


def test_memory_comes_back(live: Live) -> None:
    host = live.hosts[0]
    before = host.status()["memory"]["used"]
    refs = [host.put(random_bytes(4 << 20)) for _ in range(5)]
    arrays = [host.get(ref) for ref in refs]
    host.delete(*refs)
    assert host.status()["memory"]["used"] >= before + (20 << 20)
    del arrays
    eventually(lambda: host.status()["memory"]["used"] <= before)


def test_a_put_again_keeps_the_first_value(live: Live) -> None:
    ref = live.hosts[0].put(random_bytes(1 << 20, 1))
    live.hosts[1].put(random_bytes(1 << 20, 2), ref)
    assert np.array_equal(live.hosts[2].get(ref), random_bytes(1 << 20, 1))


def test_bundles_travel(live: Live) -> None:
    value = {"model": "x", "weights": random_bytes(1 << 20), "at": {1, 2}}
    ref = live.hosts[0].put(value)
    result = live.hosts[1].get(ref)
    assert np.array_equal(result["weights"], value["weights"])
    assert result["at"] == {1, 2}


def test_a_full_store_says_so() -> None:
    with live_cluster(1, memory=8 << 20) as live:
        host = live.hosts[0]
        ref = host.put(random_bytes(5 << 20))
        with pytest.raises(StoreFullError, match=ref.hex()[:8]):
            host.put(random_bytes(5 << 20))
        with pytest.raises(MemoryError):
            host.put(random_bytes(50 << 20))
        host.delete(ref)
        data = random_bytes(5 << 20)
        assert np.array_equal(host.get(host.put(data)), data)


def test_many_small_objects_leave_nothing(live: Live) -> None:
    host, other = live.hosts[0], live.hosts[1]
    used = host.status()["memory"]["used"]
    for _ in range(10):
        refs = [host.put(b"x" * 500) for _ in range(100)]
        other.client.get([ref.binary for ref in refs], HANG)
        host.delete(*refs)
    eventually(lambda: host.status()["memory"]["used"] <= used)
