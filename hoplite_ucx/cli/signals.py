"""How signals end the command: SIGTERM and SIGHUP do what ctrl-C does, so that it ends all that it started.

An ignored signal stays ignored: `nohup hoplite start` keeps running when its terminal closes.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["INTERRUPTED", "end_as_after_ctrl_c", "ending_noted"]

INTERRUPTED = 130
"""The exit status of a command that a signal ended."""


def end_as_after_ctrl_c() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _interrupt)


@contextmanager
def ending_noted() -> Iterator[Callable[[], bool]]:
    """Inside, a signal that would end the command is only noted, and the function says whether one came. An exception
    could come in the middle of a line that is printed, which would then be printed twice."""
    came = False

    def note(*_: object) -> None:
        nonlocal came
        came = True

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: handler for number in numbers if (handler := signal.getsignal(number)) is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, note)
    try:
        yield lambda: came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
