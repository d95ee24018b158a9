"""`put`, `get` and `reduce` of arrays on devices, as a program calls them, and what it hears of wrong calls."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import cupy
import ml_dtypes
import numpy as np
import pytest
from typer.testing import CliRunner

import hoplite_ucx as hoplite
import hoplite_ucx.aio
from hoplite_ucx.cli import app
from hoplite_ucx.gpu import driver as cuda
from hoplite_ucx.gpu import segments
from hoplite_ucx.gpu.arithmetic import bytes_on
from hoplite_ucx.runtime.objects import device_values
from hoplite_ucx.runtime.objects.layouts import Kind, array_layout

MADE_UP = "MADE_UP_PYTHON" in os.environ
LAST = cuda.load().count - 1
SIZE = 400_001
DATA = np.arange(SIZE, dtype=np.float32)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    hoplite.init(memory="1GiB")
    yield
    hoplite.shutdown()


def run(code: str, settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """In a process with a cluster of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOPLITE_")}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env={**environment, **settings}, capture_output=True, text=True, check=False)


def same(found: Any, expected: Any = DATA) -> bool:
    return bool((cupy.asnumpy(found) == cupy.asnumpy(expected)).all())


def test_an_array_comes_back_where_it_is_wanted() -> None:
    with cupy.cuda.Device(LAST):
        ref = hoplite.put(cupy.asarray(DATA))

    for device in range(LAST + 1):
        array = hoplite.get(ref, device=device)
        assert type(array) is cupy.ndarray
        assert array.device.id == device
        assert same(array)
    assert same(hoplite.get(ref))


def test_the_async_twin_puts_gets_and_creates_on_devices() -> None:
    async def work() -> None:
        with cupy.cuda.Device(LAST), cupy.cuda.Stream(non_blocking=True) as stream:
            ref = await hoplite.aio.put(cupy.asarray(DATA) + 1)
            given = await hoplite.aio.put(cupy.asarray(DATA) + 2, stream=stream)
        found, other = await hoplite.aio.get([ref, given], device=LAST)
        assert type(found) is cupy.ndarray
        assert same(found, DATA + 1)
        assert same(other, DATA + 2)
        draft = await hoplite.aio.create(SIZE, np.float32, device=LAST)
        with cupy.cuda.Device(LAST):
            draft.array[...] = 3
        assert same(await hoplite.aio.get(await hoplite.aio.seal(draft), device=LAST), np.full(SIZE, 3, np.float32))
        with pytest.raises(hoplite.InvalidRequestError, match="numpy has no arrays on devices"):
            await hoplite.aio.get(ref, device=LAST, like="numpy")

    asyncio.run(work())


def test_several_at_once() -> None:
    refs = [hoplite.put(cupy.full(SIZE, number, np.float32)) for number in range(3)]

    arrays = hoplite.get(refs, device=0)

    assert [float(array[-1].get()) for array in arrays] == [0, 1, 2]


def test_trees_of_arrays_on_hosts_and_devices() -> None:
    value = {"on": [cupy.asarray(DATA), 3], "off": DATA + 1, "name": b"x" * 10, "zero": cupy.empty((0, 2), np.int8)}
    ref = hoplite.put(value)

    there, here = hoplite.get(ref, device=0), hoplite.get(ref)

    for found in (there, here):
        assert list(found) == list(value)
        assert same(found["on"][0])
        assert found["on"][1] == 3
        assert same(found["off"], DATA + 1)
        assert found["name"] == b"x" * 10
        assert found["zero"].shape == (0, 2)
    assert type(there["off"]) is cupy.ndarray


@pytest.mark.parametrize("name", ["bfloat16", "float16", "int8", "complex128", "bool"])
def test_dtypes(name: str) -> None:
    dtype = np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)
    array = (np.arange(600_000) % 2).astype(dtype)

    found = hoplite.get(hoplite.put(cupy.asarray(array)), device=0)

    assert found.dtype == dtype
    assert same(found, array)


def test_orders_and_strides() -> None:
    square = np.arange(600 * 600, dtype=np.float32).reshape(600, 600)
    for array in (cupy.asarray(square), cupy.asarray(square).T, cupy.asarray(square)[::2, 1::3]):
        assert same(hoplite.get(hoplite.put(array), device=0), array)
        assert same(hoplite.get(hoplite.put(array)), array)


def test_own_copies_may_be_written_to() -> None:
    ref = hoplite.put(cupy.asarray(DATA))

    own = hoplite.get(ref, device=0, copy=True)
    own += 1

    assert same(own, DATA + 1)
    assert same(hoplite.get(ref, device=0))


def test_out_is_filled() -> None:
    ref, small = hoplite.put(cupy.asarray(DATA)), hoplite.put(cupy.asarray(DATA[:10]))
    out, few = cupy.zeros(SIZE, np.float32), cupy.zeros(10, np.float32)

    assert hoplite.get(ref, device=0, out=out) is out
    assert hoplite.get([small], device=0, out=[few]) == [few] or same(few, DATA[:10])

    assert same(out)
    assert same(few, DATA[:10])


@pytest.mark.parametrize(
    ("out", "words"),
    [
        (lambda: cupy.zeros(5, np.float32), r"out is float32\[5\], the object has float32\[400001\]"),
        (lambda: cupy.zeros(SIZE, np.float64), "out is float64"),
        (lambda: np.zeros(SIZE, np.float32), "out is on the host"),
    ],
)
def test_an_out_that_does_not_fit(out: Any, words: str) -> None:
    ref = hoplite.put(cupy.asarray(DATA))

    with pytest.raises(hoplite.InvalidRequestError, match=words):
        hoplite.get(ref, device=0, out=out())

    assert same(hoplite.get(ref)), "nothing is lost"


def test_an_out_of_another_device() -> None:
    if not LAST:
        pytest.skip("one device")
    ref = hoplite.put(cupy.asarray(DATA))
    with cupy.cuda.Device(LAST):
        out = cupy.zeros(SIZE, np.float32)

    with pytest.raises(hoplite.InvalidRequestError, match=f"out is on device {LAST}"):
        hoplite.get(ref, device=0, out=out)


def test_devices_that_do_not_exist() -> None:
    ref = hoplite.put(DATA)

    with pytest.raises(hoplite.InvalidRequestError, match=rf"no device 99 here.*sees the devices 0 to {LAST}"):
        hoplite.get(ref, device=99)
    with pytest.raises(TypeError, match="number of a CUDA device"):
        hoplite.get(ref, device="0")  # type: ignore[call-overload]


def test_the_stream_that_is_given() -> None:
    stream = cupy.cuda.Stream(non_blocking=True)
    array = cupy.zeros(SIZE, np.float32)
    cupy.cuda.Device().synchronize()
    with stream:
        array += 7

    ref = hoplite.put(array, stream=stream)

    assert same(hoplite.get(ref), np.full(SIZE, 7, np.float32))
    with pytest.raises(hoplite.InvalidRequestError, match="stream must be a CUDA stream"):
        hoplite.put(array, stream="main")


def test_small_arrays_wait_for_the_stream_that_is_given() -> None:
    """They go through the host, and are read behind the stream on which they are computed."""
    stream = cupy.cuda.Stream(non_blocking=True)
    array = cupy.zeros(1000, np.float32)
    cupy.cuda.Device().synchronize()
    with stream:
        array += 7

    refs = [hoplite.put(array, stream=stream), hoplite.put([array, 3], stream=stream)]

    assert same(hoplite.get(refs[0]), np.full(1000, 7, np.float32))
    assert same(hoplite.get(refs[1])[0], np.full(1000, 7, np.float32))


def test_what_is_filled_is_complete_when_get_returns() -> None:
    """The object comes from the host: no mapping ends with the get, which would wait for the device."""
    ref = hoplite.put([DATA, DATA + 1])
    out = [cupy.zeros(SIZE, np.float32) for _ in range(2)]
    cupy.cuda.Device().synchronize()
    stream, other = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)

    with stream:
        hoplite.get(ref, device=0, out=out)

    with other:
        assert same(out[0])
        assert same(out[1], DATA + 1)


def test_reductions() -> None:
    refs = [hoplite.put(cupy.asarray(DATA)), hoplite.put(DATA), hoplite.put(cupy.asarray(DATA))]

    assert same(hoplite.get(hoplite.reduce(refs), device=0), 3 * DATA)
    assert same(hoplite.get(hoplite.reduce(refs, op="mean")), DATA)


def test_what_was_pickled_comes_to_the_host() -> None:
    assert hoplite.get(hoplite.put({"text": "x" * 400_000}), device=0) == {"text": "x" * 400_000}


@pytest.mark.skipif(not MADE_UP, reason="made-up GPUs only")
@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"MADE_UP_GPUS": "0"}, "finds no device"),
        ({"MADE_UP_GPU_INIT": "803"}, "does not start"),
        ({"LD_LIBRARY_PATH": ""}, "driver is not installed"),
    ],
)
def test_without_a_device_the_host_works_and_the_error_says_why(environment: dict[str, str], words: str) -> None:
    code = (
        "import numpy as np, hoplite_ucx as hoplite\n"
        "hoplite.init(memory='256MiB')\n"
        "ref = hoplite.put(np.ones(400_000))\n"
        "assert hoplite.get(ref).sum() == 400_000\n"
        "try:\n    hoplite.get(ref, device=0)\n"
        "except hoplite.InvalidRequestError as error:\n    print(error)\n"
        "hoplite.shutdown()"
    )

    done = run(code, environment)

    assert words in done.stdout, done.stderr
    assert "leave device= out" in done.stdout


@pytest.mark.skipif(not MADE_UP, reason="made-up GPUs only")
@pytest.mark.parametrize("setting", [{"MADE_UP_GPU_VMM": "0"}, {"HOPLITE_STORE_DEVICE_MEMORY": "0"}])
def test_devices_whose_memory_is_not_to_be_had(setting: dict[str, str]) -> None:
    code = (
        "import cupy, numpy as np, hoplite_ucx as hoplite\n"
        "hoplite.init(memory='256MiB')\n"
        "ref = hoplite.put(cupy.full(400_000, 3.0))\n"
        "assert (hoplite.get(ref) == 3).all()\n"
        "assert (hoplite.get(ref, device=0).get() == 3).all()\n"
        "print('right')\n"
        "hoplite.shutdown()"
    )

    done = run(code, setting)

    assert done.stdout == "right\n", done.stderr


def test_drafts_on_a_device() -> None:
    draft = hoplite.create(SIZE, np.float32, device=LAST)
    assert draft.array.device.id == LAST
    with cupy.cuda.Device(LAST):
        draft.array += 5

        ref = hoplite.seal(draft)
        draft.array += 1

    assert same(hoplite.get(ref, device=LAST), np.full(SIZE, 5, np.float32)), "what was sealed does not change"
    with pytest.raises(hoplite.InvalidRequestError, match="no device 99"):
        hoplite.create(10, device=99)


class Tensor:
    """What a CUDA tensor of torch has of what is asked of it; torch without CUDA makes none."""

    is_cuda = True

    def __init__(self, array: Any) -> None:
        self._array = array
        self.device = SimpleNamespace(index=array.device.id)
        self.nbytes = array.nbytes

    def contiguous(self) -> "Tensor":
        return Tensor(cupy.ascontiguousarray(self._array))

    def data_ptr(self) -> int:
        return int(self._array.data.ptr)


def test_tensors_are_copied_behind_the_stream_that_is_given() -> None:
    stream = cupy.cuda.Stream(non_blocking=True)
    array = cupy.zeros((2, SIZE), np.float32)[:, ::2]
    cupy.cuda.Device().synchronize()
    leaf, _ = array_layout(array.dtype.str, array.shape, False, Kind.ARRAY)
    memory = segments.create(segments.size_class(array.nbytes), 0)
    with stream:
        array += 3
        tensor = Tensor(array)
        assert device_values.placement([tensor, np.zeros(3)]) == 0
        ends = list(device_values.copy_into([(leaf, tensor)], memory.window(), stream.ptr))

    assert ends == [array.nbytes]
    assert (bytes_on(memory.window()[: array.nbytes]).get().view(np.float32) == 3).all()
    memory.close()


def test_wishes_that_do_not_go_with_a_device() -> None:
    ref = hoplite.put(DATA)

    with pytest.raises(hoplite.InvalidRequestError, match="numpy has no arrays on devices"):
        hoplite.get(ref, device=0, like="numpy")
    with pytest.raises(hoplite.InvalidRequestError, match="progress= is given without out="):
        hoplite.get(ref, device=0, progress=print)
    with pytest.raises(hoplite.InvalidRequestError, match="copy=True and out="):
        hoplite.get(ref, device=0, copy=True, out=cupy.zeros(SIZE, np.float32))


def test_trees_are_filled_in_place() -> None:
    ref = hoplite.put({"a": cupy.asarray(DATA), "b": [DATA + 1, cupy.asarray(DATA[:5])]})
    out = {"a": cupy.zeros(SIZE, np.float32), "b": [cupy.zeros((2, SIZE), np.float32)[1], cupy.zeros(10, "f4")[::2]]}
    told: list[tuple[int, int]] = []

    assert hoplite.get(ref, device=0, out=out, progress=lambda *so_far: told.append(so_far)) is out

    assert same(out["a"])
    assert same(out["b"][0], DATA + 1)
    assert same(out["b"][1], DATA[:5])
    assert told == [(DATA.nbytes, 2 * DATA.nbytes + 20), (2 * DATA.nbytes, 2 * DATA.nbytes + 20), (told[-1][1],) * 2]
    out["b"][0] = np.zeros(SIZE, np.float32)
    with pytest.raises(hoplite.InvalidRequestError, match=r"out\['b'\]\[0\] is on the host, and .* on device 0"):
        hoplite.get(ref, device=0, out=out)


def test_a_tree_from_several_devices() -> None:
    if not LAST:
        pytest.skip("one device")
    second = cupy.asarray(DATA + 1)
    with cupy.cuda.Device(LAST):
        first = cupy.asarray(DATA - 1)
        cupy.cuda.Device().synchronize()
        first += 1  # on that device's own stream, which the put must wait for
    ref = hoplite.put([first, second, DATA + 2, cupy.asarray(DATA + 3)])

    for device in (0, LAST):
        found = hoplite.get(ref, device=device)
        assert [array.device.id for array in found] == [device] * 4
        assert all(same(array, DATA + number) for number, array in enumerate(found))


def test_status_shows_what_is_on_gpus() -> None:
    ref = hoplite.put(cupy.asarray(DATA))

    shown = CliRunner().invoke(app, ["status"], terminal_width=200).output

    assert f"GPU {cuda.load().name(0)}: " in shown
    assert " GiB used" in shown
    hoplite.delete(ref)
