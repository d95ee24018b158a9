"""Ray calls aside: on threads other than the one that Ray is using.

While Ray serialises a value, it collects the refs in it in variables of the thread, and while it deserialises one, it
knows from them what it is in. A call made on the same thread would mix its own refs into those.
"""

from collections.abc import Callable
from concurrent.futures import TimeoutError as NotInTimeError
from typing import TypeVar

from hoplite_ucx.ray import ray_calls
from hoplite_ucx.ray.errors import closed
from hoplite_ucx.runtime.worker.daemon_pool import DaemonPool

R = TypeVar("R")

_pool = DaemonPool(32, "hoplite-ray")
_MARGIN = 5.0
"""The function keeps to the time by itself, if Ray does: this only ends a hang."""


def aside(function: Callable[[], R], seconds: float) -> R:
    """What the function returns, which takes at most so many seconds."""

    def do() -> R:
        with ray_calls.staying():
            return function()

    doing = _pool.submit(do)
    try:
        return doing.result(seconds + _MARGIN)
    except NotInTimeError:
        if doing.done():  # it is the function's own
            raise
        detail = f"Ray did not answer within {seconds:g} s"
        raise closed(detail, "see whether Ray's processes run, and this machine's load") from None
