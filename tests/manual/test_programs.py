"""Every Python block of the manual runs as it is, or says why not; configuration files name settings that exist."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hoplite_ucx.runtime.settings import SCHEMA
from tests.manual.preludes import PRELUDES
from tests.runtime.test_faults import without_address
from tests.tools.pages import ROOT, Block, all_blocks

# Those of the README are run by tests/test_readme.py, which compares what they print.
PROGRAMS = [block for block in all_blocks("python", "py") if block.not_run is None and block.page.name != "README.md"]


@pytest.mark.parametrize("block", PROGRAMS, ids=[block.name for block in PROGRAMS])
def test_a_program_runs(block: Block, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PRELUDES.get(str(block.page.relative_to(ROOT)), "") + block.text)
    environment = {**without_address(), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 0, done.stderr


def test_there_are_programs() -> None:
    assert len(PROGRAMS) >= 10


CONFIGURATIONS = all_blocks("toml")


@pytest.mark.parametrize("block", CONFIGURATIONS, ids=[block.name for block in CONFIGURATIONS])
def test_a_configuration_names_settings_that_exist(block: Block) -> None:
    for section, keys in tomllib.loads(block.text).items():
        assert not set(keys) - set(SCHEMA[section])
