"""Objects on devices, between real agents: put from a device, got on devices and on the host, here and elsewhere."""

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cupy
import numpy as np
import pytest

from hoplite_ucx.errors import HopliteError
from hoplite_ucx.gpu import driver as cuda
from hoplite_ucx.gpu import segments
from hoplite_ucx.gpu.segments import Window
from hoplite_ucx.runtime.agent.store import Store
from hoplite_ucx.runtime.local import worker_messages
from hoplite_ucx.runtime.objects import device_values
from hoplite_ucx.runtime.objects.on_device import decode_on
from hoplite_ucx.runtime.worker.refs import ObjectRef, new_ref
from tests.tools.live import SECONDS, Host, Live, live_cluster
from tests.tools.waiting import HANG, eventually

MADE_UP = "MADE_UP_PYTHON" in os.environ
LAST = cuda.load().count - 1
SIZE = 3_000_001
DATA = np.arange(SIZE, dtype=np.float32)


def put(host: Host, array: Any, ref: ObjectRef | None = None) -> ObjectRef:
    return host.put(array, ref)


def open_on(host: Host, ref: ObjectRef, device: int, timeout: float = SECONDS) -> tuple[memoryview | Window, bytes]:
    return host.client.get_on_device(ref.binary, timeout, device_values.devices_for(device))


def get(host: Host, ref: ObjectRef, device: int | None, timeout: float = SECONDS) -> Any:
    if device is None:
        return host.get(ref, timeout)
    return decode_on(*open_on(host, ref, device, timeout), device)


def gpu(host: Host, device: int = 0) -> dict[str, Any]:
    return dict(host.status()["gpu"]["devices"][device])


@contextmanager
def quick_agents() -> Iterator[None]:
    """Devices that are slow for this process are not so for agents that start now: what a worker does not wait for, its
    agent reads before it is there."""
    delay = os.environ.get("MADE_UP_GPU_DELAY_US", "")
    cupy.arange(3).get()  # this process keeps the delay that it has
    with pytest.MonkeyPatch.context() as patch:
        if delay.isdigit():
            patch.setenv("MADE_UP_GPU_DELAY_US", str(int(delay) // 5))
        yield


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with quick_agents(), live_cluster(3) as cluster:
        yield cluster


def same(array: Any, expected: np.ndarray = DATA) -> bool:
    return bool((cupy.asnumpy(array) == expected).all())


def test_on_the_same_host_it_is_mapped_and_nothing_is_copied(live: Live) -> None:
    a, *_ = live.hosts
    ref = put(a, cupy.asarray(DATA))
    before = gpu(a)["used"]

    first, second = get(a, ref, 0), get(a, ref, 0)

    assert same(first)
    assert same(second)
    assert first.data.ptr != second.data.ptr, "each get has a mapping of its own"
    assert gpu(a)["used"] == before > 0
    a.delete(ref)


@pytest.mark.parametrize(("host", "device"), [(0, None), (0, LAST), (1, 0), (1, None), (2, LAST)])
def test_it_comes_where_it_is_wanted(live: Live, host: int, device: int | None) -> None:
    ref = put(live.hosts[0], cupy.asarray(DATA))

    array = get(live.hosts[host], ref, device)

    assert isinstance(array, np.ndarray if device is None else cupy.ndarray)
    assert device is None or array.device.id == device
    assert same(array)
    live.hosts[0].delete(ref)


@pytest.mark.parametrize("host", [0, 1])
def test_what_was_put_from_the_host_comes_to_a_device(live: Live, host: int) -> None:
    ref = live.hosts[0].put(DATA)

    assert same(get(live.hosts[host], ref, 0))
    live.hosts[0].delete(ref)


def test_links_are_those_that_were_asked_for(live: Live) -> None:
    a, b, _ = live.hosts
    ref = put(a, cupy.asarray(DATA))
    assert same(get(b, ref, 0))

    (link,) = [link for link in b.status()["links"] if link["side"] == "receiving" and link["bytes"]]

    ucx = os.environ.get("HOPLITE_LINKS_TRANSPORT") == "ucx"
    assert (link["transport"], link["gpu_memory"]) == (("ucx", "direct") if ucx else ("tcp", "staged"))
    assert f"memory of GPUs {link['gpu_memory']}: " in link["reason"]
    a.delete(ref)


def test_three_hosts_at_once(live: Live) -> None:
    ref = new_ref()
    a, b, c = live.hosts
    put(a, cupy.asarray(DATA), ref)

    arrays = [get(b, ref, 0), get(c, ref, 0), get(b, ref, LAST), get(a, ref, None)]

    assert all(map(same, arrays))
    a.delete(ref)


def test_a_put_comes_after_what_computes_the_array(live: Live) -> None:
    """The array is still being written on its stream when it is put."""
    stream = cupy.cuda.Stream(non_blocking=True)
    array = cupy.zeros(SIZE, np.float32)
    cupy.cuda.Device().synchronize()

    with stream:
        array += 7
        ref = put(live.hosts[0], array)

    assert same(get(live.hosts[1], ref, None), np.full(SIZE, 7, np.float32))
    live.hosts[0].delete(ref)


def test_receivers_are_told_of_bytes_that_are_there(live: Live) -> None:
    """Another host receives the object already when its bytes are put, behind work that has not run."""
    a, b, _ = live.hosts
    ref = new_ref()
    found: list[Any] = []
    over = threading.Event()

    def receive() -> None:
        found.append(get(b, ref, None))
        over.set()

    def hold_up(_: object) -> None:
        eventually(lambda: b.status()["streams"] or over.is_set())
        over.wait(0.5)  # it is over only if bytes were told of that are not there

    getter = threading.Thread(target=receive)
    getter.start()
    eventually(lambda: b.status()["calls"] > 0)
    stream = cupy.cuda.Stream(non_blocking=True)
    array = cupy.zeros(SIZE, np.float32)
    cupy.cuda.Device().synchronize()

    with stream:
        stream.launch_host_func(hold_up, None)
        array += 11  # which no memory that is used again has
        put(a, array, ref)
    getter.join()

    assert same(found[0], np.full(SIZE, 11, np.float32))
    a.delete(ref)


def test_small_objects_go_through_the_host(live: Live) -> None:
    ref = put(live.hosts[0], cupy.arange(100, dtype=np.float32))

    assert same(get(live.hosts[1], ref, 0), np.arange(100, dtype=np.float32))
    live.hosts[0].delete(ref)


def test_arrays_that_are_not_contiguous(live: Live) -> None:
    square = DATA[: 1000 * 1000].reshape(1000, 1000)
    array = cupy.asarray(square)[:, ::2]

    ref = put(live.hosts[0], array)

    assert same(get(live.hosts[1], ref, 0), square[:, ::2])
    live.hosts[0].delete(ref)


def test_a_put_has_unmapped_its_memory_when_it_ends(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """From then on the agent gives it to others, and nothing could keep this process from writing to it."""
    events: list[str] = []
    unmap, frame = segments._settle_and_unmap, worker_messages.frame

    def unmapped(*arguments: Any) -> None:
        unmap(*arguments)
        events.append("unmapped")

    def framed(message: Any) -> bytes:
        events.append(type(message).__name__)
        return frame(message)

    monkeypatch.setattr(segments, "_settle_and_unmap", unmapped)
    monkeypatch.setattr(worker_messages, "frame", framed)
    ref = put(live.hosts[0], cupy.asarray(DATA))

    assert events.index("unmapped") < events.index("PutEnd")
    live.hosts[0].delete(ref)


def test_memory_of_the_device_is_used_again(live: Live) -> None:
    a, *_ = live.hosts
    array = cupy.asarray(DATA)
    ref = put(a, array)
    used = gpu(a)["used"]
    a.delete(ref)
    eventually(lambda: gpu(a)["pooled"] > 0)
    pooled = gpu(a)["pooled"]

    ref = put(a, array)

    assert gpu(a)["used"] >= used
    assert gpu(a)["pooled"] < pooled
    assert same(get(a, ref, 0))
    a.delete(ref)


def test_what_is_looked_at_is_not_used_again(live: Live) -> None:
    a, *_ = live.hosts
    ref = put(a, cupy.asarray(DATA))
    array = get(a, ref, 0)
    a.delete(ref)

    other = put(a, cupy.zeros(SIZE, np.float32))

    assert same(array), "its memory was given to another object"
    a.delete(other)
    del array
    gc.collect()


_DIES = """
import sys, time, cupy
from hoplite_ucx.runtime.objects.values import Encoded, encode
from hoplite_ucx.runtime.worker.client import Client
from hoplite_ucx.runtime.worker.refs import ObjectRef
from tests.gpu.device.test_store import DATA
from tests.tools.live import Host
host = Host(None, Client(sys.argv[1].replace("@", chr(0))))
ref = ObjectRef(bytes.fromhex(sys.argv[2]))
whole = encode(cupy.asarray(DATA))
class Half(Encoded):
    def copy_into(self, memory):
        for end in super().copy_into(memory):
            yield end // 2
            print("half", flush=True)
            time.sleep(600)
host.client.put(ref.binary, Half(whole.size, whole.layout, whole.leaves, whole.arrays), 60)
"""


def test_a_worker_that_dies_in_the_middle_of_a_put(live: Live) -> None:
    a, b, _ = live.hosts
    ref = new_ref()
    process = subprocess.Popen(
        [sys.executable, "-c", _DIES, a.name.replace("\0", "@"), ref.binary.hex()], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "half\n"
    pooled = gpu(a)["pooled"]

    process.send_signal(signal.SIGKILL)
    process.communicate()

    with pytest.raises(HopliteError):
        get(b, ref, 0, timeout=3)
    assert gpu(a)["pooled"] == pooled, "its work may still run: its memory is not used again"
    put(a, cupy.asarray(DATA), ref)
    assert same(get(b, ref, 0))
    a.delete(ref)


def test_an_object_outlives_its_agent() -> None:
    with live_cluster(2) as cluster:
        a, b = cluster.hosts
        ref = put(a, cupy.asarray(DATA))
        here, there = get(a, ref, 0), get(b, ref, 0)

        a.kill()

        assert same(here)
        assert same(there)
        assert same(get(b, ref, None))


def test_a_full_device_gives_way_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPLITE_STORE_DEVICE_MEMORY", str(24 << 20))
    with live_cluster(2) as cluster:
        a, b = cluster.hosts
        array = cupy.asarray(DATA)
        refs = [put(a, array) for _ in range(2)]
        kept = [get(a, ref, 0) for ref in refs]  # which nobody may move while it is looked at
        assert gpu(a)["used"] == 24 << 20

        third = a.put(DATA)
        fourth = put(a, array)

        assert gpu(a)["used"] == 24 << 20
        assert "are in use" in gpu(a)["host_memory_instead"]
        assert all(same(get(host, ref, 0)) for ref in (*refs, third, fourth) for host in (a, b))
        assert all(map(same, kept))
        del kept
        gc.collect()
        eventually(lambda: _moved(a, array))
        assert all(same(get(host, ref, None)) for ref in refs for host in (a, b))


def _moved(host: Host, array: Any) -> bool:
    """Whether putting makes room on the device: the oldest object has gone to the host."""
    before = gpu(host)["used"] + gpu(host)["pooled"]
    ref = put(host, array)
    on_device = isinstance(open_on(host, ref, 0)[0], Window)
    host.delete(ref)
    return on_device and before <= 24 << 20


def test_what_is_looked_at_or_followed_meanwhile_is_not_moved_to_the_host() -> None:
    """Between the moment at which an object is chosen to be moved and that at which its copy is there."""
    store = Store(1 << 30, lambda *_: None)
    store.devices.find()
    store.allocate(1, DATA.nbytes)
    segment = store[1]
    backing = store.back_on(segment, 0)
    assert backing is not None
    segment.raise_watermark(segment.size)
    assert store.evictable(0) is segment
    copying = store.twin(segment)
    copying.result(HANG)
    assert store.keep_twin(segment, copying)

    backing.mapped += 1
    assert store.evictable(0) is None
    assert not store.evict(segment)
    backing.mapped -= 1
    segment.subscribe(store.close)
    assert store.evictable(0) is None
    assert not store.evict(segment)
    segment.unsubscribe(store.close)
    store.window(2, 1, 0, 1 << 20)
    assert store.evictable(0) is None
    assert not store.evict(segment)
    store.free(2)

    assert segment.device == 0
    assert store.evict(segment)
    assert segment.device is None
    store.close()


@pytest.mark.skipif(not MADE_UP, reason="made-up GPUs only")
def test_a_device_that_is_lost(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = tmp_path / "lost"
    monkeypatch.setenv("MADE_UP_GPU_LOST", str(lost))
    with live_cluster(2) as cluster:
        a, b = cluster.hosts
        ref, safe = put(a, cupy.asarray(DATA)), a.put(DATA)
        monkeypatch.delenv("MADE_UP_GPU_LOST")

        lost.touch()  # for the agents, not for this process: they are the ones that look at it

        with pytest.raises(HopliteError, match="on a GPU that cannot be read"):
            get(a, ref, None, timeout=10)
        assert "the device failed" in gpu(a)["host_memory_instead"]
        assert same(get(b, safe, None))
        again = a.put(DATA)
        assert same(get(b, again, None)), "the host goes on"
