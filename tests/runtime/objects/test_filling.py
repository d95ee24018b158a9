"""Objects are copied into users' arrays and tensors: all of them or, if anything does not fit, none."""

import re
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch

from hoplite_ucx.errors import InvalidRequestError
from hoplite_ucx.runtime.objects import filling, values
from hoplite_ucx.runtime.objects.filling import Progress

Point = namedtuple("Point", "x y")


def fill(value: object, out: Any, progress: Progress | None = None) -> None:
    encoded = values.encode(value)
    filling.check(out)
    filling.fill(memoryview(encoded.to_bytes()), encoded.layout, out, progress)


def ones_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.ones(tensor.shape).to(tensor.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e5m2, torch.int64, torch.bool])
def test_tensors_and_arrays_fill_each_other(dtype: torch.dtype) -> None:
    tensor = torch.arange(6).reshape(2, 3).to(dtype)
    out = ones_like(tensor)
    fill(tensor, out)
    assert torch.equal(out.float(), tensor.float())
    encoded = values.encode(tensor)
    array = values.decode_copy(memoryview(encoded.to_bytes()), encoded.layout, values.Kind.ARRAY)
    back = ones_like(tensor)
    fill(array, back)
    assert torch.equal(back.float(), tensor.float())
    array[...] = 1
    fill(tensor, array)
    assert np.array_equal(array.astype(np.float32), tensor.float().numpy())


def test_a_module_is_filled_in_place_and_torch_knows_it() -> None:
    torch.manual_seed(1)
    model, other = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
    weight, version = other.weight, other.weight._version
    fill(model.state_dict(), other.state_dict())
    assert other.weight is weight
    assert torch.equal(other.weight, model.weight)
    assert other.weight._version > version, "else autograd would not notice a change under it"
    fill(model.state_dict(), dict(other.named_parameters()))
    assert other.weight.requires_grad


def test_whole_trees_of_any_library() -> None:
    value = {"a": [np.arange(3.0), torch.arange(4)], "p": Point(np.int64(5), 2.5), "b": b"xyz"}
    out: dict[str, Any] = OrderedDict(
        p=(torch.zeros((), dtype=torch.int64), np.zeros(())),
        b=np.zeros(3, np.uint8),
        a=(torch.zeros(3, dtype=torch.float64), np.zeros(4, np.int64)),
    )
    told: list[tuple[int, int]] = []
    fill(value, out, lambda done, total: told.append((done, total)))
    assert torch.equal(out["a"][0], torch.arange(3.0, dtype=torch.float64))
    assert out["a"][1].tolist() == [0, 1, 2, 3]
    assert (out["p"][0].item(), out["p"][1].item(), out["b"].tobytes()) == (5, 2.5, b"xyz")
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (24 + 32 + 16 + 3, 24 + 32 + 16 + 3)
    assert len(told) == 5


def test_views_are_filled_too() -> None:
    out, expected = torch.zeros(4, 6), torch.arange(12.0).reshape(3, 4)
    fill(expected, out[:, ::2].t())
    assert torch.equal(out[:, ::2].t(), expected)
    assert not out[:, 1::2].any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda out: out.update(w=torch.zeros(3, 2)), "out['w'] is float32[3, 2], the object has float32[2, 3]"),
        (lambda out: out.update(w=torch.zeros(2, 3).half()), "out['w'] is float16[2, 3], the object has float32[2, 3]"),
        (lambda out: out.update(w=np.zeros((2, 3))), "out['w'] is float64[2, 3], the object has float32[2, 3]"),
        (lambda out: out.update(w=torch.zeros(2, 3).to(torch.complex32)), "out['w'] is complex32[2, 3], the object"),
        (lambda out: out.pop("w"), "out lacks 'w'"),
        (lambda out: out.update(v=torch.zeros(1)), "the object lacks 'v', which out has"),
        (lambda out: out.update(z=[torch.zeros(1)]), "out['z'] has 1 values, the object 2"),
        (lambda out: out.update(z=torch.zeros(2)), "out['z'] is float32[2], the object has 2 values there"),
        (lambda out: out.update(w={"x": torch.zeros(2, 3)}), "out['w'] is a dict, the object has float32[2, 3]"),
        (lambda out: out.update(w=[], z=[]), "out['w'] is a list, the object has float32[2, 3]; out['z'] has 0 values"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_what_does_not_fit_is_named_before_anything_is_written(change: Any, message: str) -> None:
    value = {"a": torch.ones(2), "w": torch.ones(2, 3), "z": [torch.ones(1), np.ones(1)]}
    out: dict[str, Any] = {"a": torch.zeros(2), "w": torch.zeros(2, 3), "z": [torch.zeros(1), np.zeros(1)]}
    first = out["a"]
    change(out)
    with pytest.raises(InvalidRequestError, match=re.escape(message)) as caught:
        fill(value, out)
    assert caught.value.remedy
    assert not first.any()


def test_many_differences_are_counted() -> None:
    value = [torch.ones(2) for _ in range(10)]
    with pytest.raises(InvalidRequestError, match=r"out\[2\] is float32\[3\].*; and 7 more"):
        fill(value, [torch.zeros(3) for _ in range(10)])
    with pytest.raises(InvalidRequestError, match="out is float32"):
        fill({"a": torch.ones(2)}, torch.ones(2))


def frozen() -> np.ndarray:
    array = np.zeros(2)
    array.flags.writeable = False
    return array


def freed() -> torch.Tensor:
    tensor = torch.ones(3)
    tensor.untyped_storage().resize_(0)
    return tensor


def inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.zeros(2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (frozen, "out['a'] is read-only"),
        (freed, "out['a'] is a tensor of [3] whose memory was freed"),
        (inference, "out['a'] is a tensor made in inference mode"),
        (lambda: torch.zeros(1).expand(3), "out['a'] is an expanded tensor"),
        (lambda: torch.zeros(2, device="meta"), "out['a'] is a meta tensor"),
        (lambda: torch.eye(2).to_sparse(), "out['a'] is a tensor that is not dense"),
        (lambda: "text", "out['a'] is a str, which cannot be filled"),
        (lambda: None, "out['a'] is a NoneType, which cannot be filled"),
        (lambda: torch.nn.Linear(1, 1), "out['a'] is a Linear, which cannot be filled"),
    ],
)
def test_what_cannot_be_filled_is_refused_before_anything_is_asked_for(make: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(message)) as caught:
        filling.check({"b": np.zeros(2), "a": make()})
    assert caught.value.remedy


def test_pickled_objects_fill_nothing() -> None:
    with pytest.raises(InvalidRequestError, match=r"out= is for arrays and trees of them, and .* \(a str at \['t'\]\)"):
        fill({"a": torch.ones(2), "t": "text"}, {"a": torch.zeros(2), "t": np.zeros(1)})


def test_a_tree_that_holds_itself_is_refused() -> None:
    out: list[Any] = []
    out.append(out)
    with pytest.raises(InvalidRequestError, match="more than 64 levels"):
        filling.check(out)
