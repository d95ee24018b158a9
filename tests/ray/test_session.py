"""A process's part in a job, without a Ray: what other threads, an ended hoplite and a young machine do to it."""

import time
from typing import Any

import pytest

pytest.importorskip("ray")

import hoplite_ucx as hoplite
from hoplite_ucx.errors import ClosedError
from hoplite_ucx.ray import reductions
from hoplite_ucx.ray.session import Session
from hoplite_ucx.ray.values import Handle


def test_a_machine_that_has_just_booted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 3.0)
    assert not Session("01").is_refused


class Open:
    is_open = True


def test_an_agent_that_another_thread_has_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head was killed for good, and who asked it forgot all that it had told."""
    ours = Session("01")
    ours._cluster = Open()  # type: ignore[assignment]
    monkeypatch.setattr("hoplite_ucx.ray.session.aside", lambda work, _: work())
    monkeypatch.setattr(ours, "_ask", lambda *_: ("the actor", None))
    assert ours.agent() == "the actor"
    monkeypatch.setattr(ours, "_ask", lambda *_: (None, "hoplite has ended"))
    ours._forget()
    with pytest.raises(ClosedError, match="hoplite has ended"):
        ours.agent()


def test_a_driver_that_hands_out_no_names_is_not_asked_for_every_array(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Session("01")
    ours._cluster = Open()  # type: ignore[assignment]
    monkeypatch.setattr("hoplite_ucx.ray.ray_calls.node_id", lambda: "a node")
    monkeypatch.setattr(ours, "ask", lambda *_: [])
    with pytest.raises(ClosedError, match="hands out no names"):
        ours.new_name()
    assert ours.is_refused
    monkeypatch.setattr(ours, "ask", lambda *_: [(b"a name", "a token")])
    assert ours.new_name() == (b"a name", "a token")
    assert not ours.is_refused


class Cluster:
    """One whose directory and agents were all killed: it knows of nothing, and nothing comes."""

    def __init__(self) -> None:
        self.waits = 0

    def wait(self, refs: list[hoplite.ObjectRef], count: int, timeout: float) -> Any:
        self.waits += 1
        assert self.waits < 3, "it waits for ever"
        return [], refs

    def info(self, refs: list[hoplite.ObjectRef]) -> list[hoplite.ObjectInfo]:
        return [hoplite.ObjectInfo(ref=ref, state=hoplite.ObjectState.UNKNOWN) for ref in refs]


class Ours:
    def __init__(self) -> None:
        self.cluster = Cluster()

    def call(self, work: Any) -> Any:
        return work(self.cluster)


def test_sources_of_a_result_that_cannot_come_are_dropped() -> None:
    ours: Any = Ours()
    result = Handle("01", b"r" * 16, None)
    assert reductions._under_way([result.ref], ours) == []
    assert ours.cluster.waits == 1
