"""An ensemble's front end, when a model is late or dead. Ray is made up: who answers when is what is tested."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hoplite_ucx.bench.apps.pieces import panel as panels
from hoplite_ucx.bench.apps.pieces.panel import Panel


class _DeadError(Exception):
    pass


class _Model:
    """It answers at once, or never, or with an error."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = "here"
        self.asked = 0
        self.vote = SimpleNamespace(remote=lambda _: self._answer())
        self.__ray_ready__ = SimpleNamespace(remote=self._answer)

    def _answer(self) -> Any:
        self.asked += 1
        return _Ref(self, self.state)


class _Ref:
    def __init__(self, model: _Model, state: str) -> None:
        self.model, self.state = model, state


class _Ray:
    exceptions = SimpleNamespace(RayActorError=_DeadError)

    def wait(self, refs: list[_Ref], num_returns: int = 1, timeout: float | None = None) -> tuple[list[_Ref], Any]:
        ready = [ref for ref in refs if ref.state != "late"]
        assert len(ready) >= num_returns or timeout is not None, "this would wait for ever"
        return ready, [ref for ref in refs if ref not in ready]

    def get(self, ref: _Ref) -> str:
        if ref.state == "dead":
            raise _DeadError
        return ref.model.name


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> list[_Model]:
    monkeypatch.setattr(panels, "ray", _Ray())
    return [_Model(name) for name in "abc"]


def test_all_answer_in_the_order_of_the_models(models: list[_Model]) -> None:
    assert Panel(models).ask(None, None) == ["a", "b", "c"]


@pytest.mark.parametrize("state", ["late", "dead"])
def test_the_others_decide_without_one_that_is_late_or_dead(models: list[_Model], state: str) -> None:
    panel = Panel(models)
    models[1].state = state
    assert panel.ask(None, 0.2) == ["a", "c"]
    assert panel.ask(None, 0.2) == ["a", "c"]


def test_one_that_is_late_is_asked_again_only_when_it_has_answered(models: list[_Model]) -> None:
    panel = Panel(models)
    models[2].state = "late"
    for _ in range(3):
        assert panel.ask(None, 0.2) == ["a", "b"]
    assert models[2].asked == 1


def test_one_that_came_back_votes_again(models: list[_Model]) -> None:
    panel = Panel(models)
    models[0].state = "dead"
    assert panel.ask(None, 0.2) == ["b", "c"]
    models[0].state = "here"
    assert panel.ask(None, 0.2) == ["b", "c"], "it is asked whether it is there"
    assert panel.ask(None, 0.2) == ["a", "b", "c"]
