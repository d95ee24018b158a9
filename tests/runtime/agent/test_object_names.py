"""Names of objects, as agents keep them for people."""

import pytest

from hoplite_ucx.runtime.agent import object_names
from hoplite_ucx.runtime.agent.object_names import Names
from hoplite_ucx.runtime.worker.refs import name_of, new_ref, ref_for


def test_names_are_told_after_those_that_are_known() -> None:
    names = Names()
    for number in range(3):
        names.note(bytes([number]), f"name {number}")
    names.note(b"\x00", "name 0")
    assert names.count == 3
    assert names.after(1) == [(b"\x01", "name 1"), (b"\x02", "name 2")]
    assert names.after(3) == []
    assert len(names.after(7)) == 3  # whoever asks knew another agent


def test_only_the_latest_names_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_names, "_KEPT", 2)
    names = Names()
    for number in range(5):
        names.note(bytes([number]), str(number))
    assert names.after(0) == [(b"\x03", "3"), (b"\x04", "4")]


def test_a_process_knows_the_names_that_it_made_refs_from() -> None:
    assert name_of(ref_for("run 7/weights").binary) == "run 7/weights"
    assert name_of(new_ref().binary) == ""
    assert name_of(ref_for("\udcff").binary) == "\\udcff"
    assert len(name_of(ref_for("x" * 100_000).binary)) == 201
