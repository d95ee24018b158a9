"""Starting hoplite in a Ray job, and ending it."""

from __future__ import annotations

import os
from typing import Any

import ray

from hoplite_ucx.ray import client, owners, setup
from hoplite_ucx.ray.errors import closed
from hoplite_ucx.ray.owners import Settings
from hoplite_ucx.ray.terms import THRESHOLD
from hoplite_ucx.runtime.worker.checks import check_memory, invalid

_OLDEST = (2, 57)


def init(
    *,
    arrays: bool | None = None,
    threshold: int | str | None = None,
    memory: int | str | None = None,
    rate: float | None = None,
    **ray_init: Any,
) -> None:
    """Connect to Ray, and start hoplite in this job. All other arguments are for `ray.init`.

    Arrays of numpy and CPU tensors of torch from `threshold` bytes on, 1 MiB without it, then travel through hoplite
    wherever Ray serialises them; with `arrays=False`, only what `put` puts. `memory` limits the store on each Ray node,
    as bytes or as a text such as "4GiB"; without it, 4 GiB or half of the host's memory. `rate` is what a node's
    network card carries, in bytes a second; without it the system is asked. What is not given is taken from the
    variables `HOPLITE_RAY_ARRAYS`, `_THRESHOLD`, `_MEMORY` and `_RATE`.

    In a job where hoplite runs, this process joins it, and the arguments are ignored. If Ray is connected already, it
    is used as it is: see `attach`.

    Raises `InvalidRequestError` for what cannot be meant, and `ClosedError` if hoplite cannot be started.
    """
    wanted = settings(arrays, threshold, memory, rate)
    if ray.is_initialized():
        if ray_init:
            given = ", ".join(ray_init)
            raise invalid(f"Ray is connected already, and cannot be given {given}", "call hoplite_ucx.ray.attach()")
    else:
        address = str(ray_init.get("address") or os.environ.get("RAY_ADDRESS", ""))
        ray_init["runtime_env"] = setup.with_setup(
            ray_init.get("runtime_env"), wanted.arrays, wanted.threshold, client=address.startswith("ray://")
        )
        ray.init(**ray_init)
    _start(wanted)


def attach(
    *,
    arrays: bool | None = None,
    threshold: int | str | None = None,
    memory: int | str | None = None,
    rate: float | None = None,
) -> None:
    """Start hoplite in a job whose program called `ray.init` itself, or join it where it runs. The arguments are those
    of `init`.

    Workers send arrays through hoplite from the start if `ray.init` was given
    `runtime_env={"worker_process_setup_hook": "hoplite_ucx.ray.setup.setup"}`, and else after they have received one.
    Raises what `init` raises, and `ClosedError` before `ray.init`.
    """
    wanted = settings(arrays, threshold, memory, rate)
    if not ray.is_initialized():
        raise closed("Ray is not initialised", "call ray.init() first, or hoplite_ucx.ray.init() instead")
    _start(wanted)


def settings(
    arrays: bool | None = None,
    threshold: int | str | None = None,
    memory: int | str | None = None,
    rate: float | None = None,
) -> Settings:
    """As they were given, or as the environment has them. Raises `InvalidRequestError`."""
    if arrays is None:
        arrays = os.environ.get(setup.ARRAYS, "1") != "0"
    least = check_memory(threshold if threshold is not None else os.environ.get(setup.THRESHOLD) or THRESHOLD)
    assert least is not None
    limit = check_memory(memory if memory is not None else os.environ.get(setup.MEMORY) or None)
    try:
        carries = float(rate if rate is not None else os.environ.get(setup.RATE) or 0) or None
    except (TypeError, ValueError):
        carries = -1.0
    if carries is not None and not carries > 0:
        raise invalid(f"a rate is a number of bytes a second, not {rate!r}", "correct it, or leave it out")
    return Settings(arrays, least, limit, carries)


def shutdown() -> None:
    """End hoplite in this job, if this process started it. Ray goes on, and arrays travel by plain Ray. Harmless if it
    does not run."""
    if client.is_connected():
        client.shutdown()
    else:
        owners.shutdown()


def runtime_env_hook(runtime_env: Any) -> dict[str, Any]:
    """For programs that are not changed at all: Ray calls it in the driver's `ray.init()` if the variable
    `RAY_RUNTIME_ENV_HOOK` names it, and hoplite starts when that has connected."""
    wanted = settings()
    if attach not in ray._private.worker._post_init_hooks:
        ray._private.worker._post_init_hooks.append(attach)
    return setup.with_setup(runtime_env, wanted.arrays, wanted.threshold)


def _start(wanted: Settings) -> None:
    _check_ray()
    if client.is_connected():
        client.start(wanted)
    else:
        owners.start(wanted)


def _check_ray() -> None:
    version = tuple(int(part) for part in ray.__version__.split(".")[:2])
    if version < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise closed(f"Ray {ray.__version__} does not tell when an object ends", f"install Ray {oldest} or newer")
