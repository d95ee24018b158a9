"""Python values as objects and back: which layout a value gets, the pieces to copy, and the value on mapped memory.

Arrays and trees of arrays go as they are and can be reduced; everything else becomes a pickle, whose large buffers are
moved beside it and never copied on the way in or out. What comes back is read-only, since it may be the very memory
that others look at.
"""

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeGuard

import numpy as np

from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.protocol.messages import MAX_LAYOUT
from hoplite_ucx.runtime.layout import (
    Array,
    ArrayLayout,
    BundleLayout,
    Layout,
    Leaf,
    TreeLayout,
    aligned,
    array_form,
    array_layout,
    decode_layout,
    describe_dtype,
    encode_layout,
    unwritable,
)

PIECE = 2 << 20
"""A put is copied in pieces of about this size; whoever waits for the object gets them one by one."""

_MAX_DEPTH = 64


@dataclass(slots=True)
class Encoded:
    """A value ready to be put: its size, its layout, and what to copy where."""

    size: int
    layout: bytes
    arrays: list[tuple[Leaf, Array]] = field(default_factory=list)
    buffers: list[tuple[int, memoryview]] = field(default_factory=list)

    def copy_into(self, memory: memoryview) -> Iterator[int]:
        """Copy piece by piece; yields how many leading bytes are final after each."""
        for leaf, array in self.arrays:
            yield from _copy_array(leaf, array, memory)
        for offset, buffer in self.buffers:
            for start in range(0, len(buffer), PIECE):
                piece = buffer[start : start + PIECE]
                memory[offset + start : offset + start + len(piece)] = piece
                yield offset + start + len(piece)
        if self.size:
            yield self.size

    def to_bytes(self) -> bytes:
        if len(self.buffers) == 1 and self.buffers[0][0] == 0 and len(self.buffers[0][1]) == self.size:
            return bytes(self.buffers[0][1])
        if len(self.arrays) == 1:
            leaf, array = self.arrays[0]
            return array.tobytes("F" if leaf.fortran else "C")
        memory = bytearray(self.size)
        for _ in self.copy_into(memoryview(memory)):
            pass
        return bytes(memory)


def encode(value: object) -> Encoded:
    """Look at a value and decide how it travels. Nothing is copied yet, except what pickle keeps to itself."""
    if _is_plain_array(value):
        leaf, layout = array_layout(value.dtype, value.shape, _is_fortran(value))
        return Encoded(value.nbytes, layout, arrays=[(leaf, value)])
    if isinstance(value, dict | list | tuple):
        arrays: list[Array] = []
        structure = _structure(value, arrays, 0)
        if structure is not None and arrays:
            return _encode_tree(structure, arrays)
    return _encode_bundle(value)


def decode(memory: memoryview, layout: bytes) -> Any:
    """The value on read-only memory, which lives as long as any part of the value does."""
    form = array_form(layout, len(memory))
    if form is not None:
        shape, dtype, offset, order = form
        return np.ndarray(shape, dtype, unwritable(memory), offset, None, order)
    return _decode(memory, layout, _read_only)


def decode_copy(memory: memoryview, layout: bytes) -> Any:
    """The value on memory of its own, which may be written to."""
    return _decode(memoryview(bytearray(memory)), layout, Leaf.on)


def _decode(memory: memoryview, layout: bytes, array_on: Callable[[Leaf, memoryview], Array]) -> Any:
    found: Layout = decode_layout(layout, len(memory))
    match found:
        case ArrayLayout() | TreeLayout():
            return _on_memory(found, memory, array_on)
        case BundleLayout(size, buffers):
            views = [memory[start : start + length] for start, length in buffers]
            return pickle.loads(memory[:size], buffers=views)


def _on_memory(
    layout: ArrayLayout | TreeLayout, memory: memoryview, array_on: Callable[[Leaf, memoryview], Array]
) -> Any:
    try:
        if isinstance(layout, ArrayLayout):
            return array_on(layout.leaf, memory)
        return _build(layout.structure, [array_on(leaf, memory) for leaf in layout.leaves], 0)
    except (ValueError, TypeError) as error:  # more dimensions than numpy has, a key that is none
        detail = f"no array can be made of the layout: {error}"
        raise _invalid(detail, "run the same hoplite-ucx everywhere") from error


def copy_out(memory: memoryview, layout: bytes, out: Array) -> None:
    """Fill the user's array; it must be what the object is."""
    found: Layout = decode_layout(layout, len(memory))
    if not isinstance(found, ArrayLayout):
        raise _invalid(f"out= takes one array, and the object is {found}", "get it without out=")
    leaf = found.leaf
    if out.dtype != leaf.numpy_dtype() or out.shape != leaf.shape:
        detail = f"out is {out.dtype.name}{list(out.shape)}, the object is {leaf}"
        raise _invalid(detail, "give an array of the object's dtype and shape")
    np.copyto(out, leaf.on(memory))


# --- arrays -----------------------------------------------------------------------------------------------------


def _is_plain_array(value: object) -> TypeGuard[Array]:
    if not isinstance(value, np.ndarray) or type(value) not in (np.ndarray, np.memmap):
        return False  # subclasses carry more than their bytes
    try:
        describe_dtype(value.dtype)
    except ValueError:
        return False
    return True


def _leaf(array: Any, offset: int) -> Leaf:
    return Leaf(describe_dtype(array.dtype), array.shape, _is_fortran(array), offset)


def _is_fortran(array: Any) -> bool:
    return bool(array.flags.f_contiguous and not array.flags.c_contiguous)


def _read_only(leaf: Leaf, memory: memoryview) -> Array:
    array = leaf.on(memory)
    array.flags.writeable = False
    return array


def _copy_array(leaf: Leaf, array: Array, memory: memoryview) -> Iterator[int]:
    """Contiguous arrays as runs of elements, others block by block along their first axis."""
    target = leaf.on(memory)
    if array.nbytes == 0:
        return
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


def _structure(value: object, arrays: list[Array], depth: int) -> Any:
    """The tree with its leaves numbered, or None if anything in it is no array."""
    if depth > _MAX_DEPTH:
        return None
    if _is_plain_array(value):
        arrays.append(value)
        return len(arrays) - 1
    if type(value) is dict and all(type(key) in (str, int) for key in value):
        # Sorted, so that two dicts that are equal have equal layouts.
        keys = sorted(value, key=lambda key: (isinstance(key, str), key))
        children = [_structure(value[key], arrays, depth + 1) for key in keys]
        return None if None in children else ["dict", keys, children]
    if type(value) in (list, tuple):
        children = [_structure(child, arrays, depth + 1) for child in value]  # type: ignore[attr-defined]
        return None if None in children else [type(value).__name__, children]
    return None


def _build(structure: Any, arrays: list[Array], depth: int) -> Any:
    match structure:
        case int() if 0 <= structure < len(arrays):
            return arrays[structure]
        case ["dict", list(keys), list(children)] if len(keys) == len(children) and depth <= _MAX_DEPTH:
            return {key: _build(child, arrays, depth + 1) for key, child in zip(keys, children, strict=True)}
        case ["list", list(children)] if depth <= _MAX_DEPTH:
            return [_build(child, arrays, depth + 1) for child in children]
        case ["tuple", list(children)] if depth <= _MAX_DEPTH:
            return tuple(_build(child, arrays, depth + 1) for child in children)
    raise _invalid("the layout's tree cannot be read", "run the same hoplite-ucx everywhere")


def _encode_tree(structure: Any, arrays: list[Array]) -> Encoded:
    leaves = []
    end = 0
    for array in arrays:
        leaf = _leaf(array, aligned(end))
        leaves.append(leaf)
        end = leaf.offset + leaf.nbytes()
    layout = encode_layout(TreeLayout(structure, tuple(leaves)))
    if len(layout) > MAX_LAYOUT:
        raise _invalid(f"a tree of {len(leaves)} arrays has a layout over {MAX_LAYOUT} bytes", "put it in parts")
    return Encoded(end, layout, arrays=list(zip(leaves, arrays, strict=True)))


# --- bundles ----------------------------------------------------------------------------------------------------


def _encode_bundle(value: object) -> Encoded:
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
    layout = encode_layout(BundleLayout(len(data), tuple(extents)))
    if len(layout) > MAX_LAYOUT:
        raise _invalid(f"an object with {len(extents)} buffers has a layout over {MAX_LAYOUT} bytes", "put it in parts")
    return Encoded(end, layout, buffers=buffers)


def _invalid(detail: str, remedy: str) -> Exception:
    return Failure(FailureKind.INVALID, detail, remedy).exception()
