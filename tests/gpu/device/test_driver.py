"""The driver by ctypes: devices, contexts, errors; and that the made-up one behaves as hardware does."""

import ctypes as c
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from hoplite_ucx.gpu import driver as cuda
from hoplite_ucx.gpu.driver import Attribute, CudaError, Driver

MADE_UP = "MADE_UP_PYTHON" in os.environ


@pytest.fixture
def driver() -> Driver:
    return cuda.load()


def test_devices_have_names_that_hold_in_every_process(driver: Driver) -> None:
    uuids = [driver.uuid(device) for device in range(driver.count)]

    assert len(set(uuids)) == driver.count
    assert all(len(uuid) == 16 for uuid in uuids)
    assert all(driver.name(device) and driver.total_memory(device) > 0 for device in range(driver.count))
    assert driver.bus_id(0) == driver.bus_id(0).lower()


def test_a_device_keeps_its_uuid_where_others_are_hidden(driver: Driver) -> None:
    last = driver.count - 1
    code = "from hoplite_ucx.gpu import driver as d; print(d.load().count, d.load().uuid(0).hex())"

    seen = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": str(last)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert seen.stdout.split() == ["1", driver.uuid(last).hex()]


def test_an_error_has_its_name(driver: Driver) -> None:
    with pytest.raises(
        CudaError, match=r"cuDeviceGetAttribute failed with CUDA_ERROR_INVALID_DEVICE \(101\)"
    ) as raised:
        driver.attribute(Attribute.VIRTUAL_MEMORY, 99)

    assert raised.value.code == 101
    assert not raised.value.out_of_memory


def test_a_context_is_current_only_where_it_was_entered(driver: Driver) -> None:
    found: list[int | None] = []

    def look() -> None:
        found.append(driver.value(c.c_void_p, "cuCtxGetCurrent"))
        with driver.current(0):
            found.append(driver.value(c.c_void_p, "cuCtxGetCurrent"))
        found.append(driver.value(c.c_void_p, "cuCtxGetCurrent"))
        driver.enter(0)
        found.append(driver.value(c.c_void_p, "cuCtxGetCurrent"))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()

    outside, inside, after, entered = found
    assert outside is None
    assert after is None
    assert inside is not None
    assert inside == entered


def test_entering_follows_whoever_changed_the_device_meanwhile(driver: Driver) -> None:
    if driver.count < 2:
        pytest.skip("one device")
    driver.enter(0)
    first = driver.value(c.c_void_p, "cuCtxGetCurrent")
    driver.enter(1)
    second = driver.value(c.c_void_p, "cuCtxGetCurrent")
    driver.call("cuCtxSetCurrent", first)  # as CuPy does

    driver.enter(1)

    assert driver.value(c.c_void_p, "cuCtxGetCurrent") == second


def test_an_event_is_done_when_the_work_before_it_is(driver: Driver) -> None:
    driver.enter(0)
    size = 1 << 20
    pinned = driver.value(c.c_void_p, "cuMemHostAlloc", size, 0)
    place = driver.value(c.c_void_p, "cuMemHostAlloc", size, 0)
    there = np.frombuffer((c.c_ubyte * size).from_address(pinned), np.uint8)
    copied = np.frombuffer((c.c_ubyte * size).from_address(place), np.uint8)
    there[:] = 5
    stream = driver.value(c.c_void_p, "cuStreamCreate", cuda.NON_BLOCKING)
    event = driver.value(c.c_void_p, "cuEventCreate", cuda.NO_TIMING)

    driver.call("cuMemcpyAsync", place, pinned, size, stream)
    driver.call("cuEventRecord", event, stream)
    if os.environ.get("MADE_UP_GPU_DELAY_US") == "lazy":
        assert not copied.any(), "what nobody waited for must not be there"
    driver.call("cuEventSynchronize", event)

    assert (copied == 5).all()


def test_cupy_sees_the_same_devices(driver: Driver) -> None:
    import cupy

    assert cupy.cuda.runtime.getDeviceCount() == driver.count
    with cupy.cuda.Device(driver.count - 1):
        assert (cupy.arange(10).get() == np.arange(10)).all()


@pytest.mark.skipif(not MADE_UP, reason="made-up GPUs only")
def test_a_forked_process_has_no_driver(driver: Driver) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            driver.value(c.c_int, "cuDeviceGetCount")
            os.write(writing, b"it worked")
        except CudaError as error:
            os.write(writing, str(error.code).encode())
        os._exit(0)
    os.waitpid(child, 0)

    assert os.read(reading, 100) == b"3"
    os.close(reading)
    os.close(writing)
