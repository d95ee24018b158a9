"""Tensors through a live cluster: on mapped memory that is theirs to write to, reduced across libraries, filled."""

import asyncio
import gc
import sys
from typing import Any

import numpy as np
import pytest
import torch

import hoplite_ucx as hoplite
from hoplite_ucx import aio
from hoplite_ucx.errors import GetTimeoutError, InvalidRequestError
from tests.tools.live import Live
from tests.tools.packages import CHECKOUT, run

LARGE = 1 << 20
SMALL = 16

pytestmark = pytest.mark.usefixtures("embedded")


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_write_changes_nobody_elses_pages(size: int, dtype: torch.dtype) -> None:
    ref = hoplite.put({"w": torch.ones(size, dtype=dtype), "n": np.ones(size)})
    one, other = hoplite.get(ref), hoplite.get(ref)
    one["w"].add_(1)
    assert torch.equal(one["w"], torch.full((size,), 2, dtype=dtype))
    assert torch.equal(other["w"], torch.ones(size, dtype=dtype))
    assert torch.equal(hoplite.get(ref)["w"], torch.ones(size, dtype=dtype))
    for got in (one, other):
        with pytest.raises(ValueError, match="read-only"):
            got["n"][0] = 5
        with pytest.raises(ValueError, match="WRITEABLE"):
            got["n"].flags.writeable = True


def test_tensors_outlive_their_object_and_the_dict_that_they_came_in() -> None:
    ref = hoplite.put([torch.arange(LARGE), torch.arange(LARGE)])
    first, second = hoplite.get(ref)
    hoplite.delete(ref)
    del first
    gc.collect()
    others = [hoplite.put(torch.zeros(LARGE)) for _ in range(8)]
    assert torch.equal(second, torch.arange(LARGE))
    hoplite.delete(others)


def test_other_hosts_see_none_of_it(live: Live) -> None:
    ref = live.hosts[0].put({"w": torch.arange(LARGE)})
    here = live.hosts[0].get(ref)
    here["w"].zero_()
    for host in live.hosts:
        assert torch.equal(host.get(ref)["w"], torch.arange(LARGE))


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_sources_of_a_reduction_mix_libraries(live: Live, size: int) -> None:
    numbers = np.arange(size, dtype=np.float32) % 256
    sources = [
        live.hosts[0].put({"a": torch.from_numpy(numbers), "b": numbers}),
        live.hosts[1].put({"b": torch.from_numpy(numbers), "a": numbers}),
        live.hosts[2].put({"a": numbers, "b": numbers}),
    ]
    result = live.hosts[1].get(live.hosts[0].reduce(sources))
    assert {type(each) for each in result.values()} <= {np.ndarray, torch.Tensor}
    for each in result.values():
        assert np.array_equal(np.asarray(each), numbers * 3)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_state_dicts_are_reduced(live: Live, size: int) -> None:
    """Bit for bit where sums are exact; else within n times the dtype's epsilon of a sum of float64."""
    exact = torch.arange(size).remainder(64).to(torch.bfloat16)
    random = [torch.rand(size, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    states = [{"exact": exact, "b": each.to(torch.bfloat16), "f": each} for each in random]
    result = live.hosts[0].get(
        live.hosts[1].reduce([host.put(state) for host, state in zip(live.hosts, states, strict=True)])
    )
    assert result["exact"].dtype is torch.bfloat16
    assert torch.equal(result["exact"].float(), exact.float() * 3)
    for name in ("b", "f"):
        expected = sum(state[name].double() for state in states)
        eps = torch.finfo(result[name].dtype).eps
        assert torch.all((result[name].double() - expected).abs() <= 3 * eps * expected)


def test_a_module_is_filled_in_place() -> None:
    model, other = torch.nn.Linear(600, 500), torch.nn.Linear(600, 500)
    ref = hoplite.put(model.state_dict())
    state = other.state_dict()
    told: list[tuple[int, int]] = []
    assert hoplite.get(ref, out=state, progress=lambda done, total: told.append((done, total))) is state
    assert torch.equal(other.weight, model.weight)
    assert told == [(500 * 4, 500 * 601 * 4), (500 * 601 * 4, 500 * 601 * 4)]

    async def again() -> None:
        with torch.no_grad():
            other.weight.zero_()
        await aio.get([ref], out=[other.state_dict()])

    asyncio.run(again())
    assert torch.equal(other.weight, model.weight)


def test_what_does_not_fit_or_come_leaves_a_module_as_it_was() -> None:
    model = torch.nn.Linear(3, 2)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    ref = hoplite.put({"bias": torch.ones(2), "weight": torch.ones(3, 2)})
    with pytest.raises(InvalidRequestError, match=r"out\['weight'\] is float32\[2, 3\], the object has") as caught:
        hoplite.get(ref, out=model.state_dict())
    assert caught.value.ref == ref
    with pytest.raises(GetTimeoutError):
        hoplite.get(hoplite.new_ref(), out=model.state_dict(), timeout=0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_like_chooses_the_library() -> None:
    ref = hoplite.put([torch.ones(LARGE), np.ones(LARGE)])
    assert {type(each) for each in hoplite.get(ref, like="numpy")} == {np.ndarray}
    assert {type(each) for each in hoplite.get([ref], like="torch")[0]} == {torch.Tensor}
    own = hoplite.get(ref, like="torch", copy=True)
    own[1].add_(1)
    assert asyncio.run(aio.get(ref, like="numpy"))[1][0] == 1


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"like": "jax"}, "like= is the name of a library"),
        ({"like": torch}, "like= is the name of a library"),
        ({"like": "torch", "out": np.zeros(3)}, "like= and out= cannot both be given"),
        ({"copy": True, "out": np.zeros(3)}, "copy=True and out= cannot both be given"),
        ({"progress": print}, "progress= is given without out="),
        ({"progress": 5, "out": np.zeros(3)}, "progress= is a function"),
        ({"out": torch.nn.Linear(1, 1)}, "out is a Linear, which cannot be filled"),
    ],
)
def test_wrong_wishes_are_refused(given: dict[str, Any], match: str) -> None:
    ref = hoplite.put(np.zeros(3))
    with pytest.raises(InvalidRequestError, match=match):
        hoplite.get(ref, **given)
    with pytest.raises(InvalidRequestError, match=match):
        asyncio.run(aio.get(ref, **given))


def test_one_tensor_is_not_a_list_of_values() -> None:
    with pytest.raises(InvalidRequestError, match="a list of values is needed, not a Tensor"):
        hoplite.put_many(torch.ones(3))  # type: ignore[arg-type]
    assert [hoplite.get(ref).item() for ref in hoplite.put_many([torch.tensor(1), torch.tensor(2)])] == [1, 2]


def test_no_library_is_imported_on_the_way() -> None:
    code = """
import sys
import hoplite_ucx as hoplite
import numpy as np
hoplite.init()
hoplite.get(hoplite.put({"a": np.ones(3), "b": [1, b"x"]}))
hoplite.get(hoplite.put(["text", object]))
hoplite.shutdown()
assert not {"torch", "cupy", "ml_dtypes"} & sys.modules.keys()
"""
    run(sys.executable, "-c", code, cwd=CHECKOUT)
