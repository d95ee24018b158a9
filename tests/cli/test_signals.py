"""A command that is told to end, by whichever signal, takes down what it started."""

import os
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from hoplite_ucx.cli.signals import ending_noted
from tests.runtime.test_faults import alive, without_address
from tests.tools.commands import HOPLITE, interrupt_while_loading
from tests.tools.waiting import HANG, eventually

MARK = "HOPLITE_TEST_ENDING"
_BENCH = """
from hoplite_ucx.bench.peers import launching
import hoplite_ucx.cli.bench  # it lists the peers as it loads
from hoplite_ucx.cli import main

def launch(stage):
    stage.start(stage.hosts[1], ["sleep", "60"])
    return stage.lead(["sh", "-c", "sleep 60 & sleep 60"], "Sleeper")

launching.PEERS.clear()
launching.PEERS["sleeper"] = launching.Peer("Sleeper", (), launch)
main()
"""
_HOPLITE = "from hoplite_ucx.cli import main; main()"
_PEERS = ["peers", "--hosts", "2", "--size", "1KiB", "--operation", "broadcast", "--repeat", "1", "--no-bare"]
_BROADCAST = ["broadcast", "--hosts", "2", "--size", "1MiB", "--repeat", "100000"]


def marked(mark: str) -> set[int]:
    """The processes that were started by a command with this mark and live."""
    wanted, found = f"{MARK}={mark}\0".encode(), set()
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                if wanted in Path(f"/proc/{entry}/environ").read_bytes() and alive(int(entry)):
                    found.add(int(entry))
            except OSError:
                pass  # it has just ended
    return found


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


_ALSO = pytest.mark.long(reason="the other pairs of a command and a signal")


@pytest.mark.usefixtures("emulated_hosts")
@pytest.mark.parametrize(
    ("number", "code", "arguments", "under_way"),
    [
        (signal.SIGHUP, _BENCH, _PEERS, b"sleep"),
        (signal.SIGTERM, _HOPLITE, _BROADCAST, b"worker"),
        pytest.param(signal.SIGINT, _BENCH, _PEERS, b"sleep", marks=_ALSO),
        pytest.param(signal.SIGTERM, _BENCH, _PEERS, b"sleep", marks=_ALSO),
        pytest.param(signal.SIGINT, _HOPLITE, _BROADCAST, b"worker", marks=_ALSO),
        pytest.param(signal.SIGHUP, _HOPLITE, _BROADCAST, b"worker", marks=_ALSO),
    ],
)
def test_a_bench_that_is_ended_leaves_nothing(
    code: str, arguments: list[str], under_way: bytes, number: signal.Signals, tmp_path: Path
) -> None:
    mark = f"{tmp_path.name}-{os.getpid()}"
    environment = {**without_address(), MARK: mark, "TMPDIR": str(tmp_path)}
    command = subprocess.Popen(
        [sys.executable, "-c", code, "bench", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        eventually(lambda: sum(under_way in command_line(pid) for pid in marked(mark)) >= 2)
        command.send_signal(number)
        output, errors = command.communicate(timeout=HANG)
    finally:
        command.kill()
    assert command.returncode == 130, (output, errors)
    assert "Traceback" not in errors
    eventually(lambda: not marked(mark))
    assert not list(tmp_path.iterdir())


def test_a_signal_that_is_ignored_stays_so() -> None:
    """As `nohup` leaves it."""
    code = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{_HOPLITE}"
    command = [sys.executable, "-c", code, "start", "--head", "--port", "0", "--memory", "64MiB"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, env=without_address()) as service:
        assert service.stdout is not None
        assert service.stdout.readline().startswith("directory")
        service.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            service.wait(1)
        service.terminate()
        assert service.wait(HANG) == 0


@pytest.mark.parametrize("command", [HOPLITE, (sysconfig.get_path("scripts") + "/hoplite",)], ids=["-m", "script"])
def test_ctrl_c_while_the_command_loads_is_silent(command: tuple[str, ...], tmp_path: Path) -> None:
    assert interrupt_while_loading(command, tmp_path) == (-signal.SIGINT, "", "")  # which a shell calls 130


@pytest.mark.parametrize("command", ["simulate", "bench", "status"])
def test_ctrl_c_while_one_command_loads_is_silent(command: str, tmp_path: Path) -> None:
    """What only some commands need is loaded when they are run."""
    assert interrupt_while_loading((*HOPLITE, command, "--help"), tmp_path, "msgspec") == (130, "", "")


def test_ctrl_c_that_is_ignored_stays_so_while_the_command_loads(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import signal\nraise SystemExit(signal.getsignal(signal.SIGINT).name)\n")
    ignoring = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *HOPLITE]
    environment = {**without_address(), "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(ignoring, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert done.stderr == "SIG_IGN\n"


def test_ctrl_c_before_the_command_has_read_its_arguments_is_silent() -> None:
    code = "from hoplite_ucx import cli\ndef app(**_): raise KeyboardInterrupt\ncli.app = app\ncli.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_inside_a_block_a_signal_is_noted_and_interrupts_nothing(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with ending_noted() as is_ending:
        assert not is_ending()
        signal.raise_signal(number)
        assert is_ending()
    assert signal.getsignal(number) is before


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending_noted() as is_ending:
            signal.raise_signal(signal.SIGHUP)
            assert not is_ending()
    finally:
        signal.signal(signal.SIGHUP, before)
