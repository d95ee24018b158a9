"""Reductions of what Ray refs stand for: in the agent actor of the node whose process asked.

A source is the value of a task that may still run. When enough sources are there, their handles are known without
moving a byte, and hoplite reduces them. In a tree of arrays, the large ones are objects of ours, and each place of the
tree is reduced on its own; the small ones, which are in the Ray objects themselves, are reduced together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray

import hoplite_ucx as hoplite
from hoplite_ucx.adapters.known_objects import is_known
from hoplite_ucx.errors import HopliteError
from hoplite_ucx.ray import ray_calls
from hoplite_ucx.ray.session import Session
from hoplite_ucx.ray.values import Handle, peeking, store
from hoplite_ucx.runtime.worker.checks import invalid
from hoplite_ucx.runtime.worker.daemon_pool import DaemonPool

_SLICE = 60.0
_keepers = DaemonPool(64, "hoplite-sources")
_beginners = DaemonPool(16, "hoplite-reduce")
"""Every thread that calls hoplite has a connection of its own. Ray's threads take turns, so that in the end all of them
would have one; these are as many as work at the same time."""


def reduce(refs: Sequence[Any], op: str, count: int, everywhere: bool, ours: Session) -> tuple[Any, list[int]]:
    """The result, with handles for what is still being reduced, and the places of the sources that go in."""
    places, values = _first(refs, count)

    def begin() -> Any:
        reduction = _Reduction(op, everywhere, ours)
        result = reduction.of(values)
        reduction.keep(values)
        return result

    return _beginners.submit(begin).result(), places


def _first(refs: Sequence[Any], count: int) -> tuple[list[int], list[Any]]:
    """Of the first so many sources that are ready: their places and values. A source that failed does not count; its
    own error is raised when too few are left."""
    place_of = {ref: place for place, ref in enumerate(refs)}
    found: dict[int, Any] = {}
    spare = len(refs) - count
    rest = list(refs)
    while len(found) < count:
        ready, rest = ray_calls.wait(rest, num_returns=count - len(found), timeout=_SLICE, fetch_local=False)
        for ref in ready:
            try:
                with peeking():
                    found[place_of[ref]] = ray.get(ref)
            except ray.exceptions.RayError:
                spare -= 1
                if spare < 0:
                    raise
    return list(found), list(found.values())


class _Reduction:
    def __init__(self, op: str, everywhere: bool, ours: Session) -> None:
        self._op = op
        self._everywhere = everywhere
        self._ours = ours
        self._targets: list[Handle] = []
        self._small: list[Sequence[Any]] = []
        """Leaves that are in the Ray objects: of each source, by their place in the tree."""
        self._made: list[Handle] = []

    def of(self, values: Sequence[Any]) -> Any:
        shape = self._walk(values, "")
        totals = self._reduce_small() if self._small else []
        return _filled(shape, totals)

    def keep(self, sources: Sequence[Any]) -> None:
        """The sources live until the result is there, or cannot come."""
        if not self._targets:
            return
        held = [sources, self._made]
        refs = [target.ref for target in self._targets]
        ours = self._ours

        def wait() -> None:
            try:
                rest = refs
                while rest:
                    rest = _under_way(rest, ours)
            except HopliteError:
                pass  # whoever gets the result hears of it
            held.clear()

        _keepers.submit(wait)

    def _walk(self, values: Sequence[Any], path: str) -> Any:
        one = values[0]
        if any(isinstance(value, Handle) for value in values):
            if any(isinstance(value, dict | list | tuple) for value in values):
                raise _differ(path, "an array, and a dict or a list")
            return self._begin([self._handle(value) for value in values])
        if any(type(value) is not type(one) for value in values):
            kinds = " and ".join(sorted({type(value).__name__ for value in values}))
            raise _differ(path, kinds)
        if isinstance(one, dict):
            if any(value.keys() != one.keys() for value in values):
                raise _differ(path, "dicts with different keys")
            return {key: self._walk([value[key] for value in values], f"{path}[{key!r}]") for key in one}
        if isinstance(one, list | tuple):
            if any(len(value) != len(one) for value in values):
                raise _differ(path, "lists of different lengths")
            parts = [self._walk(each, f"{path}[{n}]") for n, each in enumerate(zip(*values, strict=True))]
            if isinstance(one, list):
                return parts
            return type(one)(*parts) if hasattr(one, "_fields") else tuple(parts)
        self._small.append(values)
        return _Place(len(self._small) - 1)

    def _handle(self, value: Any) -> Handle:
        if isinstance(value, Handle):
            return value
        handle = store(value, self._ours)  # a small one, among large ones
        self._made.append(handle)
        return handle

    def _begin(self, sources: Sequence[Handle]) -> Handle:
        name, token = self._ours.new_name()
        refs = [source.ref for source in sources]
        target = hoplite.ObjectRef(name)

        def begin(cluster: hoplite.Cluster) -> None:
            (cluster.allreduce if self._everywhere else cluster.reduce)(refs, self._op, ref=target)

        self._ours.call(begin)
        made = Handle(self._ours.job, name, token)
        self._targets.append(made)
        return made

    def _reduce_small(self) -> Any:
        """Together, and at once: they are small."""
        sources = [store(list(leaves), self._ours) for leaves in zip(*self._small, strict=True)]
        target = self._begin(sources)
        self._targets.remove(target)
        return self._ours.call(lambda cluster: cluster.get(target.ref, copy=True))


def _under_way(results: Sequence[hoplite.ObjectRef], ours: Session) -> list[hoplite.ObjectRef]:
    """Those that are still being reduced after a while. What the directory does not know will not come: it crashed
    together with the agents that knew of it."""
    _, rest = ours.call(lambda cluster: cluster.wait(results, len(results), timeout=_SLICE))
    if not rest:
        return []
    found = ours.call(lambda cluster: cluster.info(rest))
    return [ref for ref, info in zip(rest, found, strict=True) if is_known(info)]


class _Place:
    """In a result: where a small leaf goes."""

    def __init__(self, number: int) -> None:
        self.number = number


def _filled(shape: Any, totals: Sequence[Any]) -> Any:
    if isinstance(shape, _Place):
        return totals[shape.number]
    if isinstance(shape, dict):
        return {key: _filled(value, totals) for key, value in shape.items()}
    if isinstance(shape, list):
        return [_filled(value, totals) for value in shape]
    if isinstance(shape, tuple):
        parts = [_filled(value, totals) for value in shape]
        return type(shape)(*parts) if hasattr(shape, "_fields") else tuple(parts)
    return shape


def _differ(path: str, how: str) -> Exception:
    where = f" at {path}" if path else ""
    return invalid(f"the sources of a reduction differ{where}: they are {how}", "reduce values of one form")
