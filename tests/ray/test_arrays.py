"""Plain Ray refs whose arrays travel through hoplite: every way in which Ray serialises a value."""

import gc
import os
from typing import Any

import numpy as np
import pytest

import hoplite_ucx.ray as hoplite_ray
from tests.tools.waiting import eventually

ray = pytest.importorskip("ray")

from hoplite_ucx.ray import owners  # noqa: E402
from tests.tools import ray_tasks as tasks  # noqa: E402
from tests.tools.ray_tasks import SIZE, existing, get, is_ours, name_of, ones  # noqa: E402

pytestmark = pytest.mark.usefixtures("ray_cluster")


def test_arguments(actors: Any) -> None:
    one, other = actors
    ref = ray.put(ones())
    assert is_ours(ref)  # it went through hoplite
    asked = [
        one.total.remote(ref),
        one.keyword.remote(array=ref),
        one.nested.remote([ref]),
        one.total.remote(ones()),
        other.keyword.remote(array=ones()),
        tasks.total.remote(ref),
        tasks.total.remote(ones()),
    ]
    assert get(asked) == [SIZE] * len(asked)
    assert get(one.inside.remote({"arrays": [ones(), 2 * ones()], "number": 5})) == 2 * SIZE + 5


def test_returns(actors: Any) -> None:
    one, other = actors
    made = one.make.remote(3.0)
    assert is_ours(made)
    assert get(other.total.remote(made)) == 3 * SIZE
    assert np.array_equal(get(tasks.make.remote(2.0)), np.full(SIZE, 2.0))
    tree = get(one.tree.remote(4.0))
    assert np.array_equal(tree["weights"], np.full(SIZE, 4.0))
    assert np.array_equal(tree["layers"][0], np.full(SIZE, 5.0))
    assert tree["steps"] == 7
    assert get(other.nested.remote(get(one.put.remote(6.0)))) == 6 * SIZE


def test_async_actors(actors: Any) -> None:
    actor = tasks.AsyncActor.remote()
    ref = ray.put(ones())
    assert get([actor.total.remote(ref), actor.awaited.remote([ref]), actor.total.remote(ones())]) == [SIZE] * 3


def test_small_arrays_and_objects_stay_with_ray() -> None:
    for value in (np.ones(10), np.array([{}] * SIZE)):
        ref = ray.put(value)
        assert not is_ours(ref)
        assert np.array_equal(get(ref), value)


def test_what_nobody_refers_to_is_released(actors: Any) -> None:
    one, other = actors
    held = ray.put(ones())
    refs = [one.make.remote(1.0), get(one.put.remote(1.0))[0], one.echo.remote(ones()), tasks.make.remote(1.0)]
    get([other.nested.remote([ref]) for ref in refs])
    kept, made = name_of(held), {name_of(ref) for ref in refs}
    assert existing([kept, *made]) == {kept, *made}
    del refs
    gc.collect()
    eventually(lambda: existing([kept, *made]) == {kept})
    assert get(held).sum() == SIZE
    del held
    gc.collect()
    eventually(lambda: not existing([kept]))


def test_put_and_get_of_a_tree() -> None:
    tree = {"weights": ones(), "bias": np.arange(3.0), "steps": 7}
    ref = hoplite_ray.put(tree)
    for got in (get(ref), hoplite_ray.get(ref)):
        assert np.array_equal(got["weights"], tree["weights"])
        assert got["steps"] == 7
    del tree["steps"]
    out = {"weights": np.zeros(SIZE), "bias": np.zeros(3)}
    assert hoplite_ray.get(hoplite_ray.put(tree), out=out) is out
    assert np.array_equal(out["weights"], tree["weights"])


def test_reduce(actors: Any) -> None:
    refs = [actor.make.remote(float(number + 1)) for number, actor in enumerate(actors)]
    reduced = hoplite_ray.reduce(refs)
    assert np.array_equal(get(reduced.ref), np.full(SIZE, 3.0))
    assert set(reduced.contributors) == set(refs)
    assert get([actor.total.remote(hoplite_ray.allreduce(refs, "max").ref) for actor in actors]) == [2.0 * SIZE] * 2
    trees = hoplite_ray.reduce([actor.tree.remote(1.0) for actor in actors])
    total = get(trees.ref)
    assert total["steps"] == 14
    assert np.array_equal(total["layers"][0], np.full(SIZE, 4.0))
    assert np.array_equal(total["layers"][1], np.full(3, 2.0))


def test_the_agent_actor_opens_no_connection_for_each_reduce(actors: Any) -> None:
    refs = [actor.make.remote(1.0) for actor in actors]

    def reduce_often() -> None:
        for _ in range(30):
            assert get(hoplite_ray.reduce(refs).ref)[0] == 2.0

    def descriptors() -> int:
        actor, _ = owners.owner().pids()["nodes"][ray.get_runtime_context().get_node_id()]
        return len(os.listdir(f"/proc/{actor}/fd"))

    reduce_often()
    before = descriptors()
    reduce_often()
    assert descriptors() < before + 15
