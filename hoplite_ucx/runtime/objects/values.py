"""Python values as objects and back: which layout a value gets, the pieces to copy, and the value on mapped memory.

Arrays, numbers, and trees of them go as they are and can be reduced; so do bytes, which cannot. Everything else becomes
a pickle, whose large buffers are moved beside it and never copied on the way in or out. `get` returns what was put,
except that arrays and memoryviews are read-only, since other processes may share their memory.
"""

import importlib
import pickle
import struct
import sys
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, TypeAlias, TypeGuard

import numpy as np

from hoplite_ucx.gpu.segments import Window
from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.protocol.messages import MAX_LAYOUT
from hoplite_ucx.runtime.objects import device_values
from hoplite_ucx.runtime.objects.layouts import (
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
    NamedTupleNode,
    Node,
    TreeLayout,
    TupleNode,
    aligned,
    array_form,
    array_layout,
    decode_layout,
    describe_dtype,
    dtype_of,
    encode_layout,
    kind_of,
    unwritable,
)
from hoplite_ucx.runtime.objects.trees import Step, at

PIECE = 2 << 20
"""A put is copied in pieces of about this size; receivers of the object get them one by one."""

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

_Found: TypeAlias = tuple[Array, Kind]
"""A leaf of a value."""


@dataclass(slots=True)
class Encoded:
    """A value ready to be put: its size, its layout, and what to copy where."""

    size: int
    layout: bytes
    arrays: list[tuple[Leaf, Array]] = field(default_factory=list)
    buffers: list[tuple[int, memoryview]] = field(default_factory=list)
    stream: int | None = None
    """The CUDA stream on which arrays of devices are computed, if their library does not tell."""

    def placement(self) -> bytes:
        """The UUID of the device on which it is stored best; empty for the host."""
        return device_values.placement_uuid(array for _, array in self.arrays)

    def copy_into(self, memory: memoryview | Window) -> Iterator[int]:
        """Copy piece by piece; yields how many leading bytes are final, now and then and at the end."""
        if isinstance(memory, Window):
            yield from device_values.copy_into(self.arrays, memory, self.stream)
            return
        told = 0
        for done in self._copy(memory):
            if done - told >= PIECE // 2 and done < self.size:
                yield done
                told = done
        if self.size:
            yield self.size

    def _copy(self, memory: memoryview) -> Iterator[int]:
        for leaf, found in self.arrays:
            array = device_values.on_host(found, self.stream)
            if array.nbytes <= _SMALL:
                memory[leaf.offset : leaf.offset + array.nbytes] = array.tobytes("F" if leaf.fortran else "C")
                yield leaf.offset + array.nbytes
            else:
                yield from _copy_array(leaf, array, memory)
        for offset, buffer in self.buffers:
            for start in range(0, len(buffer), PIECE):
                piece = buffer[start : start + PIECE]
                memory[offset + start : offset + start + len(piece)] = piece
                yield offset + start + len(piece)

    def to_bytes(self) -> bytes:
        if len(self.buffers) == 1 and self.buffers[0][0] == 0 and len(self.buffers[0][1]) == self.size:
            return bytes(self.buffers[0][1])
        if len(self.arrays) == 1:
            leaf, found = self.arrays[0]
            array: Array = device_values.on_host(found, self.stream)
            return array.tobytes("F" if leaf.fortran else "C")
        memory = bytearray(self.size)
        for _ in self.copy_into(memoryview(memory)):
            pass
        return bytes(memory)


def encode(value: object) -> Encoded:
    """Examine a value and decide how it travels. Nothing is copied yet, except pickle's own data."""
    found = _as_leaf(value)
    if found is not None:
        array, kind = found
        leaf, layout = array_layout(array.dtype, array.shape, _is_fortran(array), kind)
        return Encoded(array.nbytes, layout, arrays=[(leaf, array)])
    if not isinstance(value, dict | list | tuple):
        return _encode_bundle(value, _a(value))
    try:
        return _encode_flat(value) or _encode_tree(value)
    except _NotATreeError as error:
        reason = str(error)
    return _encode_bundle(value, reason)


def decode(memory: memoryview, layout: bytes) -> Any:
    """The value on read-only memory, which lives as long as any part of the value does."""
    form = array_form(layout, len(memory))
    if form is not None:
        shape, dtype, offset, order = form
        return np.ndarray(shape, dtype, unwritable(memory), offset, None, order)
    return _decode(memory, layout, copy=False)


def decode_copy(memory: memoryview, layout: bytes) -> Any:
    """The value on its own memory, which is writable."""
    return _decode(memory, layout, copy=True)


def _decode(memory: memoryview, layout: bytes, *, copy: bool) -> Any:
    found: Layout = decode_layout(layout, len(memory))
    match found:
        case ArrayLayout() | TreeLayout():
            return _on_memory(found, memory, copy)
        case BundleLayout(size, buffers, _):
            own = memoryview(bytearray(memory)) if copy else memory
            return pickle.loads(own[:size], buffers=[own[start : start + length] for start, length in buffers])


def _on_memory(layout: ArrayLayout | TreeLayout, memory: memoryview, copy: bool) -> Any:
    try:
        if isinstance(layout, ArrayLayout):
            return _restored(layout.leaf, memory, copy)
        return build(layout.structure, [_restored(leaf, memory, copy) for leaf in layout.leaves])
    except (ValueError, TypeError) as error:  # more dimensions than numpy has, a number that is not one
        detail = f"the layout does not describe a valid array: {error}"
        raise _invalid(detail, "run the same release of hoplite-ucx everywhere") from error


def copy_out(memory: memoryview, layout: bytes, out: Array) -> None:
    """Fill the user's array; it must match the object."""
    found: Layout = decode_layout(layout, len(memory))
    if not isinstance(found, ArrayLayout):
        raise _invalid(f"out= takes one array, and the object is {found}", "get it without out=")
    leaf = found.leaf
    if out.dtype != leaf.numpy_dtype() or out.shape != leaf.shape:
        detail = f"out is {out.dtype.name}{list(out.shape)}, the object is {leaf}"
        raise _invalid(detail, "give an array of the object's dtype and shape")
    np.copyto(out, leaf.on(memory))


# --- leaves -----------------------------------------------------------------------------------------------------

_NUMBERS: dict[type, Kind] = {bool: Kind.BOOL, int: Kind.INT, float: Kind.FLOAT, complex: Kind.COMPLEX}
_DTYPES: dict[Kind, np.dtype[Any]] = {
    Kind.BOOL: np.dtype("?"),
    Kind.INT: np.dtype("<i8"),
    Kind.FLOAT: np.dtype("<f8"),
    Kind.COMPLEX: np.dtype("<c16"),
}
_SCALAR_KINDS = "biufcmM"
_ON_MEMORY = (Kind.ARRAY, Kind.MEMORYVIEW)
"""What is on shared memory when it comes back; everything else is always a copy."""


def _as_leaf(value: object) -> _Found | None:
    """A value as an array, without a copy, and what it was; None if it is something else."""
    if isinstance(value, np.ndarray):
        return (value, Kind.ARRAY) if _is_plain_array(value) else None
    kind = _NUMBERS.get(type(value))
    if kind is not None:
        return (_array_of(value, kind), kind) if _fits(value) else None
    if isinstance(value, np.generic):
        plain = kind_of(value.dtype) in _SCALAR_KINDS and type(value) is value.dtype.type
        return (np.asarray(value), Kind.SCALAR) if plain else None
    if type(value) is bytes:
        return np.frombuffer(value, np.uint8), Kind.BYTES
    if type(value) is bytearray:
        return np.frombuffer(value, np.uint8), Kind.BYTEARRAY
    if device_values.is_array(value):
        return _on_device(value)
    return _as_view(value) if isinstance(value, memoryview) else None


def _on_device(value: Any) -> _Found | None:
    """An array of CuPy: it stays where it is until it is copied into the store."""
    try:
        describe_dtype(value.dtype)
    except ValueError:
        return None
    return value, Kind.ARRAY


def _fits(number: object) -> bool:
    return type(number) is not int or -(1 << 63) <= number < 1 << 63


def _array_of(number: object, kind: Kind) -> Array:
    return np.array(number, _DTYPES[kind])


def _as_view(value: memoryview) -> _Found | None:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, NotImplementedError):
        return None
    same = (array.shape, array.itemsize) == (value.shape, value.itemsize)  # else numpy knows no such format
    if not same or not _is_plain_array(array) or _native(array.data.format) != _native(value.format):
        return None
    return array, Kind.MEMORYVIEW


_LONGER = str.maketrans("lL", "qQ") if np.dtype("l").itemsize == np.dtype("q").itemsize else {}


def _native(form: str) -> str:
    """The format of a memoryview, without what makes no difference."""
    return form.removeprefix("@").translate(_LONGER)


def _is_plain_array(value: Array) -> TypeGuard[Array]:
    if type(value) not in (np.ndarray, np.memmap):
        return False  # subclasses carry more than their bytes
    dtype = value.dtype
    try:
        description = describe_dtype(dtype)
    except ValueError:
        return False
    # Dtypes that are equal for numpy can still differ in this:
    return dtype.metadata is None and (dtype.fields is None or repr(dtype_of(description)) == repr(dtype))


_RESTORE: dict[Kind, Callable[[Array], Any]] = {
    Kind.SCALAR: lambda array: array[()],
    Kind.BOOL: lambda array: _number(array, bool),
    Kind.INT: lambda array: _number(array, int),
    Kind.FLOAT: lambda array: _number(array, float),
    Kind.COMPLEX: lambda array: _number(array, complex),
    Kind.BYTES: lambda array: array.tobytes(),
    Kind.BYTEARRAY: lambda array: bytearray(array.data),
    Kind.MEMORYVIEW: lambda array: array.data,
}


_PACKINGS: dict[tuple[Kind, object, tuple[int, ...]], struct.Struct] = {
    (kind, _DTYPES[kind].str, ()): struct.Struct(f"<{form}")
    for kind, form in ((Kind.BOOL, "?"), (Kind.INT, "q"), (Kind.FLOAT, "d"))
}
"""Of numbers as they are nearly always: without an array in between."""


def restored(leaf: Leaf, memory: memoryview) -> Any:
    """A leaf as it was put, on its own memory."""
    return _restored(leaf, memory, copy=True)


def _number(array: Array, kind: type) -> Any:
    number = array.item()
    if type(number) is not kind:
        raise ValueError(f"{array.dtype.name} is not {kind.__name__}")
    return number


def _restored(leaf: Leaf, memory: memoryview, copy: bool) -> Any:
    """A leaf as it was put: on this memory, or if it is copied, on its own."""
    packing = _PACKINGS.get((leaf.kind, leaf.dtype, leaf.shape)) if leaf.kind in _DTYPES else None
    if packing is not None:
        return packing.unpack_from(memory, leaf.offset)[0]
    array = leaf.on(memory)
    array.flags.writeable = False
    if copy and leaf.kind in _ON_MEMORY:
        array = array.copy("K")
    return array if leaf.kind is Kind.ARRAY else _RESTORE[leaf.kind](array)


def _is_fortran(array: Array) -> bool:
    return bool(array.flags.f_contiguous and not array.flags.c_contiguous)


def _copy_array(leaf: Leaf, array: Array, memory: memoryview) -> Iterator[int]:
    """Contiguous arrays as runs of elements, others block by block along their first axis."""
    target = leaf.on(memory)
    if array.flags.c_contiguous or array.flags.f_contiguous:
        order: Literal["C", "F"] = "F" if leaf.fortran else "C"
        source, target = array.reshape(-1, order=order), target.reshape(-1, order=order)
    elif array.ndim and not leaf.fortran:
        source = array
    else:
        source, target = array[np.newaxis], target[np.newaxis]
    row = source.nbytes // len(source)
    step = max(1, PIECE // row)
    for start in range(0, len(source), step):
        np.copyto(target[start : start + step], source[start : start + step])
        yield leaf.offset + min(start + step, len(source)) * row


# --- trees ------------------------------------------------------------------------------------------------------


class _NotATreeError(Exception):
    """A value has something in it that is not a leaf, and must be pickled: what, and where unless it is all over."""

    def __init__(self, what: str, *, somewhere: bool = True) -> None:
        super().__init__(what)
        self._what = what
        self._somewhere = somewhere
        self.path: list[Step] = []
        """Its end first."""

    def __str__(self) -> str:
        return f"{self._what}{at(self.path[::-1]) if self._somewhere else ''}"


class _Walk:
    """Through a value that may be a tree, along sorted keys."""

    def __init__(self) -> None:
        self.leaves: list[tuple[Any, Kind]] = []
        """Arrays and what they were; and numbers of Python's, of which arrays are made when they are needed."""
        self.small = 0
        """How many of them are numbers and bytes."""
        self._nodes = 0

    def node(self, value: object, depth: int) -> Node:
        kind = _NUMBERS.get(type(value))
        found = _as_leaf(value) if kind is None else (value, kind) if _fits(value) else None
        if found is None:
            return self.inner(value, depth)
        if found[1] not in _ON_MEMORY:
            self.small += 1
            if self.small > _MAX_SMALL_LEAVES:
                raise _NotATreeError(
                    f"a tree with more than {_MAX_SMALL_LEAVES} numbers, which are not in arrays,", somewhere=False
                )
        self._count()
        self.leaves.append(found)
        return len(self.leaves) - 1

    def inner(self, value: object, depth: int = 0) -> Node:
        """What holds others; it is not a leaf."""
        self._count()
        if depth > MAX_DEPTH:
            raise _NotATreeError(f"a tree of more than {MAX_DEPTH} levels", somewhere=False)
        kind = type(value)
        if kind is dict or (kind is OrderedDict and not vars(value)):
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
        for key in value:
            if not _is_plain_key(key):
                raise _NotATreeError(f"a dict with {_a(key)} as a key")
        given = list(value)
        keys = sorted(given, key=_rank)
        order = None
        if keys != given:
            places = {key: place for place, key in enumerate(keys)}
            order = tuple(places[key] for key in given)
        children = self._children([value[key] for key in keys], depth, lambda index: f"[{keys[index]!r}]")
        return DictNode(tuple(keys), children, order, type(value) is OrderedDict)

    def _children(
        self, values: Sequence[object], depth: int, step: Callable[[int], Step] = "[{}]".format
    ) -> tuple[Node, ...]:
        children = []
        for index, value in enumerate(values):
            try:
                children.append(self.node(value, depth + 1))
            except _NotATreeError as error:
                error.path.append(step(index))
                raise
        return tuple(children)

    def _count(self) -> None:
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise _NotATreeError(f"a tree of more than {_MAX_NODES} parts", somewhere=False)


def _rank(key: str | int) -> tuple[bool, str | int]:
    """Where a key stands among the keys of a dict."""
    return isinstance(key, str), key


def _is_plain_key(key: object) -> bool:
    """Keys that a layout can carry."""
    if type(key) is int:
        return -(1 << 63) <= key < 1 << 63
    return type(key) is str and (key.isascii() or not any("\ud800" <= character <= "\udfff" for character in key))


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
            error = _NotATreeError(_a(parts[place]))
            error.path.append(f"[{names[place]!r}]" if names else f"[{place}]")
            raise error
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
    for place, (leaf, array) in zip(order, found.arrays, strict=True):
        form += f"{leaf.offset - end}x{_PACKED[kinds[place]]}"
        end = leaf.offset + array.nbytes
    return found.layout, struct.Struct(form), order if order != sorted(order) else None


def _encode_tree(value: Collection[object]) -> Encoded:
    walk = _Walk()
    structure = walk.inner(value)
    if not walk.leaves:
        raise _NotATreeError(_a(value) if not value else f"{_a(value)} without an array or a number")
    arrays: list[tuple[Leaf, Array]] = []
    end = 0
    if len(walk.leaves) == walk.small > _MAX_NUMBERS:
        raise _too_many_numbers()
    for found, kind in walk.leaves:
        array = _array_of(found, kind) if kind in _DTYPES else found
        small = array.ndim == 0 and array.itemsize in _SIZES_OF_NUMBERS
        offset = aligned(end, array.itemsize) if small else aligned(end)
        leaf = Leaf(describe_dtype(array.dtype), array.shape, _is_fortran(array), offset, kind)
        arrays.append((leaf, array))
        end = offset + array.nbytes
    layout = encode_layout(TreeLayout(structure, tuple(leaf for leaf, _ in arrays)))
    if len(layout) > MAX_LAYOUT:
        raise _NotATreeError(f"a tree of {len(arrays)} leaves, whose layout is over {MAX_LAYOUT} bytes")
    return Encoded(end, layout, arrays=arrays)


def build(node: Node, leaves: list[Any]) -> Any:
    match node:
        case DictNode(keys, children, order, ordered):
            built = [build(child, leaves) for child in children]
            kind = OrderedDict if ordered else dict
            return kind((keys[place], built[place]) for place in (range(len(keys)) if order is None else order))
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
        raise _invalid(detail, "define its class in a module that every program can import") from error
    if not isinstance(found, type) or not issubclass(found, tuple) or getattr(found, "_fields", None) != fields:
        names = ", ".join(fields)
        detail = f"the value is a named tuple {module}.{name} with the fields {names}, but this program defines others"
        raise _invalid(detail, "run the same version of your program everywhere")
    return found


# --- bundles ----------------------------------------------------------------------------------------------------


def _encode_bundle(value: object, because: str) -> Encoded:
    kept: list[pickle.PickleBuffer] = []
    try:
        data = pickle.dumps(value, protocol=5, buffer_callback=kept.append)
        views = [buffer.raw() for buffer in kept]
    except Exception as error:
        detail = f"a {type(value).__name__} cannot be pickled: {error}"
        raise _invalid(detail, "put arrays, trees of arrays, or objects that pickle") from error
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
        raise _invalid(f"an object with {len(extents)} buffers has a layout over {MAX_LAYOUT} bytes", "put it in parts")
    return Encoded(end, layout, buffers=buffers)


def _invalid(detail: str, remedy: str) -> Exception:
    return Failure(FailureKind.INVALID, detail, remedy).exception()
