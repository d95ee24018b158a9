"""Traces of live clusters: what they show, on one clock, and what becomes of processes that die or refuse."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import hoplite_ucx as hoplite
from hoplite_ucx.errors import ClosedError, HopliteError, InvalidRequestError
from hoplite_ucx.runtime.launch import tracing
from hoplite_ucx.runtime.launch.tracing import ClusterTrace
from hoplite_ucx.runtime.shell import tracers
from hoplite_ucx.tracing.document import TracedProcess
from tests.runtime.test_faults import without_address
from tests.tools import traces
from tests.tools.certificates import NEEDS_OPENSSL, Authority, variables
from tests.tools.commands import HOPLITE
from tests.tools.live import TOKEN, Live, live_cluster, patient
from tests.tools.waiting import HANG, eventually

LARGE = np.arange(1 << 19)  # 4 MiB


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with live_cluster(3, settings=patient()) as cluster:
        eventually(lambda: _members(cluster) == 3)
        yield cluster


def _members(cluster: Live) -> int:
    from hoplite_ucx.runtime.launch.inspection import directory_status

    return sum(node["connected"] for node in directory_status(cluster.address, TOKEN)["nodes"])


def test_a_broadcast_and_a_reduction_show_every_stream_slot_and_placement(live: Live, tmp_path: Path) -> None:
    first, second, third = live.hosts
    path = tmp_path / "run.json"
    recording = ClusterTrace(path, live.address, TOKEN)
    recording.start()
    ref = first.put(LARGE)
    for host in (second, third):
        assert np.array_equal(host.get(ref), LARGE)
    target = third.reduce([host.put(LARGE) for host in live.hosts])
    assert np.array_equal(third.get(target), 3 * LARGE)
    report = recording.finish()
    trace = traces.read(path)
    assert report.lost == {}
    assert len(report.processes) == 4

    received = traces.spans(trace, "receiving")
    assert {(span["args"]["ref"]) for span in received} >= {ref.binary.hex()}
    assert len([span for span in received if span["args"]["ref"] == ref.binary.hex()]) == 2
    assert all(span["args"]["watermark"] == span["args"]["size"] for span in received)
    assert all("first_byte_after_seconds" in span["args"] for span in received)
    placed = {span["args"]["number"] for span in traces.spans(trace, "placements", "directory")}
    assert len(placed) >= len(received)
    assert len(traces.arrows(trace, "placement")) == len({span["pid"] for span in received})
    assert traces.arrows(trace, "stream")
    assert [span["name"] for span in traces.spans(trace, "reductions")] == [f"sum of 3 into {target.binary.hex()[:8]}"]
    assert traces.spans(trace, "slots", "directory")
    assert traces.spans(trace, "slots", "agent")
    assert {span["name"].split()[0] for span in traces.spans(trace, "calls")} >= {"put", "get", "reduce"}
    assert traces.spans(trace, "events", "directory")

    stated = trace["otherData"]["processes"]
    assert [process["round_trips"] for process in stated] == [16] * 4
    assert all(0 < process["clock_error_seconds"] < HANG for process in stated)
    assert all(abs(process["clock_offset_seconds"]) <= process["clock_error_seconds"] for process in stated), (
        "all processes are of this host, with one clock"
    )


def test_what_goes_on_when_the_trace_begins_is_in_it(live: Live, tmp_path: Path) -> None:
    ref = hoplite.new_ref()
    host = live.hosts[0]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(host.get, ref)
        eventually(lambda: host.status()["calls"] == 1)
        recording = ClusterTrace(tmp_path / "run.json", live.address, TOKEN)
        recording.start()
        recording.finish()
        live.hosts[1].put(LARGE, ref)
        waiting.result(HANG)
    calls = traces.spans(traces.read(tmp_path / "run.json"), "calls")
    (get,) = [span for span in calls if span["name"] == f"get {ref.binary.hex()[:8]}"]
    assert get["args"]["unfinished"] is True


def test_recorders_end_with_their_tracers_and_are_few(live: Live, tmp_path: Path) -> None:
    recording = [ClusterTrace(tmp_path / f"{number}.json", live.address, TOKEN) for number in range(tracers.MOST)]
    for each in recording:
        each.start()
    with pytest.raises(ClosedError, match="too many others trace it"):
        ClusterTrace(tmp_path / "more.json", live.address, TOKEN).start()
    for each in recording:
        each.finish()

    def another() -> bool:
        try:
            again = ClusterTrace(tmp_path / "again.json", live.address, TOKEN)
            again.start()
        except ClosedError:
            return False
        again.finish()
        return True

    eventually(another)
    assert not (tmp_path / "more.json").exists()


def test_a_killed_agent_is_named_and_the_others_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_BETWEEN", 0.05)
    with live_cluster(2) as live:
        eventually(lambda: _members(live) == 2)
        recording = ClusterTrace(tmp_path / "run.json", live.address, TOKEN)
        recording.start()
        live.hosts[1].kill()
        eventually(lambda: _members(live) == 1)
        live.hosts[0].put(LARGE)
        report = recording.finish()
    (name,) = report.lost
    assert name.startswith("agent n")
    assert "its session ended after" in report.lost[name]
    trace = traces.read(tmp_path / "run.json")
    assert any(text.endswith("is gone") for text in traces.marks(trace))
    assert [process["note"] for process in trace["otherData"]["processes"]].count("") == 2


def test_a_process_that_answered_while_the_tracer_itself_was_paused_has_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracing, "_ANSWER_SECONDS", 0.01)
    ours, theirs = socket.socketpair()

    class Session:
        def send(self, _: bytes) -> None:
            asyncio.get_running_loop().call_soon(self.answer_in_a_pause)

        def answer_in_a_pause(self) -> None:
            theirs.send(b"x")
            time.sleep(0.1)

    async def ask() -> float:
        traced = tracing._Traced(TracedProcess("agent"), cast(Any, Session()))
        asyncio.get_running_loop().add_reader(ours, lambda: traced.answers.put_nowait(tracers.ClockIs(ours.recv(1)[0])))
        answer = await traced.ask(tracers.Clock(), tracers.ClockIs)
        asyncio.get_running_loop().remove_reader(ours)
        return answer.now

    with ours, theirs:
        assert asyncio.run(ask()) == ord("x")


def test_a_directory_that_is_started_again_is_traced_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.tools.loopback import own_address

    monkeypatch.setattr(tracing, "_BETWEEN", 0.05)
    with live_cluster(1, host=own_address()) as live:
        eventually(lambda: _members(live) == 1)
        recording = ClusterTrace(tmp_path / "run.json", live.address, TOKEN)
        recording.start()
        live.kill_directory()
        live.restart_directory()
        eventually(lambda: len(recording._traced) == 3)
        report = recording.finish()
    names = [process.name for process in report.processes]
    assert names[0] == "directory"
    assert names[-1] == "directory, started again"
    traces.read(tmp_path / "run.json")


@pytest.mark.parametrize("bad", ["", "none/run.json", "."])
def test_a_file_that_cannot_be_written_is_refused_before_the_trace(live: Live, tmp_path: Path, bad: str) -> None:
    with pytest.raises(InvalidRequestError, match="the trace cannot be written"):
        ClusterTrace(tmp_path / bad, live.address, TOKEN).start()


def test_another_token_is_refused(live: Live, tmp_path: Path) -> None:
    with pytest.raises(HopliteError, match="token"):
        ClusterTrace(tmp_path / "run.json", live.address, b"another token").start()


def test_a_program_traces_its_block(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with hoplite.connect(memory=1 << 28) as cluster:
        with cluster.trace(path):
            ref = cluster.put(LARGE)
            cluster.get(ref)
        for bad in (3, None, tmp_path):
            with (
                pytest.raises(InvalidRequestError, match=r"path of a file|needs a file|is a directory"),
                cluster.trace(bad),
            ):
                pass
    names = [span["name"] for span in traces.spans(traces.read(path), "calls")]
    assert names == [f"put {ref.binary.hex()[:8]}", f"get {ref.binary.hex()[:8]}"]


def test_the_command_writes_what_it_has_on_ctrl_c(live: Live, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    environment = {**without_address(), "HOPLITE_TOKEN": TOKEN.decode()}
    command = [*HOPLITE, "trace", "--out", str(path), "--seconds", "600", "--address", live.address]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as running:
        assert running.stderr is not None
        assert running.stderr.readline().startswith(f"recording {live.address} for ")
        live.hosts[0].put(LARGE)
        running.send_signal(signal.SIGINT)
        output, errors = running.communicate(timeout=HANG)
    assert running.returncode == 0
    assert errors == ""
    assert output.startswith(f"{path}: ")
    assert [span["name"].split()[0] for span in traces.spans(traces.read(path), "calls")] == ["put"]


def test_the_command_ends_after_its_time_and_tells_figures(live: Live, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    done = subprocess.run(
        [*HOPLITE, "trace", "--out", str(path), "--seconds", "0.2", "--address", live.address, "--json"],
        capture_output=True, text=True, timeout=HANG, check=True, env={**os.environ, "HOPLITE_TOKEN": TOKEN.decode()},
    )  # fmt: skip
    figures = json.loads(done.stdout)
    assert len(figures["processes"]) == 4
    assert figures["seconds"] >= 0.2
    traces.read(path)


def test_a_directory_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    command = [*HOPLITE, "trace", "--out", str(tmp_path / "run.json"), "--address", "127.0.0.1:9"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False, env=without_address())
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_a_stream_that_goes_on_is_in_a_trace_that_begins_later(tmp_path: Path) -> None:
    """An object that its program does not finish: its receiver stays placed, and its stream open."""
    with live_cluster(2) as live, ThreadPoolExecutor(1) as pool:
        eventually(lambda: _members(live) == 2)
        putter, getter = live.hosts
        program = hoplite.connect(live.address, agent=putter.agent.report["agent"], token=TOKEN.decode())
        draft = program.create(LARGE.shape, LARGE.dtype)
        others = [putter.put(np.arange(number)) for number in range(1500)]  # more than are looked at in one turn
        waiting = pool.submit(getter.get, draft.ref)
        eventually(lambda: getter.status()["streams"])
        recording = ClusterTrace(tmp_path / "run.json", live.address, TOKEN)
        recording.start()
        eventually(lambda: getter.status()["streams"])
        recording.finish()
        draft.array[:] = LARGE
        draft.seal()
        assert np.array_equal(waiting.result(HANG), LARGE)
        putter.delete(*others)
        program.close()
    trace = traces.read(tmp_path / "run.json")
    for track in ("placements", "receiving", "sending"):
        (span,) = traces.spans(trace, track)
        assert span["args"]["ref"] == draft.ref.binary.hex()
        assert span["args"]["begun_before_the_trace"]
        assert span["args"]["unfinished"]
    assert len(traces.arrows(trace, "placement")) == len(traces.arrows(trace, "stream")) == 1


@NEEDS_OPENSSL
def test_under_tls_a_tracer_needs_a_certificate(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as secured:
        for name, value in variables(Authority.make(tmp_path).issue("node")).items():
            secured.setenv(name, value)
        with live_cluster(1) as live:
            eventually(lambda: _members(live) == 1)
            recording = ClusterTrace(tmp_path / "run.json", live.address, TOKEN)
            recording.start()
            live.hosts[0].put(LARGE)
            assert recording.finish().lost == {}
            secured.undo()
            with pytest.raises(ClosedError, match="the peer uses TLS, and this process does not"):
                ClusterTrace(tmp_path / "other.json", live.address, TOKEN).start()
    (put,) = traces.spans(traces.read(tmp_path / "run.json"), "calls")
    assert put["name"].startswith("put ")
