"""The machines of a Slurm job, as its `scontrol` names them."""

from __future__ import annotations

import os
import subprocess
import sys

from hoplite_ucx.bench.hosts.line_process import PeerError
from hoplite_ucx.bench.hosts.ssh import Machine

__all__ = ["machines_of_slurm"]

_SECONDS = 30


def machines_of_slurm() -> list[Machine]:
    """Those of the job that this process belongs to; this Python is there too, on a file system that they share."""
    if "SLURM_JOB_NODELIST" not in os.environ:
        raise PeerError("this is not inside a Slurm job: start it with salloc or sbatch, or give a hosts file")
    command = ["scontrol", "show", "hostnames"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise PeerError(f"the machines of this job are not known: {error}; give a hosts file") from error
    names = done.stdout.split()
    if len(names) < 2:
        raise PeerError(f"this job has {len(names)} machine; links are between two or more")
    return [Machine(name, python=(sys.executable,)) for name in names]
