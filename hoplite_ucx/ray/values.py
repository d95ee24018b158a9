"""Values that are in hoplite's stores, as Ray sees them: a `Handle` in a Ray object, and the value for who gets it.

Ray pickles with its own cloudpickle, which looks up how to reduce a value by the value's type. A table in front of
Ray's own has our reducers: they put large arrays and tensors into the store, and a handle takes their place. A value
that hoplite does not take is left to whatever Ray would have used, and that is counted.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import numpy as np
from ray.cloudpickle import CloudPickler

import hoplite_ucx as hoplite
from hoplite_ucx.adapters.known_objects import Lost, get_known
from hoplite_ucx.errors import Failure, FailureKind, HopliteError
from hoplite_ucx.ray import ray_calls
from hoplite_ucx.ray.held_tokens import held_tokens
from hoplite_ucx.ray.session import Session, session, when_joined
from hoplite_ucx.ray.terms import Terms

_PROTOCOL = 5
_local = threading.local()
_PUT_SECONDS = 5.0
_SLOWEST = 100e6
"""Bytes a second that a put copies at least, on a busy machine."""


class Handle:
    """Stands for an object of ours inside a Ray object. Whoever gets the Ray object receives the value."""

    __slots__ = ("job", "name", "token")

    def __init__(self, job: str, name: bytes, token: Any) -> None:
        self.job = job
        self.name = name
        self.token = token
        """The Ray ref whose last reference ends the object's life."""

    @property
    def ref(self) -> hoplite.ObjectRef:
        return hoplite.ObjectRef(self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return open_value, (self.job, self.name, self.token)

    def __repr__(self) -> str:
        return f"<Handle {self.name.hex()[:8]} of the Ray job {self.job}>"


def open_value(job: str, name: bytes, token: Any) -> Any:
    """What Ray calls when it deserialises a handle. The token is held until the value is there."""
    if getattr(_local, "peeking", False):
        return Handle(job, name, token)
    with ray_calls.unlocked():
        return fetch(session(job), hoplite.ObjectRef(name))


def fetch(ours: Session, ref: hoplite.ObjectRef, **options: Any) -> Any:
    try:
        return ours.call(lambda cluster: get_known(cluster, ref, **options))
    except Lost:
        detail = "every copy of this array is lost: the nodes that held it are gone"
        remedy = "make it again; Ray cannot, because it does not know which task made it"
        raise Failure(FailureKind.LOST, detail, remedy, ref.binary).exception() from None


def store(value: object, ours: Session) -> Handle:
    """Put a value, for a handle in the Ray object that is just being made."""
    seconds = _PUT_SECONDS + getattr(value, "nbytes", 0) / _SLOWEST

    def put(cluster: hoplite.Cluster) -> Handle:
        name, token = ours.new_name()
        held_tokens.hold(token)
        cluster.put(value, ref=hoplite.ObjectRef(name), timeout=seconds)
        return Handle(ours.job, name, token)

    return ours.call(put)


@contextlib.contextmanager
def peeking() -> Iterator[None]:
    """On this thread, Ray objects are deserialised to handles, and nothing is fetched."""
    _local.peeking = True
    try:
        yield
    finally:
        _local.peeking = False


# --- what Ray is to serialise -----------------------------------------------------------------------------------


class _Reducers(dict[type, Callable[[Any], Any]]):
    """In front of Ray's own table. What others register goes to the table below, and so does what they remove.

    It finds torch's tensors when they are first seen: whoever has one has loaded torch.
    """

    def __init__(self, below: MutableMapping[type, Callable[[Any], Any]], threshold: int) -> None:
        super().__init__({np.ndarray: self._reduce_array})
        self.below = below
        self.threshold = threshold

    def __missing__(self, kind: type) -> Callable[[Any], Any]:
        if kind.__module__ == "torch" and kind.__name__ == "Tensor":
            super().__setitem__(kind, self._reduce_tensor)
            return self._reduce_tensor
        return self.below[kind]

    def __setitem__(self, kind: type, reducer: Callable[[Any], Any]) -> None:
        self.below[kind] = reducer

    def __delitem__(self, kind: type) -> None:
        del self.below[kind]

    def pop(self, kind: type, *default: Any) -> Any:
        return self.below.pop(kind, *default)

    # --- the reducers ------------------------------------------------------------------------------------------

    def _reduce_array(self, array: Any) -> Any:
        if array.nbytes < self.threshold or array.dtype.hasobject:
            return self._plain(array)
        return self._in_store(array)

    def _reduce_tensor(self, tensor: Any) -> Any:
        plain = tensor.device.type != "cpu" or not str(tensor.layout).endswith("strided") or tensor.is_quantized
        if plain or tensor.nbytes < self.threshold or tensor.__dict__ or tensor._backward_hooks:
            return self._plain(tensor)
        if tensor.requires_grad:
            return with_gradient, (tensor.detach(),)
        return self._in_store(tensor)

    def _in_store(self, value: Any) -> Any:
        if not ray_calls.is_serializing():
            return self._plain(value)  # a program's own use of cloudpickle, or what a remote function closes over
        ours = session()
        try:
            if not ours.is_refused:
                return store(value, ours).__reduce__()
            ours.counts.add("hoplite could not be reached a moment ago in this process")
        except HopliteError as error:
            ours.counts.add(f"{type(error).__name__}: {error.failure.detail}")
        return self._plain(value)

    def _plain(self, value: Any) -> Any:
        """As Ray does without us."""
        for table in (self.below, *CloudPickler.dispatch.maps[1:]):
            if type(value) in table:
                return table[type(value)](value)
        return value.__reduce_ex__(_PROTOCOL)


_tables: list[MutableMapping[type, Callable[[Any], Any]]] = CloudPickler.dispatch.maps
_registering = threading.Lock()


def register(threshold: int) -> None:
    """In this process, arrays and tensors from this many bytes on travel through hoplite. Harmless if repeated."""
    with _registering:
        first = _tables[0]
        if isinstance(first, _Reducers):
            first.threshold = threshold
        else:
            _tables[0] = _Reducers(first, threshold)


def with_gradient(tensor: Any) -> Any:
    """A tensor that requires gradients, as it did before it was sent."""
    return tensor if isinstance(tensor, Handle) else tensor.requires_grad_(True)


def unregister() -> None:
    """From now on this process leaves all values to Ray. Those that it has sent stay as they are."""
    with _registering:
        first = _tables[0]
        if isinstance(first, _Reducers):
            _tables[0] = first.below


@when_joined
def _follow(terms: Terms) -> None:
    """A worker whose job's program called `ray.init` itself hears only when it joins how arrays are to travel."""
    if terms.arrays:
        register(terms.threshold)
