"""The demo: what it reports, how it looks in a file, on a terminal and without emulated hosts, and what it leaves."""

import json
import os
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from hoplite_ucx.bench.demo import acts, hosts, screen, worker
from hoplite_ucx.bench.demo.traffic import Traffic
from hoplite_ucx.bench.hosts.namespaces import Cluster, ClusterUnavailableError
from hoplite_ucx.cli import app
from tests.tools.waiting import HANG, eventually

_HOPLITE = [sys.executable, "-c", "from hoplite_ucx.cli import main; main()"]
_SMALL = ["demo", "--hosts", "3", "--size", "4MiB", "--rate", "200mbit"]
_SLOW = [*_SMALL[:-1], "20mbit"]
"""Then an act takes two seconds, and its middle lasts for one: the demo finds a host there also if it is held up."""
_SECONDS = 100


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*_HOPLITE, *arguments], capture_output=True, text=True, timeout=_SECONDS, check=False)


def _emulates() -> bool:
    try:
        with Cluster(hosts=1):
            return True
    except ClusterUnavailableError:
        return False


def test_report() -> None:
    done = _run(*_SLOW, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["right"]
    assert report["hosts"] == 3
    broadcast, reduce = report["broadcast"], report["reduce"]
    if report["emulated"]:
        assert broadcast["limit_seconds"] == pytest.approx((4 << 20) / (0.95 * 2.5e6))
        assert broadcast["ratio"] == pytest.approx(broadcast["seconds"] / broadcast["limit_seconds"])
        assert broadcast["killed"] in (1, 2)
    survivors = {1, 2} - {broadcast["killed"]}
    assert set(map(int, broadcast["finished_seconds"])) >= survivors
    assert len(reduce["contributors"]) == reduce["count"] == 2
    assert broadcast["problems"] == reduce["problems"] == []


def test_in_a_file_without_kills() -> None:
    done = _run(*_SMALL, "--no-kill")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "every byte was right" in done.stdout
    assert "made of 0 + 1 + 2" in done.stdout
    assert "killed" not in done.stdout
    assert len(done.stdout.splitlines()) < 20


def test_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(*_: object) -> None:
        raise ClusterUnavailableError("no namespaces today")

    monkeypatch.setattr(hosts, "Cluster", unavailable)
    before = _children()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        done = CliRunner().invoke(app, ["demo", "--hosts", "3", "--size", "64MiB"])
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert done.exit_code == 0, done.output
    assert "no namespaces today" in done.output
    assert "every byte was right" in done.output
    assert _children() == before


_ALSO = pytest.mark.long(reason="the other pairs of a signal and a moment")


@pytest.mark.parametrize(
    ("number", "when"),
    [
        (signal.SIGTERM, "starting"),
        (signal.SIGINT, "playing"),
        pytest.param(signal.SIGINT, "starting", marks=_ALSO),
        pytest.param(signal.SIGTERM, "playing", marks=_ALSO),
    ],
)
def test_an_interrupt_leaves_nothing(number: signal.Signals, when: str) -> None:
    mark = f"demo-{os.getpid()}-{number}-{when}"
    demo = subprocess.Popen(
        [*_HOPLITE, "demo", "--hosts", "3", "--size", "16MiB", "--rate", "40mbit"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "DEMO_MARK": mark},
    )
    with demo:
        assert demo.stdout is not None
        if when == "starting":
            eventually(lambda: len(_marked(mark)) > 3)
        else:
            assert any(line.startswith("1  broadcast") for line in demo.stdout)
        demo.send_signal(number)
        output, errors = demo.communicate(timeout=HANG)
    assert demo.returncode == 130, output
    assert errors == ""
    eventually(lambda: not _marked(mark))


def _marked(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if f"DEMO_MARK={mark}".encode() in environment and state != "Z":
                found.append(int(entry.name))
    return found


def _children() -> set[str]:
    tasks = Path("/proc/self/task").iterdir()
    return {pid for task in tasks for pid in (task / "children").read_text().split()}


@pytest.mark.parametrize(
    "arguments",
    [["--hosts", "2"], ["--hosts", "33"], ["--size", "1KiB"], ["--size", "1048577B"], ["--rate", "0"]],
    ids=" ".join,
)
def test_bad_options(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, ["demo", *arguments])
    assert done.exit_code == 2
    assert arguments[0] in done.output


def test_wrong_bytes_are_found() -> None:
    array = np.empty(3 << 18, np.float32)
    worker.fill(array, 4)
    assert worker.first_wrong(array, [4]) is None
    assert worker.first_wrong(array, [3]) is not None
    array[700_000] += 1
    assert worker.first_wrong(array, [4]) == 700_000
    total = np.zeros_like(array)
    for host in (1, 2, 5):
        worker.fill(array, host)
        total += array
    assert worker.first_wrong(total, [5, 1, 2]) is None
    assert worker.first_wrong(total, [5, 1]) == 0


def test_traffic() -> None:
    traffic = Traffic({"a": 0, "b": 1, "c": 2})
    assert traffic.note(2, {"a": 100}, 1.0) == []  # from before
    assert traffic.note(2, {"a": 150, "b": 30}, 1.1) == [0, 1]
    assert traffic.edges([0, 1, 2]) == [(0, 2), (1, 2)]
    assert traffic.note(2, {"a": 20, "b": 30}, 1.5) == []  # a new connection counts from 0
    assert traffic.senders(2) == [0]
    traffic.forget(0)
    assert traffic.note(2, {"a": 90, "b": 40, "unknown": 7}, 1.6) == []
    assert traffic.senders(2) == [1]


def test_bars_are_those_of_the_streams() -> None:
    def stream(ref: str, sender: str, position: int) -> dict[str, Any]:
        return {"ref": ref, "into": "slot", "sender": sender, "position": position, "size": 100}

    traffic = Traffic({"a": 0, "b": 1, "c": 2})
    traffic.note_streams(2, [])
    assert traffic.fraction(2) is None
    traffic.note_streams(2, [stream("one", "a", 50), stream("two", "b", 10), stream("three", "unknown", 9)])
    assert traffic.fraction(2) == 0.3
    assert traffic.taken(0, 2) == 0.5
    traffic.note_streams(2, [stream("two", "b", 20)])
    assert traffic.fraction(2) == 0.6, "a stream that is gone has brought everything"
    traffic.note_streams(2, [stream("two", "a", 40), stream("one", "b", 70)])
    assert traffic.fraction(2) == 0.55, "it goes on behind another sender"
    traffic.forget(1)
    traffic.note_streams(2, [stream("two", "a", 50)])
    assert traffic.fraction(2) == 0.5, "and what the dead sent counts no more"
    traffic.begin_anew(2)
    assert traffic.fraction(2) is None


def test_paths() -> None:
    assert screen.paths([]) == []
    assert screen.paths([(2, 3), (0, 1), (1, 2)]) == [[0, 1, 2, 3]]
    assert screen.paths([(0, 1), (1, 2), (0, 3)]) == [[0, 1, 2], [0, 3]]
    ring = screen.paths([(0, 1), (1, 0)])
    assert sum(len(path) - 1 for path in ring) == 2


def test_picture() -> None:
    seen: Any = SimpleNamespace(
        edges=[(0, 1), (1, 2)],
        tracks=[
            acts.Track(0, "source", 1.0),
            acts.Track(1, "", 0.5, [0]),
            acts.Track(2, "", 1.0, [1], done_at=0.25),
            acts.Track(3, "", 0.3, dead=True),
        ],
        incidents=[acts.Incident(0.1, "✗", "host 3 is killed")],
    )
    text = StringIO()
    Console(file=text, width=100).print(screen.picture(seen, lambda seconds: f"{seconds:g} s"))
    shown = text.getvalue()
    assert "0 ──▶ 1 ──▶ 2" in shown
    assert "✗ 3" in shown
    assert "50%" in shown
    assert "0.25 s" in shown
    assert "0.1 s  host 3 is killed" in shown


def test_the_demo_shows_its_pictures_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    if not _emulates():
        pytest.skip("no emulated hosts")
    text = StringIO()
    shown = screen.Screen(Console(file=text, force_terminal=True, width=100, height=40), lambda seconds: f"{seconds:g}")
    with hosts.Hosts(3, 25e6, 4 << 20) as there:
        there.up()
        act = acts.Broadcast(there, kill=False, show=shown.show)
        with shown.act(1, act.title):
            act.play()
    assert act.problems == []
    assert act.seconds is not None
    assert "──▶" in text.getvalue()
    assert not there.machines[0].agent or not there.machines[0].agent.running()
