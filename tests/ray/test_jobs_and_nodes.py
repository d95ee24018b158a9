"""Nodes that come and go, several jobs, and programs that do not know of hoplite."""

import itertools
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.tools.waiting import eventually

ray = pytest.importorskip("ray")

from hoplite_ucx.ray import owners  # noqa: E402
from tests.tools import ray_tasks as tasks  # noqa: E402
from tests.tools.ray_tasks import SIZE, get, is_ours, ones  # noqa: E402

pytestmark = pytest.mark.usefixtures("ray_cluster")


def test_every_node_has_an_agent(actors: Any) -> None:
    nodes = get([actor.node.remote() for actor in actors])
    assert set(owners.owner().pids()["nodes"]) == set(nodes)
    assert len({agent for _, agent in owners.owner().pids()["nodes"].values()}) == len(nodes) == 2


def test_a_node_that_comes_late_and_leaves(ray_cluster: Any, actors: Any) -> None:
    ref = ray.put(ones())
    late = ray_cluster.add_node()
    try:
        actor = tasks.Actor.options(scheduling_strategy=tasks.on(late.node_id)).remote()
        assert get(actor.total.remote(ref)) == SIZE
        lost, kept = actor.make.remote(1.0), actor.make.remote(2.0)
        assert get(actors[0].total.remote(kept)) == 2 * SIZE
        assert is_ours(lost)
        _, agent = owners.owner().pids()["nodes"][late.node_id]
    finally:
        ray_cluster.remove_node(late)
    eventually(lambda: not os.path.exists(f"/proc/{agent}"))
    assert get([other.total.remote(kept) for other in actors]) == [2 * SIZE] * 2
    with pytest.raises(ray.exceptions.RayError, match="every copy of this array is lost"):
        get(actors[1].total.remote(lost))
    del ref, lost, kept


UNCHANGED = """
import numpy as np, ray
ray.init(runtime_env={"env_vars": {"OMP_NUM_THREADS": "1"}}, logging_level="error", log_to_driver=False)
@ray.remote(num_cpus=0)
def double(array):
    return 2 * array
print('>', float(ray.get(double.remote(ray.put(np.ones(100_000)))).sum()))
import hoplite_ucx.ray as hoplite_ray
from hoplite_ucx.ray.calls import peek
print('>', type(peek(double.remote(np.ones(100_000)))).__name__)
"""


def test_a_program_that_is_not_changed_at_all_as_a_second_job(ray_cluster: Any, actors: Any) -> None:
    here = "hoplite_ucx.ray.launch.runtime_env_hook"
    said = ray_cluster.say(UNCHANGED, RAY_RUNTIME_ENV_HOOK=here, HOPLITE_RAY_THRESHOLD="100KiB")
    assert said == ["200000.0", "Handle"]
    assert get(actors[1].total.remote(ray.put(ones()))) == SIZE  # this job went on


KILLED = """
import sys, numpy as np, ray
import hoplite_ucx.ray as hoplite_ray
hoplite_ray.init(threshold=100_000, memory="64MiB", logging_level="error", log_to_driver=False)
kept = ray.put(np.ones(100_000))
from hoplite_ucx.ray import owners
pids = owners.owner().pids()
agents = [pid for node in pids["nodes"].values() for pid in node]
print(">", pids["directory"], *agents, ray.get(owners.owner().head.pid.remote()), flush=True)
sys.stdin.read()
"""


def test_after_a_driver_was_killed_nothing_is_left(ray_cluster: Any) -> None:
    environment = os.environ | {"RAY_ADDRESS": ray_cluster.address}
    command = [sys.executable, "-c", KILLED]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as driver:
        assert driver.stdout is not None
        (said,) = itertools.islice((line for line in driver.stdout if line.startswith("> ")), 1)  # Ray prints, too
        pids = [int(pid) for pid in said.split()[1:]]
        driver.send_signal(signal.SIGKILL)
    assert len(pids) == 4
    eventually(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))


ATTACHED = """
import numpy as np, ray
ray.init(logging_level="error", log_to_driver=False)
import hoplite_ucx.ray as hoplite_ray
hoplite_ray.attach(threshold=100_000, memory="64MiB")
hoplite_ray.attach()  # harmless
from hoplite_ucx.ray.calls import peek
@ray.remote(num_cpus=0)
class Actor:
    def double(self, array):
        return 2 * array
actor = Actor.remote()
doubled = actor.double.remote(ray.put(np.ones(100_000)))
print('>', float(ray.get(doubled).sum()), type(peek(doubled)).__name__)
hoplite_ray.shutdown()
print('>', type(peek(ray.put(np.ones(100_000)))).__name__)
hoplite_ray.init(threshold=100_000, memory="64MiB")
again = actor.double.remote(ray.put(np.ones(100_000)))
print('>', float(ray.get(again).sum()), type(peek(again)).__name__)
"""


@pytest.mark.long(reason="two starts of hoplite, one after the other, in a job of its own")
def test_attach_shutdown_and_init_again(ray_cluster: Any) -> None:
    said = ray_cluster.say(ATTACHED)
    assert said == ["200000.0 Handle", "ndarray", "200000.0 Handle"]
