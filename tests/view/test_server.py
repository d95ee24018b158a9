"""The view's server and process without a browser: bad input, viewers that do not read, and how it starts and ends."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import hoplite_ucx as hoplite
from hoplite_ucx.runtime.launch.view_port import listen
from tests.tools.live import TOKEN
from tests.tools.view_client import first_lines, get, lines, parts_of
from tests.tools.waiting import HANG, eventually
from tests.tools.watched import Watched
from tests.view.conftest import ServedView

_HOPLITE = [sys.executable, "-c", "from hoplite_ucx.cli import main; main()"]


def test_only_get_and_only_with_the_key(served: ServedView) -> None:
    page = served.view.page
    assert get(page, "/api/cluster") == (200, json.dumps({"cluster": served.view.cluster}, separators=(",", ":")))
    for path in ("/api/cluster", "/api/changes", "/api/operation/o1"):
        status, why = get(page, path, key="0" * 32)
        assert status == 401
        assert "`hoplite dashboard`" in why
        assert why.count("\n") == 1
    assert get(page, "/api/cluster", method="POST")[0] == 405
    assert get(page, "/api/cluster", Host="evil.example")[0] == 403
    assert get(page, "/api/cluster", Origin="http://evil.example")[0] == 403
    assert get(page, "/api/operation/none") == (404, "this operation is not kept any more\n")
    assert get(page, "/../pyproject.toml")[0] == 404


def test_the_page_may_load_nothing_from_elsewhere(served: ServedView) -> None:
    host, port, _ = parts_of(served.view.page)
    for path in ("/", "/app.js", "/tree.js", "/style.css", "/icon.svg"):
        connection = http.client.HTTPConnection(host, port, timeout=HANG)
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.status == 200
        assert "default-src 'none'" in str(answer.getheader("Content-Security-Policy"))
        assert answer.getheader("Set-Cookie") is None
        elsewhere = text.replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in elsewhere
        assert "https://" not in elsewhere
        assert "innerHTML" not in text
        connection.close()


def test_a_viewer_that_never_reads_does_not_keep_others_from_reading(served: ServedView, watched: Watched) -> None:
    host, port, key = parts_of(served.view.page)
    silent = []
    for _ in range(5):
        sock = socket.create_connection((host, port), HANG)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(f"GET /api/changes HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
        silent.append(sock)
    ref = watched.hosts[0].cluster.put(np.zeros(1 << 20, np.float32), timeout=HANG)
    assert len(watched.hosts[1].cluster.get(ref, timeout=HANG)) == 1 << 20
    with closing(lines(served.view.page)) as changes:
        first = next(changes)
        assert first["first"]
        assert "hosts" in first or any("hosts" in line for line in changes)
    for sock in silent:
        sock.close()


def test_ten_thousand_objects_make_no_large_message(served: ServedView, watched: Watched) -> None:
    host = watched.hosts[2].cluster
    refs = host.put_many([np.zeros(16384, np.float32)] * 1000, timeout=HANG)  # 64 KiB each: not answered inline
    refs += host.put_many(range(9000), timeout=HANG)
    lines = first_lines(served.view.page, 5)
    assert max(len(json.dumps(line)) for line in lines) < 1 << 20
    assert len(watched.hosts[1].cluster.get(refs[0], timeout=HANG)) == 16384
    host.delete(refs, timeout=HANG)


def test_a_port_in_use_is_one_line(watched: Watched) -> None:
    with listen("127.0.0.1", 0) as taken:
        command = [*_HOPLITE, "dashboard", "--address", watched.address, "--port", str(taken.getsockname()[1])]
        done = subprocess.run(
            [*command, "--no-browser"],
            env={**os.environ, "HOPLITE_TOKEN": TOKEN.decode()},
            capture_output=True,
            text=True,
            timeout=HANG,
            check=False,
        )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: 127.0.0.1:")
    assert "in use; choose another port with --port" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_without_a_browser_the_address_is_printed_and_served(
    watched: Watched, tmp_path: Path, end: signal.Signals
) -> None:
    empty = {**os.environ, "HOPLITE_TOKEN": TOKEN.decode(), "PATH": str(tmp_path), "BROWSER": ""}
    empty.pop("DISPLAY", None)
    empty.pop("WAYLAND_DISPLAY", None)
    command = [*_HOPLITE, "dashboard", "--address", watched.address, "--port", "0"]
    with subprocess.Popen(command, env=empty, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        page = process.stdout.readline().strip().rpartition(" ")[2]
        assert process.stderr.readline() == (
            "no browser was found on this host: open the address in one that reaches it\n"
        )
        assert first_lines(page, 1)[0]["first"]
        process.send_signal(end)
        assert process.wait(HANG) == 130
        assert process.stderr.read() == ""


def test_a_head_prints_an_address_that_its_first_visitor_starts(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    command = [*_HOPLITE, "start", "--head", "--port", "0", "--view-port", "0", "--memory", "64MiB", "--json"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        started = json.loads(process.stdout.readline())
        before = children_of(process.pid)
        assert get(started["view"], "/api/cluster") == (200, f'{{"cluster":"{started["cluster"]}"}}')
        (view,) = children_of(process.pid) - before
        assert first_lines(started["view"], 1)[0]["first"]
        os.kill(view, signal.SIGKILL)  # as any crash: the next visitor starts it again
        eventually(lambda: view not in children_of(process.pid))
        eventually(lambda: answers(started["view"]))
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG) == 0


def test_a_head_whose_view_port_is_in_use_says_so_and_runs(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    with listen("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        command = [*_HOPLITE, "start", "--head", "--port", "0", "--view-port", port, "--memory", "64MiB", "--json"]
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert json.loads(process.stdout.readline())["view"] is None
            assert process.stderr.readline() == (
                f"no live view at 127.0.0.1:{port}: Address already in use; choose another port with --view-port\n"
            )
            process.send_signal(signal.SIGINT)
            assert process.wait(HANG) == 0


def test_a_program_shows_its_own_cluster() -> None:
    secret = "a token of its own"
    with (
        hoplite.connect(memory="64MiB", token=secret) as cluster,
        hoplite.start_view(cluster.address, token=secret, port=0) as view,
    ):
        assert get(view.page, "/api/cluster") == (200, f'{{"cluster":"{cluster.cluster_id}"}}')
        with pytest.raises(hoplite.ClosedError, match="in use"):
            hoplite.start_view(cluster.address, token=secret, port=parts_of(view.page)[1])
    with pytest.raises(hoplite.InvalidRequestError, match="a port is a number"):
        hoplite.start_view("127.0.0.1:1", port=-1)
    with pytest.raises(hoplite.ClosedError):
        hoplite.start_view("127.0.0.1:1", token="none")


def children_of(pid: int) -> set[int]:
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def answers(page: str) -> bool:
    try:
        return get(page, "/api/cluster")[0] == 200
    except OSError:
        return False
