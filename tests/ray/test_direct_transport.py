"""Ray Direct Transport "HOPLITE": tensors that actors return and put, receivers, and objects whose source died."""

import gc
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.tools.waiting import HANG, eventually

ray = pytest.importorskip("ray")

from tests.tools.ray_tasks import existing  # noqa: E402

pytestmark = pytest.mark.usefixtures("ray_cluster")
SIZE = 100_000


def get(refs: Any) -> Any:
    return ray.get(refs, timeout=HANG)


@pytest.fixture(scope="module")
def actors(ray_cluster: None) -> Iterator[list[Any]]:
    pytest.importorskip("torch")
    from tests.tools.ray_tensors import Tensors

    made = [Tensors.remote() for _ in range(2)]
    yield made
    for each in made:
        ray.kill(each)


def restarted(actor: Any) -> None:
    def answers() -> bool:
        try:
            return bool(ray.get(actor.pid.remote(), timeout=HANG))
        except ray.exceptions.RayActorError:
            return False

    eventually(answers)


def test_returned_put_and_received(actors: list[Any]) -> None:
    import torch

    one, other = actors
    made = one.make.remote(2.0)
    assert get([other.total.remote(made), other.total.remote(made)]) == [2 * SIZE] * 2
    assert get(one.total.remote(made)) == 2 * SIZE  # it has them
    assert torch.equal(get(made), torch.full((SIZE,), 2.0))
    assert get(other.nested.remote([made])) == 2 * SIZE
    put = ray.put(torch.full((SIZE,), 3.0), _tensor_transport="hoplite")
    assert get([one.total.remote(put), other.total.remote(put)]) == [3 * SIZE] * 2
    assert get(other.nested.remote(get(one.put.remote(4.0)))) == 4 * SIZE
    assert get(other.same.remote(one.nothing.remote())) == {"no": "tensors"}


def test_states_with_every_kind_of_tensor(actors: list[Any]) -> None:
    one, other = actors
    found = get(other.described.remote(one.state.remote()))
    assert found["layer 2"] == ("torch.bfloat16", (10, 20), [[2.0] * 20] * 10)
    assert found["steps"] == ("torch.int64", (), 5)
    assert found["none"] == ("torch.float32", (0,), [])
    assert found["turned"] == ("torch.float32", (3, 2), [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]])


def test_a_receiver_may_change_its_tensor_and_nobody_else_sees_it(actors: list[Any]) -> None:
    one, other = actors
    made = one.make.remote(1.0)
    assert get(other.changed.remote(made)) == 2 * SIZE
    assert get(other.total.remote(made)) == SIZE


def name_of(made: Any) -> bytes:
    """Of our object. Waits until Ray passes it inside of a list: it hears what it must know some time after the ref is
    ready."""
    manager = ray._private.worker.global_worker.rdt_manager
    eventually(lambda: manager.get_rdt_metadata(made.hex()).tensor_transport_meta is not None)
    return bytes(manager.get_rdt_metadata(made.hex()).tensor_transport_meta.name)


def test_into_buffers_that_are_there(actors: list[Any]) -> None:
    one, other = actors
    made = one.make.remote(5.0)
    name_of(made)
    assert get(other.into.remote([made])) == (True, 5 * SIZE)


def test_objects_go_with_their_last_ref(actors: list[Any]) -> None:
    one, other = actors
    refs = [one.make.remote(1.0), get(one.put.remote(1.0))[0]]
    made = {name_of(ref) for ref in refs}
    get([other.nested.remote([ref]) for ref in refs])
    assert existing(made) == made
    del refs
    gc.collect()
    eventually(lambda: not existing(made))


def test_sources_that_die(actors: list[Any]) -> None:
    """What one returned lives on with its owner, the driver; what it put goes with it."""
    source, receiver = actors
    returned, (put,) = source.make.remote(6.0), get(source.put.remote(7.0))
    kept, gone = name_of(returned), name_of(put)
    assert get([receiver.nested.remote([ref]) for ref in (returned, put)]) == [6 * SIZE, 7 * SIZE]
    assert existing([kept, gone]) == {kept, gone}
    os.kill(get(source.pid.remote()), signal.SIGKILL)
    eventually(lambda: not existing([gone]))
    restarted(source)
    assert get(receiver.total.remote(returned)) == 6 * SIZE
    assert get(receiver.total.remote(source.make.remote(8.0))) == 8 * SIZE  # it is registered in the restarted actor
    del returned, put
    gc.collect()
    eventually(lambda: not existing([kept]))
