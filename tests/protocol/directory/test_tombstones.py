"""Deleted refs are remembered for a while, and not too many of them."""

import pytest

from hoplite_ucx.protocol import Settings
from hoplite_ucx.protocol.directory import tombstones
from hoplite_ucx.protocol.invariants import check
from hoplite_ucx.protocol.messages import (
    Delete,
)
from tests.tools.machines import DirectoryDriver, ref

R = ref(1)


def test_a_tombstone_expires() -> None:
    d = DirectoryDriver("A", settings=Settings(tombstone=1.0))
    d.tell("A", Delete(5, (R,)))
    d.pass_time(0.9, beating=("A",))
    assert d.directory.table.is_deleted(R)
    assert R not in d.directory.records, "a tombstone is a name and nothing else"
    d.pass_time(0.2, beating=("A",))
    assert not d.directory.table.is_deleted(R)
    assert d.put("A", 1).counter == 1


def test_of_very_many_deleted_refs_the_oldest_are_forgotten_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tombstones, "_KEPT", 3)
    d = DirectoryDriver("A")
    d.tell("A", Delete(5, tuple(ref(number) for number in range(5))))
    assert [d.directory.table.is_deleted(ref(number)) for number in range(5)] == [False, False, True, True, True]
    assert not d.directory.records
    check(d.directory)
