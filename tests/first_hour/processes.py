"""Starting processes: what they load, who may join, and how they are found."""

import tempfile
from pathlib import Path

from tests.first_hour.findings import finding
from tests.tools.planting import plant, run_in, traces, write_program


@finding("1", "init() in a directory where others left uvloop.py, secrets.py and hoplite_ucx/")
def planted_modules() -> str:
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder) / "here"
        plant(here)
        ran = run_in(here, write_program(Path(folder) / "elsewhere"))
        assert ran.stdout == "works\n", ran.stderr
        assert traces(here) == []
    return "it works, and none of them runs"
