"""What tensors cost, beside arrays of numpy, and beside torch's own serialisation, in the same run."""

import io
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch

import hoplite_ucx as hoplite

pytestmark = pytest.mark.long(reason="judges speed")

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    hoplite.init(memory=4 << 30)
    yield
    hoplite.shutdown()


def seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def put_and_get(value: object) -> tuple[float, float]:
    """Seconds; the object is deleted again, so that the next put finds the same memory."""
    refs: list[hoplite.ObjectRef] = []
    putting = seconds(lambda: refs.append(hoplite.put(value)))
    getting = seconds(lambda: hoplite.get(refs[0]))
    hoplite.delete(refs)
    return putting, getting


def in_turns(*given: object, rounds: int = 7) -> list[tuple[float, float]]:
    """Medians of putting and getting, for each; the first round is for memory that is new."""
    measured = [[put_and_get(value) for value in given] for _ in range(rounds)][1:]
    return [(median(m[i][0] for m in measured), median(m[i][1] for m in measured)) for i in range(len(given))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_state_dict_of_256_mib_costs_what_a_dict_of_numpy_costs(dtype: torch.dtype) -> None:
    arrays = {f"layer{i}.weight": np.ones((1024, 4096), np.float32) for i in range(16)}
    tensors = {name: torch.ones(array.nbytes // dtype.itemsize, dtype=dtype) for name, array in arrays.items()}
    (numpy_put, numpy_get), (put, get) = in_turns(arrays, tensors)
    sys.stdout.write(f"{dtype}: put {put / numpy_put:.2f} x of {numpy_put:.3f} s, ")
    sys.stdout.write(f"get {get / numpy_get:.2f} x of {1e3 * numpy_get:.2f} ms\n")
    assert put <= 1.3 * numpy_put
    assert get <= max(1.3 * numpy_get, numpy_get + 1e-3), "less than a millisecond is a matter of system calls"


def test_tensors_of_64_kib_cost_little_more_than_one_array() -> None:
    whole = np.ones(10_000 * 64 * KIB // 4, np.float32)
    (one, _), (many, _) = in_turns(whole, {str(i): torch.ones(16 * KIB) for i in range(10_000)}, rounds=4)
    sys.stdout.write(f"10,000 x 64 KiB: put {many / one:.2f} x of {one:.3f} s\n")
    assert many <= 2.5 * one, "it should be 2; 5 microseconds of Python a leaf make 1.9 to 2.1"


@pytest.mark.parametrize("count", [100, 10_000, 100_000])
def test_a_tensor_of_1_kib_costs_the_same_among_few_and_many(count: int) -> None:
    tensors = {f"layers.{i}.weight": torch.ones(16, 16) for i in range(count)}
    ((put, get),) = in_turns(tensors)
    file = io.BytesIO()
    saved = seconds(lambda: torch.save(tensors, file))
    file.seek(0)
    loaded = seconds(lambda: torch.load(file))
    each = ", ".join(f"{1e6 * taken / count:.1f}" for taken in (put, get, saved, loaded))
    sys.stdout.write(f"{count} x 1 KiB, microseconds a leaf: {each} (put, get, torch.save, torch.load)\n")
    once = 1e-3  # a put and a get of anything
    assert put - once <= 15e-6 * count
    assert get - once <= 10e-6 * count
