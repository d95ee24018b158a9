"""What a user sees when the command's output has nowhere to go, or its terminal lacks a character: a line at most."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.commands import HOPLITE, shell

REPORT = ("simulate", "broadcast", "--nodes", "4", "--size", "1MiB", "--kill", "2@40%")
COMMANDS = [("--help",), ("doctor",), REPORT]
FULL = "error: standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_full_disk_is_one_line(arguments: tuple[str, ...]) -> None:
    done = shell(">/dev/full", *arguments)
    assert (done.returncode, done.stderr) == (1, FULL)


def test_more_than_a_buffer_onto_a_full_disk_is_one_line() -> None:
    done = shell(">/dev/full", "simulate", "broadcast", "--nodes", "64", "--size", "1MiB", "--json")
    assert (done.returncode, done.stderr) == (1, FULL)


def test_with_both_streams_full_the_status_tells() -> None:
    assert shell(">/dev/full 2>/dev/full", *REPORT).returncode == 1
    assert shell("2>/dev/full", "no-such-command").returncode == 2


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_closed_streams_are_none_of_our_business(arguments: tuple[str, ...]) -> None:
    done = shell("<&- >&- 2>&-", *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_closed_stream_is_not_taken_by_another_file() -> None:
    code = "import os; from hoplite_ucx.cli.output import prepare; prepare(); os.write(int(os.environ['TO']), repr("
    code += "[os.readlink(f'/proc/self/fd/{fd}') for fd in range(3)]).encode())"
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as told:
        with os.fdopen(writing, "wb"):
            command = ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", sys.executable, "-c", code]
            subprocess.run(command, check=True, timeout=60, pass_fds=[writing], env={**os.environ, "TO": str(writing)})
        assert told.read().decode() == str(["/dev/null"] * 3)


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_reader_that_leaves_ends_it_without_a_word(arguments: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*HOPLITE, *arguments], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_character_that_the_terminal_lacks_is_replaced(arguments: tuple[str, ...], encoding: str) -> None:
    done = shell("", *arguments, PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, "")
    done.stdout.encode(encoding)


def test_the_tree_is_as_wide_as_with_arrows() -> None:
    usual = shell("", *REPORT, PYTHONIOENCODING="utf-8").stdout.encode("latin-1").decode()
    poor = shell("", *REPORT, PYTHONIOENCODING="ascii").stdout
    assert "  0 → 1 → 3" in usual
    assert poor == usual.translate(str.maketrans("→×↪✗", ">x>x"))


def test_a_name_that_is_not_text_is_written_as_it_is(tmp_path: Path) -> None:
    code = "import sys; from hoplite_ucx.cli.output import prepare; prepare(); print(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, b"caf\xe9"], capture_output=True, timeout=60, check=True)
    assert done.stdout == b"caf\xe9\n"
