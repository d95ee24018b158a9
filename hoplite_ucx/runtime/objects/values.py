"""Python values as objects and back: which layout a value gets, the pieces to copy, and the value on mapped memory.

Arrays, numbers, and trees of them go as they are and can be reduced; so do bytes, which cannot. Everything else becomes
a pickle, whose large buffers are moved beside it and never copied on the way in or out. `get` returns what was put,
except that arrays and memoryviews are read-only, since other processes may share their memory. Tensors, which cannot be
read-only, are on the same memory, mapped so that other processes do not see what is written.
"""

import copyreg
import ctypes
import importlib
import io
import pickle
import struct
import sys
from array import array as python_array
from collections import ChainMap, OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, cast

import numpy as np

from hoplite_ucx.gpu.segments import Window
from hoplite_ucx.protocol.messages import MAX_LAYOUT
from hoplite_ucx.runtime.objects import cupy_arrays, device_values, tensors
from hoplite_ucx.runtime.objects.layouts import (
    ALIGNMENT,
    ARRAYS,
    MAX_BECAUSE,
    MAX_DEPTH,
    Array,
    ArrayLayout,
    BundleLayout,
    DictNode,
    Kind,
    Layout,
    Leaf,
    ListNode,
    MissingTypeError,
    NamedTupleNode,
    Node,
    TreeLayout,
    TupleNode,
    aligned,
    array_form,
    array_layout,
    decode_layout,
    encode_layout,
    unreadable,
    unwritable,
)
from hoplite_ucx.runtime.objects.leaves import as_leaf, on_host
from hoplite_ucx.runtime.objects.trees import Step, at, path_of
from hoplite_ucx.runtime.objects.unfit import UnfitError, invalid
from hoplite_ucx.transports.shm import writable

PIECE = 2 << 20
"""A put is copied in pieces of about this size; receivers of the object get them one by one."""

_TOLD = PIECE * 7 // 8
"""Whoever copies hears of this much at a time, and tells others, which costs more than to copy a small leaf."""
_SMALL = 4096
"""An array up to this size is copied in one go."""
_MAX_SMALL_LEAVES = 256
"""A tree with more numbers and bytes than that is pickled: its layout would outweigh them."""
_MAX_NUMBERS = 16
"""So is one without any array that has more than that: a pickle takes a fraction of the time."""
_MAX_NODES = MAX_LAYOUT // 8
"""No layout has room for more."""

_SIZES_OF_NUMBERS = (1, 2, 4, 8, 16, 32)
"""Their multiples never cross a multiple of `ALIGNMENT`."""


@dataclass(slots=True)
class Encoded:
    """A value ready to be put: its size, its layout, and what to copy where. Arrays may be of other libraries, or still
    be numbers of Python's. (There is no pair for each leaf: Python's collector looks through those again and again.)"""

    size: int
    layout: bytes
    leaves: Sequence[Leaf] = ()
    arrays: Sequence[Any] = ()
    """One for each leaf."""
    buffers: list[tuple[int, memoryview]] = field(default_factory=list)
    stream: int | None = None
    """The CUDA stream on which arrays of devices are computed, if their library does not tell."""

    def placement(self) -> bytes:
        """The UUID of the device on which it is stored best; empty for the host."""
        return device_values.placement_uuid(self.arrays)

    def copy_into(self, memory: memoryview | Window) -> Iterator[int]:
        """Copy piece by piece; yields how many leading bytes are final, now and then and at the end."""
        if isinstance(memory, Window):
            yield from device_values.copy_into(self._on_devices(), memory, self.stream)
            return
        told = 0
        for done in self._copy(memory):
            if done - told >= _TOLD and done < self.size:
                yield done
                told = done
        if self.size:
            yield self.size

    def _copy(self, memory: memoryview) -> Iterator[int]:
        """Nothing is done for each leaf that is not needed: there may be many."""
        whole: Array = np.frombuffer(memory, np.uint8)
        begin = whole.ctypes.data
        told = 0
        for leaf, found in zip(self.leaves, self.arrays, strict=True):
            offset = leaf.offset
            if leaf.kind is _TENSOR and (size := found.nbytes) <= PIECE and (source := tensors.address(found)):
                ctypes.memmove(begin + offset, source, size)
            else:
                array = _on_host(leaf, found, self.stream)
                size = array.nbytes
                if size <= _SMALL:
                    memory[offset : offset + size] = array.tobytes("F" if leaf.fortran else "C")
                elif size <= PIECE and array.flags.c_contiguous:
                    whole[offset : offset + size] = array.reshape(-1).view(np.uint8)
                else:
                    yield from _copy_array(leaf, array, memory)
            if offset + size - told >= _TOLD:
                yield offset + size
                told = offset + size
        for offset, buffer in self.buffers:
            for start in range(0, len(buffer), PIECE):
                piece = buffer[start : start + PIECE]
                memory[offset + start : offset + start + len(piece)] = piece
                yield offset + start + len(piece)

    def _on_devices(self) -> Iterator[tuple[Leaf, Any]]:
        """Arrays where they are, and all others on the host."""
        for leaf, found in zip(self.leaves, self.arrays, strict=True):
            yield leaf, found if device_values.device_of(found) is not None else _on_host(leaf, found, self.stream)

    def to_bytes(self) -> bytes:
        if len(self.buffers) == 1 and self.buffers[0][0] == 0 and len(self.buffers[0][1]) == self.size:
            return bytes(self.buffers[0][1])
        if len(self.arrays) == 1:
            (leaf,), (found,) = self.leaves, self.arrays
            return _on_host(leaf, found, self.stream).tobytes("F" if leaf.fortran else "C")
        memory = bytearray(self.size)
        for _ in self.copy_into(memoryview(memory)):
            pass
        return bytes(memory)


def _on_host(leaf: Leaf, found: Any, stream: int | None) -> Array:
    if leaf.kind in _DTYPES:
        return np.array(found, _DTYPES[leaf.kind])
    try:
        return on_host(found, stream)
    except UnfitError as error:
        raise invalid(f"{error} cannot be put", error.remedy) from error


def encode(value: object) -> Encoded:
    """Examine a value and decide how it travels. Nothing is copied yet, except pickle's own data."""
    try:
        return _encode(value)
    except UnfitError as error:
        raise invalid(f"{error}{at(error.path[::-1])} cannot be put", error.remedy) from error


def _encode(value: object) -> Encoded:
    number = _NUMBERS.get(type(value))
    if number is not None:
        if _fits(value):
            leaf, layout = array_layout(_DTYPES[number].str, (), False, number)
            return Encoded(_DTYPES[number].itemsize, layout, (leaf,), (value,))
    elif (found := as_leaf(value)) is not None:
        array, kind, dtype = found
        leaf, layout = array_layout(dtype, tuple(array.shape), _is_fortran(array), kind)
        return Encoded(array.nbytes, layout, (leaf,), (array,))
    if not isinstance(value, dict | list | tuple):
        return _encode_bundle(value, _a(value))
    try:
        return _encode_flat(value) or _encode_tree(value)
    except _NotATreeError as error:
        reason = str(error)
    return _encode_bundle(value, reason)


def decode(memory: memoryview, layout: bytes, like: Kind | None = None) -> Any:
    """The value on read-only memory, which lives as long as any part of the value does. `like` says what arrays are to
    be, unless they are to be what they were."""
    form = array_form(layout, len(memory)) if like is None else None
    if form is not None:
        shape, dtype, offset, order = form
        return np.ndarray(shape, dtype, unwritable(memory), offset, None, order)
    return _decode(memory, layout, like, copy=False)


def decode_copy(memory: memoryview, layout: bytes, like: Kind | None = None) -> Any:
    """The value on its own memory, which is writable."""
    return _decode(memory, layout, like, copy=True)


def _decode(memory: memoryview, layout: bytes, like: Kind | None, *, copy: bool) -> Any:
    found: Layout = decode_layout(layout, len(memory))
    if isinstance(found, ArrayLayout | TreeLayout):
        return _on_memory(found, memory, like, copy)
    if like is not None:
        raise invalid(f"like= is for arrays, and the object is {found}", "get it without like=")
    own = memoryview(bytearray(memory)) if copy else memory
    buffers = [own[start : start + length] for start, length in found.buffers]
    try:
        return pickle.loads(own[: found.pickle], buffers=buffers)
    except UnfitError as error:
        raise invalid(f"the object has {error}", error.remedy) from error


def _on_memory(layout: ArrayLayout | TreeLayout, memory: memoryview, like: Kind | None, copy: bool) -> Any:
    restoring = Restoring(memory, copy)
    leaves: list[Any] = []
    try:
        if isinstance(layout, ArrayLayout):
            return restoring.leaf(layout.leaf, like)
        for leaf in layout.leaves:
            leaves.append(restoring.leaf(leaf, like))  # noqa: PERF401, for errors say at which leaf
        return build(layout.structure, leaves)
    except UnfitError as error:
        where = at(path_of(layout, len(leaves)))
        raise invalid(f"the object has {error}{where}", error.remedy) from error
    except MissingTypeError as error:
        raise unreadable(error) from error
    except (ValueError, TypeError) as error:  # more dimensions than numpy has, a number that is not one
        detail = f"the layout does not describe a valid array: {error}"
        raise invalid(detail, "run the same release of hoplite-ucx everywhere") from error


# --- leaves -----------------------------------------------------------------------------------------------------

_NUMBERS: dict[type, Kind] = {bool: Kind.BOOL, int: Kind.INT, float: Kind.FLOAT, complex: Kind.COMPLEX}
_DTYPES: dict[Kind, np.dtype[Any]] = {
    Kind.BOOL: np.dtype("?"),
    Kind.INT: np.dtype("<i8"),
    Kind.FLOAT: np.dtype("<f8"),
    Kind.COMPLEX: np.dtype("<c16"),
}
_TENSOR = Kind.TORCH  # which takes a while to look up, as a member of its class
_ON_MEMORY = (_TENSOR, *ARRAYS, Kind.MEMORYVIEW)
"""What is on shared memory when it comes back; everything else is always a copy."""


def _fits(number: object) -> bool:
    return type(number) is not int or -(1 << 63) <= number < 1 << 63


_RESTORE: dict[Kind, Callable[[Array], Any]] = {
    Kind.SCALAR: lambda array: array[()],
    Kind.BOOL: lambda array: _number(array, bool),
    Kind.INT: lambda array: _number(array, int),
    Kind.FLOAT: lambda array: _number(array, float),
    Kind.COMPLEX: lambda array: _number(array, complex),
    Kind.BYTES: lambda array: array.tobytes(),
    Kind.BYTEARRAY: lambda array: bytearray(array.data),
    Kind.MEMORYVIEW: lambda array: array.data,
    Kind.PYTHON_ARRAY: lambda array: python_array(array.data.format, array.tobytes()),
}


_PACKINGS: dict[tuple[Kind, object, tuple[int, ...]], struct.Struct] = {
    (kind, _DTYPES[kind].str, ()): struct.Struct(f"<{form}")
    for kind, form in ((Kind.BOOL, "?"), (Kind.INT, "q"), (Kind.FLOAT, "d"))
}
"""Of numbers as they are nearly always: without an array in between."""


def _number(array: Array, kind: type) -> Any:
    number = array.item()
    if type(number) is not kind:
        raise ValueError(f"{array.dtype.name} is not {kind.__name__}")
    return number


class Restoring:
    """Leaves of one object as they were put, or as whoever gets them wants them."""

    def __init__(self, memory: memoryview, copy: bool = False) -> None:
        """They lie on this memory; if they are copied, on their own."""
        self._memory = memory
        self._copy = copy
        self._writable: memoryview | None = None

    def leaf(self, leaf: Leaf, like: Kind | None = None) -> Any:
        """Raises `UnfitError` for what cannot be had here."""
        kind = leaf.kind
        if kind is not _TENSOR and kind in _DTYPES:
            packing = _PACKINGS.get((kind, leaf.dtype, leaf.shape))
            if packing is not None:
                return packing.unpack_from(self._memory, leaf.offset)[0]
        if like is not None and kind in ARRAYS:
            kind = like
        if kind is _TENSOR:
            return self.tensor(leaf)
        array = self.array(leaf)
        if kind is Kind.CUPY:
            return cupy_arrays.on_device(array)
        if self._copy and kind in _ON_MEMORY:
            array = array.copy("K")
        return array if kind is Kind.ARRAY else _RESTORE[kind](array)

    def array(self, leaf: Leaf) -> Array:
        """Of numpy, and read-only, whatever it was."""
        array = leaf.on(self._memory)
        array.flags.writeable = False
        return array

    def tensor(self, leaf: Leaf) -> Any:
        """Of torch, whatever it was."""
        if self._copy:
            return tensors.on_memory(leaf, self._memory, copy=True)
        if self._writable is None:
            self._writable = writable(self._memory)
        return tensors.on_memory(leaf, self._writable)


def restored(leaf: Leaf, memory: memoryview) -> Any:
    """A leaf as it was put, on its own memory."""
    return Restoring(memory, copy=True).leaf(leaf)


def _is_fortran(array: Any) -> bool:
    """Those of other libraries are stored in C order, so that all of one shape can be reduced."""
    return isinstance(array, np.ndarray) and array.flags.f_contiguous and not array.flags.c_contiguous


def _copy_array(leaf: Leaf, array: Array, memory: memoryview) -> Iterator[int]:
    """Contiguous arrays as runs of elements, others block by block along their first axis."""
    order: Literal["C", "F"] = "F" if leaf.fortran else "C"
    target = np.ndarray(array.shape, array.dtype, memory, leaf.offset, None, order)
    if array.flags.f_contiguous if leaf.fortran else array.flags.c_contiguous:
        source, target = array.reshape(-1, order=order), target.reshape(-1, order=order)
    else:
        source = array
    row = source.nbytes // len(source)
    step = max(1, PIECE // row)
    for start in range(0, len(source), step):
        np.copyto(target[start : start + step], source[start : start + step])
        yield leaf.offset + min(start + step, len(source)) * row


# --- trees ------------------------------------------------------------------------------------------------------


class _NotATreeError(Exception):
    """A value has something in it that is not a leaf, and must be pickled: what, and where unless it is all over."""

    def __init__(self, what: str, *path: Step, somewhere: bool = True) -> None:
        super().__init__(what)
        self._what = what
        self._somewhere = somewhere
        self.path = list(path)
        """Its end first."""

    def __str__(self) -> str:
        return f"{self._what}{at(self.path[::-1]) if self._somewhere else ''}"


class _Walk:
    """Through a value that may be a tree, along sorted keys."""

    def __init__(self) -> None:
        self.leaves: list[Leaf] = []
        self.arrays: list[Any] = []
        """What each leaf is made of."""
        self.small = 0
        """How many of them are numbers and bytes."""
        self.end = 0
        """Of the bytes."""
        self._nodes = 0
        self._tensors: dict[object, int] = {}
        """The numbers of leaves, by where their tensors begin; by their shape too, if several begin there."""

    def node(self, value: object, depth: int) -> Node:
        kind = _NUMBERS.get(type(value))
        if kind is not None:
            if not _fits(value):
                raise _NotATreeError(_a(value))
            dtype = _DTYPES[kind]
            return self._leaf(value, kind, dtype.str, (), dtype.itemsize, dtype.itemsize)
        found = as_leaf(value)
        if found is None:
            return self.inner(value, depth)
        array, kind, description = found
        if kind is _TENSOR and (number := self._tied(array)) is not None:
            return number
        return self._leaf(array, kind, description, tuple(array.shape), array.itemsize, array.nbytes)

    def _leaf(self, array: Any, kind: Kind, dtype: Any, shape: tuple[int, ...], itemsize: int, nbytes: int) -> Node:
        if kind not in _ON_MEMORY:
            self.small += 1
            if self.small > _MAX_SMALL_LEAVES:
                raise _NotATreeError(
                    f"a tree with more than {_MAX_SMALL_LEAVES} numbers, which are not in arrays,", somewhere=False
                )
        offset = aligned(self.end, itemsize if not shape and itemsize in _SIZES_OF_NUMBERS else ALIGNMENT)
        self.leaves.append(Leaf(dtype, shape, _is_fortran(array), offset, kind))
        self.arrays.append(array)
        self.end = offset + nbytes
        return len(self.leaves) - 1

    def _tied(self, tensor: Any) -> int | None:
        """The number of a leaf that is the same tensor, under whatever name; else this one is known from now on."""
        begin, new = tensor.data_ptr(), len(self.leaves)
        if not begin:
            return None
        number = self._tensors.setdefault(begin, new)
        if number != new and not tensors.are_tied(self.arrays[number], tensor):
            number = self._tensors.setdefault((begin, tensor.shape), new)
        return number if number != new and tensors.are_tied(self.arrays[number], tensor) else None

    def inner(self, value: object, depth: int = 0) -> Node:
        """What holds others; it is not a leaf."""
        if depth > MAX_DEPTH:
            raise _NotATreeError(f"a tree of more than {MAX_DEPTH} levels", somewhere=False)
        kind = type(value)
        if kind is dict or kind is OrderedDict:
            return self._dict(value, depth)  # type: ignore[arg-type]
        if kind is list:
            return ListNode(self._children(value, depth))  # type: ignore[arg-type]
        if kind is tuple:
            return TupleNode(self._children(value, depth))  # type: ignore[arg-type]
        fields = _fields_of(value) if isinstance(value, tuple) else None
        if fields is None:
            raise _NotATreeError(_a(value))
        parts: list[object] = list(tuple.__iter__(value))  # type: ignore[arg-type]
        children = self._children(parts, depth, lambda index: f".{fields[index]}")
        return NamedTupleNode(fields, children, kind.__module__, kind.__qualname__)

    def _dict(self, value: dict[Any, object], depth: int) -> Node:
        given = list(value)
        only_text = set(map(type, given)) == {str}
        if not (only_text and all(map(str.isascii, given))):  # which nearly all are
            for key in given:
                if not _is_plain_key(key):
                    raise _NotATreeError(f"a dict with {_a(key)} as a key")
        keys = sorted(given) if only_text else sorted(given, key=_rank)
        order = None
        if keys != given:
            places = {key: place for place, key in enumerate(keys)}
            order = tuple(places[key] for key in given)
        children = self._children([value[key] for key in keys], depth, lambda index: f"[{keys[index]!r}]")
        attributes = vars(value) if type(value) is OrderedDict else None
        if attributes and not _is_plain_data(attributes):
            raise _NotATreeError("an OrderedDict with attributes")
        return DictNode(tuple(keys), children, order, type(value) is OrderedDict, attributes or None)

    def _children(
        self, values: Sequence[object], depth: int, step: Callable[[int], Step] = "[{}]".format
    ) -> tuple[Node, ...]:
        self._nodes += len(values)
        if self._nodes > _MAX_NODES:
            raise _NotATreeError(f"a tree of more than {_MAX_NODES} parts", somewhere=False)
        children: list[Node] = []
        try:
            for value in values:
                children.append(self.node(value, depth + 1))  # noqa: PERF401 - so many were right, if one is not
        except (_NotATreeError, UnfitError) as error:
            error.path.append(step(len(children)))
            raise
        return tuple(children)


def _rank(key: str | int) -> tuple[bool, str | int]:
    """Where a key stands among the keys of a dict."""
    return isinstance(key, str), key


def _is_plain_key(key: object) -> bool:
    """Keys that a layout can carry."""
    if type(key) is int:
        return -(1 << 63) <= key < 1 << 63
    return type(key) is str and (key.isascii() or not any("\ud800" <= character <= "\udfff" for character in key))


def _is_plain_data(value: object, depth: int = 0) -> bool:
    """Whether a layout can carry it as it is: nested dicts with texts as keys, of texts and numbers."""
    kind = type(value)
    if kind is dict or kind is OrderedDict:
        parts: dict[object, object] = value  # type: ignore[assignment]
        return depth < _MAX_PLAIN_DEPTH and all(
            type(key) is str and _is_plain_key(key) and _is_plain_data(part, depth + 1) for key, part in parts.items()
        )
    return _is_plain_key(value) or kind is bool or kind is float or value is None


_MAX_PLAIN_DEPTH = 8


def _fields_of(value: tuple[object, ...]) -> tuple[str, ...] | None:
    """The fields of a named tuple, if it is a plain one whose class the receiver can find."""
    kind = type(value)
    fields = getattr(kind, "_fields", None)
    if not isinstance(fields, tuple) or len(fields) != tuple.__len__(value) or getattr(value, "__dict__", None):
        return None
    if kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not object.__reduce__:
        return None
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return fields if found is kind else None


def _a(value: object) -> str:
    """What a value is, for an error text."""
    if type(value) is np.ndarray:
        return f"an array of dtype {value.dtype.name}"
    if type(value) is int:
        return "an int of more than 64 bits"
    if value is None:
        return "None"
    if isinstance(value, dict | list | tuple) and not value:
        return f"an empty {type(value).__name__}"
    name = type(value).__name__
    return f"{'an' if name[:1] in 'aeiouAEIOU' else 'a'} {name}"


def _too_many_numbers() -> _NotATreeError:
    what = f"a tree with more than {_MAX_NUMBERS} numbers, none of which is in an array,"
    return _NotATreeError(what, somewhere=False)


def _encode_flat(value: Collection[Any]) -> Encoded | None:
    """A dict, list or tuple that has only numbers in it, or something that no tree has. Programs put these often and
    count microseconds, so nothing is done for each part. None if it must be examined closely."""
    kind = type(value)
    if kind is dict:
        names = tuple(value)
        parts: Sequence[Any] = tuple(value.values())  # type: ignore[attr-defined]
    elif kind is list or kind is tuple:
        names, parts = (), value  # type: ignore[assignment]
    else:
        return None
    kinds = tuple(map(type, parts))
    for hopeless in _HOPELESS:
        if hopeless in kinds:
            place = kinds.index(hopeless)
            raise _NotATreeError(_a(parts[place]), f"[{names[place]!r}]" if names else f"[{place}]")
    if not kinds or not _PACKED.keys() >= set(kinds):
        return None
    if len(kinds) > _MAX_NUMBERS:
        raise _too_many_numbers()
    layout, packing, order = _flat_form(kind, names, tuple(map(type, names)), kinds)
    try:
        data = packing.pack(*parts) if order is None else packing.pack(*[parts[place] for place in order])
    except struct.error:  # a number that is too large
        return None
    return Encoded(len(data), layout, buffers=[(0, memoryview(data))])


_HOPELESS = (str, type(None))
_PACKED = {bool: "?", int: "q", float: "d"}


@lru_cache(256)
def _flat_form(
    kind: type, names: tuple[Any, ...], _: tuple[type, ...], kinds: tuple[type, ...]
) -> tuple[bytes, struct.Struct, list[int] | None]:
    """The layout of such a tree, how its numbers become bytes, and their order if it differs. The types of the names
    are given because `1` and `True` are equal names with different layouts."""
    numbers = [number() for number in kinds]
    found = _encode_tree(dict(zip(names, numbers, strict=True)) if kind is dict else kind(numbers))
    order = sorted(range(len(names)), key=lambda place: _rank(names[place])) if names else list(range(len(kinds)))
    form, end = "<", 0
    for place, leaf in zip(order, found.leaves, strict=True):
        form += f"{leaf.offset - end}x{_PACKED[kinds[place]]}"
        end = leaf.offset + leaf.nbytes()
    return found.layout, struct.Struct(form), order if order != sorted(order) else None


def _encode_tree(value: Collection[object]) -> Encoded:
    walk = _Walk()
    structure = walk.inner(value)
    if not walk.leaves:
        raise _NotATreeError(_a(value) if not value else f"{_a(value)} without an array or a number")
    if len(walk.leaves) == walk.small > _MAX_NUMBERS:
        raise _too_many_numbers()
    layout = encode_layout(TreeLayout(structure, tuple(walk.leaves)))
    if len(layout) > MAX_LAYOUT:
        raise _NotATreeError(f"a tree of {len(walk.leaves)} leaves, whose layout is over {MAX_LAYOUT} bytes")
    return Encoded(walk.end, layout, walk.leaves, walk.arrays)


def build(node: Node, leaves: list[Any]) -> Any:
    match node:
        case DictNode(keys, children, order, ordered, attributes):
            built = [build(child, leaves) for child in children]
            pairs = ((keys[place], built[place]) for place in (range(len(keys)) if order is None else order))
            if not ordered:
                return dict(pairs)
            value: OrderedDict[Any, Any] = OrderedDict(pairs)
            for name, attribute in (attributes or {}).items():
                setattr(value, name, OrderedDict(attribute) if isinstance(attribute, dict) else attribute)
            return value
        case ListNode(children):
            return [build(child, leaves) for child in children]
        case TupleNode(children):
            return tuple([build(child, leaves) for child in children])
        case NamedTupleNode(fields, children, module, name):
            return tuple.__new__(_find_class(module, name, fields), [build(child, leaves) for child in children])
        case _:
            return leaves[node]


def _find_class(module: str, name: str, fields: tuple[str, ...]) -> type[tuple[Any, ...]]:
    """The class of a named tuple. Like a pickle's, it is looked up and imported where the value is got."""
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # a module of the user's may raise anything
        detail = f"the value is a named tuple {module}.{name}, which cannot be imported here: {error}"
        raise invalid(detail, "define its class in a module that every program can import") from error
    if not isinstance(found, type) or not issubclass(found, tuple) or getattr(found, "_fields", None) != fields:
        names = ", ".join(fields)
        detail = f"the value is a named tuple {module}.{name} with the fields {names}, but this program defines others"
        raise invalid(detail, "run the same version of your program everywhere")
    return found


# --- bundles ----------------------------------------------------------------------------------------------------


def _encode_bundle(value: object, because: str) -> Encoded:
    kept: list[pickle.PickleBuffer] = []
    try:
        data = _pickled(value, kept.append)
        views = [buffer.raw() for buffer in kept]
    except UnfitError:
        raise
    except Exception as error:
        detail = f"a {type(value).__name__} cannot be pickled: {error}"
        raise invalid(detail, "put arrays, trees of arrays, or objects that pickle") from error
    end = len(data)
    buffers = [(0, memoryview(data))]
    extents = []
    for view in views:
        start = aligned(end)
        buffers.append((start, view))
        extents.append((start, len(view)))
        end = start + len(view)
    layout = encode_layout(BundleLayout(len(data), tuple(extents), because[:MAX_BECAUSE]))
    if len(layout) > MAX_LAYOUT:
        raise invalid(f"an object with {len(extents)} buffers has a layout over {MAX_LAYOUT} bytes", "put it in parts")
    return Encoded(end, layout, buffers=buffers)


def _pickled(value: object, keep: Callable[[pickle.PickleBuffer], None]) -> bytes:
    of_tensors = tensors.pickled_by()
    if not of_tensors:
        return pickle.dumps(value, protocol=5, buffer_callback=keep)
    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol=5, buffer_callback=keep)
    pickler.dispatch_table = ChainMap(of_tensors, cast(Any, copyreg.dispatch_table))
    pickler.dump(value)
    return file.getvalue()
