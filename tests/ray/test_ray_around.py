"""Ray's own parts around a job: its control service that restarts, submitted jobs, Serve. Each in processes of its own.

Job submission and Serve need what `pip install 'ray[default,serve]'` brings, which the tests do not: without it, they
are skipped.
"""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.tools.waiting import HANG

ray = pytest.importorskip("ray")

from tests.tools.ray_cluster import RayCluster  # noqa: E402

pytestmark = pytest.mark.timeout(10 * HANG)


def said(*command: str) -> list[str]:
    """The lines that begin with ">"."""
    ran = subprocess.run(command, capture_output=True, text=True, timeout=5 * HANG, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return [line.removeprefix("> ") for line in ran.stdout.splitlines() if line.startswith("> ")]


@pytest.mark.long(reason="a Ray cluster of its own, whose control service restarts")
def test_the_gcs_restarts() -> None:
    assert len(said(sys.executable, "-m", "tests.tools.ray_gcs_restart")) == 2


@pytest.fixture
def with_dashboard() -> Iterator[Any]:
    for package in ("grpc", "aiohttp", "opencensus", "smart_open"):
        pytest.importorskip(package, reason="needs ray[default]")
    cluster = RayCluster(1, include_dashboard=True, dashboard_port=0)
    yield cluster
    cluster.close()


UNCHANGED = """
import numpy as np, ray
ray.init(log_to_driver=False)
@ray.remote(num_cpus=0)
def double(array):
    return 2 * array
print('>', float(ray.get(double.remote(ray.put(np.ones(300_000)))).sum()))
from hoplite_ucx.ray.calls import peek  # only to look
print('>', type(peek(double.remote(np.ones(300_000)))).__name__)
"""


@pytest.mark.long(reason="needs Ray's dashboard, which takes long to start")
def test_a_submitted_job_that_is_not_changed(with_dashboard: Any) -> None:
    environment = {"env_vars": {"RAY_RUNTIME_ENV_HOOK": "hoplite_ucx.ray.launch.runtime_env_hook"}}
    submit = ["-m", "ray.scripts.scripts", "job", "submit", "--address", with_dashboard.dashboard]
    program = ["--", sys.executable, "-c", f"exec({UNCHANGED!r})"]
    found = said(sys.executable, *submit, "--runtime-env-json", json.dumps(environment), *program)
    assert found == ["600000.0", "Handle"]


SERVE = """
import asyncio
import numpy as np, ray
from ray import serve
import hoplite_ucx.ray as hoplite_ray
from hoplite_ucx.ray.calls import peek

@serve.deployment(ray_actor_options={"num_cpus": 0})
class Model:
    def __init__(self, factor):
        self.factor = factor
    def __call__(self, batch):
        return self.factor * float(batch.sum())

@serve.deployment(ray_actor_options={"num_cpus": 0})
class Ensemble:
    def __init__(self, *models):
        self.models = models
    async def __call__(self, batch):
        ref = ray.put(batch)
        kind = type(await asyncio.to_thread(peek, ref)).__name__
        return kind, await asyncio.gather(*(model.remote(ref) for model in self.models))

hoplite_ray.init(memory="64MiB", log_to_driver=False)
serve.start(proxy_location="Disabled")
models = [Model.options(name=f"model-{n}").bind(n) for n in (1, 2, 3)]
handle = serve.run(Ensemble.bind(*models), route_prefix=None)
for _ in range(3):
    print('>', *handle.remote(np.ones(300_000)).result(timeout_s=60))
serve.shutdown()
"""


@pytest.mark.long(reason="needs Ray Serve, which takes long to start")
def test_an_ensemble_behind_serve() -> None:
    pytest.importorskip("fastapi", reason="needs ray[serve]")
    cluster = RayCluster(1)
    try:
        assert cluster.say(SERVE) == ["Handle [300000.0, 600000.0, 900000.0]"] * 3
    finally:
        cluster.close()


CLIENT = """
import sys, numpy as np, ray
import hoplite_ucx.ray as hoplite_ray
from hoplite_ucx.errors import ClosedError, InvalidRequestError
hoplite_ray.init(address=sys.argv[1], threshold=100_000, memory="64MiB")

@ray.remote(num_cpus=0)
class Actor:
    def kind(self, refs):
        from hoplite_ucx.ray.calls import peek
        return type(peek(refs[0])).__name__
    def make(self, value):
        return np.full(100_000, value)
    def total(self, array):
        return float(array.sum())

actors = [Actor.remote() for _ in range(2)]
put = ray.put(np.ones(100_000))
made = [actor.make.remote(2.0) for actor in actors]
print('>', ray.get([actors[0].kind.remote([ref]) for ref in (put, made[0])]))
print('>', ray.get([actor.total.remote(put) for actor in actors]), float(ray.get(put).sum()))
reduced = hoplite_ray.reduce(made)
print('>', ray.get(reduced.ref)[0], len(reduced.contributors))
tree = hoplite_ray.put({"weights": np.ones(3), "steps": 7})
print('>', hoplite_ray.get(tree)["steps"], len(hoplite_ray.status()["nodes"]) > 0)
for call in (lambda: hoplite_ray.get(tree, out={}), hoplite_ray.Weights().withdraw):
    try:
        call()
    except (ClosedError, InvalidRequestError) as error:
        print('>', "Ray Client" in str(error))
hoplite_ray.shutdown()
print('>', ray.get(actors[0].kind.remote([ray.put(np.ones(10))])))
"""


@pytest.mark.long(reason="a server of Ray Client, which takes long to start")
def test_ray_client() -> None:
    pytest.importorskip("grpc", reason="needs ray[client]")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    cluster = RayCluster(1, ray_client_server_port=port)
    try:
        found = said(sys.executable, "-c", CLIENT, f"ray://127.0.0.1:{port}")
    finally:
        cluster.close()
    assert found == [
        "['Handle', 'Handle']",
        "[100000.0, 100000.0] 100000.0",
        "4.0 2",
        "7 True",
        "True",
        "True",
        "ndarray",
    ]
