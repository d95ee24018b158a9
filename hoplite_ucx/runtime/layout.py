"""Layouts: what the bytes of an object mean. The protocol carries them unread; equal layouts can be reduced together.

Three kinds: one array; a tree of dicts, lists and tuples whose leaves are arrays; a bundle, which is a pickle with its
large buffers beside it. Leaves and buffers begin at multiples of `ALIGNMENT`, so that no element of a leaf ever
straddles two of them, and vector instructions find what they like.

A layout from the network is checked before anything is built from it: every leaf must lie within the object, and
a dtype is made from its description alone, never by running code.
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeAlias, cast

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct

from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.protocol.messages import MAX_LAYOUT

ALIGNMENT = 64

Array: TypeAlias = npt.NDArray[Any]
MAX_BYTES = 1 << 62
"""No object has so many."""
Size: TypeAlias = Annotated[int, Meta(ge=0, lt=MAX_BYTES)]

_MAX_DIMENSIONS = 64
SAFE_DIMENSIONS = 32
"""So many every numpy takes."""
_MAX_DEPTH = 64
_MAX_DTYPE = MAX_LAYOUT // 2
_SHORT = 256
"""Layouts of up to so many bytes are remembered: those of one array, mostly."""


class Leaf(Struct, frozen=True, array_like=True):
    """One array: its dtype as numpy describes it, its shape, its order, and where it begins."""

    dtype: Any
    shape: Annotated[tuple[Size, ...], Meta(max_length=_MAX_DIMENSIONS)]
    fortran: bool = False
    offset: Size = 0

    def numpy_dtype(self) -> np.dtype[Any]:
        return dtype_of(self.dtype)

    def nbytes(self) -> int:
        return math.prod(self.shape) * self.numpy_dtype().itemsize

    def on(self, memory: memoryview) -> Array:
        """The array, on this memory."""
        dtype = self.numpy_dtype()
        if 0 in self.shape:
            return np.empty(self.shape, dtype)
        order = "F" if self.fortran else "C"
        return np.ndarray(self.shape, dtype, unwritable(memory), self.offset, order=cast(Any, order))

    def __str__(self) -> str:
        order = ", Fortran order" if self.fortran else ""
        return f"{self.numpy_dtype().name}{list(self.shape)}{order}"


def unwritable(memory: memoryview) -> memoryview:
    """The same memory, which numpy will not make writable if it is read-only: through another array, since of what
    lies below a read-only view numpy would let a user make a writable one, and a write would end the process."""
    return np.frombuffer(memory, np.uint8).data


class ArrayLayout(Struct, frozen=True, array_like=True, tag="array"):
    leaf: Leaf

    def __str__(self) -> str:
        return f"array {self.leaf}"


class TreeLayout(Struct, frozen=True, array_like=True, tag="tree"):
    """`structure` is the tree with its leaves numbered; see `values` for how one is made."""

    structure: Any
    leaves: tuple[Leaf, ...]

    def __str__(self) -> str:
        shown = [str(leaf) for leaf in self.leaves[:4]] + ["…"] * (len(self.leaves) > 4)
        return f"tree of {len(self.leaves)} arrays ({', '.join(shown)})"


class BundleLayout(Struct, frozen=True, array_like=True, tag="bundle"):
    """A pickle of `pickle` bytes, and its buffers: where each begins, and its length."""

    pickle: Size
    buffers: tuple[tuple[Size, Size], ...] = ()

    def __str__(self) -> str:
        return "a pickled object"


Layout: TypeAlias = ArrayLayout | TreeLayout | BundleLayout

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Layout] = msgspec.msgpack.Decoder(Layout)


# The last for who turns warnings into errors: numpy warns of names that it will not know any more.
_UNREADABLE = (
    msgspec.DecodeError,
    ValueError,
    TypeError,
    LookupError,
    SyntaxError,
    RecursionError,
    OverflowError,
    DeprecationWarning,
)


def encode_layout(layout: Layout) -> bytes:
    return _encoder.encode(layout)


@lru_cache(256)
def array_layout(dtype: np.dtype[Any], shape: tuple[int, ...], fortran: bool) -> tuple[Leaf, bytes]:
    """The layout of an object that is one array: programs put arrays of the same few forms again and again."""
    leaf = Leaf(describe_dtype(dtype), shape, fortran)
    return leaf, encode_layout(ArrayLayout(leaf))


def decode_layout(data: bytes, size: int) -> Layout:
    """The layout of an object of `size` bytes; refused if any part of it would lie outside."""
    return _decode_again(data, size) if len(data) <= _SHORT else _decode_layout(data, size)


def _decode_layout(data: bytes, size: int) -> Layout:
    try:
        layout = _decoder.decode(data)
        for start, length in _extents(layout):
            if start + length > size:
                raise ValueError(f"it speaks of bytes up to {start + length} of {size}")
    except _UNREADABLE as error:
        failure = Failure(
            FailureKind.INVALID, f"the layout cannot be read: {error}", "run the same hoplite-ucx everywhere"
        )
        raise failure.exception() from error
    return layout


_decode_again = lru_cache(256)(_decode_layout)


@lru_cache(256)
def array_form(data: bytes, size: int) -> tuple[tuple[int, ...], np.dtype[Any], int, Literal["C", "F"]] | None:
    """Shape, dtype, offset and order of an object that is one array, which is what most are; None if it is another
    thing, or empty, or its layout not short."""
    if len(data) > _SHORT or not isinstance(layout := _decode_layout(data, size), ArrayLayout):
        return None
    leaf = layout.leaf
    if 0 in leaf.shape or len(leaf.shape) > SAFE_DIMENSIONS:
        return None
    return leaf.shape, leaf.numpy_dtype(), leaf.offset, "F" if leaf.fortran else "C"


def _extents(layout: Layout) -> Iterator[tuple[int, int]]:
    match layout:
        case ArrayLayout(leaf):
            yield leaf.offset, leaf.nbytes()
        case TreeLayout(_, leaves):
            for leaf in leaves:
                yield leaf.offset, leaf.nbytes()
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


def aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


# --- dtypes -----------------------------------------------------------------------------------------------------

_EXTENSIONS = ("bfloat16",)
"""Types that numpy knows only when ml_dtypes is there, by name: their `str` says nothing but a width."""


@lru_cache(1024)
def describe_dtype(dtype: np.dtype[Any]) -> Any:
    """A dtype as plain data, or a ValueError that says why it cannot travel."""
    if dtype.hasobject:
        raise ValueError(f"dtype {dtype} holds Python objects")
    if dtype.itemsize == 0:
        raise ValueError(f"dtype {dtype} has no size")
    if dtype.name in _EXTENSIONS:
        return dtype.name
    if dtype.fields is not None or dtype.subdtype is not None:
        description = np.lib.format.dtype_to_descr(dtype)
        if len(_encoder.encode(description)) > _MAX_DTYPE:
            raise ValueError("the dtype has too many fields")
        return description
    if dtype.kind == "V" and dtype.type is not np.void:
        raise ValueError(f"dtype {dtype.name} is not known to numpy itself")
    return dtype.str


def dtype_of(description: Any) -> np.dtype[Any]:
    if isinstance(description, str):
        return _named_dtype(description)
    return _without_objects(np.lib.format.descr_to_dtype(_as_descr(description)))


@lru_cache(1024)
def _named_dtype(name: str) -> np.dtype[Any]:
    return _extension(name) if name in _EXTENSIONS else _without_objects(np.dtype(name))


def _without_objects(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.hasobject:
        raise ValueError(f"dtype {dtype} holds Python objects")
    if dtype.itemsize == 0:  # numpy gives arrays of them memory all the same, however many elements there are
        raise ValueError(f"dtype {dtype} has no size")
    return dtype


def _extension(name: str) -> np.dtype[Any]:
    try:
        import ml_dtypes  # only who uses such arrays needs it
    except ImportError:
        raise ValueError(f"dtype {name} needs the package ml_dtypes") from None
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype


def _as_descr(description: Any, depth: int = 0) -> Any:
    """Lists back into the lists of tuples that numpy wants, after a journey through MessagePack."""
    if depth > _MAX_DEPTH:
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
