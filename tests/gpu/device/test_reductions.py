"""Reductions of objects on devices, between real agents: where they are combined, and that the bytes are right."""

from collections.abc import Iterator
from typing import Any

import cupy
import ml_dtypes
import numpy as np
import pytest

from hoplite_ucx.gpu.segments import Window
from hoplite_ucx.protocol.messages import Operation
from hoplite_ucx.runtime.worker.refs import new_ref
from tests.gpu.device.test_store import LAST, get, gpu, open_on, put, quick_agents
from tests.tools.live import Host, Live, live_cluster
from tests.tools.waiting import eventually

pytestmark = pytest.mark.timeout(600)  # kernels are compiled the first time

SIZE = 1_200_007
DTYPES = ["float32", "bfloat16", "float16", "int64", "complex64", "uint8"]


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def parts(name: str, count: int, size: int = SIZE) -> list[np.ndarray]:
    """Numbers whose sums are exact in the dtype."""
    return [(np.arange(size) % 23 + number).astype(dtype_of(name)) for number in range(count)]


def combining(host: Host) -> bool:
    return not host.status()["gpu"]["combines_on_host_because"]


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """Three hosts whose agents combine on devices: each has had a reduction of parts on one."""
    with quick_agents(), live_cluster(3) as cluster:
        for host in cluster.hosts:
            refs = [put(host, cupy.ones(SIZE, np.float32)) for _ in range(2)]
            total = host.reduce(refs)
            assert (get(host, total, None) == 2).all(), "while CuPy is imported, the host combines"
            host.delete(total, *refs)
        for host in cluster.hosts:
            eventually(lambda host=host: combining(host), 300)
        yield cluster


def check(result: Any, expected: np.ndarray) -> None:
    found = cupy.asnumpy(result)
    assert found.dtype == expected.dtype
    wrong = np.flatnonzero(found.view(np.uint8) != expected.view(np.uint8))
    assert not len(wrong), f"{len(wrong)} bytes differ, the first at {wrong[0]}, the last at {wrong[-1]}"


@pytest.mark.parametrize("name", DTYPES)
def test_sums_of_parts_on_three_hosts(live: Live, name: str) -> None:
    a, b, c = live.hosts
    arrays = parts(name, 4)
    refs = [put(host, cupy.asarray(array)) for host, array in zip((a, b, c, a), arrays, strict=True)]

    total = a.reduce(refs)

    expected = arrays[0] + arrays[1] + arrays[2] + arrays[3]
    check(get(b, total, 0), expected)
    check(get(c, total, None), expected)
    a.delete(total, *refs)


@pytest.mark.parametrize("op", [Operation.PROD, Operation.MIN, Operation.MAX, Operation.XOR, Operation.MEAN])
def test_every_operation(live: Live, op: Operation) -> None:
    a, b, _ = live.hosts
    arrays = parts("float64" if op is Operation.MEAN else "int32", 3)
    refs = [put(host, cupy.asarray(array)) for host, array in zip((a, b, a), arrays, strict=True)]
    functions = {Operation.PROD: np.multiply, Operation.MIN: np.minimum, Operation.MAX: np.maximum}
    function = functions.get(op, np.bitwise_xor if op is Operation.XOR else np.add)
    expected = function(function(arrays[0], arrays[1]), arrays[2])

    result = get(b, a.reduce(refs, op), 0)

    check(result, expected / 3 if op is Operation.MEAN else expected)
    a.delete(*refs)


@pytest.mark.parametrize("on_devices", [(True, False, True), (False, True, False), (False, False, True)])
def test_parts_on_hosts_and_devices(live: Live, on_devices: tuple[bool, ...]) -> None:
    hosts = live.hosts
    arrays = parts("float32", 6)
    refs = [
        put(hosts[index % 3], cupy.asarray(array) if on_devices[index % 3] else array)
        for index, array in enumerate(arrays)
    ]
    mixed = [put(hosts[0], array if index % 2 else cupy.asarray(array)) for index, array in enumerate(arrays)]

    for sources in (refs, mixed):
        check(get(hosts[1], hosts[0].reduce(sources), 0), sum(arrays[1:], arrays[0]))
    hosts[0].delete(*refs, *mixed)


def test_devices_of_one_host_are_combined_there(live: Live) -> None:
    a, *_ = live.hosts
    arrays = parts("float32", 4)
    refs = []
    for index, array in enumerate(arrays):
        with cupy.cuda.Device(LAST if index % 2 else 0):
            refs.append(put(a, cupy.asarray(array)))

    total = a.reduce(refs)

    memory, _ = open_on(a, total, 0)
    assert isinstance(memory, Window), "the result is where the first part is"
    assert memory.device == 0
    check(get(a, total, 0), sum(arrays[1:], arrays[0]))
    check(get(a, total, LAST), sum(arrays[1:], arrays[0]))
    a.delete(total, *refs)


def slots(host: Host) -> int:
    """How many slots of a host have combined on a device."""
    return int(host.status()["gpu"]["slots_on_devices"])


@pytest.mark.parametrize("op", [Operation.SUM, Operation.MEAN])
def test_allreduces_in_stripes_are_combined_and_put_together_on_devices(live: Live, op: Operation) -> None:
    a, *_ = live.hosts
    arrays = parts("float32", 3, 3 * SIZE)
    refs = [put(host, cupy.asarray(array)) for host, array in zip(live.hosts, arrays, strict=True)]
    before = [slots(host) for host in live.hosts]

    total = a.reduce(refs, op, everywhere=True)

    expected = sum(arrays[1:], arrays[0]) / np.float32(3 if op is Operation.MEAN else 1)
    for host, combined in zip(live.hosts, before, strict=True):
        memory, _ = open_on(host, total, 0)
        assert isinstance(memory, Window), "it is put together on the device"
        check(get(host, total, 0), expected)
        assert slots(host) == combined + 3, "each host has a slot of each stripe"
    check(get(a, total, None), expected)
    a.delete(total, *refs)


def test_allreduces_without_stripes(live: Live) -> None:
    a, *_ = live.hosts
    arrays = parts("float32", 3)
    refs = [put(host, cupy.asarray(array)) for host, array in zip(live.hosts, arrays, strict=True)]

    total = a.reduce(refs, everywhere=True)

    for host in live.hosts:
        check(get(host, total, 0), sum(arrays[1:], arrays[0]))
    a.delete(total, *refs)


def test_devices_of_a_host_are_combined_before_anything_crosses_the_network(live: Live) -> None:
    """Two parts on each host, on different devices: one stream between the hosts, not more."""
    a, b, _ = live.hosts
    arrays = parts("float32", 4)
    refs = []
    for index, array in enumerate(arrays):
        with cupy.cuda.Device(LAST if index % 2 else 0):
            refs.append(put((a, b)[index // 2], cupy.asarray(array)))
    before = sum(received(host) for host in (a, b))

    total = a.reduce(refs)

    check(get(a, total, 0), sum(arrays[1:], arrays[0]))
    moved = sum(received(host) for host in (a, b)) - before
    assert arrays[0].nbytes <= moved < 1.5 * arrays[0].nbytes
    a.delete(total, *refs)


def received(host: Host) -> int:
    return sum(link["bytes"] for link in host.status()["links"] if link["side"] == "receiving")


def test_dtypes_that_cupy_lacks_are_combined_on_the_host(live: Live) -> None:
    a, b, _ = live.hosts
    arrays = [np.full(SIZE, number, ">f4") for number in (1, 2)]
    refs = [put(host, array) for host, array in zip((a, b), arrays, strict=True)]

    check(get(b, a.reduce(refs), None), np.full(SIZE, 3, ">f4"))
    a.delete(*refs)


def test_a_part_that_still_grows(live: Live) -> None:
    """The reduction is asked for before its parts are there."""
    a, b, _ = live.hosts
    arrays = parts("float32", 2)
    refs = [new_ref(), new_ref()]
    total = a.reduce(refs)
    put(b, cupy.asarray(arrays[1]), refs[1])
    put(a, cupy.asarray(arrays[0]), refs[0])

    check(get(a, total, 0), arrays[0] + arrays[1])
    assert gpu(a)["used"] > 0
    a.delete(total, *refs)
