"""The Slurm script of the manual runs as it is, under Debian's Slurm on emulated hosts."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hoplite_ucx.bench.hosts.namespaces import Cluster
from tests.manual.conftest import ROOT
from tests.runtime.test_faults import without_address

SCRIPT = ROOT / "docs" / "operating" / "hoplite.sbatch"
PATH = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
NODES = 2
PATIENCE = 200.0

PROGRAM = """
import os, numpy, hoplite_ucx as hoplite
hoplite.init()
rank, count = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
sources = [hoplite.ref_for(f"source {each}") for each in range(count)]
hoplite.put(numpy.full(100_000, rank + 1), ref=sources[rank])
if rank == 0:
    hoplite.reduce(sources, ref=hoplite.ref_for("total"))
total = hoplite.get(hoplite.ref_for("total"), timeout=60)
print("rank", rank, "of", count, "has", total[0], "of", len(total), flush=True)
done = hoplite.put(b"", ref=hoplite.ref_for(f"done {rank}"))
hoplite.gather([hoplite.ref_for(f"done {each}") for each in range(count)], timeout=60)
"""

CONFIGURATION = """
ClusterName=manual
SlurmctldHost={host}({controller})
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
ReturnToService=2
MpiDefault=none
"""


@contextlib.contextmanager
def slurm(cluster: Cluster, folder: Path) -> Iterator[dict[str, str]]:
    """Slurm on all hosts but the first, which has the controller; and the environment of its commands."""
    lines = CONFIGURATION.format(host=socket.gethostname(), controller=cluster.hosts[0].address, folder=folder)
    for number, host in enumerate(cluster.hosts[1:], 1):
        lines += f"NodeName=node{number} NodeAddr={host.address} CPUs=1 State=UNKNOWN\n"
    lines += "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
    (folder / "slurm.conf").write_text(lines)
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o600)
    (folder / "state").mkdir()
    environment = {**without_address(), "PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf")}
    munge = ("key-file", "socket", "pid-file", "log-file", "seed-file")
    options = [f"--{name}={folder}/munge.{name.partition('-')[0]}" for name in munge]
    log = (folder / "daemons.log").open("w")

    def run(host: int, *command: str) -> None:
        cluster.hosts[host].popen(command, env=environment, stdout=log, stderr=log)

    run(0, "munged", "--force", "--foreground", *options)
    await_that((folder / "munge.socket").exists)
    run(0, "slurmctld", "-D")
    for number in range(1, len(cluster.hosts)):
        run(number, "slurmd", "-D", "-N", f"node{number}")
    with log:
        yield environment


def await_that(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.long(reason="starts Slurm's daemons and a job: half a minute")
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("emulated_hosts")
def test_the_job_forms_a_cluster_and_runs_its_program(tmp_path: Path) -> None:
    missing = [tool for tool in TOOLS if shutil.which(tool, path=PATH) is None]
    if missing:
        pytest.skip(f"without {', '.join(missing)}: apt-get install slurm-wlm munge")
    tmp_path.chmod(0o755)  # munged wants a folder that others can read
    program, output = tmp_path / "program.py", tmp_path / "output"
    program.write_text(PROGRAM)
    with Cluster(hosts=NODES + 1, rate=None) as cluster, slurm(cluster, tmp_path) as environment:

        def ask(*command: str) -> str:
            done = cluster.hosts[0].run(command, env=environment, check=False)
            return done.stdout + done.stderr

        await_that(lambda: ask("sinfo", "--noheader", "--format=%T").strip() == "idle")
        submit = (
            "sbatch",
            "--parsable",
            f"--output={output}",
            f"--chdir={tmp_path}",
            str(SCRIPT),
            "python",
            str(program),
        )
        job = ask(*submit).strip()
        assert job.isdecimal(), job
        await_that(lambda: "JobState=COMPLETED" in (state := ask("scontrol", "show", "job", job)) or "FAILED" in state)
        said = output.read_text()
        assert "JobState=COMPLETED" in ask("scontrol", "show", "job", job), said
    for rank in range(NODES):
        assert f"rank {rank} of {NODES} has 3 of 100000" in said, said
    assert "HOPLITE_TOKEN" not in said


def test_the_script_is_valid_shell() -> None:
    subprocess.run(["bash", "-n", SCRIPT], check=True, timeout=60)
