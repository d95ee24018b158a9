"""What is installed, and how it looks to other programs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, cwd: Path) -> str:
    # The build must see neither this process's import path nor its working directory.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}{done.stderr}"
    return done.stdout


def problems_of_a_program(python: Path, folder: Path) -> list[str]:
    """What mypy finds in a program with one mistake in its use of the package that this Python has. It finds another
    one if it does not find the package, or not its types."""
    (folder / "program.py").write_text(
        "import hoplite_ucx as hoplite\nref: hoplite.ObjectRef = hoplite.put(1)\nwrong: str = hoplite.put(2)\n"
    )
    mypy = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--python-executable", str(python)]
    done = subprocess.run([*mypy, "program.py"], cwd=folder, capture_output=True, text=True, check=False)
    assert not done.stderr, done.stderr
    return done.stdout.splitlines()


def peers_ask_for(folder: Path, *, index_has_it: bool) -> list[str]:
    """How ci/peers calls pip if the package index has torch without CUDA, or does not; installs nothing."""
    (folder / "ci").mkdir()
    (folder / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(CHECKOUT / "ci" / "peers", folder / "ci")
    shutil.copy(CHECKOUT / "pyproject.toml", folder)
    python = folder / ".venv" / "bin" / "python"
    python.write_text(
        '#!/bin/sh\necho "$*" >> asked\n'
        'case "$*" in\n'
        '    "-m venv "*) mkdir -p .venv-peers/bin; cp "$0" .venv-peers/bin/python;;\n'
        f"    *torch==*+cpu*) exit {0 if index_has_it else 1};;\n"
        "esac\n"
    )
    (folder / "ci" / "setup").write_text("#!/bin/sh\n")
    for script in (python, folder / "ci" / "setup"):
        script.chmod(0o755)
    run(folder / "ci" / "peers", cwd=folder)
    return [line for line in (folder / "asked").read_text().splitlines() if "pip install" in line]
