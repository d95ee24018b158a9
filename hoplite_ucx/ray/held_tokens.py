"""Release tokens on their way into Ray: held until Ray counts them itself.

An array that is passed to a task by value is serialised before the task is submitted. In between nobody refers to its
token: it would be dropped, and the array deleted, before the task exists. So a token is held for as long as the call of
Ray that serialised the array runs on its thread, and for some looks more. Looks are counted, not seconds: a process
that was stopped for a while must not find its tokens dropped when it goes on.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from types import FrameType
from typing import Any

from hoplite_ucx.ray import ray_calls

_LOOK = 0.1
_LOOKS = 10
"""So many looks after the call ended: a returned value's refs are counted by its receiver a moment later."""
_RAYS_OWN = frozenset(
    {
        "ray._private.auto_init_hook",
        "ray._private.client_mode_hook",
        "ray._private.serialization",
        "ray._private.worker",
        "ray.actor",
        "ray.cloudpickle",
        "ray.cloudpickle.cloudpickle",
        "ray.cloudpickle.cloudpickle_fast",
        "ray.remote_function",
        "ray.util.tracing.tracing_helper",
    }
)
"""Modules through which a call goes from the user's code to the pickler. Libraries of Ray count as users."""
_MAIN = "main_loop"
"""In which a worker process is for ever: what it serialises there is what a task returned."""


@dataclass(slots=True)
class _Held:
    token: Any
    thread: int
    call: FrameType | None
    looks: int = _LOOKS


class HeldTokens:
    def __init__(self) -> None:
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._held: deque[_Held] = deque()
        self._running = False

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, token: Any) -> None:
        """Called while Ray serialises the array, on that thread."""
        held = _Held(token, threading.get_ident(), _call_of_ray(sys._getframe(1)))
        with self._lock:
            self._held.append(held)
            if self._running:
                return
            self._running = True
        threading.Thread(target=self._run, name="hoplite-tokens", daemon=True).start()

    def drop_all(self) -> None:
        """Before this process leaves Ray."""
        with self._lock:
            self._held.clear()

    def _run(self) -> None:
        """Ends when nothing is held: an idle process has no thread that looks."""
        while True:
            time.sleep(_LOOK)
            with self._lock:
                # Under the lock: no token is dropped while this process leaves Ray.
                self._held = deque(each for each in self._held if _is_needed(each))
                if not self._held:
                    self._running = False
                    return


def _is_needed(held: _Held) -> bool:
    if held.call is not None:
        # Whoever kept all stacks would keep this frame in them, and with it for ever what all threads work on.
        frame = sys._current_frames().get(held.thread)
        while frame is not None:
            if frame is held.call:
                return True
            frame = frame.f_back
        held.call = None
    held.looks -= 1
    return held.looks > 0


def _call_of_ray(frame: FrameType | None) -> FrameType | None:
    """The outermost of Ray's own frames on top of which a value is serialised: what the user called."""
    call = None
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name in _RAYS_OWN and frame.f_code.co_name != _MAIN:
            call = frame
        elif not name.startswith("hoplite_ucx.") and name != "pickle":
            break
        frame = frame.f_back
    return call


held_tokens = HeldTokens()
"""Of this process."""
ray_calls.before_shutdown(held_tokens.drop_all)
