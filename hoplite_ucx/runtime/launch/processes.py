"""Directory and agent as processes: how to start them, give them their task, wait until they are ready, and leave none
behind.

A child gets its task as JSON on its standard input, including the token, so that no secret is on a command line. It
answers with one line of JSON when it is ready, or with what is wrong. Its standard input stays open for as long as its
parent lives: when the parent ends, so does the child. If the parent's main thread starts it, the kernel enforces that
too, and the child checks now and then that its parent is still the same.
"""

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import uvloop

from hoplite_ucx.protocol.errors import Failure, FailureKind, HopliteError
from hoplite_ucx.runtime.settings import ProcessSettings
from hoplite_ucx.settings.errors import ConfigurationError
from hoplite_ucx.settings.reading import Argument
from hoplite_ucx.transports.errors import TransportError

_USUAL = ProcessSettings()
_BY_ITSELF = 0.8
"""Of the time that a child has to end: then it gives up what is still open, before its parent kills it."""
_PR_SET_PDEATHSIG = 1
_LEAVE = b"leave "
"""A parent's last line to an agent, with a number of seconds: hand objects over, and end."""
_PARENT_CHECK = 0.5
_LAUNCHER = str(Path(__file__).resolve().parents[2] / "run_module.py")


@dataclass(slots=True)
class Child:
    """A child process that is ready."""

    process: "subprocess.Popen[bytes]"
    report: dict[str, Any]
    stop_seconds: float = _USUAL.stop

    def running(self) -> bool:
        return self.process.poll() is None

    def stop(self, hand_over: float = 0.0) -> None:
        """End it: with a request, then by force. Returns when it is gone. With `hand_over`, an agent has so many
        seconds until others have taken over the objects that only it holds."""
        try:
            self._ask_to_end(hand_over)
            self.process.terminate()  # a process that was forked from this one holds a copy of the pipe
            self.process.wait(self.stop_seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:  # also if this one is interrupted
            self.process.kill()
            self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()

    def _ask_to_end(self, hand_over: float) -> None:
        if self.process.stdin is None:
            return
        with contextlib.suppress(OSError):
            if hand_over > 0:
                self.process.stdin.write(_LEAVE + f"{hand_over:g}\n".encode())
                self.process.stdin.flush()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(hand_over + self.stop_seconds)
            self.process.stdin.close()


def spawn(
    role: str,
    task: dict[str, Any],
    *,
    tied_to_thread: bool,
    variables: Mapping[str, str] | None = None,
    settings: ProcessSettings = _USUAL,
) -> Child:
    """Start a directory or an agent, and wait until it is ready. Raises a typed error if it does not become so."""
    process = start(role, tied_to_thread=tied_to_thread, variables=variables)
    try:
        tell(process, task, settings)
    except BaseException:
        abandon(process)
        raise
    return await_ready(role, process, settings)


def start(
    role: str,
    *,
    tied_to_thread: bool,
    variables: Mapping[str, str] | None = None,
    program: str = "hoplite_ucx.runtime",
    descriptors: Sequence[int] = (),
) -> "subprocess.Popen[bytes]":
    """Start a process that loads its part and waits for its task, with these variables over those of this process, and
    with these open files of it."""
    return subprocess.Popen(
        [*module(program), role, str(os.getpid()), "tied" if tied_to_thread else "free"],
        pass_fds=descriptors,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **(variables or {})},
        start_new_session=True,  # a ctrl-C at the terminal is the parent's to handle
    )


def module(name: str) -> list[str]:
    """The command line that runs a module of this process's own package, and nothing from the current directory."""
    return [sys.executable, *_interpreter_options(), _LAUNCHER, name]


def _interpreter_options() -> list[str]:
    """Options that keep this process from loading something keep its children from it, too."""
    if sys.flags.isolated:
        return ["-I"]
    kept = {"-E": sys.flags.ignore_environment, "-s": sys.flags.no_user_site}
    return ["-P", *(option for option, is_set in kept.items() if is_set)]


def tell(process: "subprocess.Popen[bytes]", task: dict[str, Any], settings: ProcessSettings = _USUAL) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it says why on its own
        process.stdin.write(json.dumps({**task, "stop": settings.stop}).encode() + b"\n")
        process.stdin.flush()


def await_ready(role: str, process: "subprocess.Popen[bytes]", settings: ProcessSettings = _USUAL) -> Child:
    """If it does not become ready for any reason, including the user's ctrl-C, no process is left behind."""
    try:
        return Child(process, _read_report(role, process, settings.start), settings.stop)
    except BaseException:
        abandon(process)
        raise


def _read_report(role: str, process: "subprocess.Popen[bytes]", seconds: float) -> dict[str, Any]:
    assert process.stdout is not None
    deadline = time.monotonic() + seconds
    line, late = b"", False
    while not line.endswith(b"\n"):
        left = max(0.0, deadline - time.monotonic())
        if late or not select.select([process.stdout], [], [], left)[0]:
            raise _cannot_start(role, f"it was not ready after {seconds:g} s", _SLOW)
        late = not left  # what it has said counts, if this process was paused meanwhile and looks too late
        piece = os.read(process.stdout.fileno(), 65536)
        if not piece:
            abandon(process)
            raise _cannot_start(role, f"it exited with status {process.returncode}", "see its messages above")
        line += piece
    report: dict[str, Any] = json.loads(line)
    if "error" in report:
        raise _cannot_start(role, report["error"], report["remedy"])
    return report


_SLOW = "check the load of this machine, or give it more time with HOPLITE_PROCESSES_START"


def abandon(process: "subprocess.Popen[bytes]") -> None:
    """End a process that did not become ready."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(0.2)
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _cannot_start(role: str, detail: str, remedy: str) -> HopliteError:
    return Failure(FailureKind.CLOSED, f"the {role} could not be started: {detail}", remedy).exception()


# --- in the child -----------------------------------------------------------------------------------------------


Stop: TypeAlias = Callable[[], Awaitable[None]]


class Served(NamedTuple):
    """What a child reports when it is ready, and how it ends."""

    report: dict[str, Any]
    stop: Stop
    retire: Stop | None = None
    """Returns when nothing is lost with the process."""


Serve: TypeAlias = Callable[[dict[str, Any]], Awaitable[Served]]
"""Starts whatever the process is for."""


def run(serve: Serve, parent: int, *, tied_to_thread: bool) -> int:
    """The main function of a child."""
    if tied_to_thread:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return 1  # it died meanwhile
    line = sys.stdin.buffer.readline()
    if not line:
        return 1  # it died, or gave up
    # Objects here live long, and few are in cycles: collect those seldom, and never examine what was loaded.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_main(serve, json.loads(line), parent))


def arguments_of(task: dict[str, Any]) -> list[Argument]:
    """The settings that were given to the parent as arguments."""
    return [Argument(*argument) for argument in task.get("arguments", ())]


async def _main(serve: Serve, task: dict[str, Any], parent: int) -> int:
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    try:
        served = await serve(task)
    except (TransportError, HopliteError) as error:
        detail = f"{error.detail} ({error.peer})" if isinstance(error, TransportError) else error.failure.detail
        _say({"error": detail, "remedy": error.remedy})
        return 1
    except ConfigurationError as error:
        _say({"error": error.detail, "remedy": error.remedy})
        return 1
    except (OSError, ValueError) as error:
        here = f"at {task['host']}:{task.get('port', 0)}" if task["host"] else f"towards {task['directory']}"
        _say({"error": f"{error} ({here})", "remedy": "check the address, and that its port is free"})
        return 1
    _say(served.report)
    ending = _Ending(over)
    loop.add_reader(sys.stdin.fileno(), ending.on_input)
    while not over.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), _PARENT_CHECK)
        if os.getppid() != parent:
            break
    if served.retire is not None and ending.hand_over > 0:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(served.retire(), ending.hand_over)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(served.stop(), _BY_ITSELF * task["stop"])
    _say_no_more()
    os._exit(0)  # threads of the data plane may still be inside the kernel


class _Ending:
    """The end of a child's input ends the child. A line before that may give it time to hand objects over."""

    def __init__(self, over: asyncio.Event) -> None:
        self._over = over
        self.hand_over = 0.0

    def on_input(self) -> None:
        said = os.read(sys.stdin.fileno(), 4096)
        if said.startswith(_LEAVE):
            self.hand_over = float(said[len(_LEAVE) :])
        if not said or self.hand_over:
            self._over.set()
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())


def _say(report: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


def _say_no_more() -> None:
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
