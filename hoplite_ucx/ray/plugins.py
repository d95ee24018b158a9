"""Our plug-ins for Ray: the direct transport and the collective backend. Each is registered in a process when that
process loads what it plugs into, and not before."""

from hoplite_ucx.ray.on_import import when_loaded


def register() -> None:
    """In this process. Harmless if repeated."""
    when_loaded("torch", _direct_transport)
    when_loaded("ray.util.collective.collective", _collective_backend)


def _direct_transport() -> None:
    from hoplite_ucx.ray.direct_transport import register

    register()


def _collective_backend() -> None:
    from hoplite_ucx.ray.collective import register

    register()
