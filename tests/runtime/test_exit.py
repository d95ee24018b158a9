"""What a program prints when it ends while its daemon threads use the runtime: nothing."""

import subprocess
import sys

import pytest

from tests.runtime.test_faults import without_address

# The last to be called at the exit waits for the thread, so that whatever the thread prints is printed.
PROGRAM = """
import atexit, sys, threading

def last():
    thread.join(60)
    sys.stdout.write("alive" if thread.is_alive() else "ended")

atexit.register(last)

import hoplite_ucx as hoplite
from hoplite_ucx.runtime.connection import Connection

def call():
    try:
        hoplite.{call}
    finally:
        {after}

def receive(connection, deadline, *, asked=False, original=Connection.receive):
    if threading.current_thread() is thread and not asked:
        waiting.set()
    return original(connection, deadline, asked=asked)

Connection.receive = receive
waiting = threading.Event()
thread = threading.Thread(target=call, daemon=True)
hoplite.init(memory=64 << 20)
ref = hoplite.new_ref()
thread.start()
assert waiting.wait(60)
"""


def ended(call: str, after: str = "pass") -> tuple[str, str]:
    program = PROGRAM.format(call=call, after=after)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True, env=without_address()
    )
    return done.stdout, done.stderr


@pytest.mark.parametrize(
    "call",
    ["get(ref, timeout=None)", "get([ref, ref], timeout=None)", "wait([ref], timeout=None)", "get(ref, timeout=1000)"],
)
def test_a_daemon_thread_in_a_call_ends_silently(call: str) -> None:
    assert ended(call) == ("ended", "")


def test_a_daemon_thread_that_calls_after_the_exit_ends_silently() -> None:
    assert ended("get(ref, timeout=None)", after="hoplite.put(1)") == ("ended", "")


def test_what_else_fails_in_a_daemon_thread_is_printed() -> None:
    out, errors = ended("get(ref, timeout=None)", after="raise ValueError('the user must see this')")
    assert out == "ended"
    assert "ValueError: the user must see this" in errors
