"""A directory that anybody can write to, with files that whoever loads modules from there would run."""

import os
import subprocess
import sys
from pathlib import Path

from tests.runtime.test_faults import without_address

_TRACE = "import os\nopen(os.path.join({place!r}, 'ran-' + __name__), 'w').close()\n"
_NAMES = ("uvloop.py", "secrets.py", "sitecustomize.py", "hoplite_ucx/__init__.py", "hoplite_ucx/run_module.py")

USES_A_CLUSTER = """
import hoplite_ucx as hoplite
hoplite.init(memory=64 << 20)
print(hoplite.get(hoplite.put("works"), timeout=60))
"""


def plant(place: Path) -> None:
    """Every planted file leaves a trace when it runs."""
    place.mkdir(exist_ok=True)
    place.chmod(0o777)
    for name in _NAMES:
        path = place / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(_TRACE.format(place=str(place)))


def traces(place: Path) -> list[str]:
    return sorted(path.name for path in place.glob("ran-*"))


def run_in(place: Path, *command: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Python with these arguments, started in that directory."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=place,
        env={**without_address(), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def write_program(folder: Path, text: str = USES_A_CLUSTER) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / "program.py"
    path.write_text(text)
    return os.fspath(path)
