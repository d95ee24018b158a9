"""The command and small programs, run as users run them: in a shell, with signals, to their end."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.runtime.test_faults import without_address

HOPLITE = (sys.executable, "-m", "hoplite_ucx")
_SECONDS = 100


def shell(redirection: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `hoplite` in a shell with this redirection. What it prints is taken byte by byte."""
    return subprocess.run(
        ["sh", "-c", f'"$@" {redirection}', "sh", *HOPLITE, *arguments],
        capture_output=True,
        encoding="latin-1",
        timeout=_SECONDS,
        check=False,
        env={**without_address(), **environment},
    )


def interrupt_while_loading(command: Sequence[str], folder: Path, module: str = "typer") -> tuple[int, str, str]:
    """The status and what was printed, when a module that the command loads takes its time, and ctrl-C comes then."""
    (folder / f"{module}.py").write_text(f"import os, time\nos.write(1, b'loading\\n')\ntime.sleep({_SECONDS})\n")
    environment = {**without_address(), "PYTHONPATH": str(folder)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as loading:
        assert loading.stdout is not None
        assert loading.stdout.readline() == "loading\n"
        loading.send_signal(signal.SIGINT)
        output, errors = loading.communicate(timeout=_SECONDS)
    return loading.returncode, output, errors


# The last to be called at the exit waits for the thread, so that whatever the thread prints is printed.
_PROGRAM = """
import atexit, sys, threading

def last():
    thread.join(60)
    sys.stdout.write("alive" if thread.is_alive() else "ended")

atexit.register(last)

import hoplite_ucx as hoplite
from hoplite_ucx.runtime.worker.connection import Connection

def call():
    try:
        hoplite.{call}
    finally:
        {after}

def receive(connection, deadline, *, asked=False, original=Connection.receive, **more):
    if threading.current_thread() is thread and not asked:
        waiting.set()
    return original(connection, deadline, asked=asked, **more)

Connection.receive = receive
waiting = threading.Event()
thread = threading.Thread(target=call, daemon=True)
hoplite.init(memory=64 << 20)
ref = hoplite.new_ref()
thread.start()
assert waiting.wait(60)
"""


def exit_during(call: str, after: str = "pass") -> tuple[str, str]:
    """What a program prints that ends while a daemon thread waits in this call, and does something after it."""
    program = _PROGRAM.format(call=call, after=after)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=True,
        env=without_address(),
    )
    return done.stdout, done.stderr
