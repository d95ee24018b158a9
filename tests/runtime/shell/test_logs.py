"""Lines of the log: as text or JSON, in a file or not, and with the ref and the node of what failed."""

import ast
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hoplite_ucx
from hoplite_ucx.errors import HopliteError
from hoplite_ucx.protocol.errors import Failure, FailureKind
from hoplite_ucx.protocol.events import CallFailed, SendDirectory, Tick
from hoplite_ucx.protocol.ids import Version, node_id
from hoplite_ucx.protocol.messages import StreamFailed, StreamFault
from hoplite_ucx.runtime.settings import LogSettings
from hoplite_ucx.runtime.shell.event_logs import NodeLog
from hoplite_ucx.runtime.shell.logs import about, begin_logging
from hoplite_ucx.settings.errors import ConfigurationError
from tests.tools.live import live_cluster
from tests.tools.waiting import eventually

REF = bytes(range(16))
LARGE = np.arange(1 << 19)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    log = logging.getLogger("hoplite")
    before = log.handlers[:], log.level, log.propagate
    yield
    for handler in log.handlers:
        handler.close()
    log.handlers[:], log.level, log.propagate = before
    log.setLevel(before[1])


def fail() -> None:
    log = logging.getLogger("hoplite.agent")
    try:
        raise OSError("no room")
    except OSError:
        log.exception("Receive of %s could not be performed\n\x1b[31mred", "x", extra=about(REF))
    log.info("not wanted")


def test_text_has_the_node_and_the_ref_and_no_control_characters(tmp_path: Path) -> None:
    path = tmp_path / "agent.log"
    begin_logging(LogSettings(file=str(path)), "agent", "n2a")
    fail()
    line, *trace = path.read_text().splitlines()
    assert re.fullmatch(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} error agent n2a: Receive of x .*", line)
    assert line.endswith(rf"\n\x1b[31mred (ref {REF.hex()})")
    assert trace[-1] == "OSError: no room"


def test_json_lines_have_them_as_keys(tmp_path: Path) -> None:
    path = tmp_path / "agent.log"
    begin_logging(LogSettings("info", str(path), "json"), "agent", "n2a")
    fail()
    failed, told = (json.loads(line) for line in path.read_text().splitlines())
    assert failed["level"] == "error"
    assert (failed["process"], failed["node"], failed["ref"]) == ("agent", "n2a", REF.hex())
    assert failed["exception"].endswith("OSError: no room")
    assert (told["level"], told["message"]) == ("info", "not wanted")
    assert "ref" not in told


def test_a_file_that_is_moved_away_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "agent.log"
    begin_logging(LogSettings(file=str(path)), "agent", "n2a")
    fail()
    path.rename(tmp_path / "agent.log.1")
    fail()
    assert path.read_text().count("could not be performed") == 1


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"log\.file: cannot be written: .*; name a file that"):
        begin_logging(LogSettings(file=str(tmp_path / "none" / "agent.log")), "agent", "n2a")


def test_broken_streams_and_failed_calls_have_their_ref(caplog: pytest.LogCaptureFixture) -> None:
    failed = StreamFailed(Version(REF, 1, 1), 1, 40, node_id(7), StreamFault.STALLED, True)
    lost = CallFailed(3, Failure(FailureKind.LOST, "gone", "put it again", REF))
    with caplog.at_level(logging.INFO, "hoplite"):
        NodeLog().handled(Tick(), [SendDirectory(failed), lost], 0.0, 0.0)
    assert [record.refs for record in caplog.records] == [[REF.hex()]] * 2  # type: ignore[attr-defined]
    assert "from n7 ended early at byte 40: stalled" in caplog.text


def test_a_cluster_logs_who_came_who_died_and_which_calls_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "hoplite.log"
    for key, value in {"LEVEL": "info", "FORMAT": "json", "FILE": str(path)}.items():
        monkeypatch.setenv(f"HOPLITE_LOG_{key}", value)

    def lines() -> list[dict[str, Any]]:
        whole, _, _ = path.read_text().rpartition("\n")  # the last line may be half written
        return [json.loads(line) for line in whole.splitlines()]

    with live_cluster(2) as live:
        staying, dying = (f"n{host.agent.report['agent']}" for host in live.hosts)
        eventually(lambda: {f"{node} at" for node in (staying, dying)} <= {_first(line, 2) for line in lines()})
        ref = live.hosts[0].put(LARGE)
        live.hosts[0].delete(ref)
        with pytest.raises(HopliteError):
            live.hosts[0].get(ref)
        live.hosts[1].kill()
        eventually(lambda: any(f"{dying} was removed: it is dead" in line["message"] for line in lines()))
    (failed,) = [line for line in lines() if line["message"].startswith("a call failed: deleted")]
    assert (failed["process"], failed["node"], failed["ref"]) == ("agent", staying, ref.binary.hex())
    assert {line["process"] for line in lines()} == {"agent", "directory"}
    assert capfd.readouterr().err == ""


def _first(line: dict[str, Any], words: int) -> str:
    return " ".join(line["message"].split()[:words])


# Failures that are of no object: a connection, a library, the process, its settings, or the count of what is lost.
_WITHOUT_REF = {
    "%d objects are lost with this agent: no other has room for them",
    "%d more connections were refused",
    "%s",  # why this host combines nothing on its devices
    "%s failed, and observes no more: a bug in this program",
    "a connection was refused: %s",
    "a viewer could not be answered",
    "an iteration of the UCX engine failed",
    "closed the session with the directory after an invalid message: %s",
    "links use TCP: %s",
    "metrics are not served at %s:%d: %s; choose another metrics.port",
    "metrics are not served: %s; %s",
    "the agent n%s exited with status %s, and its objects are lost",
    "the cluster's settings override this host's: %s",
    "the directory at %s now serves a new cluster, %s: cluster %s has ended, and so does this agent",
}


def test_each_failure_of_an_object_is_logged_with_its_ref() -> None:
    """Every line of the agent's, the directory's and the transports' code that reports a failure is looked at."""
    seen = set()
    root = Path(hoplite_ucx.__file__).parent
    for path in sorted([*(root / "runtime").rglob("*.py"), *(root / "metrics").rglob("*.py"), *_transports(root)]):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and _is_log(call.func):
                text = call.args[0].value if isinstance(call.args[0], ast.Constant) else None
                with_ref = any(keyword.arg == "extra" for keyword in call.keywords)
                assert with_ref or text in _WITHOUT_REF, f"{path}:{call.lineno}"
                seen.add(text)
    assert seen >= _WITHOUT_REF, "some lines are not there any more"


def _transports(root: Path) -> Iterator[Path]:
    return (root / "transports").resolve().rglob("*.py")


def _is_log(called: ast.Attribute) -> bool:
    failing = called.attr in ("warning", "error", "exception", "critical")
    return failing and isinstance(called.value, ast.Name) and called.value.id in ("_log", "log")
