"""`hoplite status --watch`: in a terminal of any size, and into a file, until ctrl-C."""

import os
import pty
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path

import numpy as np
import pytest

from tests.runtime.test_faults import without_address
from tests.tools.commands import HOPLITE
from tests.tools.live import TOKEN, Live, live_cluster
from tests.tools.waiting import HANG, eventually


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with live_cluster(2) as cluster:
        yield cluster


def command(live: Live) -> list[str]:
    return [*HOPLITE, "status", "--watch", "--every", "0.1", "--address", live.address]


def environment() -> dict[str, str]:
    return {**without_address(), "HOPLITE_TOKEN": TOKEN.decode(), "TERM": "xterm-256color"}


def test_into_a_file_reports_follow_each_other_until_ctrl_c(live: Live, tmp_path: Path) -> None:
    path = tmp_path / "status.txt"
    with (
        path.open("w") as file,
        subprocess.Popen(command(live), stdout=file, stderr=subprocess.PIPE, text=True, env=environment()) as watching,
    ):
        eventually(lambda: path.read_text().count("2 nodes") >= 2)
        live.hosts[0].put(np.ones(1 << 18))
        eventually(lambda: "complete" in path.read_text())
        watching.send_signal(signal.SIGINT)
        _, errors = watching.communicate(timeout=HANG)
    assert (watching.returncode, errors) == (0, "")
    assert "\x1b" not in path.read_text()
    assert "receives 0B/s, sends 0B/s" in " ".join(path.read_text().split())


@pytest.mark.parametrize("size", [(24, 80), (5, 24)])
def test_on_a_terminal_it_is_shown_in_place_and_leaves_it_as_it_was(live: Live, size: tuple[int, int]) -> None:
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    shown = b""
    with subprocess.Popen(
        command(live), stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, text=True, env=environment()
    ) as watching:
        os.close(theirs)
        while shown.count(b"ctrl-C") < 2:  # wrapped, it comes once in each screen
            shown += os.read(ours, 65536)
        watching.send_signal(signal.SIGINT)
        _, errors = watching.communicate(timeout=HANG)
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError:  # nobody has it open any more
        pass
    os.close(ours)
    assert (watching.returncode, errors) == (0, "")
    assert shown.count(b"\x1b[?1049h") == shown.count(b"\x1b[?1049l") == 1  # the other screen, and back
    assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l")  # the cursor


def test_a_directory_that_goes_is_shown_and_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "status.txt"
    with (
        live_cluster(1) as live,
        path.open("w") as file,
        subprocess.Popen(command(live), stdout=file, text=True, env=environment()) as watching,
    ):
        eventually(lambda: "1 node," in path.read_text())
        live.kill_directory()
        eventually(lambda: "check that the process there runs" in " ".join(path.read_text().split()))
        seen = path.stat().st_size
        eventually(lambda: path.stat().st_size > seen)
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=HANG)
    assert watching.returncode == 0


def test_what_is_wrong_at_the_start_is_one_line() -> None:
    refused = [*HOPLITE, "status", "--watch", "--address", "127.0.0.1:9"]
    done = subprocess.run(refused, capture_output=True, text=True, timeout=HANG, check=False, env=without_address())
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
