"""What a Ray user hears when something is wrong, and what is left to plain Ray without a word, but counted."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import hoplite_ucx.ray as hoplite_ray
from hoplite_ucx.errors import ClosedError, InvalidRequestError
from tests.tools.waiting import HANG, eventually

ray = pytest.importorskip("ray")

from tests.tools.ray_tasks import SIZE, get, is_ours, ones  # noqa: E402

pytestmark = pytest.mark.usefixtures("ray_cluster")


def test_bad_arguments(actors: Any) -> None:
    ref = ray.put(ones())
    with pytest.raises(InvalidRequestError, match="list of Ray refs"):
        hoplite_ray.reduce(ref)
    with pytest.raises(InvalidRequestError, match="list of Ray refs"):
        hoplite_ray.reduce([])
    with pytest.raises(InvalidRequestError, match="not a Ray ref"):
        hoplite_ray.reduce([ref, 1])
    with pytest.raises(InvalidRequestError, match="more than once"):
        hoplite_ray.reduce([ref, ref])
    with pytest.raises(InvalidRequestError, match="count"):
        hoplite_ray.reduce([ref], count=2)
    with pytest.raises(InvalidRequestError, match="operation"):
        hoplite_ray.reduce([ref], "median")
    with pytest.raises(InvalidRequestError, match="rate"):
        hoplite_ray.attach(rate=-1.0)
    with pytest.raises(InvalidRequestError, match="memory"):
        hoplite_ray.attach(threshold="much")
    with pytest.raises(InvalidRequestError, match=r"cannot be given num_cpus.*attach"):
        hoplite_ray.init(num_cpus=4)
    with pytest.raises(InvalidRequestError, match="as one object"):
        hoplite_ray.get(ray.put([ones(), 1]), out=[ones(), 1])


def test_sources_that_fail_and_sources_that_differ(actors: Any) -> None:
    @ray.remote(num_cpus=0, max_retries=0)
    def fail() -> Any:
        raise ZeroDivisionError("the source's own")

    good = [actor.make.remote(1.0) for actor in actors]
    bad = fail.remote()
    with pytest.raises(ZeroDivisionError, match="the source's own"):
        get(hoplite_ray.reduce([*good, bad]).ref)
    some = hoplite_ray.reduce([bad, *good], count=2)
    assert get(some.ref)[0] == 2.0
    assert set(some.contributors) == set(good)
    with pytest.raises(InvalidRequestError, match="differ"):
        get(hoplite_ray.reduce([good[0], actors[1].tree.remote(1.0)]).ref)
    with pytest.raises((InvalidRequestError, ray.exceptions.RayError), match=r"shape|100000"):
        get(hoplite_ray.reduce([good[0], ray.put(np.ones(SIZE + 1))]).ref)


def test_a_store_that_is_full_leaves_arrays_to_ray() -> None:
    kept = [ray.put(np.ones(4_000_000)) for _ in range(10)]  # 32 MB each, in a store of 256 MiB
    ours = [is_ours(ref) for ref in kept]
    assert ours[0]
    assert not all(ours)
    assert all(value.sum() == 4_000_000 for value in ray.get(kept, timeout=HANG))
    eventually(lambda: any("StoreFullError" in why for why in hoplite_ray.status()["plain"]))


def test_without_ray_and_without_init() -> None:
    program = """
import hoplite_ucx.ray as hoplite_ray
from hoplite_ucx.errors import ClosedError
for call in (hoplite_ray.attach, hoplite_ray.status, lambda: hoplite_ray.put(1)):
    try:
        call()
    except ClosedError as error:
        print("init" in error.remedy)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG, check=True)
    assert ran.stdout.split() == ["True"] * 3


def test_an_old_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "__version__", "2.56.1")
    with pytest.raises(ClosedError, match=r"Ray 2\.56\.1.*2\.57 or newer"):
        hoplite_ray.attach()


WITHOUT = """
import numpy as np, ray
from hoplite_ucx.ray import values
from hoplite_ucx.ray.session import session
ray.init(logging_level="error", log_to_driver=False)
values.register(100_000)  # but nobody started hoplite
print('>', float(ray.get(ray.put(np.ones(100_000))).sum()), list(session().counts.total)[0])
"""


def test_a_job_in_which_hoplite_does_not_run(ray_cluster: Any) -> None:
    (said,) = ray_cluster.say(WITHOUT)
    assert said.startswith("100000.0 ClosedError: hoplite does not run in the Ray job")


def test_only_the_owner_knows_the_status(actors: Any) -> None:
    @ray.remote(num_cpus=0)
    def status() -> Any:
        return hoplite_ray.status()

    with pytest.raises(ClosedError, match="not started by this process"):
        get(status.remote())
