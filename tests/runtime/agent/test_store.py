"""The store's memory: seals that hold, recycling only of what nobody sees, limits, and nothing left open."""

import gc
import mmap
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from hoplite_ucx.runtime.agent.store import Segment, SegmentSink, Store
from hoplite_ucx.runtime.settings import SMALL
from hoplite_ucx.transports import shm
from tests.tools.waiting import HANG

SIZE = 1 << 20
WORKER = b"w" * 16
OTHER = b"o" * 16


class Fixture:
    def __init__(self, limit: int = 16 * SIZE) -> None:
        self.forgotten: list[tuple[bytes, int]] = []
        self.store = Store(limit, lambda worker, backing: self.forgotten.append((worker, backing)))
        self._next = 0

    def allocate(self, size: int = SIZE) -> Segment:
        self._next += 1
        self.store.allocate(self._next, size)
        return self.store[self._next]

    def own(self, size: int = SIZE) -> Segment:
        segment = self.allocate(size)
        self.store.back(segment)
        return segment

    def put(self, worker: bytes = WORKER, *, sealed: bool = True) -> tuple[Segment, bool]:
        segment = self.allocate()
        _, known = self.store.back_for(segment, worker)
        if sealed:
            self.store.seal(segment)
        return segment, known

    def free(self, segment: Segment) -> int:
        assert segment.backing is not None
        self.store.free(segment.number)
        return segment.backing.number


@pytest.fixture
def fixture() -> Iterator[Fixture]:
    made = Fixture()
    yield made
    made.store.close()


def number(segment: Segment) -> int:
    assert segment.backing is not None
    return segment.backing.number


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_nobody_else_can_map_sealed_memory_writable() -> None:
    memory = shm.create(SIZE)
    memory.array[:3] = (1, 2, 3)
    shm.seal(memory)
    with pytest.raises(OSError, match="not permitted"):
        mmap.mmap(memory.fd, SIZE)
    with pytest.raises(OSError, match="not permitted"):
        os.write(memory.fd, b"x")
    for size in (0, 2 * SIZE):
        with pytest.raises(OSError, match="not permitted"):
            os.ftruncate(memory.fd, size)
    unmapped: list[bool] = []
    reader = shm.map_read_only(memory.fd, SIZE, lambda: unmapped.append(True))
    memory.array[1] = 9  # its owner still can
    view = np.frombuffer(reader, np.uint8)[1:3]
    del reader
    memory.close()
    assert list(view) == [9, 3]
    assert not unmapped
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    del view
    assert unmapped == [True]


def test_mappings_hold_no_descriptor() -> None:
    memory = shm.create(SIZE)
    gc.collect()  # else what other tests left could go meanwhile
    before = open_descriptors()
    views = [shm.map_read_only(memory.fd, SIZE, lambda: None) for _ in range(100)]
    assert open_descriptors() == before
    assert len(views) == 100
    memory.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        shm.map_read_only(before + 1000, SIZE, lambda: None)


def workspace(memory: shm.SharedMemory) -> shm.Workspace:
    """As a worker has it; another one keeps the shared mapping of `memory`."""
    return shm.Workspace(os.dup(memory.fd), shm.map_writable(memory.fd, memory.capacity))


def mappings() -> int:
    with open("/proc/self/maps") as maps:
        return sum("memfd:hoplite" in line for line in maps)


@pytest.mark.parametrize("sealed", [False, True])
def test_what_is_settled_cannot_be_changed_for_others(sealed: bool) -> None:
    memory = shm.create(SIZE)
    mine = workspace(memory)
    if sealed:  # as memory of an earlier put is
        shm.seal(memory)
    view, address = mine.array[:], mine.array.ctypes.data
    view[:] = 1
    assert mine.settle(SIZE) == SIZE
    assert (view == 1).all()
    view[:] = 2
    assert (memory.array == 1).all()
    assert (view == 2).all()  # its writer sees what it wrote
    assert mine.array.ctypes.data == address
    memory.close()


def test_whole_pages_are_settled_one_after_the_other() -> None:
    before = mappings()
    memory = shm.create(SIZE)
    mine = workspace(memory)
    page = mmap.PAGESIZE
    assert mine.settle(page - 1) == 0
    mine.array[:] = 1
    assert memory.array[0] == 1
    for end in range(page, SIZE + 1, page // 2):
        assert mine.settle(end) == end - end % page
        mine.array[end - 1] = 7
        assert (memory.array[: end - end % page] == 1).all()
        memory.array[end - end % page :] = 1
    assert mine.settle(page) == SIZE  # that was settled long ago
    assert mappings() - before <= 1 + 16  # one of `memory`; the pages that were written to may stand alone
    del mine
    gc.collect()
    assert mappings() - before == 1
    memory.close()


def test_threads_may_write_while_memory_is_settled() -> None:
    page, go = mmap.PAGESIZE, threading.Barrier(3)
    for _ in range(20):
        memory = shm.create(SIZE)
        mine = workspace(memory)
        over = threading.Event()

        def write(view: np.ndarray, over: threading.Event) -> None:
            go.wait(HANG)
            while not over.is_set():
                view += 1

        threads = [threading.Thread(target=write, args=(mine.array[start:], over)) for start in (0, SIZE // 2)]
        for thread in threads:
            thread.start()
        go.wait(HANG)
        for end in range(0, SIZE + 1, 16 * page):
            mine.settle(end)
        final = memory.array.copy()
        over.set()
        for thread in threads:
            thread.join(HANG)
        assert np.array_equal(memory.array, final)
        memory.close()


_AT_THE_LIMIT = """
import ctypes, mmap, os, resource, sys
from hoplite_ucx.transports import shm

memory = shm.create(1 << 20)
mine = shm.Workspace(os.dup(memory.fd), shm.map_writable(memory.fd, memory.capacity))
view = mine.array[:]
view[:] = 1
if sys.argv[1] == "addresses":
    used = int(open("/proc/self/statm").read().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (used + (512 << 10), resource.RLIM_INFINITY))
else:
    libc, page = shm._libc, mmap.PAGESIZE
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    size = 2 * page * int(open("/proc/sys/vm/max_map_count").read())
    place = libc.mmap(None, size, 0, flags, -1, 0)
    libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    count = 0
    while libc.mprotect(place + 2 * count * page, page, mmap.PROT_READ) == 0:
        count += 1
try:
    mine.settle(1 << 20)
except OSError as error:
    print(error.strerror)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert (view == 1).all()
view[:] = 2
assert (memory.array == 2).all()
"""


@pytest.mark.parametrize("limit", ["addresses", "mappings"])
def test_memory_that_cannot_be_settled_stays_what_it_was(limit: str) -> None:
    """Both steps can fail: the new mapping, and its move to where the old one is."""
    done = subprocess.run(
        [sys.executable, "-c", _AT_THE_LIMIT, limit], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "Cannot allocate memory\n", "")


def test_size_classes_waste_little() -> None:
    for size in [1, 4095, 4096, 4097, 100_000, SIZE - 1, SIZE, SIZE + 1, 3 * SIZE + 5, (5 << 30) + 1]:
        capacity = shm.size_class(size)
        assert capacity >= size
        assert capacity % mmap.PAGESIZE == 0
        assert capacity <= max(mmap.PAGESIZE, size * 1.125 + mmap.PAGESIZE)
        assert shm.size_class(capacity) == capacity


def test_the_peer_of_a_socket_is_known() -> None:
    left, right = socket.socketpair(socket.AF_UNIX)
    with left, right:
        assert shm.peer_credentials(left) == (os.getpid(), os.getuid())


def test_own_memory_is_sealed_and_recycled(fixture: Fixture) -> None:
    first = fixture.own()
    assert first.backing is not None
    assert first.backing.sealed
    freed = fixture.free(first)
    assert number(fixture.own()) == freed
    assert fixture.store.pooled == 0


def test_memory_that_someone_maps_is_dropped(fixture: Fixture) -> None:
    mapped, tainted = fixture.own(), fixture.own()
    assert mapped.backing is not None
    assert tainted.backing is not None
    mapped.backing.mapped += 1
    tainted.backing.tainted = True
    dropped = {fixture.free(mapped), fixture.free(tainted)}
    assert number(fixture.own()) not in dropped
    assert fixture.store.pooled == 0


def test_a_workers_memory_is_for_its_own_puts(fixture: Fixture) -> None:
    segment, known = fixture.put()
    assert not known
    freed = fixture.free(segment)
    assert number(fixture.own()) != freed
    assert number(fixture.put(OTHER)[0]) != freed
    again, known = fixture.put()
    assert known
    assert number(again) == freed


def test_what_was_not_sealed_is_dropped(fixture: Fixture) -> None:
    segment, _ = fixture.put(sealed=False)
    freed = fixture.free(segment)
    assert fixture.store.pooled == 0
    assert fixture.forgotten == [(WORKER, freed)]


def test_a_worker_that_leaves_takes_its_memory_along(fixture: Fixture) -> None:
    fixture.free(fixture.put()[0])
    kept, _ = fixture.put(OTHER)
    held, _ = fixture.put()
    fixture.store.worker_left(WORKER)
    assert fixture.store.pooled == 0
    fixture.free(held)
    fixture.free(kept)
    assert fixture.store.pooled == shm.size_class(SIZE)


def test_pools_stay_within_the_limit() -> None:
    fixture = Fixture(limit=4 * SIZE)
    segments = [fixture.put()[0] for _ in range(3)]
    for segment in segments:
        fixture.free(segment)
    assert fixture.store.pooled == 3 * SIZE
    fixture.own(3 * SIZE)
    assert fixture.store.used + fixture.store.pooled <= 4 * SIZE
    assert len(fixture.forgotten) == 2
    fixture.store.close()


def test_small_segments_hold_no_descriptor(fixture: Fixture) -> None:
    before = open_descriptors()
    segments = [fixture.own(SMALL) for _ in range(50)]
    empty = fixture.own(0)
    assert len(empty.memory) == 0
    assert open_descriptors() == before
    for segment in segments:
        fixture.free(segment)


def test_nothing_is_left_open() -> None:
    before = open_descriptors()
    fixture = Fixture(limit=64 * SIZE)
    for _ in range(5):
        kept = [fixture.own(), fixture.put()[0], fixture.put(OTHER)[0]]
        fixture.free(kept[0])
        fixture.free(kept[1])
    del kept
    fixture.store.close()
    del fixture
    assert open_descriptors() == before


def test_listeners_hear_of_each_rise(fixture: Fixture) -> None:
    segment = fixture.own()
    heard: list[int] = []
    listener = lambda: heard.append(segment.watermark())  # noqa: E731
    segment.subscribe(listener)
    for watermark in (10, 5, 10, 20):
        segment.raise_watermark(watermark)
    segment.unsubscribe(listener)
    segment.raise_watermark(30)
    assert heard == [10, 20]
    assert bytes(segment.window(25, 100)) == bytes(segment.array[25:30])
    assert isinstance(segment.array, np.ndarray)


def test_pieces_share_memory_and_make_a_whole(fixture: Fixture) -> None:
    whole = fixture.own()
    fixture.store.window(100, whole.number, 0, 1000)
    fixture.store.window(101, whole.number, 1000, SIZE - 1000)
    used = fixture.store.used
    first, second = fixture.store[100], fixture.store[101]
    second.memory[:3] = b"xyz"
    assert bytes(whole.memory[1000:1003]) == b"xyz"
    second.raise_watermark(SIZE - 1000)
    assert whole.watermark() == 0
    first.raise_watermark(400)
    first.raise_watermark(1000)
    assert whole.watermark() == SIZE
    fixture.store.window(102, whole.number, 10, 20)
    assert fixture.store[102].watermark() == 20
    assert not whole.idle, "its pieces would be left with memory that is another object's"
    for number_of_piece in (100, 101, 102):
        fixture.store.free(number_of_piece)
    assert whole.idle
    assert fixture.store.used == used


def test_received_bytes_end_between_two_elements(fixture: Fixture) -> None:
    segment = fixture.own()
    sink = SegmentSink(segment)
    sink.arrived(1000)
    assert sink.watermark() == 960
    sink.arrived(segment.size)
    assert sink.watermark() == segment.size
