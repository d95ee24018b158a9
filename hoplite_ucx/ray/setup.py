"""What is set up in the processes of a job, and what a job may be told through the environment.

Every worker process runs `setup` before its first task: it registers how arrays are serialised, and our plug-ins, and
no more. A worker joins hoplite when it meets its first large array. It must not do so here: the agent actor of a new
node is itself a worker process, and would wait for itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

THRESHOLD = "HOPLITE_RAY_THRESHOLD"
MEMORY = "HOPLITE_RAY_MEMORY"
RATE = "HOPLITE_RAY_RATE"
ARRAYS = "HOPLITE_RAY_ARRAYS"
_NEXT = "HOPLITE_RAY_NEXT_SETUP_HOOK"
"""The program's own hook, which runs after ours."""
_HOOK = "worker_process_setup_hook"
_OURS = "hoplite_ucx.ray.setup.setup"


def setup() -> None:
    """Ray calls it by its name, as the job's `worker_process_setup_hook`."""
    from hoplite_ucx.ray import plugins
    from hoplite_ucx.ray.terms import THRESHOLD as USUAL

    plugins.register()
    if os.environ.get(ARRAYS, "1") != "0":
        from hoplite_ucx.ray import values

        values.register(int(os.environ.get(THRESHOLD, USUAL)))
    if following := os.environ.get(_NEXT):
        from ray._common.utils import load_class

        load_class(following)()


def with_setup(runtime_env: Any, arrays: bool, threshold: int, *, client: bool = False) -> dict[str, Any]:
    """A job's `runtime_env` in which workers run `setup`, and then the hook that the program itself has.

    For a program of Ray Client, Ray leaves the hook out, be it ours or the program's. Workers find it in a variable of
    theirs in any case: there it is for these.
    """
    environment = dict(runtime_env or {})
    variables = {THRESHOLD: str(threshold), ARRAYS: "1" if arrays else "0"}
    own = environment.get(_HOOK)
    if isinstance(own, str) and own != _OURS:
        variables[_NEXT] = own
    if client:
        from ray._private.ray_constants import WORKER_PROCESS_SETUP_HOOK_ENV_VAR

        variables[WORKER_PROCESS_SETUP_HOOK_ENV_VAR] = _OURS
        environment.pop(_HOOK, None)
    else:
        environment[_HOOK] = _both(own) if callable(own) else _OURS
    environment["env_vars"] = {**environment.get("env_vars", {}), **variables}
    return environment


def _both(own: Callable[[], Any]) -> Callable[[], None]:
    def set_up() -> None:
        setup()
        own()

    return set_up
