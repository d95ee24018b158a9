"""Emulated hosts: what they can reach and how fast, and that nothing of them is ever left."""

import ipaddress
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hoplite_ucx.bench.bare.driver import measure_bare
from hoplite_ucx.bench.hosts import namespace_keeper
from hoplite_ucx.bench.hosts import namespaces as clusters
from hoplite_ucx.bench.hosts.namespaces import Cluster, ClusterError, ClusterUnavailableError, Host
from tests.tools.waiting import HANG, eventually

pytestmark = pytest.mark.usefixtures("emulated_hosts")

MBIT = 1e6 / 8

# Answers every datagram, and tells how many came.
ECHO = """
import socket, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind((sys.argv[1], 7602))
print("ready", flush=True)
while True:
    data, sender = server.recvfrom(100)
    print("got", data.decode(), flush=True)
    server.sendto(data, sender)
"""
# Sends one, and says whether the answer came within a moment.
ASK = """
import socket, sys
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.settimeout(float(sys.argv[3]))
client.sendto(sys.argv[2].encode(), (sys.argv[1], 7602))
try:
    print(client.recv(100).decode())
except TimeoutError:
    print("silence")
"""
# Takes one connection and tells its congestion control.
GREETER = """
import socket, sys
server = socket.create_server((sys.argv[1], 7603))
print("ready", flush=True)
print(server.accept()[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 5).decode())
"""
# A program that keeps a cluster with all kinds of processes until it is ended.
PROGRAM = """
import sys, time
from hoplite_ucx.bench.hosts.namespaces import Cluster
with Cluster(hosts=2, name=sys.argv[1]) as cluster:
    cluster.hosts[0].popen(["sleep", "300"])
    cluster.hosts[1].popen(["sh", "-c", "sleep 300 & sleep 300"])
    cluster.hosts[1].run(["setsid", "--fork", "env", "-i", "sleep", "300"], stdout=None, stderr=None)
    print(cluster.keeper_pid, flush=True)
    time.sleep(300)
"""


class UnforeseenError(Exception):
    """Raised in the middle of things."""


class Trace:
    """Everything that could be left of a cluster."""

    def __init__(self, name: str, keeper_pid: int) -> None:
        self.name = name
        record = namespace_keeper.ask(name)
        assert record is not None
        assert record.pid == keeper_pid
        self.record = record
        self.namespaces = {os.stat(record.path(descriptor)).st_ino for descriptor in record.descriptors}

    def pids(self) -> set[int]:
        found = set()
        for entry in filter(str.isdecimal, os.listdir("/proc")):
            try:
                if os.stat(f"/proc/{entry}/ns/net").st_ino in self.namespaces:
                    found.add(int(entry))
            except OSError:
                continue
        return found | {pid for pid, mark in namespace_keeper.marked().items() if mark == self.record.mark}

    def is_gone(self) -> bool:
        return (
            self.name not in namespace_keeper.names()
            and not self.pids()
            and not Path(f"/proc/{self.record.pid}/fd/{self.record.descriptors[0]}").exists()
        )


def links_here() -> set[str]:
    return set(os.listdir("/sys/class/net"))


@pytest.fixture(scope="module")
def pair() -> Iterator[Cluster]:
    with Cluster(hosts=2, rate=200 * MBIT) as cluster:
        yield cluster


# --- what hosts are --------------------------------------------------------------------------------------------


@pytest.mark.long(reason="judges speed")
def test_eight_hosts_are_up_in_two_seconds() -> None:
    began = time.monotonic()
    with Cluster(hosts=8):
        assert time.monotonic() - began < 2


def test_eight_hosts_leave_the_system_as_it_was() -> None:
    before = links_here()
    with Cluster(hosts=8) as cluster:
        assert links_here() == before
        addresses = [ipaddress.ip_address(host.address) for host in cluster.hosts]
        assert len(set(addresses)) == 8
        assert all(address in ipaddress.ip_network("198.18.0.0/15") for address in addresses)
        shown = cluster.hosts[5].run(["ip", "-4", "-brief", "address", "show", "eth0"]).stdout
        assert cluster.hosts[5].address in shown
        assert "default" not in cluster.hosts[5].run(["ip", "route"]).stdout  # no way out of the cluster
        trace = Trace(cluster.name, cluster.keeper_pid)
    assert trace.is_gone()
    assert links_here() == before


def test_connections_are_those_of_a_debian_host_whatever_this_machine_prefers(pair: Cluster) -> None:
    first, second = pair.hosts
    server = first.popen([sys.executable, "-c", GREETER, first.address], stdout=subprocess.PIPE, text=True)
    assert server.stdout.readline() == "ready\n"
    ask = f"import socket; print(socket.create_connection(({first.address!r}, 7603)).getsockopt(6, 13, 5).decode())"
    assert second.run([sys.executable, "-c", ask]).stdout == "cubic\n"
    assert server.communicate(timeout=HANG)[0] == "cubic\n"


def test_clusters_do_not_see_each_other() -> None:
    with Cluster(hosts=1) as one, Cluster(hosts=2) as other:
        assert one.hosts[0].address == other.hosts[0].address
        assert answering(other.hosts[1], one.hosts[0]) == "silence"


def test_a_name_is_taken_once() -> None:
    name = f"twice-{os.getpid()}"
    with Cluster(hosts=1, name=name) as first:
        with (
            pytest.raises(ClusterError, match=f"'{name}' already exists.*cluster down --name {name}"),
            Cluster(name=name),
        ):
            pass
        assert name in clusters.names_up()
        assert name not in clusters.names_detached()
        assert first.hosts[0].run(["echo", "still here"]).stdout == "still here\n"
    with Cluster(hosts=1, name=name):
        pass


def test_what_cannot_be_is_refused_before_anything_is_made() -> None:
    for hosts in (0, -1, 257):
        with pytest.raises(ClusterError, match="1 to 256 hosts"):
            Cluster(hosts)
    for rate in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ClusterError, match="cannot be shaped"):
            Cluster(1, rate)
    for name in ("", "a/b", "-x", "x" * 41, "a b", "a\0b"):
        with pytest.raises(ClusterError, match="not a valid cluster name"):
            Cluster(1, name=name)
    with pytest.raises(ClusterError, match="no cluster 'nowhere' is up"):
        Cluster.attach("nowhere")


def test_links_that_are_not_there_are_refused(pair: Cluster) -> None:
    for index in (-1, 2):
        with pytest.raises(ClusterError, match=f"has no host {index}; it has 2 hosts"):
            pair.cut(index)
    with pytest.raises(ClusterError, match="'up' is not a direction of a link"):
        pair.heal(0, "up")  # type: ignore[arg-type]
    with pytest.raises(ClusterError, match="cannot be shaped"):
        pair.set_rate(0, 0)


def test_a_forked_child_leaves_the_cluster_alone() -> None:
    with Cluster(hosts=1) as cluster:
        if (child := os.fork()) == 0:
            cluster.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert cluster.hosts[0].run(["echo", "still here"]).stdout == "still here\n"


def test_a_command_that_fails_or_does_not_end_is_told(pair: Cluster) -> None:
    with pytest.raises(ClusterError, match="on host 1 exited with 3: oh no"):
        pair.hosts[1].run(["sh", "-c", "echo oh no >&2; exit 3"])
    assert pair.hosts[1].run(["false"], check=False).returncode == 1
    with pytest.raises(subprocess.TimeoutExpired):  # though a child of it holds its output open
        pair.hosts[1].run(["sh", "-c", "sleep 300 & sleep 300"], timeout=0.2)


def test_a_process_outlives_the_thread_that_started_it(pair: Cluster) -> None:
    started: list[subprocess.Popen[bytes]] = []
    thread = threading.Thread(target=lambda: started.append(pair.hosts[0].popen(["sleep", "300"])))
    thread.start()
    thread.join()
    time.sleep(0.1)
    assert started[0].poll() is None
    started[0].kill()
    started[0].wait()


# --- links -----------------------------------------------------------------------------------------------------


def answering(server_host: Host, client_host: Host, timeout: float = 0.3) -> str:
    with server_host.popen([sys.executable, "-c", ECHO, server_host.address], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        try:
            return client_host.run(
                [sys.executable, "-c", ASK, server_host.address, "hello", str(timeout)]
            ).stdout.strip()
        finally:
            server.kill()


@pytest.mark.long(reason="judges speed")
@pytest.mark.parametrize("operation", ["broadcast", "reduce"])  # from host 0 to 1, and from 1 to 0
def test_bulk_fills_the_rate_and_no_more(pair: Cluster, operation: str) -> None:
    measured = measure_bare(operation, hosts=2, size=5 << 20, rate=200 * MBIT, repeat=3, cluster=pair)
    assert measured.limit_seconds is not None
    # The fastest: the machine may be busy with other things.
    assert measured.fastest / measured.limit_seconds == pytest.approx(1, abs=0.1)


def test_a_hosts_rate_can_be_changed(pair: Cluster) -> None:
    pair.set_rate(1, 50 * MBIT, "in")
    try:
        slow = measure_bare("broadcast", hosts=2, size=2 << 20, rate=50 * MBIT, repeat=1, cluster=pair)
        assert slow.limit_seconds is not None
        assert slow.fastest / slow.limit_seconds > 0.9, "faster than the new rate allows"
    finally:
        pair.set_rate(1, 200 * MBIT)
    assert answering(pair.hosts[1], pair.hosts[0], timeout=HANG) == "hello"


@pytest.mark.long(reason="judges speed")
def test_a_hosts_rate_can_be_changed_either_way(pair: Cluster) -> None:
    pair.set_rate(1, 50 * MBIT, "in")
    try:
        slow = measure_bare("broadcast", hosts=2, size=2 << 20, rate=50 * MBIT, repeat=2, cluster=pair)
        assert slow.limit_seconds is not None
        assert slow.fastest / slow.limit_seconds == pytest.approx(1, abs=0.1)
        back = measure_bare("reduce", hosts=2, size=2 << 20, rate=50 * MBIT, repeat=1, cluster=pair)
        assert back.ratio is not None
        assert back.ratio < 0.5
    finally:
        pair.set_rate(1, 200 * MBIT)
    assert answering(pair.hosts[1], pair.hosts[0], timeout=HANG) == "hello"


@pytest.mark.parametrize(("way", "heard"), [("out", False), ("in", True), ("both", False)])
def test_a_cut_is_silent_and_heals(pair: Cluster, way: clusters.Way, heard: bool) -> None:
    server_host, client_host = pair.hosts
    with server_host.popen([sys.executable, "-c", ECHO, server_host.address], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        ask = [sys.executable, "-c", ASK, server_host.address]
        assert server.stdout.readline() == b"ready\n"
        assert client_host.run([*ask, "before", str(HANG)]).stdout == "before\n"
        pair.cut(client_host.index, way)
        assert client_host.run([*ask, "during", "0.2"]).stdout == "silence\n"
        pair.heal(client_host.index, way)
        assert client_host.run([*ask, "after", str(HANG)]).stdout == "after\n"
        server.kill()
        got = server.stdout.read().decode().split()[1::2]
    assert got == (["before", "during", "after"] if heard else ["before", "after"])


def test_unshaped_hosts_can_be_cut_and_healed() -> None:
    with Cluster(hosts=2, rate=None) as cluster:
        cluster.cut(0)
        assert answering(*cluster.hosts) == "silence"
        cluster.heal(0)
        assert answering(*cluster.hosts, timeout=HANG) == "hello"  # the address is looked up again within a second


# --- the end ---------------------------------------------------------------------------------------------------


def test_an_exception_ends_everything_in_the_hosts() -> None:
    cluster = Cluster(hosts=2)
    try:
        with cluster:
            plain = cluster.hosts[0].popen(["sleep", "300"])
            cluster.hosts[1].popen(["sh", "-c", "sleep 300 & sleep 300"])
            # A daemon of another session that does not even have its environment.
            cluster.hosts[1].run(["setsid", "--fork", "env", "-i", "sleep", "300"], stdout=None, stderr=None)
            trace = Trace(cluster.name, cluster.keeper_pid)
            eventually(lambda: len(trace.pids()) >= 6)  # four sleeps, a shell, the keeper
            raise UnforeseenError
    except UnforeseenError:
        pass
    assert trace.is_gone()
    assert plain.returncode == -signal.SIGKILL
    with pytest.raises(ClusterError, match="is not up"):
        cluster.enter("anywhere")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_everything_in_the_hosts(signum: signal.Signals) -> None:
    name = f"signal-{os.getpid()}-{signum}"
    with started_program(name) as (program, trace):
        eventually(lambda: len(trace.pids()) >= 6)
        program.send_signal(signum)
        program.wait(HANG)
        eventually(trace.is_gone)


def test_what_two_kills_leave_is_taken_down_by_name() -> None:
    name = f"orphan-{os.getpid()}"
    with started_program(name) as (program, trace):
        os.kill(trace.record.pid, signal.SIGKILL)
        program.kill()
        program.wait(HANG)
        eventually(lambda: name in clusters.names_detached())
        assert clusters.take_down(name)
        marked = {pid for pid, mark in namespace_keeper.marked().items() if mark == trace.record.mark}
        assert not marked
        for pid in trace.pids():  # the daemon without an environment, which nothing but its namespace gives away
            os.kill(pid, signal.SIGKILL)
    assert not clusters.take_down(name)


def test_a_cluster_closes_though_its_keeper_was_killed() -> None:
    with Cluster(hosts=1) as cluster:
        process = cluster.hosts[0].popen(["sh", "-c", "sleep 300 & sleep 300"])
        trace = Trace(cluster.name, cluster.keeper_pid)
        os.kill(cluster.keeper_pid, signal.SIGKILL)
        eventually(lambda: cluster.name not in namespace_keeper.names())
        with pytest.raises(ClusterError, match="is not up"):
            cluster.hosts[0].run(["true"])
    eventually(trace.is_gone)
    assert process.returncode is not None


@contextmanager
def started_program(name: str) -> Iterator[tuple[subprocess.Popen[str], Trace]]:
    """A program with a cluster, until the block ends."""
    command = [sys.executable, "-c", PROGRAM, name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as program:
        try:
            assert program.stdout is not None
            yield program, Trace(name, int(program.stdout.readline()))
        finally:
            program.kill()


# --- machines that lack something ------------------------------------------------------------------------------


def test_without_the_right_to_make_namespaces_a_user_namespace_has_them(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
            from hoplite_ucx.bench.bare.driver import measure_bare
            from hoplite_ucx.bench.hosts.namespaces import Cluster
            with Cluster(hosts=2, rate=25e6) as cluster:
                assert cluster._record.user is not None
                cluster.cut(1)
                cluster.heal(1)
                cluster.hosts[1].popen(["sleep", "300"])
                print(measure_bare("broadcast", hosts=2, size=4 << 20, rate=25e6, repeat=1, cluster=cluster).ratio)
        """)
    )
    drop = ["setpriv", "--bounding-set", "-sys_admin"] if os.geteuid() == 0 else []
    done = subprocess.run([*drop, sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)
    if "ClusterUnavailableError" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0.85, "faster than the rate allows"


def test_a_missing_tool_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(clusters, "_SYSTEM_PATH", "")
    with pytest.raises(ClusterUnavailableError, match="iproute2, util-linux"), Cluster():
        pass


@pytest.mark.parametrize(
    ("keeper_says", "message"),
    [
        ('print(\'{"refused": "Operation not permitted"}\')', "Operation not permitted.*as root, or allow user namesp"),
        ("raise SystemExit", "the keeper did not start"),
    ],
)
def test_a_missing_right_is_told_with_its_remedies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, keeper_says: str, message: str
) -> None:
    fake = tmp_path / "keeper.py"
    fake.write_text(keeper_says)
    monkeypatch.setattr(namespace_keeper, "__file__", str(fake))
    with pytest.raises(ClusterUnavailableError, match=message), Cluster():
        pass
