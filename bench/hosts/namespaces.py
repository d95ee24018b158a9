"""Emulated hosts on one machine: a network namespace each, joined by a bridge, with their links shaped.

    with Cluster(hosts=8, rate=125e6) as cluster:
        server = cluster.hosts[0].popen([sys.executable, "server.py", cluster.hosts[0].address])
        cluster.cut(3)

Every host has one interface, `eth0`, the far end of a veth pair whose near end is a port of the bridge; the bridge has
a namespace of its own. A token bucket on both ends limits what a host sends and what it receives, each way for itself.
Addresses come from 198.18.0.0/15, which is set aside for benchmarks, and clusters do not see each other, so all of them
may use the same ones.

A process started in a host ends with the cluster, and the cluster with the `with` block or with the process that made
it, even by `kill -9`: see `namespace_keeper`. Nothing here survives on disk or in the system's own network namespace.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from ipaddress import IPv4Network
from typing import Any, Literal

from hoplite_ucx.bench.hosts import namespace_keeper
from hoplite_ucx.bench.hosts.all_or_nothing import Opened
from hoplite_ucx.bench.hosts.namespace_keeper import Record
from hoplite_ucx.bench.hosts.places import LocalPlace

__all__ = [
    "Cluster",
    "ClusterError",
    "ClusterUnavailableError",
    "Host",
    "Way",
    "names_detached",
    "names_up",
    "take_down",
]

Way = Literal["in", "out", "both"]

_NETWORK = IPv4Network("198.18.0.0/15")
_MOST_HOSTS = 256  # a bridge takes 1023 ports; 8 hosts at 1 Gbit/s are what two cores carry
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}", re.ASCII)
# Debian has these where an ordinary user's PATH does not look.
_SYSTEM_PATH = "/usr/sbin:/sbin"
_TOOLS = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux"}
_ONE_WAY: tuple[Way, ...] = ("in", "out")
# How `ip` and `tc` speak of what the kernel was built without.
_LACKS = ("Unknown device type", "qdisc kind is unknown", "not supported")
_PATIENCE = 10.0

# The bucket must outlast the timer's lateness, or the link idles while tokens overflow; and one segment of the sender's
# offloading (64 KiB) must fit. All of it goes at full speed after a pause, so a large bucket flatters small objects.
_BUCKET_SECONDS = 0.001
_SMALLEST_BUCKET = 96 << 10
# The queue in front of the bucket, as time at the full rate: bulk senders meet no loss.
_QUEUE_SECONDS = 0.05
# What Debian's hosts have, whatever this machine was set to. With BBR, a connection all but stops for 0.2 s every 10 s.
_CONGESTION_CONTROL = "cubic"

_counter = itertools.count()


class ClusterError(RuntimeError):
    """A cluster could not be made, found, changed or ended; the message says why and what to do."""


class ClusterUnavailableError(ClusterError):
    """This machine does not have a tool or a right that every cluster needs."""


class Host(LocalPlace):
    """One emulated machine."""

    def __init__(self, cluster: Cluster, index: int, namespace: str) -> None:
        self._cluster = cluster
        self.index = index
        self.address = str(_NETWORK[index + 1])
        self.namespace = namespace

    def __repr__(self) -> str:
        return f"<Host {self.index} of {self._cluster.name}: {self.address}>"

    @property
    def name(self) -> str:
        return f"host {self.index}"

    def command(self, arguments: Sequence[str]) -> list[str]:
        """The command line that runs `arguments` in this host."""
        return [*self._cluster.enter(self.namespace), *arguments]

    def environment(self, env: Mapping[str, str] | None = None) -> dict[str, str]:
        """What a process in this host has in its environment, so that it is found when the cluster ends."""
        return {**(os.environ if env is None else env), namespace_keeper.MARK: self._cluster.mark}

    def popen(
        self, arguments: Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """`subprocess.Popen` in this host, in a session of its own; it is killed when the cluster ends."""
        return self._cluster.start(self.command(arguments), self.environment(env), options)

    def run(
        self, arguments: Sequence[str], *, timeout: float = 60.0, check: bool = True, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """`subprocess.run` in this host with its output captured as text; what takes too long is killed."""
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        with self.popen(arguments, text=True, **options) as process:
            try:
                stdout, stderr = process.communicate(timeout=timeout)
            except BaseException:
                _kill_group(process)
                raise
        done = subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)
        if check and done.returncode != 0:
            raise ClusterError(f"{' '.join(arguments)} on host {self.index} exited with {done.returncode}: {stderr}")
        return done


class Cluster(Opened):
    """`hosts` machines on one switch, each with `rate` bytes per second in and as many out; None is unshaped."""

    def __init__(self, hosts: int = 8, rate: float | None = 125e6, name: str | None = None) -> None:
        if not 1 <= hosts <= _MOST_HOSTS:
            raise ClusterError(f"a cluster has 1 to {_MOST_HOSTS} hosts, not {hosts}")
        _check_rate(rate)
        name = f"{os.getpid()}-{next(_counter)}" if name is None else name
        if not _NAME.fullmatch(name):
            raise ClusterError(f"{name!r} is not a valid cluster name: use up to 40 letters, digits, dots or dashes")
        self.name = name
        self.hosts: list[Host] = []
        self._record = Record(name, hosts, rate, owner=os.getpid())
        self._maker = os.getpid()
        self._is_up = False
        self._rates: dict[Way, list[float | None]] = {way: [rate] * hosts for way in _ONE_WAY}
        self._tools: dict[str, str] = {}
        self._keeper: subprocess.Popen[str] | None = None
        self._started: list[subprocess.Popen[Any]] = []
        self._lock = threading.Lock()  # of the list above: processes are started from any thread

    def __repr__(self) -> str:
        return f"<Cluster {self.name} of {self._record.hosts} hosts>"

    @property
    def mark(self) -> str:
        return self._record.mark

    @property
    def keeper_pid(self) -> int:
        return self._record.pid

    # --- its life ----------------------------------------------------------------------------------------------

    @classmethod
    def detached(cls, hosts: int, rate: float | None, name: str | None = None) -> Cluster:
        """A cluster that goes on after this process, until it is taken down by its name."""
        cluster = cls(hosts, rate, name)
        cluster._record = replace(cluster._record, owner=None)
        try:
            cluster._up()
        except BaseException:
            if cluster._is_up:  # else the name is somebody else's
                take_down(cluster.name)
            cluster.close()
            raise
        return cluster

    @classmethod
    def attach(cls, name: str) -> Cluster:
        """A cluster of this user that is up. It does not end with this object; what is started through it does."""
        record = namespace_keeper.ask(name)
        if record is None:
            raise ClusterError(f"no cluster {name!r} is up{_others()}; make one with: hoplite bench cluster up")
        cluster = cls(record.hosts, record.rate, record.name)
        cluster._tools = _find_tools()
        cluster._adopt(record)
        return cluster

    def _open(self) -> None:
        if not self._is_up:
            self._up()

    def _up(self) -> None:
        """Make namespaces and links; 8 hosts take about a fifth of a second."""
        self._tools = _find_tools()
        # Isolated from the environment and with the standard library alone: the keeper starts in 20 ms.
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", namespace_keeper.__file__, json.dumps(asdict(self._record))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            text=True,
        )
        assert self._keeper.stdout is not None
        with self._keeper.stdout as answer:
            readable, _, _ = select.select([answer], [], [], _PATIENCE)
            told = answer.readline() if readable else ""
        if not told or "refused" in json.loads(told):
            raise self._refusal(json.loads(told)["refused"] if told else "the keeper did not start")
        self._adopt(Record.read(told))
        if self._record.owner is None:
            self._keeper.wait(_PATIENCE)  # for the process that went before the real one
            self._keeper = None
        self._lay_links()

    def close(self) -> None:
        """Kill what runs in the hosts, and let the namespaces go. Harmless when done already."""
        if os.getpid() != self._maker:
            return  # a forked child that leaves the block: the cluster is its parent's
        self.hosts = []
        self._is_up = False
        with self._lock:
            started, self._started = self._started, []
        for process in started:
            _kill_group(process)
        if self._keeper is not None:
            self._keeper.terminate()
            try:
                self._keeper.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                self._keeper.kill()
                self._keeper.wait()
            self._keeper = None
            # The keeper did that; but it may have been killed itself.
            if self._record.pid and not namespace_keeper.kill_all(self.mark, (), spared={os.getpid()}):
                raise ClusterError(_unkillable(self.name, self.mark))
        for process in started:
            process.wait(_PATIENCE)

    def _refusal(self, why: str) -> ClusterError:
        if why == "taken":
            return ClusterError(
                f"a cluster {self.name!r} already exists; use another name, or end it with: "
                f"hoplite bench cluster down --name {self.name}"
            )
        return ClusterUnavailableError(
            f"cannot create network namespaces ({why}): run this as root, or allow user namespaces "
            "(user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns)"
        )

    def _adopt(self, record: Record) -> None:
        self._record = record
        self._is_up = True
        self.hosts = [
            Host(self, index, record.path(descriptor)) for index, descriptor in enumerate(record.descriptors[1:])
        ]

    # --- links -------------------------------------------------------------------------------------------------

    def cut(self, index: int, way: Way = "both") -> None:
        """Lose everything that a host sends ("out"), receives ("in"), or both, silently, as when a cable breaks."""
        for each in self._ways(index, way):
            self._set_queue(index, each, "blackhole")

    def heal(self, index: int, way: Way = "both") -> None:
        """Undo a cut."""
        for each in self._ways(index, way):
            self._set_queue(index, each, _shaping(self._rates[each][index]))

    def set_rate(self, index: int, rate: float | None, way: Way = "both") -> None:
        """Give a host another rate; what was cut that way is healed."""
        _check_rate(rate)
        for each in self._ways(index, way):
            self._rates[each][index] = rate
        self.heal(index, way)

    def _ways(self, index: int, way: Way) -> tuple[Way, ...]:
        if not 0 <= index < len(self.hosts):
            raise ClusterError(f"cluster {self.name} has no host {index}; it has {len(self.hosts)} hosts, from 0")
        if way != "both" and way not in _ONE_WAY:
            raise ClusterError(f'{way!r} is not a direction of a link; write "in", "out" or "both"')
        return _ONE_WAY if way == "both" else (way,)

    def _lay_links(self) -> None:
        ports = "".join(
            f"link add p{host.index} type veth peer name eth0 netns {host.namespace}\n"
            f"link set p{host.index} addrgenmode none master br0 up\n"
            for host in self.hosts
        )
        self._configure(self._switch, "ip", f"link add br0 type bridge\nlink set br0 addrgenmode none up\n{ports}")
        for host in self.hosts:
            self._configure(
                host.namespace, "ip",
                f"link set lo up\naddr add {host.address}/{_NETWORK.prefixlen} dev eth0 noprefixroute\n"
                "link set eth0 addrgenmode none up\n"
                f"route add {_NETWORK} dev eth0 src {host.address} congctl {_CONGESTION_CONTROL}\n",
            )  # fmt: skip
            self.heal(host.index, "out")
        shaping = _shaping(self._record.rate)
        queues = (f"qdisc replace dev p{host.index} root {shaping}\n" for host in self.hosts)
        self._configure(self._switch, "tc", "".join(queues))

    def _set_queue(self, index: int, way: Way, queue: str) -> None:
        """Each end of a link shapes what it sends, so that what a host receives is shaped by the switch."""
        if way == "out":
            self._configure(self.hosts[index].namespace, "tc", f"qdisc replace dev eth0 root {queue}\n")
        else:
            self._configure(self._switch, "tc", f"qdisc replace dev p{index} root {queue}\n")

    @property
    def _switch(self) -> str:
        return self._record.path(self._record.descriptors[0])

    def _configure(self, namespace: str, tool: str, batch: str) -> None:
        done = subprocess.run(
            [*self.enter(namespace), self._tools[tool], "-batch", "-"],
            input=batch, capture_output=True, text=True, timeout=_PATIENCE, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            if any(lack in done.stderr for lack in _LACKS):
                raise ClusterUnavailableError(f"the kernel has no veth, bridge or sch_tbf; {tool} says: {done.stderr}")
            raise ClusterError(f"{tool} refused a step of cluster {self.name}: {done.stderr}")

    # --- processes ---------------------------------------------------------------------------------------------

    def enter(self, namespace: str) -> list[str]:
        """The beginning of a command line that goes into a namespace; it is the same process to the end."""
        if not self._is_up or (self._keeper is not None and self._keeper.poll() is not None):
            raise ClusterError(f"cluster {self.name} is not up")
        user = self._record.user
        rights = [] if user is None else [f"--user={self._record.path(user)}", "--preserve-credentials"]
        return [self._tools["nsenter"], f"--net={namespace}", *rights, "--"]

    def start(self, command: list[str], env: dict[str, str], options: dict[str, Any]) -> subprocess.Popen[Any]:
        process = subprocess.Popen(command, env=env, start_new_session=True, **options)
        with self._lock:
            self._started = [each for each in self._started if each.poll() is None]
            self._started.append(process)
        return process


def names_up() -> list[str]:
    """The clusters of this user that are up, in any program."""
    return namespace_keeper.names()


def names_detached() -> list[str]:
    """Those of them that stay until they are taken down, and those whose keeper was killed: nobody else ends them."""
    records = filter(None, map(namespace_keeper.ask, namespace_keeper.names()))
    orphans = (_name_of(mark) for mark in namespace_keeper.marked().values() if not namespace_keeper.is_kept(mark))
    return sorted({*(record.name for record in records if record.owner is None), *orphans})


def take_down(name: str) -> bool:
    """End a cluster by its name; False if there was nothing to end.

    Where the keeper itself was killed, its processes are known by their environment alone.
    """
    record = namespace_keeper.ask(name)
    if record is not None:
        _end_process(record.pid)
    orphans = {
        mark
        for mark in namespace_keeper.marked().values()
        if _name_of(mark) == name and not namespace_keeper.is_kept(mark)
    }
    for mark in orphans:
        if not namespace_keeper.kill_all(mark, (), spared={os.getpid()}):
            raise ClusterError(_unkillable(name, mark))
    return record is not None or bool(orphans)


def _name_of(mark: str) -> str:
    return mark.rpartition("/")[0]


def _end_process(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(process, signal.SIGTERM)
            if not select.select([process], [], [], _PATIENCE)[0]:
                signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)


def _kill_group(process: subprocess.Popen[Any]) -> None:
    if process.poll() is None:  # else its number may be somebody else's
        os.killpg(process.pid, signal.SIGKILL)


def _find_tools() -> dict[str, str]:
    path = f"{os.environ.get('PATH', os.defpath)}:{_SYSTEM_PATH}"
    found = {tool: shutil.which(tool, path=path) for tool in _TOOLS}
    missing = sorted({_TOOLS[tool] for tool, where in found.items() if where is None})
    if missing:
        raise ClusterUnavailableError(f"emulated hosts need the packages {_listed(missing)}; install them")
    return {tool: where for tool, where in found.items() if where is not None}


def _check_rate(rate: float | None) -> None:
    if rate is not None and not 1e3 <= rate <= 1e12:
        raise ClusterError(f"a link cannot be shaped to {rate} bytes per second; give 1e3 to 1e12, or None")


def _shaping(rate: float | None) -> str:
    """The queueing discipline for a rate, in tc's words (where bps are bytes)."""
    if rate is None:
        return "noqueue"
    bucket = max(_SMALLEST_BUCKET, round(rate * _BUCKET_SECONDS))
    return f"tbf rate {round(rate)}bps burst {bucket}b limit {round(rate * _QUEUE_SECONDS) + bucket}b"


def _unkillable(name: str, mark: str) -> str:
    marked = f"{namespace_keeper.MARK}={mark}"
    return f"some processes of cluster {name} cannot be killed; they have {marked} in their environment"


def _others() -> str:
    up = names_up()
    return f" (but {_listed(up)})" if up else ""


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words)
