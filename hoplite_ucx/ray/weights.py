"""The newest weights of a model, for receivers that join and leave at will: one process publishes, any number take.

What is newest is known to the head, by name, and to the owner, in case the head dies. A version is an object of ours
behind a Ray ref: the next version takes its place there, and it is released when the last receiver has it.
"""

from __future__ import annotations

import time
from typing import Any

from hoplite_ucx.errors import Failure, FailureKind
from hoplite_ucx.ray.calls import get, put
from hoplite_ucx.ray.errors import closed
from hoplite_ucx.ray.head import WISH_SECONDS
from hoplite_ucx.ray.session import session
from hoplite_ucx.runtime.worker.checks import check_seconds, check_text, invalid, is_whole

_SECONDS = 300.0
_MARGIN = 30.0


class Weights:
    """Weights under a name, which is known in all processes of the Ray job. Making this object costs nothing, and it
    can be sent to tasks and actors."""

    def __init__(self, name: str = "weights") -> None:
        check_text("name", name, "give a name that publisher and receivers use")
        self.name = name

    def publish(self, tree: object) -> int:
        """Make a state_dict, or any other value, the newest version, and return its number. It may be changed when this
        returns. Receivers that are taking an older version finish with that. Raises what `put` raises, and
        `ClosedError` if the driver does not answer."""
        return self._publish([put(tree)])

    def withdraw(self) -> None:
        """Release the newest version: receivers wait for the next one that is published. Raises `ClosedError` if the
        driver does not answer."""
        self._publish([])

    def _publish(self, refs: list[Any]) -> int:
        version: int | None = session().ask(lambda head: head.publish.remote(self.name, refs))
        if version is None:
            raise closed("hoplite's owner, the driver, does not answer", "see whether the driver is stopped or busy")
        return version

    def get(self, *, out: Any = None, newer_than: int = 0, timeout: float = _SECONDS) -> tuple[int, Any]:
        """The number and the value of the newest version; waits for one that is newer than `newer_than`.

        With `out`, such as a module's `state_dict()`, the value is copied into these tensors, and they are returned.
        The `timeout` is for a version to be published. Raises `GetTimeoutError` without one, and what
        `hoplite_ucx.ray.get` raises.
        """
        if not is_whole(newer_than):
            raise invalid(f"newer_than is the number of a version, not {newer_than!r}", "give what publish or get told")
        ends = time.monotonic() + check_seconds(timeout)
        while True:
            left = max(0.0, ends - time.monotonic())
            asked = session().ask(
                lambda head, left=left: head.newest.remote(self.name, newer_than, left),  # type: ignore[misc]
                min(left, WISH_SECONDS) + _MARGIN,
            )
            if asked is not None:
                version, (ref,) = asked
                return version, get(ref, out=out)
            if left == 0.0:
                detail = f"no version of {self.name!r} after {newer_than} was published within {timeout:g} s"
                raise Failure(FailureKind.TIMEOUT, detail, "see whether the publisher runs").exception()

    def __repr__(self) -> str:
        return f"Weights({self.name!r})"
