"""Starting processes: what they load, who may join, and how they are found."""

import tempfile
import time
from pathlib import Path
from unittest import mock

from hoplite_ucx.runtime import cluster
from tests.first_hour.findings import finding
from tests.runtime.live import live_cluster
from tests.tools.planting import plant, run_in, traces, write_program
from tests.tools.silent_agents import silent_agents


@finding("1", "init() in a directory where others left uvloop.py, secrets.py and hoplite_ucx/")
def planted_modules() -> str:
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder) / "here"
        plant(here)
        ran = run_in(here, write_program(Path(folder) / "elsewhere"))
        assert ran.stdout == "works\n", ran.stderr
        assert traces(here) == []
    return "it works, and none of them runs"


@finding("8", "init(address) beside 20 stopped agents of other clusters")
def stopped_agents() -> str:
    with live_cluster(1) as live, silent_agents(20), mock.patch.object(cluster, "_GREETING_SECONDS", 60.0):
        began = time.monotonic()
        cluster.join(live.address, None).close()
        took = time.monotonic() - began
    assert took < 50, "it waited for one of them"
    return f"it took {1e3 * took:.0f} ms"
