"""The models of an ensemble, asked together: a front end that does not wait for one that died.

Ray itself takes a second or two to say that an actor is gone, in each call to it. So a model that is late by more than
the job allows is left out, and asked again once it has answered, or its successor has.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import ray

from hoplite_ucx.bench.apps.pieces.ensemble import Ballot

__all__ = ["Panel"]


class Panel:
    def __init__(self, models: Sequence[Any]) -> None:
        self._models = list(models)
        self._away: dict[Any, Any] = {}
        """What a model has yet to answer, and the model."""

    def ask(self, query: Any, patience: float | None) -> list[Ballot]:
        """The ballots of all models that answer in time, in the order of the models: sums of floats depend on it."""
        self._welcome_back()
        began = time.monotonic()
        away = list(self._away.values())
        asked = {model.vote.remote(query): model for model in self._models if model not in away}
        enough = len(asked) if patience is None else max(1, len(asked) - 1)
        _, late = ray.wait(list(asked), num_returns=enough)
        if late and patience is not None:
            _, late = ray.wait(late, timeout=patience * (time.monotonic() - began))
        self._away |= {ref: asked.pop(ref) for ref in late}
        ballots = []
        for ref, model in asked.items():
            try:
                ballots.append(ray.get(ref))
            except ray.exceptions.RayActorError:
                self._away[ref] = model
        return ballots

    def _welcome_back(self) -> None:
        """Those that have answered. Who was asked while it was dead is asked whether it is there."""
        away = list(self._away)
        for ref in ray.wait(away, num_returns=len(away), timeout=0)[0] if away else ():
            model = self._away.pop(ref)
            try:
                ray.get(ref)
            except ray.exceptions.RayActorError:
                self._away[model.__ray_ready__.remote()] = model
