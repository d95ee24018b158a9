"""`ray.util.collective` with the backend "HOPLITE": groups of actors whose collectives run in hoplite's trees.

    ray.util.collective.init_collective_group(world_size, rank, backend="HOPLITE")

The backend is registered in every process of a job with hoplite, when that process first loads `ray.util.collective`.

Members name their objects by the group's nonce, the number of the operation and a rank, so that nobody has to tell
anybody where a tensor is. They agree on the nonce through Ray's key-value store: every other rank asks with a fresh id,
and rank 0 answers under that id until the answer was taken. So what an earlier group of the same name left there, or a
member that was killed while it joined, is taken neither for an answer nor for a member.

Each member deletes what it has made when all are known to be through with it: after an operation that nobody can finish
before all have begun it, and otherwise when all have left a marker, which they do now and then. What is left then is
deleted when all have left the group. Each member also owns what it has made: its host's agent deletes that when the
process ends, however it ends. One of these objects stands for the member's presence, so that others notice its end.
"""

# ruff: noqa: ARG002 - Ray gives these arguments
from __future__ import annotations

import contextlib
import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
from ray.experimental import internal_kv
from ray.util.collective.collective_group.base_collective_group import BaseGroup
from ray.util.collective.types import ReduceOp

import hoplite_ucx as hoplite
from hoplite_ucx.errors import Failure, FailureKind, GetTimeoutError, HopliteError
from hoplite_ucx.ray import session

__all__ = ["BACKEND", "HopliteGroup"]

BACKEND = "HOPLITE"
_OPERATIONS = {ReduceOp.SUM: "sum", ReduceOp.PRODUCT: "prod", ReduceOp.MIN: "min", ReduceOp.MAX: "max"}

_JOIN_SECONDS = 120.0
_POLL = 0.02
_SECONDS = 1800.0
"""An operation whose members are all alive may wait that long for the slowest."""
_SLICE = 2.0
"""Who waits longer than that looks whether the others are alive."""
_MARK_OPERATIONS = 32
_MARK_BYTES = 32 << 20
"""After so many operations, or bytes in them, that do not show who is through, all leave markers."""
_SWEEP_SECONDS = 600.0
"""A member that has left deletes its objects when all others have left too, or keeps them after so long until its
process ends."""
_FIRST_PAUSE = 0.05
_SENT = 64
"""After so many sends, the sender looks which of them were received."""

_log = logging.getLogger("hoplite.ray")


class HopliteGroup(BaseGroup):
    """One member's view of a group. As with other backends, its calls are made by one thread at a time and in the same
    order by all members."""

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        self._nonce = _agree(world_size, rank, group_name)
        self._number = 0
        self._pairs: dict[tuple[int, int], int] = {}
        self._unmarked: list[hoplite.ObjectRef] = []
        """What this member has made, and others may not be through with."""
        self._earlier = 0
        """So many of these are of operations before the one that is under way."""
        self._unmarked_operations = 0
        self._unmarked_bytes = 0
        self._sent: list[hoplite.ObjectRef] = []
        self._look_at_sent = _SENT
        self._formed = False
        self._sweeper = _Sweeper()
        small_limit = session.cluster()._of.client.greeting.small_limit
        try:
            # Large enough to lie with this host's agent alone, so that it goes with the host.
            self._own([self._presence(rank)]).put(np.zeros(small_limit + 1, np.uint8), ref=self._presence(rank))
            self.barrier()
        except BaseException:
            with contextlib.suppress(HopliteError):
                session.cluster().delete([self._presence(rank), *self._unmarked])
            raise
        self._formed = True

    @classmethod
    def backend(cls) -> str:
        return BACKEND

    @classmethod
    def check_backend_availability(cls) -> bool:
        return True

    def destroy_group(self) -> None:
        """What this member has made is deleted when all have left, or with its process."""
        session.cluster().delete(self._presence(self._rank))
        self._sweeper.end([self._presence(rank) for rank in self._ranks], [*self._unmarked, *self._sent])

    # --- operations ---------------------------------------------------------------------------------------------

    def barrier(self, barrier_options: Any = None) -> None:
        refs = self._refs(self._next())
        self._put(b"", refs[self._rank])
        self._await(refs)
        self._all_have_begun()

    def broadcast(self, tensors: list[Any], options: Any) -> None:
        tensor = _only(tensors)
        ref = self._ref(self._next(), "broadcast")
        if self._rank == options.root_rank:
            self._put(_stored(tensor), ref)
        else:
            self._fill(ref, tensor, {options.root_rank: ref})
        self._may_be_in_use(tensor.nbytes)

    def reduce(self, tensors: list[Any], options: Any) -> None:
        tensor = _only(tensors)
        number = self._next()
        refs, total = self._refs(number), self._ref(number, "total")
        self._put(_stored(tensor), refs[self._rank])
        if self._rank == options.root_rank:
            self._begin_reduce(refs, options, total)
            self._fill(total, tensor, dict(enumerate(refs)))
        self._may_be_in_use(tensor.nbytes * self._world_size)

    def allreduce(self, tensors: list[Any], options: Any) -> None:
        tensor = _only(tensors)
        number = self._next()
        refs, total = self._refs(number), self._ref(number, "total")
        self._put(_stored(tensor), refs[self._rank])
        if self._rank == 0:
            self._begin_reduce(refs, options, total, everywhere=True)
        self._fill(total, tensor, {**dict(enumerate(refs)), 0: total})
        self._all_have_begun()
        self._may_be_in_use(tensor.nbytes * self._world_size)

    def allgather(self, outs: list[list[Any]], tensors: list[Any], options: Any) -> None:
        tensor, places = _only(tensors), _only(outs)
        refs = self._refs(self._next())
        self._put(_stored(tensor), refs[self._rank])
        for rank, (ref, place) in enumerate(zip(refs, places, strict=True)):
            self._fill(ref, place, {rank: ref})
        self._all_have_begun()
        self._may_be_in_use(sum(place.nbytes for place in places))

    def reducescatter(self, outs: list[Any], tensors: list[list[Any]], options: Any) -> None:
        out, parts = _only(outs), _only(tensors)
        number = self._next()
        sources = [self._ref(number, source, self._rank) for source in self._ranks]
        mine = [self._ref(number, self._rank, rank) for rank in self._ranks]
        total = self._ref(number, "total", self._rank)
        self._making(mine).put_many([_stored(part) for part in parts], refs=mine)
        self._begin_reduce(sources, options, total)
        self._fill(total, out, dict(enumerate(sources)))
        self._all_have_begun()
        self._may_be_in_use(out.nbytes * self._world_size**2)

    def send(self, tensors: list[Any], options: Any) -> None:
        ref = self._pair(self._rank, options.dst_rank)
        self._sent.append(ref)
        self._own([ref]).put(_stored(_only(tensors)), ref=ref)
        if len(self._sent) >= self._look_at_sent:
            self._forget_received()

    def recv(self, tensors: list[Any], options: Any) -> None:
        ref = self._pair(options.src_rank, self._rank)
        self._fill(ref, _only(tensors), {options.src_rank: ref})
        session.cluster().delete(ref)

    # --- what this member makes ---------------------------------------------------------------------------------

    def _put(self, value: Any, ref: hoplite.ObjectRef) -> None:
        self._making([ref]).put(value, ref=ref)

    def _begin_reduce(
        self, refs: list[hoplite.ObjectRef], options: Any, total: hoplite.ObjectRef, *, everywhere: bool = False
    ) -> None:
        cluster = self._making([total])
        (cluster.allreduce if everywhere else cluster.reduce)(refs, _OPERATIONS[options.reduceOp], ref=total)

    def _making(self, refs: list[hoplite.ObjectRef]) -> hoplite.Cluster:
        """The cluster, in which the operation that is under way makes these objects."""
        self._unmarked += refs
        return self._own(refs)

    def _own(self, refs: list[hoplite.ObjectRef]) -> hoplite.Cluster:
        cluster = session.cluster()
        cluster.own(refs)
        return cluster

    def _forget_received(self) -> None:
        """What was received is deleted: it need not be owned any more, which a second deletion ends."""
        known = session.cluster().info(self._sent)
        session.cluster().delete([ref for ref, each in zip(self._sent, known, strict=True) if not each.exists])
        self._sent = [ref for ref, each in zip(self._sent, known, strict=True) if each.exists]
        self._look_at_sent = _SENT + 2 * len(self._sent)

    # --- names --------------------------------------------------------------------------------------------------

    @property
    def _ranks(self) -> range:
        return range(self._world_size)

    def _ref(self, *what: object) -> hoplite.ObjectRef:
        return hoplite.ref_for("/".join(["ray.util.collective", self._nonce, *map(str, what)]))

    def _refs(self, number: int) -> list[hoplite.ObjectRef]:
        return [self._ref(number, rank) for rank in self._ranks]

    def _presence(self, rank: int) -> hoplite.ObjectRef:
        return self._ref("presence", rank)

    def _pair(self, source: int, destination: int) -> hoplite.ObjectRef:
        number = self._pairs[source, destination] = self._pairs.get((source, destination), 0) + 1
        return self._ref("pair", source, destination, number)

    def _next(self) -> int:
        self._number += 1
        self._earlier = len(self._unmarked)
        return self._number

    # --- waiting ------------------------------------------------------------------------------------------------

    def _fill(self, ref: hoplite.ObjectRef, tensor: Any, needed: Mapping[int, hoplite.ObjectRef]) -> None:
        """A member's own tensor with the value of a ref; `needed` is what other ranks must have made for it."""
        self._patiently(lambda seconds: _copy(ref, tensor, seconds), needed)

    def _await(self, refs: Sequence[hoplite.ObjectRef]) -> None:
        """One ref of each rank."""

        def attempt(seconds: float) -> None:
            _, missing = session.cluster().wait(refs, len(refs), timeout=seconds)
            if missing:
                raise _late(f"{len(missing)} of {len(refs)} members did not come")

        self._patiently(attempt, dict(enumerate(refs)))

    def _patiently(self, attempt: Callable[[float], None], needed: Mapping[int, hoplite.ObjectRef]) -> None:
        """In slices, between which the other members are looked after."""
        ends = time.monotonic() + (_SECONDS if self._formed else _JOIN_SECONDS)
        while True:
            try:
                return attempt(min(_SLICE, max(0.0, ends - time.monotonic())))
            except HopliteError as error:  # also of objects that went with their member
                if self._formed:  # else some are still coming
                    self._check_members(needed)
                if not isinstance(error, GetTimeoutError) or time.monotonic() > ends:
                    raise

    def _check_members(self, needed: Mapping[int, hoplite.ObjectRef]) -> None:
        """Raises if one that has ended did not do its part."""
        ranks = list(needed)
        known = session.cluster().info([*map(self._presence, ranks), *needed.values()])
        there, made = known[: len(ranks)], known[len(ranks) :]
        gone = [rank for rank, one, other in zip(ranks, there, made, strict=True) if not (one.exists or other.exists)]
        if gone:
            who = f"rank{'s' * (len(gone) > 1)} {', '.join(map(str, gone))}"
            detail = f"{who} of the collective group {self._group_name!r} ended, so that this operation cannot finish"
            remedy = "call destroy_collective_group in the members that are left, and make the group anew"
            raise Failure(FailureKind.CLOSED, detail, remedy).exception()

    # --- deleting -----------------------------------------------------------------------------------------------

    def _all_have_begun(self) -> None:
        """An operation that this member could finish only after all had begun it: all are through with what went
        before."""
        self._sweep([], self._earlier)

    def _may_be_in_use(self, size: int) -> None:
        """Some members may not be through with this operation yet. All count alike, so that all leave markers at the
        same operation."""
        self._unmarked_operations += 1
        self._unmarked_bytes += size
        if self._unmarked_operations < _MARK_OPERATIONS and self._unmarked_bytes < _MARK_BYTES:
            return
        markers = [self._ref("through", self._number, rank) for rank in self._ranks]
        self._sweep(markers, len(self._unmarked))
        self._put(b"", markers[self._rank])

    def _sweep(self, markers: list[hoplite.ObjectRef], count: int) -> None:
        if count:
            self._sweeper.sweep(markers, self._unmarked[:count])
        del self._unmarked[:count]
        self._unmarked_operations = self._unmarked_bytes = 0


@dataclass(frozen=True, slots=True)
class _Sweep:
    markers: list[hoplite.ObjectRef]
    refs: list[hoplite.ObjectRef]
    left: list[hoplite.ObjectRef] | None = None
    """At the end: the presences of all members."""


class _Sweeper:
    """Deletes what a member has made, behind its work."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[_Sweep] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def sweep(self, markers: list[hoplite.ObjectRef], refs: list[hoplite.ObjectRef]) -> None:
        """Delete `refs` as soon as all markers are there, and with them all that came before."""
        self._add(_Sweep(markers, refs))

    def end(self, presences: list[hoplite.ObjectRef], refs: list[hoplite.ObjectRef]) -> None:
        """Delete everything as soon as all members are gone."""
        self._add(_Sweep([], refs, presences))

    def _add(self, task: _Sweep) -> None:
        self._tasks.put(task)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="hoplite-collective", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        waiting: list[_Sweep] = []
        while True:
            with contextlib.suppress(queue.Empty):
                waiting.append(self._tasks.get(block=not waiting))
                continue  # until there are no more
            try:
                if waiting[-1].left is not None:
                    return self._finish(waiting, waiting[-1].left)
                self._delete_some(waiting)
            except HopliteError as error:
                _log.warning("objects of a collective group stay until this process ends: %s", error)
                waiting.clear()

    def _delete_some(self, waiting: list[_Sweep]) -> None:
        """The newest of which all are through, and those before. It waits for the oldest, for a moment."""
        for place, task in reversed(list(enumerate(waiting))):
            seconds = _SLICE if place == 0 else 0.0
            if not task.markers or not session.cluster().wait(task.markers, len(task.markers), timeout=seconds)[1]:
                session.cluster().delete([ref for each in waiting[: place + 1] for ref in each.refs])
                del waiting[: place + 1]
                return

    def _finish(self, waiting: list[_Sweep], presences: list[hoplite.ObjectRef]) -> None:
        pause = _FIRST_PAUSE
        ends = time.monotonic() + _SWEEP_SECONDS
        while any(each.exists for each in session.cluster().info(presences)):
            if time.monotonic() > ends:
                raise _late("not all members left a collective group")
            time.sleep(pause)
            pause = min(2 * pause, _SLICE)
        if refs := [ref for each in waiting for ref in each.refs]:
            session.cluster().delete(refs)


# --- one group, and one tensor ----------------------------------------------------------------------------------


def _agree(world_size: int, rank: int, group: str) -> str:
    """The nonce of this group, the same for all members that join it now."""
    ends = time.monotonic() + _JOIN_SECONDS
    job = ray.get_runtime_context().get_job_id()
    asking = f"hoplite/{job}/collective/{group}"
    if rank != 0:
        own = secrets.token_hex(8)
        internal_kv._internal_kv_put(f"{asking}/{rank}", own)
        return _taken(f"{asking}/answer/{own}", ends, f"rank 0 did not join the collective group {group!r}")
    nonce = secrets.token_hex(8)
    for other in range(1, world_size):
        _answer(asking, other, nonce, ends, f"rank {other} did not join the collective group {group!r}")
    return nonce


def _answer(asking: str, rank: int, nonce: str, ends: float, detail: str) -> None:
    """Until the answer was taken. A newer question has another answer: the older one's asker is gone."""
    question = f"{asking}/{rank}"
    answers: list[str] = []
    asked = None
    while not (answers and internal_kv._internal_kv_get(answers[-1]) is None):
        found = internal_kv._internal_kv_get(question)
        if found is not None and found != asked:
            asked = found
            answers.append(f"{asking}/answer/{found.decode()}")
            internal_kv._internal_kv_put(answers[-1], nonce)
        _wait_a_little(ends, detail)
    for key in (question, *answers[:-1]):
        internal_kv._internal_kv_del(key)


def _taken(key: str, ends: float, detail: str) -> str:
    while (found := internal_kv._internal_kv_get(key)) is None:
        _wait_a_little(ends, detail)
    internal_kv._internal_kv_del(key)
    value: str = found.decode()
    return value


def _wait_a_little(ends: float, detail: str) -> None:
    if time.monotonic() > ends:
        raise _late(f"{detail} within {_JOIN_SECONDS:g} s")
    time.sleep(_POLL)


def _late(detail: str) -> HopliteError:
    return Failure(FailureKind.TIMEOUT, detail, "look whether that actor is alive and makes the same calls").exception()


def _only(tensors: list[Any]) -> Any:
    if len(tensors) != 1:
        detail = f"the backend {BACKEND} takes one tensor of each process, not {len(tensors)}"
        raise Failure(FailureKind.INVALID, detail, "make one actor for each GPU").exception()
    return tensors[0]


def _stored(tensor: Any) -> Any:
    """As hoplite takes it."""
    return tensor if isinstance(tensor, np.ndarray) else tensor.detach()


def _copy(ref: hoplite.ObjectRef, tensor: Any, seconds: float) -> None:
    session.cluster().get(ref, out=_stored(tensor), timeout=seconds)


def register() -> None:
    """In this process. Harmless if it was done."""
    from ray.util.collective.backend_registry import _global_registry, register_collective_backend

    if not _global_registry.is_registered(BACKEND):
        register_collective_backend(BACKEND, HopliteGroup)
