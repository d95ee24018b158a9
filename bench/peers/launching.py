"""How each peer is started on emulated hosts, and how it is ended.

Everything a peer starts is in the hosts' network namespaces and is killed there when its `with` block ends; its files
are in a directory that is removed then. A peer that is not installed, or that does not start, is reported in one line.
"""

from __future__ import annotations

import filecmp
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from hoplite_ucx.bench.hosts import namespace_keeper
from hoplite_ucx.bench.hosts.line_process import LineProcess, PeerError
from hoplite_ucx.bench.hosts.namespaces import Cluster, Host
from hoplite_ucx.bench.peers.rounds import Cell, plan_of
from hoplite_ucx.bench.ray.nodes import ray_nodes

__all__ = ["PEERS", "Peer", "python_of_peers", "running", "why_missing"]

# Open MPI's own choices move whole messages through trees. These are the best it has for large ones on a plain network,
# as far as we could find: a chain of pipelined segments for broadcast and reduce, and a ring in segments for allreduce.
# Segments are sent eagerly: one above that limit costs a round trip, between processes that share few cores, and the
# chain takes three times as long.
_SEGMENT = "65000"
_RING_SEGMENT = "250000"
_EAGER = "262144"
_PIPELINED = {
    "coll_adapt_priority": "100",
    "coll_adapt_bcast_algorithm": "4",
    "coll_adapt_bcast_segment_size": _SEGMENT,
    "coll_adapt_reduce_algorithm": "4",
    "coll_adapt_reduce_segment_size": _SEGMENT,
    "coll_tuned_use_dynamic_rules": "1",
    "coll_tuned_allreduce_algorithm": "5",
    "coll_tuned_allreduce_algorithm_segmentsize": _RING_SEGMENT,
    "coll_han_priority": "0",
    "btl_tcp_eager_limit": _EAGER,
    "btl_tcp_rndv_eager_limit": _EAGER,
    "btl_tcp_max_send_size": _EAGER,
}
# Its first argument is the host name that the rest of its command line sees. It knows the other hosts by their names
# and asks nobody for others: nobody would answer, and who asks for its own name, as Ray does, would wait for that.
_MACHINE = """
set -e
hostname "$1"
mount --bind {folder}/names /etc/hosts
mount --bind /dev/null /etc/resolv.conf
shift
exec "$@"
"""
_PATIENCE = 60.0


@dataclass(frozen=True)
class _Stage:
    """Where a peer is to run, and what it is to do."""

    cluster: Cluster
    cells: Sequence[Cell]
    folder: Path
    python: str
    stack: ExitStack
    """What is closed when the peer has ended."""

    @property
    def hosts(self) -> Sequence[Host]:
        return self.cluster.hosts

    @property
    def largest(self) -> int:
        return max(cell.size for cell in self.cells)

    def program(self, module: str, *arguments: str) -> list[str]:
        return [self.python, "-P", "-m", f"hoplite_ucx.bench.peers.{module}", plan_of(self.cells), *arguments]

    def tool(self, name: str) -> str:
        """A command that comes with the peers' environment, or one of the system's."""
        beside = Path(self.python).with_name(name)
        return str(beside) if beside.exists() else name

    def machine(self, name: str) -> list[str]:
        """What comes before a command line that is to run on a machine of this name."""
        return ["unshare", "--uts", "--mount", "sh", str(self.folder / "machine"), name]

    def prepare(self) -> None:
        names = [f"{host.address} host-{host.index}\n" for host in self.hosts]
        (self.folder / "names").write_text("".join(["127.0.0.1 localhost\n", *names]))
        (self.folder / "machine").write_text(_MACHINE.format(folder=self.folder))

    def lead(self, command: list[str], name: str) -> LineProcess:
        """The process on host 0 that tells how the rounds went."""
        log = self.stack.enter_context((self.folder / "leader").open("w+b"))
        leader = LineProcess(self.hosts[0], [*self.machine("host-0"), *command], name, log=log)
        self.stack.callback(leader.close)
        return leader

    def start(self, host: Host, command: list[str]) -> None:
        with (self.folder / f"host-{host.index}").open("ab") as log:
            command = [*self.machine(f"host-{host.index}"), *command]
            host.popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


# --- the peers --------------------------------------------------------------------------------------------------


def _gloo(stage: _Stage) -> LineProcess:
    count, first = str(len(stage.hosts)), stage.hosts[0].address
    for host in stage.hosts[1:]:
        stage.start(host, stage.program("gloo", str(host.index), count, first))
    return stage.lead(stage.program("gloo", "0", count, first), "Gloo")


def _openmpi(stage: _Stage, settings: dict[str, str]) -> LineProcess:
    """mpirun reaches the other hosts through what it takes for ssh, and tells them apart by their host names, up to
    the first dot. Waiting processes yield: on few cores, Open MPI is far slower without."""
    (stage.folder / "hosts").write_text("".join(f"{host.address} slots=1\n" for host in stage.hosts))
    agent = stage.folder / "agent"
    places = "".join(f"{host.address}) namespace={host.namespace} name=host-{host.index};;\n" for host in stage.hosts)
    nsenter, machine = stage.hosts[0].command([])[0], " ".join(stage.machine("$name"))
    agent.write_text(
        '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nhost=$1; shift\n'
        f"case $host in\n{places}esac\n"
        f'exec {nsenter} --net=$namespace -- {machine} sh -c "$*"\n'
    )
    agent.chmod(0o700)
    options = {
        "pml": "ob1",
        "btl": "tcp,self",
        "btl_tcp_if_include": "eth0",
        "mpi_yield_when_idle": "1",
        **settings,
    }
    command = [
        stage.tool("mpirun"), "--allow-run-as-root", "--hostfile", str(stage.folder / "hosts"),
        "-np", str(len(stage.hosts)), "--map-by", "node", "--bind-to", "none",
        "--prtemca", "plm_ssh_agent", str(agent), "--prtemca", "prte_if_include", "eth0",
        *(word for name, value in options.items() for word in ("--mca", name, value)),
    ]  # fmt: skip
    return stage.lead([*command, *stage.program("openmpi")], "Open MPI")


def _ray(stage: _Stage) -> LineProcess:
    """A Ray node on every host; the driver is on the first."""
    store = (len(stage.hosts) + 4) * stage.largest
    nodes = stage.stack.enter_context(ray_nodes(stage.cluster, store, stage.python))
    return stage.lead(nodes.command(stage.program("ray", *(host.address for host in stage.hosts))), "Ray")


def _dask(stage: _Stage) -> LineProcess:
    head = stage.hosts[0]
    python, scheduler = stage.python, f"tcp://{head.address}:8786"
    spare = ["env", "OMP_NUM_THREADS=1", "DASK_DISTRIBUTED__WORKER__MEMORY__TARGET=False"]
    spare += ["DASK_DISTRIBUTED__WORKER__MEMORY__SPILL=False", "DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE=False"]
    serve = ["-m", "distributed.cli.dask_scheduler", "--host", head.address, "--port", "8786", "--no-dashboard"]
    stage.start(head, [*spare, python, *serve, "--no-show"])
    work = ["-m", "distributed.cli.dask_worker", scheduler, "--nthreads", "1", "--no-nanny", "--no-dashboard"]
    for host in stage.hosts:
        own = ["--host", host.address, "--name", f"host-{host.index}", "--memory-limit", "0"]
        stage.start(host, [*spare, python, *work, *own, "--local-directory", str(stage.folder / str(host.index))])
    return stage.lead(stage.program("dask", *(host.address for host in stage.hosts)), "Dask")


@dataclass(frozen=True)
class Peer:
    title: str
    modules: tuple[str, ...]
    """What must be installed for it."""
    launch: Callable[[_Stage], LineProcess]
    tools: tuple[str, ...] = ()


PEERS: dict[str, Peer] = {
    "openmpi": Peer("Open MPI", ("mpi4py",), functools.partial(_openmpi, settings={}), ("mpirun",)),
    "openmpi-pipelined": Peer(
        "Open MPI (chain, ring)", ("mpi4py",), functools.partial(_openmpi, settings=_PIPELINED), ("mpirun",)
    ),
    "gloo": Peer("Gloo", ("torch",), _gloo),
    "ray": Peer("Ray", ("ray",), _ray),
    "dask": Peer("Dask", ("distributed",), _dask),
}


# --- where they are ---------------------------------------------------------------------------------------------


def python_of_peers() -> str:
    """The Python that has the peers: HOPLITE_PEERS_PYTHON, the one that `ci/peers` made, or this one."""
    made = Path(__file__).resolve().parents[2] / ".venv-peers" / "bin" / "python"
    return os.environ.get("HOPLITE_PEERS_PYTHON") or (str(made) if made.exists() else sys.executable)


_LOOK = """
import importlib.util, sys
for name in sys.argv[1:]:
    if (found := importlib.util.find_spec(name)) is not None:
        print(name, found.origin)
"""


@functools.cache
def _installed(python: str, modules: tuple[str, ...]) -> dict[str, str]:
    """Which of these modules it has, and where."""
    try:
        done = subprocess.run(
            [python, "-c", _LOOK, *modules], capture_output=True, text=True, timeout=_PATIENCE, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise PeerError(f"the peers' Python, {python}, does not run: {error}") from error
    return {name: origin for name, _, origin in (line.partition(" ") for line in done.stdout.splitlines())}


def why_missing(name: str) -> str | None:
    """Why a peer cannot be started here at all; None if it can."""
    python = python_of_peers()
    wanted = (*PEERS[name].modules, "hoplite_ucx")
    installed = _installed(python, wanted)
    missing = [module for module in wanted if module not in installed]
    missing += [tool for tool in PEERS[name].tools if not _has_tool(python, tool)]
    if missing:
        return f"{' and '.join(missing)} not found for {python}: run ci/peers"
    theirs = Path(installed["hoplite_ucx"]).parent
    if not _is_ours(theirs):
        return f"{python} has another version of hoplite_ucx, in {theirs}, than this one: make them the same"
    return None


def _is_ours(package: Path) -> bool:
    """Whether the peers' programs in a package are those that this code drives."""
    here = Path(__file__).parent
    there = package / "bench" / "peers"
    names = [path.name for path in here.glob("*.py")]
    return filecmp.cmpfiles(here, there, names, shallow=False)[0] == names


def _has_tool(python: str, tool: str) -> bool:
    return Path(python).with_name(tool).exists() or shutil.which(tool) is not None


# --- its life ---------------------------------------------------------------------------------------------------


@contextmanager
def running(name: str, cluster: Cluster, cells: Sequence[Cell]) -> Iterator[LineProcess]:
    """The leader of a peer that does these cells. Nothing else may run in the cluster's hosts: all of it is ended."""
    inodes = {os.stat(host.namespace).st_ino for host in cluster.hosts}
    with ExitStack() as stack:
        made = tempfile.TemporaryDirectory(prefix="hoplite-peer-", ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(made))
        try:
            stage = _Stage(cluster, cells, folder, python_of_peers(), stack)
            stage.prepare()
            yield PEERS[name].launch(stage)
        finally:
            if not namespace_keeper.kill_all(cluster.mark, inodes, spared={os.getpid(), cluster.keeper_pid}):
                raise PeerError(f"some processes of {PEERS[name].title} cannot be killed")
