"""Dask programs broadcast and reduce through hoplite: `install(client)` once, then `broadcast`, `reduce`, `allreduce`,
and `share` inside tasks. Tasks receive plain arrays, frames and models; lifetime and recomputation stay Dask's.

The parts: `client_calls` is what users call, `handles` is what they get, `anchors` are the small tasks that Dask sees,
`scheduler_plugin` runs the directory and deletes what Dask forgot, `worker_plugin` gives every worker its host's agent,
`leases` is a process's hold on that agent, and `keeper` the process that owns it.

Dask is loaded when one of these names is first used: the keeper is a module of this package and must do without it.
"""

TYPE_CHECKING = False

__all__ = ["Shared", "SharedResult", "allreduce", "broadcast", "install", "reduce", "share", "value_of"]

if TYPE_CHECKING:
    from hoplite_ucx.dask.client_calls import allreduce, broadcast, install, reduce, value_of
    from hoplite_ucx.dask.handles import Shared, SharedResult
    from hoplite_ucx.dask.worker_plugin import share
else:
    _HOMES = {
        "Shared": "handles",
        "SharedResult": "handles",
        "allreduce": "client_calls",
        "broadcast": "client_calls",
        "install": "client_calls",
        "reduce": "client_calls",
        "share": "worker_plugin",
        "value_of": "client_calls",
    }

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
