"""Threads of ours beside Ray's, each alone: what they do about errors that are not hoplite's, and at the end."""

import importlib
import threading
from typing import Any

import pytest

import hoplite_ucx as hoplite
from tests.tools.waiting import HANG, eventually

pytest.importorskip("ray")

from hoplite_ucx.ray import node_agent, ray_calls
from hoplite_ucx.ray.node_agent import NodeAgent
from hoplite_ucx.ray.owner import Owner


class Agent:
    def __init__(self) -> None:
        self.ended = threading.Event()

    def wait(self) -> None:
        self.ended.wait(HANG)


def test_an_agent_is_started_again_when_the_system_has_processes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Agent(), Agent()
    attempts: list[Any] = [OSError("no process to give"), second]

    def start(_: NodeAgent) -> Any:
        made = attempts.pop(0)
        if isinstance(made, Exception):
            raise made
        return made

    monkeypatch.setattr(NodeAgent, "_start", start)
    monkeypatch.setattr(node_agent, "_FIRST_PAUSE", 0.01)
    actor = NodeAgent.__new__(NodeAgent)
    actor._changed = threading.Condition()
    actor._agent, actor._error = first, None  # type: ignore[assignment]
    threading.Thread(target=actor._keep, daemon=True).start()
    first.ended.set()
    eventually(lambda: actor._agent is second)
    assert actor._error is None


def test_an_agent_that_is_up_when_hoplite_has_ended_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """`close` has killed all that it knew before this one was noted."""
    killed: list[Any] = []
    monkeypatch.setattr(ray_calls, "kill", lambda actor, **_: killed.append(actor))
    owner = Owner.__new__(Owner)
    owner._lock, owner._closing, owner._agents = threading.Lock(), threading.Event(), {}

    def made(_: str) -> str:
        owner._closing.set()
        return "the actor"

    monkeypatch.setattr(owner, "_made_agent", made)
    assert owner._try_agent("a node") == {"a node": "hoplite has ended in this job"}
    assert killed == ["the actor"]
    assert not owner._agents


def test_tensors_are_released_after_an_error_of_rays(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    direct = importlib.import_module("hoplite_ucx.ray.direct_transport")
    deleted = threading.Event()

    class Cluster:
        def own(self, ref: hoplite.ObjectRef) -> None:
            raise SystemExit("Ray is shut down")

        def delete(self, ref: hoplite.ObjectRef) -> None:
            deleted.set()

    monkeypatch.setattr(direct.session, "cluster", Cluster)
    releases = direct._Releases()
    releases.put((b"n" * 16, True))
    releases.put((b"n" * 16, False))
    assert deleted.wait(HANG)
