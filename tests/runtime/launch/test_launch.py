"""What the processes of a cluster load: the package of whoever started them, and nothing from where it runs."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import hoplite_ucx
from hoplite_ucx.runtime.launch import processes
from tests.runtime.test_faults import without_address
from tests.tools.planting import USES_A_CLUSTER, plant, run_in, traces, write_program


def test_nothing_from_the_current_directory_runs(tmp_path: Path) -> None:
    here = tmp_path / "here"
    plant(here)
    ran = run_in(here, write_program(tmp_path / "elsewhere"))
    assert ran.stdout == "works\n", ran.stderr
    assert traces(here) == []


def test_nothing_from_the_current_directory_runs_in_a_service(tmp_path: Path) -> None:
    plant(tmp_path)
    command = "from hoplite_ucx.cli import main; main()"
    options = ["start", "--head", "--port", "0", "--memory", "64MiB"]
    with subprocess.Popen(
        [sys.executable, "-P", "-c", command, *options],
        cwd=tmp_path,
        env={**without_address(), "HOPLITE_TOKEN": "a token"},
        stdout=subprocess.PIPE,
        text=True,
    ) as head:
        assert head.stdout is not None
        assert head.stdout.readline().startswith("directory")
        head.send_signal(signal.SIGTERM)
        head.communicate(timeout=60)
    assert traces(tmp_path) == []


def test_nothing_from_the_current_directory_runs_in_a_measurement(tmp_path: Path) -> None:
    plant(tmp_path)
    program = (
        "from hoplite_ucx.bench.hosts.line_process import ThisHost\n"
        "from hoplite_ucx.bench.harness.live_cluster import LiveCluster\n"
        "from hoplite_ucx.bench.hosts.places import LocalPlace\n"
        "class Here(LocalPlace, ThisHost): name = 'here'\n"
        "with LiveCluster([Here()], None, memory=64 << 20) as live: print(live.ranks)\n"
    )
    ran = run_in(tmp_path, "-P", "-c", program)
    assert ran.stdout == "range(0, 1)\n", ran.stderr
    assert traces(tmp_path) == []


def test_a_module_of_the_users_called_secrets_may_lie_beside_the_program(tmp_path: Path) -> None:
    (tmp_path / "secrets.py").write_text("API_KEY = 'mine'\n")
    ran = run_in(tmp_path, write_program(tmp_path))
    assert ran.stdout == "works\n", ran.stderr


def test_children_load_the_package_of_their_parent(tmp_path: Path) -> None:
    """The program finds a copy of the package beside itself, which is not installed anywhere; and it leaves its
    directory before it starts anything."""
    copy = tmp_path / "checkout" / "hoplite_ucx"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(hoplite_ucx.__file__).parent, copy, ignore=ignored)
    main = copy / "runtime" / "__main__.py"
    main.write_text(f"import sys\nopen({str(tmp_path)!r} + '/ran-' + sys.argv[1], 'w').close()\n" + main.read_text())
    elsewhere = tmp_path / "elsewhere"
    plant(elsewhere)
    program = write_program(copy.parent, f"import os\nos.chdir({str(elsewhere)!r})\n" + USES_A_CLUSTER)
    ran = run_in(copy.parent, program)
    assert ran.stdout == "works\n", ran.stderr
    assert traces(elsewhere) == []
    assert traces(tmp_path) == ["ran-agent", "ran-directory"]


def test_children_are_kept_from_what_their_parent_was_kept_from(tmp_path: Path) -> None:
    plant(tmp_path / "here")
    isolated = run_in(tmp_path, "-I", write_program(tmp_path / "elsewhere"), PYTHONPATH=str(tmp_path / "here"))
    assert isolated.stdout == "works\n", isolated.stderr
    assert traces(tmp_path / "here") == []
    assert processes.module("m")[1] == "-P"
