"""Tensors of torch on devices: put from there, got there, filled there. On a stand-in, where torch has no CUDA."""

import gc
import sys
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import cupy
import numpy as np
import pytest

import hoplite_ucx as hoplite
from hoplite_ucx.gpu import driver as cuda
from tests.gpu.made_up import torch_cuda
from tests.gpu.made_up.torch_cuda import BFLOAT16, Tensor

LAST = cuda.load().count - 1
SIZE = 400_001
DATA = np.arange(SIZE, dtype=np.float32)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    hoplite.init(memory="1GiB")
    yield
    hoplite.shutdown()


@pytest.fixture(autouse=True)
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    made: Any = torch_cuda.module()
    monkeypatch.setitem(sys.modules, "torch", made)
    return made


def tensor(array: np.ndarray, device: int = 0, dtype: Any = None) -> Tensor:
    with cupy.cuda.Device(device):
        return Tensor(cupy.asarray(array), dtype)


def same(found: Any, expected: np.ndarray = DATA) -> bool:
    return bool((cupy.asnumpy(getattr(found, "array", found)) == expected).all())


def state(device: int = 0) -> OrderedDict[str, Any]:
    weight = tensor(DATA, device)
    bits = tensor((np.arange(SIZE) % 999).astype(np.int16), device, BFLOAT16)
    steps = tensor(np.array(7, np.int64), device)
    return OrderedDict(weight=weight, tied=weight, bits=bits, steps=steps, none=tensor(np.empty((0, 3)), device))


@pytest.mark.parametrize("device", sorted({0, LAST}))
def test_tensors_come_back_as_tensors_on_the_device(device: int) -> None:
    ref = hoplite.put({"state": state(), "step": 3})

    found = hoplite.get(ref, device=device)

    assert found["step"] == 3
    for name, put in state().items():
        got = found["state"][name]
        assert type(got) is Tensor
        assert got.device.index == device
        assert (got.dtype, got.shape) == (put.dtype, put.shape)
        assert same(got, cupy.asnumpy(put.array))
    assert found["state"]["weight"] is found["state"]["tied"]


def test_a_tensor_alone_is_on_the_memory_of_the_store_until_it_dies() -> None:
    ref = hoplite.put(tensor(DATA))
    one, two = hoplite.get(ref, device=0), hoplite.get(ref, device=0, copy=True)
    hoplite.delete(ref)
    gc.collect()

    two.array += 1

    assert same(one)
    assert same(two, DATA + 1)


def test_like_chooses_the_library() -> None:
    ref = hoplite.put([tensor(DATA), cupy.asarray(DATA), DATA])

    assert [type(each) for each in hoplite.get(ref, device=0)] == [Tensor, cupy.ndarray, cupy.ndarray]
    assert [type(each) for each in hoplite.get(ref, device=0, like="torch")] == [Tensor] * 3
    assert [type(each) for each in hoplite.get(ref, device=0, like="cupy")] == [cupy.ndarray] * 3
    assert all(same(each) for like in ("torch", "cupy") for each in hoplite.get(ref, device=0, like=like))


def test_a_torch_without_cuda_says_so(torch: Any) -> None:
    ref = hoplite.put({"w": tensor(DATA)})
    torch.cuda.is_available = lambda: False

    with pytest.raises(hoplite.InvalidRequestError, match=r"torch made up has no CUDA here at \['w'\]") as caught:
        hoplite.get(ref, device=0)

    assert 'like="cupy"' in caught.value.remedy
    assert same(hoplite.get(ref, device=0, like="cupy")["w"])


def test_trees_are_filled_in_place() -> None:
    ref = hoplite.put(state())
    out = OrderedDict(
        (name, tensor(np.zeros_like(cupy.asnumpy(each.array)), 0, each.dtype)) for name, each in state().items()
    )
    places = {name: each.data_ptr() for name, each in out.items()}
    told: list[tuple[int, int]] = []

    assert hoplite.get(ref, device=0, out=out, progress=lambda *so_far: told.append(so_far)) is out

    for name, put in state().items():
        assert out[name].data_ptr() == places[name]
        assert same(out[name], cupy.asnumpy(put.array))
    assert told[-1][0] == told[-1][1]


def test_nothing_is_filled_unless_all_of_it_fits() -> None:
    ref = hoplite.put(state())
    good, bad = tensor(np.zeros(SIZE, np.float32)), tensor(np.zeros(3, np.float32))
    out = {**state(), "weight": good, "bits": bad}

    with pytest.raises(hoplite.InvalidRequestError, match=r"out\['bits'\] is float32\[3\]"):
        hoplite.get(ref, device=0, out=out)

    assert same(good, np.zeros(SIZE))


def test_what_is_filled_is_complete_when_get_returns() -> None:
    """On a stream that nobody else waits for. The object comes from the host, so that no mapping ends with the get."""
    ref = hoplite.put([DATA, DATA + 1])
    out = [tensor(np.zeros(SIZE, np.float32)), cupy.zeros(SIZE, np.float32)]
    cupy.cuda.Device(0).synchronize()
    stream, other = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    with stream:
        hoplite.get(ref, device=0, out=out)

    with other:
        assert same(out[0])
        assert same(out[1], DATA + 1)
