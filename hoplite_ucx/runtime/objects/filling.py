"""Objects copied into a user's own arrays: an array or a tensor, or a tree of them such as a module's state_dict.

What is to be filled is looked at twice: by itself before anything is asked for, and beside the object when that has
come. Only then anything is written, so a get that fails, and a tree that does not fit, leave every array as it was.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from hoplite_ucx.runtime.objects import cupy_arrays, tensors
from hoplite_ucx.runtime.objects.layouts import (
    MAX_DEPTH,
    ArrayLayout,
    BundleLayout,
    DictNode,
    Leaf,
    MissingTypeError,
    NamedTupleNode,
    Node,
    decode_layout,
)
from hoplite_ucx.runtime.objects.trees import some_keys
from hoplite_ucx.runtime.objects.unfit import UnfitError, invalid
from hoplite_ucx.runtime.objects.values import Restoring

Progress: TypeAlias = Callable[[int, int], None]
"""Is told, after each array, how many bytes of how many are filled."""

_MOST_SHOWN = 3
_ARRAYS = "give arrays or tensors that can be written to, or dicts, lists and tuples of them"
_LIKE_THE_OBJECT = "give arrays of the object's dtypes and shapes, or get it without out="


def check(out: object) -> None:
    """Raises if this cannot be filled, whatever the object is."""
    for path, target in targets(out):
        try:
            _check_target(target)
        except UnfitError as error:
            raise invalid(f"{path} is {error}", error.remedy) from error


def targets(out: object) -> Iterator[tuple[str, Any]]:
    """All that is to be filled, and the place of each in the tree."""
    return _targets(out, "out", 0)


def _targets(out: object, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    if depth > MAX_DEPTH:
        raise invalid(f"out is a tree of more than {MAX_DEPTH} levels", _ARRAYS)
    if isinstance(out, Mapping):
        for key, child in out.items():
            yield from _targets(child, f"{path}[{key!r}]", depth + 1)
    elif isinstance(out, list | tuple):
        for index, child in enumerate(out):
            yield from _targets(child, f"{path}[{index}]", depth + 1)
    else:
        yield path, out


def _check_target(target: Any) -> None:
    if isinstance(target, np.ndarray):
        if not target.flags.writeable:
            raise UnfitError("read-only", "give an array that can be written to")
    elif tensors.is_tensor(type(target)):
        tensors.check_fillable(target)
    elif not cupy_arrays.is_cupy(type(target)):
        raise UnfitError(f"a {type(target).__name__}, which cannot be filled", _ARRAYS)


def fill(memory: memoryview, layout: bytes, out: object, progress: Progress | None = None) -> None:
    """Copy an object into what `check` has looked at. If that is not of the object's form, nothing is written."""
    fill_by(partial(_copy, Restoring(memory)), layout, len(memory), out, progress)


def fill_by(
    copy: Callable[[Leaf, Any], None], layout: bytes, size: int, out: object, progress: Progress | None = None
) -> None:
    """The same, with each leaf copied into its place by `copy`, wherever the object's bytes are."""
    found = decode_layout(layout, size)
    if isinstance(found, BundleLayout):
        raise invalid(f"out= is for arrays and trees of them, and the object is {found}", "get it without out=")
    matching = _Matching(found.leaves if not isinstance(found, ArrayLayout) else (found.leaf,))
    matching.match(0 if isinstance(found, ArrayLayout) else found.structure, out, "out")
    matching.raise_problems()
    total = sum(leaf.nbytes() for leaf, _, _ in matching.pairs)
    done = 0
    for leaf, target, path in matching.pairs:
        try:
            copy(leaf, target)
        except (UnfitError, RuntimeError) as error:
            remedy = error.remedy if isinstance(error, UnfitError) else "look at the array; those before it are filled"
            raise invalid(f"{path} cannot be filled: {error}", remedy) from error
        done += leaf.nbytes()
        if progress is not None:
            progress(done, total)


def _copy(restoring: Restoring, leaf: Leaf, target: Any) -> None:
    if isinstance(target, np.ndarray):
        np.copyto(target, restoring.array(leaf))
    elif cupy_arrays.is_cupy(type(target)):
        target.set(restoring.array(leaf))
    else:
        tensors.fill(target, restoring.tensor(leaf))


class _Matching:
    """Goes through an object's tree and a user's at the same time."""

    def __init__(self, leaves: tuple[Leaf, ...]) -> None:
        self._leaves = leaves
        self.pairs: list[tuple[Leaf, Any, str]] = []
        self._problems: list[str] = []

    def match(self, node: Node, out: Any, path: str) -> None:
        if isinstance(node, int):
            self._match_leaf(self._leaves[node], out, path)
        elif isinstance(node, DictNode):
            self._match_dict(node, out, path)
        elif not isinstance(out, list | tuple):
            self._problems.append(f"{path} is {_shown(out)}, the object has {len(node.children)} values there")
        elif len(out) != len(node.children):
            self._problems.append(f"{path} has {len(out)} values, the object {len(node.children)}")
        else:
            names = node.fields if isinstance(node, NamedTupleNode) else None
            for index, child in enumerate(node.children):
                step = f"[{index}]" if names is None else f".{names[index]}"
                self.match(child, out[index], f"{path}{step}")

    def _match_dict(self, node: DictNode, out: Any, path: str) -> None:
        if not isinstance(out, Mapping):
            self._problems.append(f"{path} is {_shown(out)}, the object has a dict there")
            return
        if out.keys() != set(node.keys):
            lacking, unknown = some_keys(node.keys, out), some_keys(list(out), node.keys)
            if lacking:
                self._problems.append(f"{path} lacks {lacking}")
            if unknown:
                self._problems.append(f"the object lacks {unknown}, which {path} has")
            return
        for key, child in zip(node.keys, node.children, strict=True):
            self.match(child, out[key], f"{path}[{key!r}]")

    def _match_leaf(self, leaf: Leaf, out: Any, path: str) -> None:
        if _is_array(out) and _is_of_form(out, leaf):
            self.pairs.append((leaf, out, path))
        else:
            self._problems.append(f"{path} is {_shown(out)}, the object has {leaf}")

    def raise_problems(self) -> None:
        if self._problems:
            shown = "; ".join(self._problems[:_MOST_SHOWN])
            more = len(self._problems) - _MOST_SHOWN
            raise invalid(shown if more <= 0 else f"{shown}; and {more} more", _LIKE_THE_OBJECT)


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray) or tensors.is_tensor(type(value)) or cupy_arrays.is_cupy(type(value))


def _is_of_form(array: Any, leaf: Leaf) -> bool:
    if tuple(array.shape) != leaf.shape:
        return False
    if tensors.is_tensor(type(array)):
        return bool(tensors.description(array.dtype) == leaf.dtype)
    try:
        return bool(array.dtype == leaf.numpy_dtype())
    except MissingTypeError:
        return False


def _shown(value: Any) -> str:
    if not _is_array(value):
        return f"a {type(value).__name__}"
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
