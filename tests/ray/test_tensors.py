"""Tensors of torch in plain Ray refs."""

from typing import Any

import pytest

import hoplite_ucx.ray as hoplite_ray

ray = pytest.importorskip("ray")
torch = pytest.importorskip("torch")

from tests.tools.ray_tasks import SIZE, get, is_ours  # noqa: E402

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_a_tensor_there_and_back(actors: Any, dtype: str) -> None:
    tensor = torch.arange(SIZE).to(getattr(torch, dtype)).reshape(2, -1)
    ref = ray.put(tensor)
    assert is_ours(ref)
    back = actors[1].echo.remote(ref)
    assert is_ours(back)
    got = get(back)
    assert got.dtype is tensor.dtype
    assert torch.equal(got, tensor)
    got += 1  # nobody else sees it
    assert torch.equal(get(ref), tensor)


def test_gradients_views_and_small_tensors(actors: Any) -> None:
    wanted = torch.ones(SIZE, requires_grad=True)
    assert get(actors[1].echo.remote(wanted)).requires_grad
    view = torch.arange(4 * SIZE).reshape(2, -1).T[::2]
    assert torch.equal(get(actors[1].echo.remote(view)), view)
    small = ray.put(torch.ones(3))
    assert not is_ours(small)
    assert torch.equal(get(small), torch.ones(3))


def test_a_state_dict(actors: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(400, 400), torch.nn.Linear(400, 3))
    for ref in (ray.put(model.state_dict()), hoplite_ray.put(model.state_dict())):
        got = get(actors[1].echo.remote(ref))
        assert list(got) == list(model.state_dict())
        assert all(torch.equal(got[name], tensor) for name, tensor in model.state_dict().items())
    other = torch.nn.Sequential(torch.nn.Linear(400, 400), torch.nn.Linear(400, 3))
    hoplite_ray.get(hoplite_ray.put(model.state_dict()), out=other.state_dict())
    assert torch.equal(other[0].weight, model[0].weight)
    whole = get(actors[1].echo.remote(model))  # a module: its parameters are inside
    assert torch.equal(whole[0].weight, model[0].weight)
    assert whole[0].weight.requires_grad


def test_reduce_of_state_dicts(actors: Any) -> None:
    trees = [{"w": torch.full((SIZE,), float(number)), "b": torch.ones(2)} for number in range(2)]
    refs = [actor.echo.remote(tree) for actor, tree in zip(actors, trees, strict=True)]
    total = get(hoplite_ray.reduce(refs, "mean").ref)
    assert torch.equal(total["w"], torch.full((SIZE,), 0.5))
    assert torch.equal(total["b"], torch.ones(2))
