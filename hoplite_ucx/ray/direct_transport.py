"""Ray Direct Transport "HOPLITE": tensors that actors return or put travel through hoplite's trees.

    @ray.method(tensor_transport="hoplite")
    def weights(self): return self.model.state_dict()

It is registered in every process of a job with hoplite, when that process loads torch. CPU tensors are stored as they
are. CUDA tensors are stored on their device where the host's agent can do that; no test has run them.

The source stores its tensors once, whoever receives them. Ray counts the object's references at its owner: for what a
method returns, the owner is the caller, which may outlive the source. So it is the owner that deletes the object, when
it drops what Ray calls the metadata. What an actor put itself is deleted when its process ends, however it ends.
"""

# ruff: noqa: ARG002 - Ray gives these arguments
from __future__ import annotations

import logging
import queue
import threading
import weakref
from dataclasses import dataclass
from typing import Any

import ray
import torch
from ray.experimental import CommunicatorMetadata, TensorTransportManager, TensorTransportMetadata

import hoplite_ucx as hoplite
from hoplite_ucx.ray import session
from hoplite_ucx.ray.values import fetch

__all__ = ["NAME", "HopliteTransport", "Stored", "register"]

NAME = "HOPLITE"
_MOST_RETURNS = 100_000_000
_log = logging.getLogger("hoplite.ray")


@dataclass
class Stored(TensorTransportMetadata):
    """What Ray calls the metadata of an object: here, the name of a list of tensors in hoplite's stores."""

    name: bytes = b""

    def __reduce__(self) -> tuple[Any, ...]:
        """A source that replies to the owner pickles it by itself; to everybody else it goes as part of Ray's own
        values."""
        context = ray._private.worker.global_worker.get_serialization_context()
        receive = Stored if context.is_in_band_serialization() else _at_owner
        return receive, (self.tensor_meta, self.tensor_device, self.name)


def _at_owner(tensor_meta: Any, tensor_device: str | None, name: bytes) -> Stored:
    """On a thread of Ray's that must not wait."""
    return _owned(Stored(tensor_meta, tensor_device, name))


def _owned(stored: Stored) -> Stored:
    """Its object goes with it, or with this process."""
    if stored.name:
        _releases.put((stored.name, True))
        weakref.finalize(stored, _releases.put, (stored.name, False)).atexit = False
    return stored


class _Releases:
    """Owns and deletes objects on a thread of its own, which is started with the first."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[bytes, bool]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, task: tuple[bytes, bool]) -> None:
        """Also from a finalizer, in the middle of anything: the queue is made for that."""
        self._queue.put(task)
        if self._thread is None and self._lock.acquire(blocking=False):
            try:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="hoplite-direct-transport", daemon=True)
                    self._thread.start()
            finally:
                self._lock.release()

    def _run(self) -> None:
        while True:
            name, owned = self._queue.get()
            try:
                ref = hoplite.ObjectRef(name)
                cluster = session.cluster()
                if owned:
                    cluster.own(ref)
                else:
                    cluster.delete(ref)
            except (Exception, SystemExit) as error:  # Ray raises the latter when it is shut down
                _log.warning("tensors of Ray Direct Transport stay until the job ends: %s", error)


_releases = _Releases()


class HopliteTransport(TensorTransportManager):
    def tensor_transport_backend(self) -> str:
        return NAME

    @staticmethod
    def is_one_sided() -> bool:
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        return True

    def get_communicator_metadata(self, src_actor: Any, dst_actor: Any, backend: str | None = None) -> Any:
        return CommunicatorMetadata()

    # --- at the source ------------------------------------------------------------------------------------------

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Any]) -> Stored:
        described = [(tensor.shape, tensor.dtype) for tensor in rdt_object]
        if not rdt_object:
            return Stored(described)
        devices = {tensor.device.type for tensor in rdt_object}
        if len(devices) > 1:
            raise ValueError(f"the tensors of one object must be on one kind of device, not on {' and '.join(devices)}")
        tensors = [_stored(tensor) for tensor in rdt_object]
        ref = session.session().call(lambda cluster: cluster.put(tensors))
        stored = Stored(described, devices.pop(), ref.binary)
        return _owned(stored) if _is_own(obj_id) else stored

    def send_multiple_tensors(self, *_: Any) -> None:
        raise NotImplementedError("receivers fetch tensors themselves")

    def garbage_collect(self, obj_id: str, tensor_transport_meta: Any, tensors: Any = None) -> None:
        """The owner has deleted the object."""

    # --- at a receiver ------------------------------------------------------------------------------------------

    def recv_multiple_tensors(
        self, obj_id: str, tensor_transport_metadata: Stored, communicator_metadata: Any, target_buffers: Any = None
    ) -> list[Any]:
        if not tensor_transport_metadata.name:
            return []
        ref = hoplite.ObjectRef(tensor_transport_metadata.name)
        ours = session.session()
        if target_buffers:
            fetch(ours, ref, out=[_stored(target) for target in target_buffers])
            return list(target_buffers)
        if tensor_transport_metadata.tensor_device == "cuda":
            arrays = fetch(ours, ref, device=torch.cuda.current_device(), copy=True)
            return [torch.as_tensor(array) for array in arrays]
        return list(fetch(ours, ref, like="torch"))

    def abort_transport(self, obj_id: str, communicator_metadata: Any) -> None:
        """A receiver gives up by itself when Ray's time for a transfer is over."""


def _stored(tensor: Any) -> Any:
    """As hoplite takes it."""
    return tensor.detach()


def _is_own(obj_id: str) -> bool:
    """Whether this process owns an object: it was put here, and not returned to a caller. The id tells: Ray counts what
    a task returns from 1, and what it puts from the most that it may return."""
    return int.from_bytes(bytes.fromhex(obj_id)[-4:], "little") > _MOST_RETURNS


def register() -> None:
    """In this process, and in the actors that it creates. Harmless if it was done."""
    from ray.experimental import register_tensor_transport

    try:
        register_tensor_transport(NAME, ["cpu", "cuda"], HopliteTransport, torch.Tensor)
    except ValueError as error:
        if "already registered" not in str(error):
            raise
