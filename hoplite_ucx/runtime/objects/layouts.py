"""Layouts: what the bytes of an object mean. The protocol carries them unread; equal layouts can be reduced together.

Three kinds: one array; a tree of dicts, lists and tuples whose leaves are arrays; a bundle, which is a pickle with its
large buffers beside it. Arrays and buffers begin at multiples of `ALIGNMENT`, and numbers at multiples of their size:
no element crosses a multiple of `ALIGNMENT`, and vector instructions find aligned data.

A layout has two parts. Its *form* says what each byte means: the tree with the keys of its dicts sorted, and the dtype,
shape and order of each leaf. Its *look* says how the user's value looked: the order of a dict's keys, the class of a
named tuple, whether a leaf was an array of numpy, torch or CuPy, a number or bytes. Objects of one form can be reduced
together, whatever their looks. A leaf that stands in several places of a tree is stored once: tied parameters are.

Layouts of many leaves are packed: numbers that count on are written as differences, most of them 0, and the whole is
compressed.

A layout from the network is checked before anything is built from it: every leaf must lie within the object, and
a dtype is made from its description alone, never by running code.
"""

import enum
import math
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeAlias, cast

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct

from hoplite_ucx.protocol.errors import Failure, FailureKind, HopliteError
from hoplite_ucx.protocol.messages import MAX_LAYOUT

ALIGNMENT = 64

Array: TypeAlias = npt.NDArray[Any]
MAX_BYTES = 1 << 62
"""More than any object has."""
Size: TypeAlias = Annotated[int, Meta(ge=0, lt=MAX_BYTES)]

_MAX_DIMENSIONS = 64
SAFE_DIMENSIONS = 32
"""The number of dimensions that every numpy version supports."""
_MAX_DTYPE = MAX_LAYOUT // 2
MAX_DEPTH = 64
MAX_BECAUSE = 256
_SHORT = 256
"""Layouts of up to this many bytes are cached: mostly those of one array."""


class Kind(enum.StrEnum):
    """What a leaf was before it was put, and will be again: not always an array."""

    ARRAY = ""
    SCALAR = "scalar"  # of numpy
    BOOL = "bool"
    INT = "int"
    FLOAT = "float"
    COMPLEX = "complex"
    BYTES = "bytes"
    BYTEARRAY = "bytearray"
    MEMORYVIEW = "memoryview"
    PYTHON_ARRAY = "array.array"
    TORCH = "torch"
    CUPY = "cupy"


ARRAYS = {Kind.ARRAY: "array", Kind.TORCH: "torch tensor", Kind.CUPY: "cupy array"}
"""Kinds for which a user may choose another of them."""


class Leaf(Struct, frozen=True, array_like=True, gc=False):
    """One array: its dtype as numpy describes it, its shape, its order, and where it begins. `kind` is its look."""

    dtype: Any
    shape: Annotated[tuple[Size, ...], Meta(max_length=_MAX_DIMENSIONS)]
    fortran: bool = False
    offset: Size = 0
    kind: Kind = Kind.ARRAY

    def numpy_dtype(self) -> np.dtype[Any]:
        return dtype_of(self.dtype)

    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize()

    def itemsize(self) -> int:
        """Known without ml_dtypes, which a directory need not have, nor whoever has tensors."""
        if isinstance(self.dtype, str) and self.dtype in EXTENSIONS:
            return 2 if self.dtype == "bfloat16" else 1
        return self.numpy_dtype().itemsize

    def on(self, memory: memoryview) -> Array:
        """The array, on this memory."""
        dtype = self.numpy_dtype()
        if 0 in self.shape:
            return np.empty(self.shape, dtype)
        order = "F" if self.fortran else "C"
        return np.ndarray(self.shape, dtype, unwritable(memory), self.offset, order=cast(Any, order))

    def __str__(self) -> str:
        match self.kind:
            case Kind.MEMORYVIEW | Kind.PYTHON_ARRAY:
                return f"{self.kind.value} of {self._array()}"
            case kind if kind in ARRAYS:
                return self._array()
            case Kind.SCALAR:
                return dtype_name(self.dtype)
            case Kind.BYTES | Kind.BYTEARRAY:
                return f"{self.kind.value} of length {self.shape[0] if self.shape else 1}"
            case _:
                return self.kind.value

    def _array(self) -> str:
        return f"{dtype_name(self.dtype)}{list(self.shape)}{' in Fortran order' if self.fortran else ''}"


def unwritable(memory: memoryview) -> memoryview:
    """The same memory, which numpy will not make writable if it is read-only. It goes through another array, because
    numpy would let a user make the base of a read-only view writable, and a write would end the process."""
    return np.frombuffer(memory, np.uint8).data


class ArrayLayout(Struct, frozen=True, array_like=True, tag="array"):
    leaf: Leaf

    def __str__(self) -> str:
        name = ARRAYS.get(self.leaf.kind)
        return str(self.leaf) if name is None else f"{name} {self.leaf}"


class DictNode(Struct, frozen=True, array_like=True, tag="dict"):
    """The keys are sorted, so that equal dicts have equal forms; `order` is that in which they were put, as their
    places among the sorted ones, or None if it is the same. `ordered`: it was an OrderedDict; `attributes`, if it had
    some, such as the versions that torch notes in a state_dict."""

    keys: tuple[str | int, ...]
    children: tuple["Node", ...]
    order: tuple[Size, ...] | None = None
    ordered: bool = False
    attributes: dict[str, Any] | None = None


class ListNode(Struct, frozen=True, array_like=True, tag="list"):
    children: tuple["Node", ...]


class TupleNode(Struct, frozen=True, array_like=True, tag="tuple"):
    children: tuple["Node", ...]


class NamedTupleNode(Struct, frozen=True, array_like=True, tag="named"):
    """Only the process that gets the value looks up the class; in a layout only the names of the fields count."""

    fields: tuple[str, ...]
    children: tuple["Node", ...]
    module: str
    name: str


Inner: TypeAlias = DictNode | ListNode | TupleNode | NamedTupleNode
Node: TypeAlias = Size | Inner
"""A part of a tree: a leaf by its number, or what holds others."""


class TreeLayout(Struct, frozen=True, array_like=True, tag="tree"):
    structure: Node
    leaves: tuple[Leaf, ...]

    def __str__(self) -> str:
        shown = [str(leaf) for leaf in self.leaves[:4]] + ["…"] * (len(self.leaves) > 4)
        what = "arrays" if all(leaf.kind in ARRAYS for leaf in self.leaves) else "leaves"
        return f"tree of {len(self.leaves)} {what} ({', '.join(shown)})"


class BundleLayout(Struct, frozen=True, array_like=True, tag="bundle"):
    """A pickle of `pickle` bytes, and its buffers: where each begins, and its length. `because` names what in it is
    not an array, such as "a str at ['name']"."""

    pickle: Size
    buffers: tuple[tuple[Size, Size], ...] = ()
    because: Annotated[str, Meta(max_length=MAX_BECAUSE)] = ""

    def __str__(self) -> str:
        return f"a pickled object ({self.because})" if self.because else "a pickled object"


Layout: TypeAlias = ArrayLayout | TreeLayout | BundleLayout


class _Packed(Struct, frozen=True, array_like=True, tag="packed"):
    """A tree's layout, packed: see `_relative`."""

    data: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Layout | _Packed] = msgspec.msgpack.Decoder(Layout | _Packed)


# The last one for users who turn warnings into errors: numpy warns of names that it will drop.
_UNREADABLE = (
    msgspec.DecodeError,
    ValueError,
    TypeError,
    LookupError,
    SyntaxError,
    RecursionError,
    OverflowError,
    DeprecationWarning,
    zlib.error,
)


def encode_layout(layout: Layout) -> bytes:
    if isinstance(layout, TreeLayout) and len(layout.leaves) > _MANY:
        return _encoder.encode(_Packed(zlib.compress(_encoder.encode(_relative(layout)), 1)))
    return _encoder.encode(layout)


def array_layout(description: Any, shape: tuple[int, ...], fortran: bool, kind: Kind) -> tuple[Leaf, bytes]:
    """The layout of an object that is one array."""
    make = _array_layout_again if isinstance(description, str) else _array_layout
    return make(description, shape, fortran, kind)


def _array_layout(description: Any, shape: tuple[int, ...], fortran: bool, kind: Kind) -> tuple[Leaf, bytes]:
    leaf = Leaf(description, shape, fortran, kind=kind)
    return leaf, encode_layout(ArrayLayout(leaf))


_array_layout_again = lru_cache(256)(_array_layout)
"""Programs put arrays of the same few forms again and again."""


def decode_layout(data: bytes, size: int) -> Layout:
    """The layout of an object of `size` bytes; refused if any part of it would lie outside."""
    return _decode_again(data, size) if len(data) <= _SHORT else _decode_layout(data, size)


def _decode_layout(data: bytes, size: int) -> Layout:
    layout = read_layout(data)
    try:
        for start, length in _extents(layout):
            if start + length > size:
                raise ValueError(f"it names bytes up to {start + length}, beyond the size of {size}")
    except _UNREADABLE as error:
        raise unreadable(error) from error
    return layout


def read_layout(data: bytes) -> Layout:
    """A layout without its object: does not check whether its leaves can be arrays and lie within the object."""
    try:
        layout = _decoder.decode(data)
        if isinstance(layout, _Packed):
            layout = _unpacked(layout)
        if isinstance(layout, TreeLayout):
            _check_tree(layout.structure, len(layout.leaves), 0)
    except _UNREADABLE as error:
        raise unreadable(error) from error
    return layout


def unreadable(error: Exception) -> HopliteError:
    """What a user hears of a layout that means nothing here."""
    remedy = (
        "install ml_dtypes on every host"
        if isinstance(error, MissingTypeError)
        else "run the same release of hoplite-ucx everywhere"
    )
    return Failure(FailureKind.INVALID, f"the layout cannot be read: {error}", remedy).exception()


def _check_tree(node: Node, leaves: int, depth: int) -> None:
    if isinstance(node, int):
        if node >= leaves:
            raise ValueError("its tree names a leaf that does not exist")
        return
    if depth > MAX_DEPTH:
        raise ValueError("its tree is too deep")
    names = node.keys if isinstance(node, DictNode) else node.fields if isinstance(node, NamedTupleNode) else None
    if names is not None and len(names) != len(node.children):
        raise ValueError("its tree does not have one name for each value")
    if isinstance(node, DictNode) and node.order is not None and sorted(node.order) != list(range(len(node.keys))):
        raise ValueError("its tree has a key order that does not list each key once")
    for child in node.children:
        _check_tree(child, leaves, depth + 1)


_decode_again = lru_cache(256)(_decode_layout)


@lru_cache(256)
def array_form(data: bytes, size: int) -> tuple[tuple[int, ...], np.dtype[Any], int, Literal["C", "F"]] | None:
    """Shape, dtype, offset and order of an object that is one array, which is what most are; None if it is another
    thing, or empty, its layout is not short, or its dtype unknown."""
    if len(data) > _SHORT or not isinstance(layout := _decode_layout(data, size), ArrayLayout):
        return None
    leaf = layout.leaf
    if leaf.kind is not Kind.ARRAY or 0 in leaf.shape or len(leaf.shape) > SAFE_DIMENSIONS:
        return None
    try:
        return leaf.shape, leaf.numpy_dtype(), leaf.offset, "F" if leaf.fortran else "C"
    except MissingTypeError:
        return None


def _extents(layout: Layout) -> Iterator[tuple[int, int]]:
    match layout:
        case ArrayLayout(leaf):
            yield leaf.offset, leaf.nbytes()
        case TreeLayout(_, leaves):
            sizes = _Sizes()
            for leaf in leaves:
                yield leaf.offset, sizes.of(leaf)
        case BundleLayout(pickle, buffers):
            yield 0, pickle
            yield from buffers


def leaves_of(layout: Layout) -> tuple[Leaf, ...]:
    """The arrays that a reduction works on; a bundle has none."""
    match layout:
        case ArrayLayout(leaf):
            return (leaf,)
        case TreeLayout(_, leaves):
            return leaves
        case BundleLayout():
            return ()


# --- many leaves ------------------------------------------------------------------------------------------------

_MANY = 64
"""A tree with more leaves is packed."""
_MAX_UNPACKED = 16 * MAX_LAYOUT


def _relative(layout: TreeLayout) -> TreeLayout:
    """The same with differences for numbers that count on. In the tree, 0 is the next leaf, and n + 1 is leaf n once
    more; a leaf begins so many bytes after the end of the one before it; keys follow so many places, around the end,
    after what would be next."""
    known = 0

    def number(leaf: int) -> int:
        nonlocal known
        if leaf != known:
            return leaf + 1
        known += 1
        return 0

    structure = _with_numbers(layout.structure, number, _differences)
    leaves, end, sizes = [], 0, _Sizes()
    for leaf in layout.leaves:
        leaves.append(Leaf(leaf.dtype, leaf.shape, leaf.fortran, leaf.offset - end, leaf.kind))
        end = leaf.offset + sizes.of(leaf)
    return TreeLayout(structure, tuple(leaves))


class _Sizes:
    """Of many leaves, most of which have one of a few forms."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, tuple[int, ...]], int] = {}

    def of(self, leaf: Leaf) -> int:
        if not isinstance(leaf.dtype, str):
            return leaf.nbytes()
        form = leaf.dtype, leaf.shape
        size = self._known.get(form)
        if size is None:
            size = self._known[form] = leaf.nbytes()
        return size


def _unpacked(packed: _Packed) -> TreeLayout:
    reader = zlib.decompressobj()
    layout = _decoder.decode(reader.decompress(packed.data, _MAX_UNPACKED))
    if not isinstance(layout, TreeLayout) or reader.unconsumed_tail:
        raise ValueError("what is packed is not a tree, or too large")
    known = 0

    def number(difference: int) -> int:
        nonlocal known
        if difference:
            return difference - 1
        known += 1
        return known - 1

    structure = _with_numbers(layout.structure, number, _sums)
    leaves, end, sizes = [], 0, _Sizes()
    for leaf in layout.leaves:
        leaf = Leaf(leaf.dtype, leaf.shape, leaf.fortran, leaf.offset + end, leaf.kind)
        end = leaf.offset + sizes.of(leaf)
        leaves.append(leaf)
    return TreeLayout(structure, tuple(leaves))


def _with_numbers(
    node: Node, number: Callable[[int], int], order: Callable[[tuple[int, ...]], tuple[int, ...]], depth: int = 0
) -> Node:
    """The same tree with other numbers for its leaves, and for the order of keys."""
    if isinstance(node, int):
        return number(node)
    if depth > MAX_DEPTH:
        raise ValueError("its tree is too deep")
    children = tuple([_with_numbers(child, number, order, depth + 1) for child in node.children])
    if isinstance(node, DictNode) and node.order is not None:
        return msgspec.structs.replace(node, children=children, order=order(node.order))
    return msgspec.structs.replace(node, children=children)


def _differences(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple([(place - before - 1) % len(order) for before, place in zip((-1, *order), order, strict=False)])


def _sums(differences: tuple[int, ...]) -> tuple[int, ...]:
    place, order = -1, []
    for difference in differences:
        place = (place + difference + 1) % len(differences)
        order.append(place)
    return tuple(order)


def aligned(offset: int, to: int = ALIGNMENT) -> int:
    return -(-offset // to) * to


# --- dtypes -----------------------------------------------------------------------------------------------------

EXTENSIONS = {
    "bfloat16": "f",
    "float8_e3m4": "f",
    "float8_e4m3": "f",
    "float8_e4m3b11fnuz": "f",
    "float8_e4m3fn": "f",
    "float8_e4m3fnuz": "f",
    "float8_e5m2": "f",
    "float8_e5m2fnuz": "f",
    "float8_e8m0fnu": "f",
    "float6_e2m3fn": "f",
    "float6_e3m2fn": "f",
    "float4_e2m1fn": "f",
    "int2": "i",
    "int4": "i",
    "uint2": "u",
    "uint4": "u",
}
"""Types of ml_dtypes, by name, since numpy's own description of them says nothing but a width; and the kind of each, as
numpy would name it."""


class MissingTypeError(ValueError):
    """A dtype of ml_dtypes, and no ml_dtypes."""


def kind_of(dtype: np.dtype[Any]) -> str:
    """As `dtype.kind`, also for the types of ml_dtypes."""
    return EXTENSIONS.get(dtype.name, dtype.kind)


_MAX_NAME = 80


def dtype_name(description: Any) -> str:
    """For people; needs no ml_dtypes. Different dtypes have different names."""
    if isinstance(description, str) and description in EXTENSIONS:
        return description
    try:
        dtype = dtype_of(description)
    except _UNREADABLE:
        return "an unknown dtype"
    name = dtype.name if dtype.isnative and dtype.fields is None else str(dtype)
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 1]}…"


@lru_cache(1024)
def describe_dtype(dtype: np.dtype[Any]) -> Any:
    """A dtype as plain data, or a ValueError that says why it cannot travel."""
    if dtype.hasobject:
        raise ValueError(f"dtype {dtype} holds Python objects")
    if dtype.itemsize == 0:
        raise ValueError(f"dtype {dtype} has no size")
    if dtype.name in EXTENSIONS:
        return dtype.name
    if dtype.subdtype is not None:
        raise ValueError(f"dtype {dtype} has a shape: make that part of the array's shape")
    description = dtype.str if dtype.fields is None else np.lib.format.dtype_to_descr(dtype)
    try:
        if len(_encoder.encode(description)) > _MAX_DTYPE:
            raise ValueError("the dtype has too many fields")
        known = dtype_of(description) == dtype
    except (TypeError, UnicodeEncodeError) as error:
        raise ValueError(f"the dtype cannot be described: {error}") from error
    if not known:
        raise ValueError(f"dtype {dtype.name} is not one of numpy's own")
    return description


def dtype_of(description: Any) -> np.dtype[Any]:
    if isinstance(description, str):
        return _named_dtype(description)
    return _without_objects(np.lib.format.descr_to_dtype(_as_descr(description)))


@lru_cache(1024)
def _named_dtype(name: str) -> np.dtype[Any]:
    return _extension(name) if name in EXTENSIONS else _without_objects(np.dtype(name))


def _without_objects(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.hasobject:
        raise ValueError(f"dtype {dtype} holds Python objects")
    if dtype.itemsize == 0:  # numpy gives arrays of them memory all the same, however many elements there are
        raise ValueError(f"dtype {dtype} has no size")
    return dtype


def _extension(name: str) -> np.dtype[Any]:
    try:
        import ml_dtypes  # needed only for such arrays

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    except (ImportError, AttributeError):
        raise MissingTypeError(f"dtype {name} needs a version of ml_dtypes that has it") from None
    return dtype


def _as_descr(description: Any, depth: int = 0) -> Any:
    """Lists back into the lists of tuples that numpy wants, after a journey through MessagePack."""
    if depth > MAX_DEPTH:
        raise ValueError("the dtype is nested too deeply")
    if isinstance(description, str):
        return description
    if len(description) == 2 and not isinstance(description[0], list | tuple):
        return (_as_descr(description[0], depth + 1), tuple(description[1]))  # a subarray
    fields = []
    for field in description:
        name = tuple(field[0]) if isinstance(field[0], list) else field[0]
        rest = (tuple(field[2]),) if len(field) > 2 else ()
        fields.append((name, _as_descr(field[1], depth + 1), *rest))
    return fields
