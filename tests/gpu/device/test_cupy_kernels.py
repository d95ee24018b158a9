"""What combines on a device gives the bits that the host gives: CuPy's own kernels beside NumPy's ufuncs.

On made-up GPUs these kernels are compiled for this processor, from the source that CuPy gives to NVRTC."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import cupy
import ml_dtypes
import numpy as np
import pytest

from hoplite_ucx.gpu import segments
from hoplite_ucx.gpu.arithmetic import Arithmetic, bytes_on, defined
from hoplite_ucx.runtime.objects import kernels

pytestmark = pytest.mark.timeout(600)  # a hundred kernels are compiled the first time

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]
LENGTH = 1031

OPERATIONS = {
    "add": INTEGERS + FLOATS,
    "multiply": INTEGERS + FLOATS,
    "minimum": ["bool", *INTEGERS, *FLOATS],
    "maximum": ["bool", *INTEGERS, *FLOATS],
    "bitwise_and": ["bool", *INTEGERS],
    "bitwise_or": ["bool", *INTEGERS],
    "bitwise_xor": ["bool", *INTEGERS],
}
DIVIDED = FLOATS


def dtype_of(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def values(name: str, seed: int) -> np.ndarray:
    """Any bits that are numbers, large and small ones too."""
    generator = np.random.default_rng(seed)
    dtype = dtype_of(name)
    if name == "bool":
        return generator.integers(0, 2, LENGTH).astype(bool)
    if name in INTEGERS:
        return np.frombuffer(generator.bytes(LENGTH * dtype.itemsize), dtype)
    magnitudes = 10.0 ** generator.uniform(-3, 3, LENGTH)
    numbers = generator.standard_normal(LENGTH) * magnitudes
    if name.startswith("complex"):
        numbers = numbers + 1j * generator.standard_normal(LENGTH) * magnitudes[::-1]
    return numbers.astype(dtype)


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """All kernels, two at a time: a compiler takes a second for each where the last run has left none."""

    def compile_for(item: tuple[str, list[str]]) -> None:
        ufunc, names = item
        Arithmetic(0, ufunc).prepare(map(dtype_of, names), divides=False)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(compile_for, OPERATIONS.items()))


@pytest.mark.parametrize(("ufunc", "name"), [(ufunc, name) for ufunc, names in OPERATIONS.items() for name in names])
def test_bits_are_those_of_the_host(ufunc: str, name: str) -> None:
    left, right = values(name, 1), values(name, 2)
    with np.errstate(all="ignore"):
        expected = getattr(np, ufunc)(left, right, out=np.empty_like(left))
    arithmetic = Arithmetic(0, ufunc)
    out = cupy.empty(LENGTH, left.dtype)

    arithmetic.apply(cupy.asarray(left), cupy.asarray(right), out)
    arithmetic.settle()

    assert defined(ufunc, left.dtype)
    if ufunc == "multiply" and left.dtype.kind == "c":
        # Two products and a sum: some processors, and devices, round them once less.
        error = np.abs(out.get() - expected) / (np.abs(left) * np.abs(right))
        assert error.max() <= 2 * np.finfo(left.dtype).eps
    else:
        assert out.get().tobytes() == expected.tobytes()


@pytest.mark.parametrize("divisor", [2, 3, 1000])
@pytest.mark.parametrize("name", DIVIDED)
def test_means_have_the_bits_of_the_host(name: str, divisor: int) -> None:
    sums = values(name, 3)
    expected = sums.copy()
    kernels._divide(expected, divisor)
    array = cupy.asarray(sums)

    Arithmetic(0, "add").divide(array, divisor)

    assert defined("add", sums.dtype, divides=True)
    assert array.get().tobytes() == expected.tobytes()


def test_what_is_not_a_number_stays_so() -> None:
    left = np.array([np.nan, 1, np.inf, -np.inf, 1], np.float32)
    right = np.array([1, np.nan, 1, np.inf, 1], np.float32)
    for ufunc in ("add", "multiply", "minimum", "maximum"):
        out = cupy.empty(5, np.float32)
        with np.errstate(all="ignore"):
            expected = getattr(np, ufunc)(left, right)

        Arithmetic(0, ufunc).apply(cupy.asarray(left), cupy.asarray(right), out)

        assert np.array_equal(out.get(), expected, equal_nan=True), ufunc


@pytest.mark.parametrize("name", ["float8_e4m3fn", ">f4", "longdouble", "timedelta64[s]"])
def test_what_cupy_lacks_is_left_to_the_host(name: str) -> None:
    dtype = np.dtype(ml_dtypes.float8_e4m3fn) if name.startswith("float8") else np.dtype(name)

    assert not defined("add", dtype)


def test_it_works_on_segments() -> None:
    memory = segments.create(segments.GRANULE, 0)
    array = bytes_on(memory.window()[: 4 * LENGTH]).view(np.float32)
    array[...] = cupy.asarray(values("float32", 4))

    Arithmetic(0, "add").apply(array, array, array)

    assert (array.get() == 2 * values("float32", 4)).all()


@pytest.mark.skipif("MADE_UP_PYTHON" not in os.environ, reason="it costs the process its context")
def test_a_kernel_that_fails_when_it_runs_is_found_out_ahead() -> None:
    """Launching it succeeds: only who waits for it hears of it. Here it writes to what is mapped read-only."""
    code = (
        "import os, sys, cupy, numpy as np\n"
        "from hoplite_ucx.gpu import segments\n"
        "from hoplite_ucx.gpu.arithmetic import Arithmetic, array_on\n"
        "memory = segments.create(segments.GRANULE, 0)\n"
        "window = segments.map_descriptor(memory.fd, memory.capacity, 0, writable=False).window()\n"
        "cupy.ones = lambda length, dtype: array_on(window, (length,), np.dtype(dtype))\n"
        "try:\n"
        "    Arithmetic(0, 'add').prepare([np.dtype(np.float32)], divides=False)\n"
        "except cupy.cuda.runtime.CUDARuntimeError as error:\n"
        "    print(error.status)\n"
        "sys.stdout.flush(); os._exit(0)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stdout.split() == ["700"], done.stderr
