"""The small tasks that stand for objects in Dask: what they are called, and what they do when they run.

An anchor's key names its object, so that the scheduler's plugin knows what to delete when Dask forgets the key, and
what to do when every copy is lost: a `broadcast` of a client's value cannot be made again, the others run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distributed import Reschedule, secede

import hoplite_ucx as hoplite
from hoplite_ucx.dask import access
from hoplite_ucx.errors import GetTimeoutError
from hoplite_ucx.runtime.worker.refs import ObjectRef

BROADCAST = "hoplite-broadcast-"
SHARE = "hoplite-share-"
REDUCE = "hoplite-reduce-"
_PREFIX = "hoplite-"
_KINDS = (BROADCAST, SHARE, REDUCE)
PRIORITY = 100
"""Anchors take no time and others wait for them: they run before users' tasks."""
_SLICE = 5.0


def ref_of(key: Any) -> bytes | None:
    """The object that an anchor stands for; None of any other key."""
    if isinstance(key, str) and key.startswith(_PREFIX):
        for kind in _KINDS:
            if key.startswith(kind):
                return bytes.fromhex(key.removeprefix(kind))
    return None


def announce() -> None:
    """Of a value that the client itself puts."""


def put(value: Any, cluster_id: str, ref: bytes) -> None:
    """Of a future's value: put it, from the worker that has it."""
    access.on_agent(access.lease_here(cluster_id), lambda cluster: cluster.put(value, ref=ObjectRef(ref)))


def reduce(
    cluster_id: str,
    target: bytes,
    sources: Sequence[bytes],
    keys: Sequence[Any],
    op: str,
    count: int,
    everywhere: bool,
    *_shares: None,
) -> None:
    """Asks for the reduction, which is the same one however often it is asked for. With a `count`, waits until it is
    decided which sources go in, without a thread of the worker's."""
    refs = [ObjectRef(source) for source in sources]
    made_from = dict(zip(refs, keys, strict=True))
    if count < len(refs):
        secede()
    access.on_agent(
        access.lease_here(cluster_id),
        lambda cluster: _reduce(cluster, ObjectRef(target), made_from, op, count, everywhere),
    )


def _reduce(
    cluster: hoplite.Cluster, target: ObjectRef, sources: dict[ObjectRef, Any], op: str, count: int, everywhere: bool
) -> None:
    """The sources come with the keys of their anchors."""
    refs = list(sources)
    if count == len(refs) and not cluster.info(target).exists:
        lost = [sources[known.ref] for known in cluster.info(refs) if not known.exists]
        for key in lost:
            access.report_lost(key)
        if lost:
            raise Reschedule
    begin = cluster.allreduce if everywhere else cluster.reduce
    begin(refs, op, count, ref=target)
    if count < len(refs):
        _await_decision(cluster, target)


def _await_decision(cluster: hoplite.Cluster, target: ObjectRef) -> None:
    while True:
        try:
            cluster.contributors(target, timeout=_SLICE)
            return
        except GetTimeoutError:
            continue
