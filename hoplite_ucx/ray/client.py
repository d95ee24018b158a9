"""Ray Client: the program is connected to a cluster (`ray://`), but is no process of it.

Ray runs a process of its own in the cluster, the *proxy*, which is the job's driver and does what the program asks for.
So an actor in the job takes the place of the owner, and makes the calls of `hoplite_ucx.ray` for the program. Arrays
travel between program and proxy by Ray Client's own connection, and through hoplite in the cluster. The proxy begins to
take part when it receives its first array of ours: it is made to receive one at the start.
"""

from __future__ import annotations

from typing import Any

import ray
import ray.util.client

from hoplite_ucx.ray.client_owner import ClientOwner
from hoplite_ucx.ray.errors import closed
from hoplite_ucx.ray.node_agent import REDUCE
from hoplite_ucx.ray.owners import Settings

_SECONDS = 120.0
_REDUCTIONS = 128


_owner: Any = None


def is_connected() -> bool:
    """Whether this process is the program of a Ray Client."""
    return bool(ray.util.client.ray.is_connected())


def start(wanted: Settings) -> None:
    """Harmless if it runs."""
    global _owner  # noqa: PLW0603 - of the one connection that this process has
    if _owner is not None and _answers():
        return
    actor_class = ray.remote(num_cpus=0, concurrency_groups={REDUCE: _REDUCTIONS})(ClientOwner)
    actor = actor_class.remote(wanted)
    try:
        ray.get(actor.first.remote(), timeout=_SECONDS)
    except ray.exceptions.RayError as error:
        detail = f"hoplite did not start in the cluster: {error}"
        raise closed(detail, "see Ray's messages; install hoplite-ucx in the environment of Ray's workers") from error
    _owner = actor


def _answers() -> bool:
    """Not so if it belongs to a connection that is over."""
    try:
        ray.get(_owner.status.remote(), timeout=_SECONDS)
        return True
    except Exception:  # Ray Client has errors of its own
        return False


def owner() -> Any:
    """The actor that makes the calls of this program."""
    if _owner is None:
        raise closed("hoplite was not started by this program", "call hoplite_ucx.ray.init(address='ray://…')")
    return _owner


def answer(ref: Any) -> Any:
    return ray.get(ref, timeout=_SECONDS)


def shutdown() -> None:
    global _owner  # noqa: PLW0603
    if _owner is not None:
        answer(_owner.close.remote())
        ray.kill(_owner)
        _owner = None
