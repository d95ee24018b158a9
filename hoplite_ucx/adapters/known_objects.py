"""Getting an object that was put: it comes, or it is lost, and nobody waits for a producer.

The system that schedules tasks knows that the object was put. So an object that the directory does not know is lost.
While it is known, it comes: every get is bounded, and is made again for as long as the directory knows the object.

Other hosts hear of a put from the directory, about one message after the put has returned. A question that comes by
another way may be faster than that message, on a busy machine by much. So an object that is not known is waited for
once, for a short while, before it counts as lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hoplite_ucx as hoplite
from hoplite_ucx.errors import GetTimeoutError, ObjectLostError
from hoplite_ucx.runtime.worker.object_info import ObjectInfo

SLICE = 5.0
ON_THE_WAY = 2.0
"""For the news of a put to reach the directory."""


class Lost(Exception):  # noqa: N818 - an event for adapters, not an error for users
    """Every copy is gone."""


def get_known(
    cluster: hoplite.Cluster,
    ref: hoplite.ObjectRef,
    look: Callable[[ObjectInfo], object] = lambda _: None,
    **options: Any,
) -> Any:
    """The value, got with these options. What the directory says of the object is shown to `look` first, which may
    raise. Raises `Lost`."""
    was_known = True
    try:
        while (known := is_known(found := cluster.info(ref))) or was_known:
            was_known = known
            look(found)
            try:
                return cluster.get(ref, timeout=SLICE if known else ON_THE_WAY, **options)
            except GetTimeoutError:
                continue
    except ObjectLostError:
        pass
    raise Lost


def is_known(found: ObjectInfo) -> bool:
    """False if it is lost. Of an object that was deleted and a reduction that has failed, a get says why."""
    return found.state is not hoplite.ObjectState.UNKNOWN
