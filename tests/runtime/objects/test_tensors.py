"""Tensors and arrays of other libraries become leaves and come back; what has no bytes is refused, by its name."""

import array
import ctypes
import mmap
import pickle
import sys
import types
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

from hoplite_ucx.errors import InvalidRequestError
from hoplite_ucx.protocol.messages import Operation
from hoplite_ucx.runtime.objects import values
from hoplite_ucx.runtime.objects.kernels import Kernel, combine_bytes
from hoplite_ucx.runtime.objects.layouts import BundleLayout, Kind, TreeLayout, decode_layout
from hoplite_ucx.runtime.objects.trees import difference
from tests.tools.packages import CHECKOUT, run

SAME_AS_NUMPY = [
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
    "float16", "float32", "float64", "complex64", "complex128",
]  # fmt: skip
NOT_IN_NUMPY = ["bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]


def stored(value: object) -> tuple[memoryview, bytes]:
    encoded = values.encode(value)
    memory = bytearray(encoded.size)
    marks = list(encoded.copy_into(memoryview(memory)))
    assert marks == sorted(marks)
    assert encoded.to_bytes() == bytes(memory)
    return memoryview(bytes(memory)), encoded.layout


def round_trip(value: object, like: Kind | None = None) -> Any:
    return values.decode(*stored(value), like)


def layout_of(value: object) -> Any:
    encoded = values.encode(value)
    return decode_layout(encoded.layout, encoded.size)


def assert_same(result: Any, tensor: torch.Tensor) -> None:
    assert type(result) is torch.Tensor
    assert result.dtype is tensor.dtype
    assert result.shape == tensor.shape
    assert result.is_contiguous()
    size = tensor.itemsize
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}[size]
    assert torch.equal(result.view(bits), tensor.detach().contiguous().view(bits))


@pytest.mark.parametrize("name", [*SAME_AS_NUMPY, *NOT_IN_NUMPY])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 4), (2, 0, 3), (2, 3, 4)])
def test_every_dtype_and_shape(name: str, shape: tuple[int, ...]) -> None:
    tensor = torch.arange(1, 1 + int(np.prod(shape))).reshape(shape).to(getattr(torch, name))
    assert_same(round_trip(tensor), tensor)
    assert_same(round_trip({"a": [tensor]})["a"][0], tensor)


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.t(),
        lambda t: t[::3],
        lambda t: t[:, 5:7],
        lambda t: t.reshape(10, 2, 50, 3).permute(3, 0, 2, 1),
        lambda t: t[:1].expand(7, -1),
        lambda t: t.reshape(2, 3, 10, 50).to(memory_format=torch.channels_last),
    ],
    ids=["transposed", "strided", "sliced", "permuted", "expanded", "channels last"],
)
def test_tensors_that_are_not_contiguous(name: str, view: Any) -> None:
    tensor = view(torch.arange(3000).reshape(10, 300).to(getattr(torch, name)))
    assert_same(round_trip(tensor), tensor)


def test_large_tensors_are_copied_in_pieces() -> None:
    for tensor in (torch.arange(3 << 20), torch.arange(3 << 20).reshape(3, 1 << 20).t()):
        encoded = values.encode(tensor)
        memory = bytearray(encoded.size)
        marks = list(encoded.copy_into(memoryview(memory)))
        assert len(marks) >= encoded.size // values.PIECE
        assert bytes(memory) == tensor.contiguous().numpy().tobytes()


def test_gradients_and_views_of_complex_numbers_are_values() -> None:
    leaf = torch.nn.Parameter(torch.arange(3.0))
    for tensor in (leaf, leaf * 2, leaf[1:]):
        result = round_trip({"x": tensor})["x"]
        assert not result.requires_grad
        assert_same(result, tensor)
    numbers = torch.tensor([1 + 2j, 3 - 4j])
    assert torch.equal(round_trip(numbers.conj()), numbers.conj().resolve_conj())
    assert torch.equal(round_trip(numbers.conj().imag), numbers.conj().imag.resolve_neg())
    both = round_trip([numbers, numbers.conj(), numbers.imag, numbers.conj().imag])
    assert torch.equal(both[1], numbers.conj())
    assert torch.equal(both[3], numbers.conj().imag)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(5, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.head = torch.nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight


def test_a_state_dict_comes_back_as_it_was() -> None:
    state = Model().state_dict()
    assert isinstance(layout_of(state), TreeLayout)
    result = round_trip(state)
    assert type(result) is OrderedDict
    assert list(result) == list(state)
    for name, tensor in state.items():
        assert_same(result[name], tensor)
    assert result._metadata == state._metadata  # type: ignore[attr-defined]
    assert type(result._metadata) is OrderedDict
    other = Model()
    other.load_state_dict(result)
    assert all(torch.equal(other.state_dict()[name], state[name]) for name in state)


def test_attributes_that_a_layout_cannot_carry() -> None:
    for attribute in (object(), {1: 2}, {"a": [1]}, "\ud800"):
        state = OrderedDict(a=torch.ones(2))
        state.extra = attribute  # type: ignore[attr-defined]
        assert isinstance(layout_of(state), BundleLayout)


def test_tied_parameters_are_stored_once_and_come_back_tied() -> None:
    state = Model().state_dict()
    encoded = values.encode(state)
    assert encoded.size < sum(max(64, tensor.nbytes) for tensor in state.values())
    result = round_trip(state)
    result["head.weight"].add_(1)
    assert torch.equal(result["embedding.weight"], state["embedding.weight"] + 1)
    one = torch.ones(3)
    assert len(layout_of([one, one, one.detach(), one[:2], one[:2], one.view(1, 3), one.clone()]).leaves) == 4
    empty = torch.empty(0)
    assert len(layout_of([empty, empty, torch.empty(0)]).leaves) == 3
    assert len(layout_of([np.ones(3)] * 2).leaves) == 2, "of numpy's arrays every place has its own"


def test_tied_and_separate_parameters_cannot_be_reduced_together() -> None:
    one = torch.ones(100)
    tied, separate = {"a": one, "b": one, "c": one.clone()}, {"a": one, "b": one.clone(), "c": one.clone()}
    layouts = values.encode(tied).layout, values.encode(separate).layout
    assert difference(*layouts) == "['a'] and ['b'] are one tensor in the first only (put a clone() of one of them)"
    assert "second only" in str(difference(*layouts[::-1]))
    crossed = values.encode({"a": one, "b": (two := one.clone()), "c": two}).layout
    assert difference(layouts[0], crossed) is not None


def test_libraries_can_be_mixed_in_a_reduction() -> None:
    for shape in ((), (5,), (2, 3)):
        array = np.arange(float(np.prod(shape))).reshape(shape)
        one, other = values.encode({"a": array}), values.encode({"a": torch.from_numpy(array)})
        assert one.layout != other.layout
        assert one.size == other.size
        assert difference(one.layout, other.layout) is None
        summed = combine_bytes(one.layout, Operation.SUM, (one.to_bytes(), other.to_bytes()))
        assert np.array_equal(values.decode(memoryview(summed), one.layout)["a"], array * 2)
        assert torch.equal(values.decode(memoryview(summed), other.layout)["a"], torch.from_numpy(array) * 2)
    transposed = values.encode(torch.ones(3, 4).t())
    assert difference(transposed.layout, values.encode(np.ones((4, 3), "f4")).layout) is None


def test_narrow_floats_are_reduced_as_those_of_ml_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for name in ("bfloat16", "float8_e4m3fn"):
        tensor = torch.arange(1.0, 5.0).to(getattr(torch, name))
        encoded = values.encode(tensor)
        array = np.arange(1.0, 5.0).astype(getattr(ml_dtypes, name))
        assert encoded.to_bytes() == values.encode(array).to_bytes()
        assert difference(encoded.layout, values.encode(array).layout) is None
        mean = combine_bytes(encoded.layout, Operation.MEAN, (encoded.to_bytes(),) * 4, 4)
        assert torch.equal(values.decode(memoryview(mean), encoded.layout).float(), tensor.float())


def test_tensors_need_no_ml_dtypes_but_reductions_do() -> None:
    """In a process of its own: others have loaded it."""
    code = """
import sys
sys.modules["ml_dtypes"] = None
import torch
from hoplite_ucx.protocol.messages import Operation
from hoplite_ucx.errors import InvalidRequestError
from hoplite_ucx.runtime.objects import values
from hoplite_ucx.runtime.objects.kernels import Kernel
from hoplite_ucx.runtime.objects.layouts import Kind
from hoplite_ucx.runtime.objects.trees import difference
tensor = torch.arange(5.0).to(torch.bfloat16)
for value in (tensor, [tensor] + [torch.ones(2, dtype=torch.bfloat16) for _ in range(100)]):
    encoded = values.encode(value)
    memory = memoryview(encoded.to_bytes())
    result = values.decode(memory, encoded.layout)
    assert torch.equal(result if value is tensor else result[0], tensor)
    try:
        values.decode(memory, encoded.layout, Kind.ARRAY)
    except InvalidRequestError as error:
        assert error.remedy == "install ml_dtypes on every host", error
    else:
        raise AssertionError
    assert Kernel(encoded.layout, Operation.SUM).failure.remedy == "install ml_dtypes on every host"
    assert difference(encoded.layout, values.encode(1).layout)
"""
    run(sys.executable, "-c", code, cwd=CHECKOUT)


def test_numpy_and_torch_by_choice() -> None:
    tree = {"n": np.arange(3), "t": torch.arange(4.0), "f": np.asfortranarray(np.eye(3)), "x": 5, "b": b"abc"}
    as_torch, as_numpy = round_trip(tree, Kind.TORCH), round_trip(tree, Kind.ARRAY)
    assert [type(each) for each in as_torch.values()] == [torch.Tensor] * 3 + [int, bytes]
    assert [type(each) for each in as_numpy.values()] == [np.ndarray] * 3 + [int, bytes]
    assert torch.equal(as_torch["f"], torch.eye(3, dtype=torch.float64))
    assert np.array_equal(as_numpy["t"], np.arange(4.0))
    assert not as_numpy["t"].flags.writeable
    as_torch["n"].add_(1)
    assert type(round_trip(torch.ones(3), Kind.ARRAY)) is np.ndarray
    assert type(round_trip(np.ones(3), Kind.TORCH)) is torch.Tensor
    with pytest.raises(
        InvalidRequestError, match=r"the object has datetime64\[s\], which torch .* at \['d'\]"
    ) as caught:
        round_trip({"a": np.ones(2), "d": np.zeros(2, "M8[s]")}, Kind.TORCH)
    assert 'like="numpy"' in caught.value.remedy
    with pytest.raises(InvalidRequestError, match="like= is for arrays, and the object is a pickled object"):
        round_trip("text", Kind.TORCH)


def test_copies_are_on_memory_of_their_own() -> None:
    memory, layout = stored({"t": torch.arange(3), "n": np.arange(3)})
    result = values.decode_copy(memory, layout)
    own = values.decode_copy(memory, layout, Kind.TORCH)
    result["t"].add_(1)
    result["n"][:] = 0
    own["n"].add_(1)
    assert torch.equal(own["t"], torch.arange(3))
    assert torch.equal(values.decode(memory, layout)["t"], torch.arange(3))


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_what_has_no_bytes_is_refused_by_its_name() -> None:
    freed = torch.ones(10)
    freed.untyped_storage().resize_(0)
    shrunk = torch.ones(10)[5:]
    shrunk.untyped_storage().resize_(28)
    halves = torch.ones(2, dtype=torch.complex32)
    meta = torch.ones(2, device="meta")
    for tensor, what in ((meta, "a meta tensor"), (freed, "freed"), (shrunk, "freed"), (halves, "complex32")):
        for value, place in ((tensor, ""), ({"a": [torch.ones(1), tensor]}, r" at \['a'\]\[1\]")):
            with pytest.raises(InvalidRequestError, match=f"{what}.*{place} cannot be put") as caught:
                values.encode(value)
            assert caught.value.remedy
    for value in ({"a": freed, "text": "b"}, [Holder(freed)]):
        with pytest.raises(InvalidRequestError, match=r"a tensor of .* whose memory was freed cannot be put"):
            values.encode(value)
    assert round_trip(Holder(torch.ones(2, device="meta"))).held[0].is_meta, "what is pickled comes back as it was"

    def inside(tensor: torch.Tensor) -> torch.Tensor:
        with pytest.raises(InvalidRequestError, match="a tensor that cannot be read"):
            values.encode(tensor)
        return tensor

    torch.vmap(inside)(torch.ones(2, 3))


class Holder:
    def __init__(self, *held: Any) -> None:
        self.held = held


class Named(torch.Tensor):
    pass


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_what_is_more_than_its_elements_is_pickled() -> None:
    sparse = torch.eye(3).to_sparse()
    assert isinstance(layout_of(sparse), BundleLayout)
    assert torch.equal(round_trip(sparse).to_dense(), torch.eye(3))
    named = torch.ones(3).as_subclass(Named)
    assert isinstance(layout_of(named), BundleLayout)
    assert type(round_trip([named])[0]) is Named
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    assert isinstance(layout_of(nested), BundleLayout)
    assert round_trip(nested).is_nested


def test_tensors_in_pickles_lie_beside_them() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.Linear(200, 2)).requires_grad_(True)
    model[0].weight.requires_grad_(False)
    model.extra = torch.arange(400.0).reshape(20, 20).t().to(torch.bfloat16)
    encoded = values.encode(model)
    layout = decode_layout(encoded.layout, encoded.size)
    assert isinstance(layout, BundleLayout)
    assert sorted(length for _, length in layout.buffers) == [800, 800, 1600, 240000]
    assert layout.pickle < 10_000
    result = round_trip(model)
    for name, parameter in model.named_parameters():
        same = result.get_parameter(name)
        assert type(same) is torch.nn.Parameter
        assert same.requires_grad == parameter.requires_grad
        assert torch.equal(same, parameter)
    assert torch.equal(result.extra, model.extra)
    with torch.no_grad():
        result[1].weight.add_(1)
    one = Holder(torch.ones(1000), torch.ones(3), np.ones(3))
    again = round_trip([one, one, "text", torch.ones(1000)[::2], torch.ones(2).to_sparse()])
    assert again[0] is again[1]
    assert not again[0].held[2].flags.writeable
    again[0].held[0][0] = 5
    assert again[4].is_sparse
    attributed = torch.ones(3)
    attributed.label = "x"  # type: ignore[attr-defined]
    assert round_trip(Holder(attributed)).held[0].label == "x"


def test_tensors_from_a_pickle_where_there_is_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = [stored(torch.ones(3)), stored(Holder(torch.ones(1000)))]
    as_numpy = values.decode(*objects[0], Kind.ARRAY)
    monkeypatch.setitem(sys.modules, "torch", None)
    for each in objects:
        with pytest.raises(InvalidRequestError, match="torch cannot be imported here") as caught:
            values.decode(*each)
        assert "install torch" in caught.value.remedy
    assert np.array_equal(values.decode(*objects[0], Kind.ARRAY), as_numpy)


class Dlpack:
    """A library that nobody knows by name."""

    def __init__(self, array: np.ndarray, device: int = 1) -> None:
        self._array = array
        self._device = device

    def __dlpack__(self, **given: Any) -> Any:
        return self._array.__dlpack__(**given)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device, 0


def test_anything_with_dlpack_is_an_array() -> None:
    array = np.arange(12.0).reshape(3, 4)
    result = round_trip({"a": Dlpack(array), "b": Dlpack(array.T)})
    assert type(result["a"]) is np.ndarray
    assert np.array_equal(result["a"], array)
    assert np.array_equal(result["b"], array.T)
    elsewhere = round_trip(Dlpack(array, device=2))
    assert isinstance(elsewhere, Dlpack), "what is on an unknown device is pickled"


class Pair(ctypes.Structure):
    _fields_ = (("a", ctypes.c_int), ("b", ctypes.c_int))


def test_anything_with_the_buffer_protocol_is_stored_as_it_is() -> None:
    numbers = array.array("d", [1, 2, 3])
    assert round_trip(numbers) == numbers
    assert type(round_trip([numbers])[0]) is array.array
    assert round_trip(array.array("q", [1])).tolist() == [1]
    assert isinstance(layout_of({"a": numbers}), TreeLayout)
    mapped = mmap.mmap(-1, 4096)
    mapped[:3] = b"abc"
    result = round_trip(mapped)
    assert type(result) is memoryview
    assert bytes(result[:3]) == b"abc"
    assert bytes(round_trip(pickle.PickleBuffer(b"abc"))) == b"abc"
    assert round_trip((ctypes.c_int * 3)(1, 2, 3)).tolist() == [1, 2, 3]
    for value in (array.array("u", "text"), Pair(1, 2), np.ma.array([1.0, 2.0])):
        assert isinstance(layout_of(value), BundleLayout), "more than its bytes"
        assert type(round_trip(value)) is type(value)


class CupyArray:
    """What is used of `cupy.ndarray` to make one."""

    def __init__(self, array: np.ndarray) -> None:
        self.on_device = array.copy()


def test_arrays_of_cupy_on_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy: Any = types.ModuleType("cupy")
    cupy.ndarray = cupy.asarray = CupyArray
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    memory, layout = stored([np.arange(3), torch.arange(3), 5])
    result = values.decode(memory, layout, Kind.CUPY)
    assert [type(each) for each in result] == [CupyArray, CupyArray, int]
    assert np.array_equal(result[1].on_device, np.arange(3))

    def no_driver(_: object) -> None:
        raise RuntimeError("cudaErrorInsufficientDriver")

    cupy.asarray = no_driver
    with pytest.raises(InvalidRequestError, match=r"no device here takes it \(cudaErrorIns.* at \[0\]") as no_device:
        values.decode(memory, layout, Kind.CUPY)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(InvalidRequestError, match="CuPy cannot be imported here") as no_cupy:
        values.decode(memory, layout, Kind.CUPY)
    assert all('like="numpy"' in caught.value.remedy for caught in (no_device, no_cupy))


@pytest.mark.parametrize("count", [64, 65, 5000])
def test_layouts_of_many_leaves_are_small_and_the_same(count: int) -> None:
    tied = torch.ones(2)
    tree = OrderedDict(
        (f"layers.{number}.weight", tied if number % 7 == 3 else torch.full((2, number % 3), number))
        for number in range(count)
    )
    nested = {"model": tree, "numbers": [1, 2.5, True], "b": b"xyz"}
    encoded = values.encode(nested)
    assert len(encoded.layout) < 4000 + 8 * count
    result = round_trip(nested)
    assert list(result["model"]) == list(tree)
    for name, tensor in tree.items():
        assert_same(result["model"][name], tensor)
    assert (result["numbers"], result["b"]) == ([1, 2.5, True], b"xyz")
    assert result["model"]["layers.3.weight"] is result["model"]["layers.10.weight"]
    plain = {name: tensor.numpy() for name, tensor in tree.items() if tensor is not tied}
    one, other = values.encode(dict(reversed(plain.items()))), values.encode(plain)
    assert difference(one.layout, other.layout) is None
    plain["layers.60.weight"] = np.zeros(3)
    assert "at ['layers.60.weight']" in str(difference(one.layout, values.encode(plain).layout))
    kernel = Kernel(encoded.layout, Operation.SUM)
    assert kernel.failure is not None
    assert "bytes at ['b'] cannot be reduced" in kernel.failure.detail
