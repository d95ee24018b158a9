"""A report that is shown again and again: in place on a terminal of any size, one after the other in a file.

ctrl-C is how it ends, with the terminal as it was.
"""

import time
from collections.abc import Callable
from contextlib import suppress

from rich.console import Console
from rich.live import Live
from rich.text import Text

__all__ = ["watch"]


def watch(show: Callable[[Console], None], every: float) -> None:
    """Show it every so many seconds until ctrl-C. What it prints must not depend on being at the end of a screen."""
    console = Console()
    with suppress(KeyboardInterrupt):
        if console.is_terminal:
            _in_place(console, show, every)
        else:
            _one_after_the_other(console, show, every)


def _in_place(console: Console, show: Callable[[Console], None], every: float) -> None:
    """What does not fit on the screen is cut off at its end."""
    with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            inner = Console(width=console.width, force_terminal=True)
            with inner.capture() as shown:
                inner.print(f"{_now()}, every {every:g} s; ctrl-C ends it", style="dim", highlight=False)
                show(inner)
            live.update(Text.from_ansi(shown.get()), refresh=True)
            time.sleep(every)


def _one_after_the_other(console: Console, show: Callable[[Console], None], every: float) -> None:
    while True:
        console.print(_now(), highlight=False)
        show(console)
        console.file.flush()
        time.sleep(every)


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")
