"""Machines to reach through ssh, on this one: emulated hosts, each with an sshd of its own, and a seat for the driver.

Keys, known hosts and settings are in a directory of the test's. An sshd has a /run of its own, and ends with its host.
"""

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import hoplite_ucx
from hoplite_ucx.bench.hosts.namespaces import Cluster, Host
from tests.tools.waiting import HANG

PYTHON = f"env PYTHONPATH={Path(hoplite_ucx.__file__).parents[1]} {sys.executable}"
_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


@dataclass
class Machines:
    cluster: Cluster
    folder: Path

    @property
    def hosts(self) -> list[Host]:
        return self.cluster.hosts[1:]

    @property
    def ssh(self) -> list[str]:
        """The ssh command, as host 0 of the cluster has it."""
        return self.cluster.hosts[0].command(["ssh", "-F", str(self.folder / "ssh")])

    def file(self, *lines: str) -> Path:
        """A hosts file: of these lines, or of all machines."""
        path = self.folder / "hosts"
        usual = (f"{host.address} python={shlex.quote(PYTHON)}" for host in self.hosts)
        path.write_text("\n".join(lines or usual) + "\n")
        return path

    def processes(self) -> list[int]:
        """What runs on these machines for a measurement."""
        networks = {os.stat(host.namespace).st_ino for host in self.hosts}
        found = []
        for entry in Path("/proc").iterdir():
            try:
                ours = entry.name.isdecimal() and b"HOPLITE_BENCH_PROCESS=" in (entry / "environ").read_bytes()
                if ours and os.stat(entry / "ns" / "net").st_ino in networks:
                    found.append(int(entry.name))
            except OSError:
                pass  # it has just ended
        return found


def why_not() -> str | None:
    """Why there can be no such machines here; None if there can."""
    missing = [tool for tool in ("ssh", "sshd", "ssh-keygen", "unshare") if shutil.which(tool, path=_PATH) is None]
    if missing:
        return f"{', '.join(missing)} not installed (openssh-server, openssh-client, util-linux)"
    return None if os.getuid() == 0 else "sshd needs root"


@contextmanager
def machines(folder: Path, count: int, rate: float) -> Iterator[Machines]:
    if (why := why_not()) is not None:
        pytest.skip(why)
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True, timeout=30)
    (folder / "sshd").write_text(
        f"HostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\nStrictModes no\nUsePAM no\n"
        "KexAlgorithms curve25519-sha256\n"  # the quickest
        "PermitRootLogin prohibit-password\nPasswordAuthentication no\nPidFile none\n"
    )
    (folder / "ssh").write_text(
        f"IdentityFile {folder}/user\nIdentitiesOnly yes\nUserKnownHostsFile {folder}/known\n"
        "StrictHostKeyChecking yes\nGlobalKnownHostsFile none\n"
    )
    with Cluster(count + 1, rate) as cluster:
        key = (folder / "host.pub").read_text().strip()
        (folder / "known").write_text("".join(f"{host.address} {key}\n" for host in cluster.hosts))
        sshd = shutil.which("sshd", path=_PATH)
        for host in cluster.hosts[1:]:
            serve = f"{sshd} -D -e -f {folder}/sshd -o ListenAddress={host.address}"
            # What the user's shell reads at its start here is none of the test's, and may take long.
            plain = "{ [ ! -e ~/.bashrc ] || mount --bind /dev/null ~/.bashrc; }"
            alone = f"mount -t tmpfs tmpfs /run && mkdir /run/sshd && {plain} && exec {serve}"
            with (folder / f"log-{host.index}").open("wb") as log:
                host.popen(["unshare", "--mount", "sh", "-c", alone], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        for host in cluster.hosts[1:]:
            _await_port(cluster.hosts[0], host.address)
        yield Machines(cluster, folder)


def _await_port(seat: Host, address: str) -> None:
    look = f"import socket; socket.create_connection(({address!r}, 22), 1).close()"
    deadline = time.monotonic() + HANG
    while seat.run([sys.executable, "-c", look], check=False).returncode != 0:
        assert time.monotonic() < deadline, f"the sshd of {address} does not listen"
        time.sleep(0.1)
