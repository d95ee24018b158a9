"""The command line and the installed package."""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.first_hour.findings import finding
from tests.tools.commands import HOPLITE, exit_during, interrupt_while_loading, shell
from tests.tools.packages import peers_ask_for, problems_of_a_program
from tests.tools.readme import SHOWN, simulated

_REPORT = ("simulate", "broadcast", "--nodes", "4", "--size", "1MiB")


@finding("13a", "ending a program while a daemon thread is in get")
def exit_in_get() -> str:
    assert exit_during("get(ref, timeout=None)") == ("ended", "")
    return "it ends without a word"


@finding("13b", "ctrl-C while hoplite loads its modules")
def ctrl_c_while_loading() -> str:
    with tempfile.TemporaryDirectory() as folder:
        assert interrupt_while_loading(HOPLITE, Path(folder)) == (-signal.SIGINT, "", "")
    return "it ends without a word, with status 130 in a shell"


@finding("13c", "hoplite simulate broadcast >/dev/full")
def full_disk() -> str:
    done = shell(">/dev/full", *_REPORT)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line


@finding("13d", "hoplite simulate broadcast on a latin-1 terminal")
def latin_1_terminal() -> str:
    done = shell("", *_REPORT, PYTHONIOENCODING="latin-1")
    assert (done.returncode, done.stderr) == (0, "")
    [tree] = [line.strip() for line in done.stdout.splitlines() if line.strip().startswith("0 ")]
    assert tree == "0 > 1 > 2 > 3"
    return f"the tree is {tree}"


@finding("14c", "mypy on a program that imports the package of this environment")
def mypy_sees_us() -> str:
    with tempfile.TemporaryDirectory() as folder:
        [problem] = problems_of_a_program(Path(sys.executable), Path(folder))
    assert "Incompatible types in assignment" in problem
    return "it checks the program against the types of the API"


@finding("14d", "python -m hoplite_ucx")
def as_a_module() -> str:
    done = subprocess.run([*HOPLITE, "--version"], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.startswith("hoplite 0.")
    return done.stdout.strip()


@finding("14e", "ci/peers where the package index has no torch without CUDA")
def peers_without_a_cpu_build() -> str:
    with tempfile.TemporaryDirectory() as folder:
        first, second = peers_ask_for(Path(folder), index_has_it=False)
    assert "torch==" in first
    assert "torch" not in second
    return "it takes the torch that there is"


@finding("14f", "the README's simulations")
def simulations_of_the_readme() -> str:
    for command, output in SHOWN:
        assert simulated(command) == output
    return f"{len(SHOWN)} of {len(SHOWN)} print what is shown"
