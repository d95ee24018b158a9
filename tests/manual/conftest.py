"""The manual, built once for all tests of a run."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def manual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built pages. The processes of one run share them; the first builds."""
    shared = tmp_path_factory.getbasetemp()
    if shared.name.startswith("popen-"):  # one of several processes of pytest-xdist
        shared = shared.parent
    target, log = shared / "manual", shared / "manual.log"
    with open(shared / "manual.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not log.exists():
            strict = ("--fail-on-warning", "--keep-going", "--nitpicky", "--quiet")
            command = [sys.executable, "-m", "sphinx", *strict, str(ROOT / "docs"), str(target)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
            log.write_text("" if done.returncode == 0 else f"status {done.returncode}\n{done.stderr}")
    problems = log.read_text()
    assert not problems, problems
    return target
