"""Device segments: created, passed on as descriptors, mapped for reading or writing, and what becomes of them."""

import ctypes as c
import gc
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import cupy
import numpy as np
import pytest

from hoplite_ucx.gpu import driver as cuda
from hoplite_ucx.gpu import segments
from hoplite_ucx.gpu.driver import CudaError

MADE_UP = "MADE_UP_PYTHON" in os.environ
SIZE = 3 << 20
DATA = (np.arange(SIZE) % 251).astype(np.uint8)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def bytes_on(window: segments.Window) -> np.ndarray:
    return cupy.asarray(window).get()


@contextmanager
def process_with(code: str, fd: int) -> Iterator[subprocess.Popen[str]]:
    """Another process, which finds a segment's descriptor as `fd`."""
    ours, theirs = socket.socketpair()
    head = (
        "import socket, sys, time, cupy, numpy as np\n"
        "from hoplite_ucx.gpu import segments\n"
        f"_, (fd,), _, _ = socket.recv_fds(socket.socket(fileno={theirs.fileno()}), 1, 1)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", head + code], pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, text=True
    )
    theirs.close()
    socket.send_fds(ours, [b"x"], [fd])
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
        ours.close()


def test_sizes_are_whole_granules_in_few_classes() -> None:
    sizes = [1, SIZE, (64 << 20) + 1, 10**9]

    assert all(segments.size_class(size) % segments.GRANULE == 0 for size in sizes)
    assert all(size <= segments.size_class(size) <= max(size * 1.13 + 1, segments.GRANULE * 2) for size in sizes)
    assert segments.size_class(1) == segments.GRANULE


def test_another_process_reads_what_was_written_here() -> None:
    memory = segments.create(segments.size_class(SIZE), 0)
    cupy.asarray(memory.window()[:SIZE])[...] = cupy.asarray(DATA)
    cupy.cuda.Device(0).synchronize()
    code = (
        f"mapping = segments.map_descriptor(fd, {memory.capacity}, 0, writable=False)\n"
        f"print(int(cupy.asarray(mapping.window()[:{SIZE}]).get().astype(np.int64).sum()))"
    )

    with process_with(code, memory.fd) as process:
        assert process.stdout is not None
        assert process.stdout.readline().split() == [str(int(DATA.astype(np.int64).sum()))]
    memory.close()


def test_another_process_fills_it_and_what_it_wrote_outlives_it() -> None:
    memory = segments.create(segments.size_class(SIZE), 0)
    code = (
        f"window = segments.map_descriptor(fd, {memory.capacity}, 0, writable=True).window()\n"
        f"cupy.asarray(window[:{SIZE}])[...] = cupy.asarray((np.arange({SIZE}) % 251).astype(np.uint8))\n"
        "cupy.cuda.Device(0).synchronize(); print('filled', flush=True); time.sleep(600)"
    )

    with process_with(code, memory.fd) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "filled\n"
        process.send_signal(signal.SIGKILL)
        process.wait()

    assert (bytes_on(memory.window()[:SIZE]) == DATA).all()
    memory.close()


def test_a_mapping_outlives_the_owner() -> None:
    memory = segments.create(segments.size_class(SIZE), 0)
    cupy.asarray(memory.window()[:SIZE])[...] = cupy.asarray(DATA)
    cupy.cuda.Device(0).synchronize()
    mapping = segments.map_descriptor(memory.fd, memory.capacity, 0, writable=False)

    memory.close()

    assert (bytes_on(mapping.window()[:SIZE]) == DATA).all()


def test_everything_is_given_back_with_the_last_view() -> None:
    told: list[bool] = []
    cupy.arange(3).get()  # whatever CuPy keeps, it keeps from now on
    before = descriptors()
    memory = segments.create(segments.GRANULE, 0)
    mapping = segments.map_descriptor(
        memory.fd, memory.capacity, 0, writable=False, on_unmapped=lambda: told.append(True)
    )
    array = cupy.asarray(mapping.window()[4:100])
    memory.close()
    del mapping
    gc.collect()
    assert not told, "an array still looks at it"

    del array
    gc.collect()

    assert told == [True]
    if MADE_UP:
        assert descriptors() == before


def test_a_mapping_is_taken_down_after_the_kernels_that_read_it() -> None:
    """The array dies while the copy that reads it has not run: unmapped too early, it is an illegal address."""
    memory = segments.create(segments.size_class(SIZE), 0)
    cupy.asarray(memory.window()[:SIZE])[...] = cupy.asarray(DATA)
    cupy.cuda.Device(0).synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    target = cupy.empty(SIZE, np.uint8)
    mapping = segments.map_descriptor(memory.fd, memory.capacity, 0, writable=False)

    cupy.cuda.runtime.memcpyAsync(target.data.ptr, mapping.pointer, SIZE, 3, stream.ptr)
    del mapping
    gc.collect()

    stream.synchronize()
    assert (target.get() == DATA).all()
    memory.close()


def test_peers_copy_directly() -> None:
    driver = cuda.load()
    if driver.count < 2 or not driver.reaches(1, 0):
        pytest.skip("no two devices that reach each other")
    memory = segments.create(segments.size_class(SIZE), 0)
    cupy.asarray(memory.window()[:SIZE])[...] = cupy.asarray(DATA)
    cupy.cuda.Device(0).synchronize()

    with cupy.cuda.Device(1):
        target = cupy.empty(SIZE, np.uint8)
        cupy.cuda.runtime.memcpy(target.data.ptr, memory.window().pointer, SIZE, 3)
        cupy.cuda.Device(1).synchronize()

        assert (target.get() == DATA).all()
    memory.close()


def test_windows_are_slices() -> None:
    memory = segments.create(segments.GRANULE, 0)
    window = memory.window()

    part = window[100:200][10:1000]

    assert len(part) == part.nbytes == 90
    assert part.pointer == window.pointer + 110
    assert part.device == 0
    assert len(window[5:2]) == 0
    with pytest.raises(ValueError, match="no step of 2"):
        window[::2]
    memory.close()


def test_a_full_device_says_so() -> None:
    total = cuda.load().total_memory(0)

    with pytest.raises(CudaError, match="out of memory") as raised:
        segments.create(segments.size_class(2 * total), 0)

    assert raised.value.out_of_memory


@pytest.mark.skipif(not MADE_UP, reason="it costs the process its context")
def test_a_write_through_a_read_only_mapping_costs_the_context() -> None:
    code = (
        "import cupy, numpy as np\n"
        "from hoplite_ucx.gpu import segments\n"
        "memory = segments.create(segments.GRANULE, 0)\n"
        "mapping = segments.map_descriptor(memory.fd, memory.capacity, 0, writable=False)\n"
        "array = cupy.ndarray((8,), np.uint8, cupy.cuda.MemoryPointer(\n"
        "    cupy.cuda.UnownedMemory(mapping.pointer, mapping.capacity, mapping, 0), 0))\n"
        "array.fill(1)\n"
        "for attempt in range(2):\n"
        "    try:\n"
        "        cupy.cuda.Device(0).synchronize()\n"
        "    except cupy.cuda.runtime.CUDARuntimeError as error:\n"
        "        print(error.status)\n"
        "import os, sys; sys.stdout.flush(); os._exit(0)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stdout.split() == ["700", "700"], done.stderr


@pytest.mark.skipif(not MADE_UP, reason="made-up GPUs only")
def test_host_code_that_touches_device_memory_faults() -> None:
    code = (
        "import ctypes\nfrom hoplite_ucx.gpu import segments\n"
        "ctypes.string_at(segments.create(segments.GRANULE, 0).window().pointer, 1)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)

    assert done.returncode == -signal.SIGSEGV


@pytest.mark.skipif(not MADE_UP, reason="made-up GPUs only")
def test_a_device_without_virtual_memory_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert segments.unsupported(0) is None
    libc = c.CDLL(None)
    libc.setenv(b"MADE_UP_GPU_VMM", b"0", 1)
    try:
        assert segments.unsupported(0) == (
            "the device has no virtual memory management (a MIG or vGPU profile, or too old a device)"
        )
    finally:
        libc.unsetenv(b"MADE_UP_GPU_VMM")
