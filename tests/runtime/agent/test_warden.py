"""The warden hangs up as soon as the main thread of its process is dead, whatever else that process still has to do."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from hoplite_ucx.runtime.agent.warden import _connections, post_warden
from tests.tools.waiting import HANG, eventually

# Its main thread can end alone: the process then lives on with its other thread, as one does whose memory is still
# being unmapped, and its descriptors stay open.
_PROCESS = """
import ctypes, socket, sys, threading, time
from hoplite_ucx.runtime.agent.warden import _connections, post_warden
warden = post_warden() if sys.argv[2] == "warden" else 0
link = socket.create_connection(("127.0.0.1", int(sys.argv[1])))  # later than the warden
listener = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print(warden, listener.getsockname()[1], flush=True)
sys.stdin.readline()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[sys.argv[3]], 0)
"""


@dataclass
class Watched:
    process: "subprocess.Popen[str]"
    warden: int
    port: int
    link: socket.socket

    def end_main_thread(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@contextmanager
def watched(with_warden: bool = True, stderr: socket.socket | None = None) -> Iterator[Watched]:
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = str(server.getsockname()[1])
        arguments = [port, "warden" if with_warden else "none", os.uname().machine]
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", _PROCESS, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        )
        stack.callback(process.kill)
        server.settimeout(HANG)
        link = stack.enter_context(server.accept()[0])
        link.settimeout(HANG)
        assert process.stdout is not None
        warden, listening = map(int, process.stdout.readline().split())
        yield Watched(process, warden, listening, link)


def _is_gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_links_are_closed_while_the_process_is_still_ending() -> None:
    with watched() as it:
        it.end_main_thread()
        assert it.link.recv(1) == b""
        assert it.process.poll() is None


def test_the_port_refuses_while_the_process_is_still_ending() -> None:
    with watched() as it:
        it.end_main_thread()
        assert it.link.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", it.port), HANG)


def test_without_a_warden_they_stay_open() -> None:
    """Else the tests above would prove nothing."""
    with watched(with_warden=False) as it:
        it.end_main_thread()
        it.link.settimeout(0.3)
        with pytest.raises(TimeoutError):
            it.link.recv(1)


def test_the_warden_ends_with_its_process() -> None:
    with watched() as it:
        assert not _is_gone(it.warden)
        it.process.kill()
        assert it.link.recv(1) == b""
        eventually(lambda: _is_gone(it.warden))


def test_a_socket_that_it_shares_with_others_stays_open() -> None:
    """As messages go through one under systemd: those of its parent, too."""
    heard, ours = socket.socketpair()
    with heard, ours, watched(stderr=ours) as it:
        it.process.kill()
        assert it.link.recv(1) == b""
        eventually(lambda: _is_gone(it.warden))
        ours.send(b"it was killed")
        heard.settimeout(HANG)
        assert heard.recv(99) == b"it was killed"


def test_nothing_but_a_kill_ends_the_warden_before() -> None:
    with watched() as it:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(it.warden, number)
        it.link.settimeout(0.2)
        with pytest.raises(TimeoutError):
            it.link.recv(1)
        assert not _is_gone(it.warden)


_EARLY = """
import os, signal
from hoplite_ucx.runtime.agent import warden

def watch(*_):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(os.getpid(), number)
    os._exit(7)

warden._watch = watch
pid = warden.post_warden()
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), len(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
"""


def test_nor_does_a_signal_that_finds_the_warden_beginning() -> None:
    """Who starts it hears signals as before."""
    command = [sys.executable, "-c", _EARLY]
    assert subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=HANG, check=True).stdout == "7 0\n"


def test_a_process_goes_on_without_its_warden() -> None:
    with watched() as it:
        os.kill(it.warden, signal.SIGKILL)
        eventually(lambda: _is_gone(it.warden))
        it.link.settimeout(0.2)
        with pytest.raises(TimeoutError):
            it.link.recv(1)
        it.process.kill()
        it.link.settimeout(HANG)
        assert it.link.recv(1) == b""


def test_where_it_cannot_be_had_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "pdp11")
    assert post_warden() is None


def test_listeners_come_first_and_then_who_heard_something_last() -> None:
    with ExitStack() as stack:
        local, other = socket.socketpair()
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        quiet = stack.enter_context(socket.create_connection(listener.getsockname()))
        busy = stack.enter_context(socket.create_connection(listener.getsockname()))
        for held in (local, other, listener.accept()[0], listener.accept()[0]):
            stack.enter_context(held)
        time.sleep(0.05)
        busy.send(b"x")

        def in_order() -> bool:
            idle = {fd: milliseconds for milliseconds, fd in _connections()}
            return idle[listener.fileno()] < idle[busy.fileno()] < idle[quiet.fileno()] < idle[local.fileno()]

        eventually(in_order)  # between its looks at two sockets this process may be held up
        busy.send(b"x")  # a look closes nothing
