"""Publishing the newest weights to receivers that come and go."""

import gc
import os
import signal
from typing import Any

import numpy as np
import pytest

import hoplite_ucx.ray as hoplite_ray
from hoplite_ucx.errors import GetTimeoutError, InvalidRequestError
from tests.tools.waiting import HANG, eventually

ray = pytest.importorskip("ray")

from hoplite_ucx.ray import owners  # noqa: E402
from hoplite_ucx.ray.session import session  # noqa: E402
from tests.tools.ray_tasks import SIZE, existing, get, name_of  # noqa: E402

pytestmark = pytest.mark.usefixtures("ray_cluster")


@ray.remote(num_cpus=0)
class Engine:
    def __init__(self, weights: hoplite_ray.Weights) -> None:
        self.weights = weights
        self.model = {"w": np.zeros(SIZE), "b": np.zeros(3)}
        self.version = 0

    def update(self) -> tuple[int, float, float]:
        self.version, _ = self.weights.get(out=self.model, newer_than=self.version, timeout=HANG)
        return self.version, float(self.model["w"][-1]), float(self.model["b"][0])


def tree(value: float) -> dict[str, Any]:
    return {"w": np.full(SIZE, value), "b": np.full(3, value)}


def newest(weights: hoplite_ray.Weights) -> bytes:
    """The name of our object."""
    _, (ref,) = session().ask(lambda head: head.newest.remote(weights.name, 0, HANG))
    return name_of(ref)


def test_engines_take_the_newest_in_place(actors: Any) -> None:
    weights = hoplite_ray.Weights("policy")
    engines = [Engine.remote(weights) for _ in range(2)]
    waiting = [engine.update.remote() for engine in engines]  # before there is any
    assert weights.publish(tree(1.0)) == 1
    assert get(waiting) == [(1, 1.0, 1.0)] * 2
    old = [newest(weights)]
    for version in (2, 3):
        assert weights.publish(tree(float(version))) == version
        old.append(newest(weights))
    assert get(engines[0].update.remote()) == (3, 3.0, 3.0)  # not the second
    os.kill(get(owners.owner().head.pid.remote()), signal.SIGKILL)
    late = Engine.remote(weights)  # what was published outlives the head
    assert get(late.update.remote()) == (3, 3.0, 3.0)
    assert weights.publish(tree(4.0)) == 4
    assert get([engine.update.remote() for engine in (*engines, late)]) == [(4, 4.0, 4.0)] * 3
    current = newest(weights)
    gc.collect()
    eventually(lambda: existing([*old, current]) == {current})
    assert hoplite_ray.Weights("policy").get()[1]["b"][0] == 4.0
    weights.withdraw()
    eventually(lambda: not existing([current]))
    with pytest.raises(GetTimeoutError, match="policy"):
        weights.get(timeout=0)


def test_what_is_not_published() -> None:
    with pytest.raises(GetTimeoutError, match=r"'nobody'.*publisher"):
        hoplite_ray.Weights("nobody").get(timeout=0.1)
    with pytest.raises(InvalidRequestError, match="newer_than"):
        hoplite_ray.Weights().get(newer_than="1")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="name"):
        hoplite_ray.Weights("")
