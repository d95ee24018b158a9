"""What is done when a module is loaded: once, at once if it is there already, and never in the way of the import."""

import importlib
import sys
from pathlib import Path

import pytest

from hoplite_ucx.ray.on_import import when_loaded


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "made_for_this_test.py").write_text("value = 5\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "made_for_this_test", raising=False)
    return "made_for_this_test"


def test_it_is_done_when_the_module_is_loaded_and_only_then(module: str) -> None:
    done = []
    when_loaded(module, lambda: done.append(sys.modules[module].value))
    when_loaded("not installed anywhere", lambda: done.append(0))
    assert done == []
    loaded = importlib.import_module(module)
    assert done == [5]  # with all of it there
    assert type(loaded.__loader__).__name__ != "_Loader"  # as if nobody had been there
    importlib.import_module(module)
    assert done == [5]
    when_loaded(module, lambda: done.append(6))
    assert done == [5, 6]


def test_what_fails_does_not_fail_the_import(module: str, caplog: pytest.LogCaptureFixture) -> None:
    when_loaded(module, lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    assert importlib.import_module(module).value == 5
    assert "ZeroDivisionError" in caplog.text
