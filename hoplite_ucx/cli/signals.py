"""How signals end the command: SIGTERM and SIGHUP do what ctrl-C does, so that it ends all that it started.

An ignored signal stays ignored: `nohup hoplite start` keeps running when its terminal closes.
"""

import signal

__all__ = ["INTERRUPTED", "end_as_after_ctrl_c"]

INTERRUPTED = 130
"""The exit status of a command that a signal ended."""


def end_as_after_ctrl_c() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _interrupt)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
