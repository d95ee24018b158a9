"""A new reader's path: the commands of a page, copied one after another, make a working cluster of two hosts.

The hosts are emulated and share a home directory. A block says on its first line where it is typed.
"""

import contextlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hoplite_ucx.bench.hosts.namespaces import Cluster
from tests.runtime.test_faults import without_address
from tests.tools.pages import ROOT, Block, blocks

WHERE = re.compile(r"# on the (first|second) host")
HOSTS = ("first", "second")
PATIENCE = 100.0


def steps(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language == "sh" and WHERE.match(block.text)]


def follow(page: Path, folder: Path, environment: dict[str, str]) -> str:
    """Types the commands of a page on their hosts. What starts a service goes on; returns what the others print."""
    said = ""
    with contextlib.ExitStack() as services, Cluster(hosts=len(HOSTS), rate=None) as cluster:
        for step in steps(page):
            where = WHERE.match(step.text)
            assert where is not None
            host = cluster.hosts[HOSTS.index(where[1])]
            terminal = host.popen(
                ["bash", "-euo", "pipefail", "-c", step.text],
                env=environment,
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            if "hoplite start" in step.text:
                services.enter_context(terminal)  # the end of the cluster ends it
                assert terminal.stdout is not None
                assert any("use it with" in line for line in terminal.stdout), step.name
            else:
                output, _ = terminal.communicate(timeout=PATIENCE)
                assert terminal.returncode == 0, f"{step.name}: {output}"
                said += output
    return said


def environment(home: Path, **more: str) -> dict[str, str]:
    home.mkdir()
    mine = {name: value for name, value in without_address().items() if name != "XDG_CONFIG_HOME"}
    return {**mine, "HOME": str(home), **more}


@pytest.mark.usefixtures("emulated_hosts")
def test_the_quickstart_makes_a_cluster_of_two_hosts(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    said = follow(ROOT / "docs" / "quickstart.md", tmp_path, environment(tmp_path / "home", PATH=path))
    assert "25000000.0" in said  # the object came
    assert "2 nodes" in said


@pytest.mark.long(reason="installs into a fresh checkout: a minute, and a network connection")
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("emulated_hosts")
def test_from_a_checkout_to_a_cluster_of_two_hosts_with_the_readme_alone(tmp_path: Path) -> None:
    """Prints how long it took: the README says about how long."""
    checkout = tmp_path / "checkout"
    subprocess.run(["git", "clone", "-q", ROOT, checkout], check=True, timeout=PATIENCE)
    for name in subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--modified", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")[:-1]:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_bytes((ROOT / name).read_bytes())  # as they are, also before a commit
    home = environment(tmp_path / "home")
    [setup] = [block for block in blocks(checkout / "README.md") if block.text.startswith("ci/demo")]
    began = time.monotonic()
    subprocess.run(
        ["bash", "-euo", "pipefail", "-c", setup.text],
        cwd=checkout,
        env=home,
        check=True,
        timeout=600,
        stdout=subprocess.PIPE,
    )
    ready = time.monotonic()
    said = follow(checkout / "README.md", checkout, home)
    done = time.monotonic()
    sys.stdout.write(f"{ready - began:.0f} s to set up and watch the demo, {done - ready:.0f} s more for the cluster\n")
    assert "2 nodes" in said
    assert "[1. 1." in said
