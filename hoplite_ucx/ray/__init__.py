"""Ray programs broadcast and reduce through hoplite: after `init()` in the driver, large arrays in plain `ray.put`,
arguments and returns travel through hoplite's trees.

Who is who. The *owner* is the process that called `init`, as a rule the driver: it runs the directory and owns all
else, so that everything ends with it (`owner`). The *head* is an actor through which workers reach the owner (`head`).
An *agent actor* runs on each Ray node that uses hoplite, with the node's agent (`node_agent`). A *session* is a
process's part in it (`session`). `values` puts arrays into the store where Ray pickles them, and gets them where Ray
unpickles them.

Ray is loaded when one of these names is first used.
"""

TYPE_CHECKING = False

__all__ = ["Reduction", "Weights", "allreduce", "attach", "get", "init", "put", "reduce", "shutdown", "status"]

if TYPE_CHECKING:
    from hoplite_ucx.ray.calls import Reduction, allreduce, get, put, reduce, status
    from hoplite_ucx.ray.launch import attach, init, shutdown
    from hoplite_ucx.ray.weights import Weights
else:
    _HOMES = {
        "Reduction": "calls",
        "Weights": "weights",
        "allreduce": "calls",
        "attach": "launch",
        "get": "calls",
        "init": "launch",
        "put": "calls",
        "reduce": "calls",
        "shutdown": "launch",
        "status": "calls",
    }

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
