"""What is killed under a Ray program: it gets the right value, or an error that says what happened."""

import gc
import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hoplite_ucx.ray as hoplite_ray
from tests.tools.waiting import eventually

ray = pytest.importorskip("ray")

from hoplite_ucx.ray import owners  # noqa: E402
from tests.tools import ray_tasks as tasks  # noqa: E402
from tests.tools.ray_tasks import SIZE, existing, get, name_of, ones  # noqa: E402

pytestmark = pytest.mark.usefixtures("ray_cluster")


_made: set[bytes] = set()
"""The names of what the test has made."""


@pytest.fixture(autouse=True)
def nothing_is_left(ray_cluster: None) -> Iterator[None]:
    _made.clear()
    yield
    assert _made
    gc.collect()
    eventually(lambda: not existing(_made))


def ours(ref: Any) -> Any:
    """The ref; what it stands for must have gone when the test is over."""
    _made.add(name_of(ref))
    return ref


def goes_through_hoplite(actors: Any) -> None:
    ref = ours(ray.put(ones()))
    made = [ours(actor.make.remote(2.0)) for actor in actors]
    assert get([actor.total.remote(ref) for actor in actors]) == [SIZE] * len(actors)
    assert get(ours(hoplite_ray.reduce(made).ref))[0] == 2.0 * len(actors)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def test_the_directory_is_killed(actors: Any) -> None:
    held = ours(ray.put(ones()))
    killed = owners.owner().pids()["directory"]
    kill(killed)
    assert get([actor.total.remote(held) for actor in actors]) == [SIZE] * 2
    goes_through_hoplite(actors)
    assert owners.owner().pids()["directory"] not in (None, killed)


def test_the_head_is_killed(actors: Any) -> None:
    held = ours(ray.put(ones()))
    made = ours(actors[0].make.remote(3.0))
    get(actors[1].total.remote(made))
    first = get(owners.owner().head.pid.remote())
    kill(first)
    # What exists is there, whoever asks; new names come from the head that Ray starts again.
    assert get([actor.total.remote(held) for actor in actors]) == [SIZE] * 2
    assert get(tasks.total.remote(made)) == 3 * SIZE
    for _ in range(40):  # more than a process has in stock
        goes_through_hoplite(actors)
    assert get(owners.owner().head.pid.remote()) != first
    assert get(tasks.total.remote(held)) == SIZE
    late = tasks.Actor.remote()  # a process that never knew the old head
    goes_through_hoplite([late])


def test_an_agent_is_killed(actors: Any) -> None:
    victim = actors[1]
    lost, kept = ours(victim.make.remote(1.0)), ours(victim.make.remote(2.0))
    get(actors[0].total.remote(kept))  # another node has a copy
    _, agent = owners.owner().pids()["nodes"][get(victim.node.remote())]
    kill(agent)
    goes_through_hoplite(actors)
    assert get([actor.total.remote(kept) for actor in actors]) == [2 * SIZE] * 2
    with pytest.raises(ray.exceptions.RayError, match="every copy of this array is lost"):
        get(lost)
    with pytest.raises(ray.exceptions.RayError, match="every copy of this array is lost"):
        get(actors[0].total.remote(lost))
    del lost, kept  # Ray logs the error, with this frame


def test_an_agent_actor_is_killed(actors: Any) -> None:
    node = get(actors[1].node.remote())
    actor, agent = owners.owner().pids()["nodes"][node]
    kill(actor)
    eventually(lambda: not os.path.exists(f"/proc/{agent}"))
    goes_through_hoplite(actors)
    assert actor not in owners.owner().pids()["nodes"][node]


def test_the_maker_is_killed() -> None:
    maker = tasks.Actor.options(max_restarts=0).remote()
    made = ours(maker.make.remote(4.0))
    pid = get(maker.pid.remote())
    kill(pid)
    with pytest.raises(ray.exceptions.RayActorError):
        get(maker.pid.remote())
    assert get(made).sum() == 4 * SIZE


def test_a_task_that_dies_once_is_retried(tmp_path: Any) -> None:
    died = tmp_path / "died"

    @ray.remote(num_cpus=0, max_retries=2)
    def flaky() -> Any:
        array = np.full(SIZE, 5.0)
        if not died.exists():
            kept = ray.put(array)
            died.write_bytes(name_of(kept))
            os.kill(os.getpid(), signal.SIGKILL)
            del kept
        return array

    assert get(ours(flaky.remote())).sum() == 5 * SIZE
    _made.add(died.read_bytes())


@pytest.mark.parametrize("how", ["returned", "put"])
def test_an_array_outlives_its_maker_while_another_actor_has_it(actors: Any, how: str) -> None:
    """Ray does not know of that other actor: the maker dies before it could report it."""
    pytest.importorskip("grpc")
    maker = tasks.Actor.options(max_restarts=0).remote()
    get(maker.keep_tokens.remote())
    holder = actors[1]
    if how == "returned":
        name = get(holder.call.remote(maker, 6.0))
    else:
        name = get(actors[0].pass_on.remote(maker, holder, 6.0))
    _made.add(name)
    kill(get(maker.pid.remote()))
    orphans = owners.owner().orphans
    eventually(lambda: name in orphans)  # Ray takes it for unused
    looks = orphans.looks
    eventually(lambda: orphans.looks > looks + 2)
    assert get(holder.kept_total.remote()) == 6 * SIZE
    get(holder.drop.remote())
    eventually(lambda: name not in orphans)
