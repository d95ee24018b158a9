"""Collectives for task-based Python programs: put an object once, get it anywhere, reduce the objects that are ready.

`public` lists the public names. `protocol` makes all decisions, `runtime` and `simulate` carry them out on real and on
virtual networks, `transports` moves bytes over one link, `gpu` handles device memory, `cli` is the `hoplite` command
and `bench` measures.

The public names are loaded when one of them is first used, because they import the runtime and NumPy. So the `hoplite`
command can handle signals before anything large loads, and each part of the package loads only what it needs.
"""

TYPE_CHECKING = False  # as typing has it, which takes longer to load than this module

if TYPE_CHECKING:
    from hoplite_ucx.public import *  # noqa: F403
else:

    def __getattr__(name: str) -> object:
        if name == "__all__" or not name.startswith("__"):  # Python and its tools ask every module for such names
            from importlib import import_module

            public = import_module("hoplite_ucx.public")
            # Python also asks for parts of the package that are about to be imported, and does so while `public` loads.
            if hasattr(public, "__all__"):
                globals().update({each: getattr(public, each) for each in ("__all__", *public.__all__)})
            if name in globals():
                return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})


__version__ = "0.1.0"
